"""/metrics: the engine's counters as they are at the scrape, and the latencies that clients saw.

Nothing is ever NaN: what is not known yet is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import declared

if TYPE_CHECKING:
    from glmserve.engine.ranks import RankStatus
    from glmserve.engine.request import Output

    from .app import Serving

router = APIRouter(tags=["operation"])

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics:
    """The metrics of one server."""

    def __init__(self, serving: Serving) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(serving))
        self.responses = Counter(
            "glmserve_http_responses", "Answers by route and status.", ["route", "status"], registry=self.registry
        )
        self.unknown_parameters = Counter(
            "glmserve_unknown_parameters", "Request fields that were ignored as unknown.", registry=self.registry
        )
        self.disconnects = Counter(
            "glmserve_disconnects", "Requests whose client left before the end.", registry=self.registry
        )
        self.first_token = Histogram(
            "glmserve_time_to_first_token_seconds",
            "From the request to its first token.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.between_tokens = Histogram(
            "glmserve_inter_token_latency_seconds",
            "Between tokens of a sequence; tokens of one step share its time.",
            buckets=TOKEN_SECONDS,
            registry=self.registry,
        )
        self.whole = Histogram(
            "glmserve_e2e_request_latency_seconds",
            "From the request to its last token.",
            buckets=SECONDS,
            registry=self.registry,
        )


class SequenceTimer:
    """The latencies of one sequence."""

    def __init__(self, metrics: Metrics, started: float) -> None:
        """`started`: time.monotonic() when the request arrived."""
        self._metrics = metrics
        self._started = started
        self._last: float | None = None

    def saw(self, output: Output) -> None:
        now = time.monotonic()
        count = len(output.token_ids)
        if count and self._last is None:
            self._metrics.first_token.observe(now - self._started)
        elif count and self._last is not None:
            for _ in range(count):
                self._metrics.between_tokens.observe((now - self._last) / count)
        if count:
            self._last = now
        if output.finish_reason in ("stop", "length"):
            self._metrics.whole.observe(now - self._started)


class _EngineCollector(Collector):
    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("glmserve_ready", "1 when requests are admitted.", float(self._serving.is_ready()))
        if self._serving.engine is None:
            return
        status = self._serving.engine.status()
        gauges: dict[str, tuple[str, float | None]] = {
            "requests_running": ("Sequences that are running.", status.running),
            "requests_waiting": ("Sequences that wait.", status.waiting),
            "kv_pages": ("Pages of the pool.", status.pages_total),
            "kv_pages_free": ("Pages that are free.", status.pages_free),
            "seconds_since_step": ("Since the engine's loop last came round.", status.seconds_since_step),
            "seconds_since_token": ("Since a request last got a token.", status.seconds_since_token),
            "exact": ("1 when tokens never depend on batching or drafting.", float(status.exact)),
            "max_context_tokens": ("The context window.", status.max_context),
        }
        for name, (text, value) in gauges.items():
            if value is not None and math.isfinite(value):
                yield GaugeMetricFamily(f"glmserve_{name}", text, float(value))
        counters = {
            "steps": ("Steps of the engine.", status.steps),
            "prompt_tokens": ("Prompt tokens, cached ones included.", status.prompt_tokens),
            "generated_tokens": ("Tokens generated.", status.generated_tokens),
            "cached_tokens": ("Prompt tokens that the prefix cache had.", status.cached_tokens),
            "drafted_tokens": ("Tokens that the drafter proposed.", status.drafted_tokens),
            "accepted_tokens": ("Proposed tokens that were right.", status.accepted_tokens),
            "preemptions": ("Sequences set back to make room.", status.preemptions),
        }
        for name, (text, count) in counters.items():
            yield CounterMetricFamily(f"glmserve_{name}", text, float(count))
        finished = CounterMetricFamily(
            "glmserve_requests_finished", "Sequences that ended, by reason.", labels=["reason"]
        )
        for reason, count in status.finished.items():
            finished.add_metric([reason], float(count))
        yield finished
        yield from _of_ranks(status.ranks)


def _of_ranks(ranks: Sequence[RankStatus]) -> Iterator[Metric]:
    steps = CounterMetricFamily("glmserve_rank_steps", "Steps that a rank has done.", labels=["rank"])
    exchanges = CounterMetricFamily("glmserve_rank_exchanges", "Collectives that it took part in.", labels=["rank"])
    memory = GaugeMetricFamily("glmserve_rank_memory_bytes", "Its resident memory.", labels=["rank"])
    since = GaugeMetricFamily("glmserve_rank_report_age_seconds", "Since rank 0 heard from it.", labels=["rank"])
    for rank in ranks:
        name = [str(rank.rank)]
        steps.add_metric(name, float(rank.steps))
        exchanges.add_metric(name, float(rank.exchanges))
        memory.add_metric(name, float(rank.memory_bytes))
        since.add_metric(name, rank.seconds_since_report)
    yield from (steps, exchanges, memory, since)


class CountingMiddleware:
    """Counts answers by route and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The path of the route, not of the request: clients must not be able to make labels.
                route = getattr(scope.get("route"), "path", "none")
                self._metrics.responses.labels(route, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


@router.get("/metrics", responses={**declared(401, 503), 200: {"content": {"text/plain": {}}}}, response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters, gauges and latencies in Prometheus' text format."""
    return Response(generate_latest(request.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)

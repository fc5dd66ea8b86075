"""A server on a real socket around an engine without a model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from glmserve.server.app import ServerSettings, Serving, create_app
from glmserve.server.run import bind
from glmserve.store.tokenizer import TokenizerBundle

from .fake_engine import FakeEngine, bundle

HELLO = {"messages": [{"role": "user", "content": "hi"}]}


class Live:
    """A running server and a client to it."""

    def __init__(
        self,
        engine: FakeEngine | None,
        settings: ServerSettings,
        keys: tuple[bytes, ...],
        name: str,
        tokenizer: TokenizerBundle | None = None,
    ) -> None:
        self.engine = engine
        self.serving = Serving(settings)
        if engine is not None:
            self.serving.open(engine, tokenizer or bundle(), name)  # type: ignore[arg-type]
        self.app = create_app(self.serving, keys)
        listener = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(self.app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()
        self.client = httpx.Client(base_url=self.url, timeout=20)

    def chat(self, **body: Any) -> httpx.Response:
        return self.client.post("/v1/chat/completions", json=HELLO | body)

    def complete(self, **body: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"prompt": "hi"} | body)

    def stream(self, route: str = "/v1/chat/completions", **body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream; it must end in one [DONE]."""
        start = HELLO if "chat" in route else {"prompt": "hi"}
        response = self.client.post(route, json=start | body | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [event for event in response.text.split("\n\n") if event and not event.startswith(":")]
        assert events.pop() == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def close(self) -> None:
        self.client.close()
        if self.engine is not None:
            self.engine.stop()
        self._server.should_exit = True
        self._thread.join()


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of a refusal."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"].endswith(".")
    return body["error"]


def eventually(condition: Callable[[], bool], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def start() -> Iterator[Callable[..., Live]]:
    """start(engine=..., keys=..., tokenizer=..., **settings) -> Live"""
    running: list[Live] = []

    def begin(
        engine: FakeEngine | None = None,
        keys: tuple[bytes, ...] = (),
        name: str = "org/fake",
        loading: bool = False,
        tokenizer: TokenizerBundle | None = None,
        **settings: Any,
    ) -> Live:
        live = Live(None if loading else engine or FakeEngine(), ServerSettings(**settings), keys, name, tokenizer)
        running.append(live)
        return live

    yield begin
    for live in running:
        live.close()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A server shared by the tests of a module that change nothing in it."""
    live = Live(FakeEngine(), ServerSettings(max_body_bytes=65536), (), "org/fake")
    yield live
    live.close()

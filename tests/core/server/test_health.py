import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .conftest import HELLO, error
from .fake_engine import FakeEngine, bundle


def test_while_loading_only_livez_answers(start):
    live = start(loading=True)
    assert live.client.get("/livez").json() == {"status": "ok"}
    for method, path in (
        ("GET", "/readyz"),
        ("GET", "/health"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("POST", "/v1/chat/completions"),
    ):
        response = live.client.request(method, path)
        assert error(response, 503)["code"] == "unavailable"
        assert int(response.headers["retry-after"]) > 0
    live.engine = FakeEngine()
    live.serving.open(live.engine, bundle(), "late")
    assert live.client.get("/readyz").json() == {"status": "ok"}
    assert live.chat().json()["model"] == "late"


def test_a_stuck_engine_is_alive_but_not_ready(start):
    live = start(stuck_s=5)
    assert live.client.get("/health").status_code == 200
    live.engine.seconds_since_step = 6
    assert "no step for 6 seconds" in error(live.client.get("/readyz"), 503)["message"]
    assert live.client.get("/livez").status_code == 200
    live.engine.seconds_since_step = 0
    assert live.client.get("/readyz").status_code == 200


def test_a_failed_engine_needs_a_restart(start):
    live = start()
    live.engine.state = "failed"
    assert "Restart" in error(live.client.get("/livez"), 503)["message"]
    assert "it broke" in error(live.client.get("/readyz"), 503)["message"]
    error(live.chat(), 503)


def test_draining_refuses_and_closes(start):
    live = start()
    live.serving.draining = True
    response = live.chat()
    error(response, 503)
    assert response.headers["connection"] == "close"
    error(live.client.get("/readyz"), 503)
    for path in ("/livez", "/version", "/metrics"):
        assert live.client.get(path).status_code == 200


@pytest.mark.parametrize("used", [False, True])
def test_metrics_are_finite_and_labelled_by_route(start, used):
    live = start()
    if used:
        live.chat()
        live.stream()
        live.client.get("/surprise/" + "x" * 50)
    families = {family.name: family for family in text_string_to_metric_families(live.client.get("/metrics").text)}
    samples = [sample for family in families.values() for sample in family.samples]
    assert all(math.isfinite(sample.value) or sample.labels.get("le") == "+Inf" for sample in samples)
    assert all(sample.name.startswith("glmserve_") for sample in samples)
    assert "surprise" not in str(samples)
    assert "glmserve_seconds_since_token" not in families
    ages = families["glmserve_rank_report_age_seconds"].samples
    assert [(sample.labels["rank"], sample.value) for sample in ages] == [("0", 0.0), ("1", 0.25)]
    if used:
        counts = {sample.name: sample.value for sample in samples}
        assert counts["glmserve_time_to_first_token_seconds_count"] == 2
        assert counts["glmserve_inter_token_latency_seconds_count"] == 10
        assert counts["glmserve_e2e_request_latency_seconds_count"] == 2
        routes = {
            (sample.labels["route"], sample.labels["status"]) for sample in families["glmserve_http_responses"].samples
        }
        assert {("/v1/chat/completions", "200"), ("none", "404")} <= routes


def test_metrics_count_model_routes_by_their_template(start):
    live = start()
    live.client.get("/v1/models/a/b/c")
    assert 'route="/v1/models/{id:path}",status="404"' in live.client.get("/metrics").text
    assert live.client.post("/v1/chat/completions", json=HELLO).status_code == 200

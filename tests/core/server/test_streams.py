"""Time and trouble: silence, failures, clients that leave, queues that are full."""

import socket
import time

import httpx
import pytest

from .conftest import HELLO, error, eventually
from .fake_engine import FakeEngine


def test_comments_flow_while_the_engine_is_stuck(start):
    engine = FakeEngine()
    engine.go.clear()
    live = start(engine, keep_alive_s=0.1)
    with live.client.stream("POST", "/v1/chat/completions", json=HELLO | {"stream": True}) as response:
        lines = response.iter_lines()
        assert '"role":"assistant"' in next(lines)
        began = time.monotonic()
        comments = 0
        while comments < 4:
            comments += next(lines) == ": keep-alive"
        assert 0.3 < time.monotonic() - began < 3
        engine.go.set()
        assert "data: [DONE]" in list(lines)


def test_a_failure_before_the_first_byte_is_a_status(start):
    engine = FakeEngine()
    engine.fail_after = 0
    live = start(engine)
    refusal = error(live.chat(), 500)
    assert (refusal["type"], refusal["code"]) == ("server_error", "model_error")
    assert "arithmetic" not in refusal["message"]


def test_a_failure_after_the_first_byte_is_an_event_and_the_end(start):
    engine = FakeEngine()
    engine.fail_after = 3
    live = start(engine)
    chunks = live.stream(n=2)
    assert chunks[-1]["error"]["code"] == "model_error"
    assert all("choices" in chunk for chunk in chunks[:-1])
    assert live.engine.finished["error"] >= 1
    eventually(engine.idle)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_sequences(start, stream):
    engine = FakeEngine("x" * 400, delay=0.01)
    live = start(engine)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            live.url + "/v1/chat/completions",
            json=HELLO | {"stream": stream, "n": 4},
            timeout=httpx.Timeout(5, read=0.3 if not stream else 0.005),
        )
    # An engine is idle too before a busy server has submitted anything, so the count comes first.
    eventually(lambda: engine.finished["abort"] == 4, 1.5)
    assert engine.idle()
    engine.delay = 0
    assert live.chat(max_tokens=1).status_code == 200
    eventually(lambda: "glmserve_disconnects_total 1.0" in live.client.get("/metrics").text)


def test_a_client_that_leaves_while_nothing_is_sent(start):
    engine = FakeEngine()
    engine.go.clear()
    live = start(engine, keep_alive_s=0)
    host, port = live.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    body = b'{"prompt":"x","stream":true}'
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    eventually(lambda: not engine.idle())
    connection.close()
    eventually(engine.idle, 1.5)


def test_a_full_queue_is_429_and_admits_nothing_of_the_request(start):
    engine = FakeEngine(max_queue=3)
    engine.go.clear()
    live = start(engine)
    response = live.chat(n=4)
    assert error(response, 429)["code"] == "queue_full"
    assert int(response.headers["retry-after"]) >= 1
    eventually(engine.idle)
    engine.go.set()
    assert live.chat(n=3).status_code == 200


def test_streams_of_every_length_end_in_one_done(start):
    live = start(FakeEngine("abcdefg", step=2))
    for length in range(1, 60):
        chunks = live.stream(max_tokens=length, ignore_eos=True)
        text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
        assert len(text) == length - length // 8

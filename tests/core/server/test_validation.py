"""Bad input: the right status, one sentence that names the field, and a server that still serves."""

import json
import socket

import pytest
from glmserve.server.openai.types import CHAT_ONLY, UNSUPPORTED, ChatRequest, CompletionRequest

from .conftest import HELLO, error

WRONG = ["text", "", -1.5, True, -(10**40), 10**40, [], [None], [[]], {}, {"a": []}, 1e308]
CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
ROUTES = {"/v1/chat/completions": (ChatRequest, HELLO), "/v1/completions": (CompletionRequest, {"prompt": "hi"})}


@pytest.mark.parametrize("route", ROUTES)
def test_wrong_types_for_every_field(live, route):
    model, start = ROUTES[route]
    for field in model.model_fields:
        refused = 0
        for value in WRONG:
            response = live.client.post(route, json=start | {field: value, "max_tokens": 1} | {field: value})
            assert response.status_code in (200, 400, 404), (field, value, response.text)
            if response.status_code == 400:
                refused += 1
                found = error(response, 400)
                if found["code"] != "context_length_exceeded":
                    assert found["param"].partition("[")[0].partition(".")[0] == field, (field, value, found)
        assert refused >= 3, field
    assert live.client.post(route, json=start).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 1e-308}, "repetition_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": "x" * 513}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": [257]}, "stop_token_ids"),
        ({"logit_bias": {"257": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"min_tokens": 600}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": CALLS}]}, "messages[0].tool_calls"),
    ],
)
def test_ranges(live, body, param):
    assert error(live.chat(**body), 400)["param"] == param


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_known_but_unsupported_is_refused_by_name(live, name):
    refusal = error(live.chat(**{name: {"ask": "much"}}), 400)
    assert (refusal["param"], refusal["code"]) == (name, "unsupported_parameter")
    for harmless in (None, *UNSUPPORTED[name]):
        assert live.chat(**{name: harmless}).status_code == 200


@pytest.mark.parametrize("name", CHAT_ONLY)
def test_completions_refuse_the_fields_of_chat_by_name(live, name):
    refusal = error(live.complete(**{name: {"ask": "much"}}), 400)
    assert (refusal["param"], refusal["code"]) == (name, "unsupported_parameter")
    for harmless in (None, *CHAT_ONLY[name]):
        assert live.complete(**{name: harmless}).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "reasoning_effort"),
    ],
)
def test_a_model_without_tools_and_thinking_says_so_by_name(live, body, param):
    refusal = error(live.chat(**body), 400)
    assert (refusal["param"], refusal["code"]) == (param, "unsupported_parameter")
    harmless = {"tools": [], "tool_choice": "auto", "reasoning_effort": "none", "chat_template_kwargs": {}}
    assert live.chat(**harmless, parallel_tool_calls=False).status_code == 200


def test_unknown_is_ignored_and_counted(live):
    def count():
        lines = live.client.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("glmserve_unknown_parameters_total"))

    before = count()
    assert live.chat(surprise=1, another={"deep": []}).status_code == 200
    assert count() == before + 2


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"\\udc00": 1, "messages": []}',
        b'{"temperature": NaN}',
        b'{"temperature": -Infinity}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[" * 60000,
        b'{"a":' * 10000 + b"1" + b"}" * 10000,
    ],
)
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_broken_bodies(live, route, body):
    error(live.client.post(route, content=body, headers={"content-type": "application/json"}), 400)
    assert live.chat().status_code == 200


def test_a_number_beyond_floats(live):
    body = b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}'
    headers = {"content-type": "application/json"}
    assert error(live.client.post("/v1/chat/completions", content=body, headers=headers), 400)["param"] == "temperature"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_other_content_types_are_refused(live, kind):
    headers = {"content-type": kind} if kind else {}
    refusal = error(live.client.post("/v1/chat/completions", content=json.dumps(HELLO), headers=headers), 415)
    assert refusal["code"] == "not_json"


def test_a_large_body_is_413_with_and_without_its_length(live):
    limit = live.serving.settings.max_body_bytes
    for size in (limit + 1, 2_000_000):
        body = json.dumps({"prompt": "x" * size}).encode()
        assert error(live.client.post("/v1/completions", content=body), 413)["code"] == "body_too_large"
        chunks = (body[i : i + 65536] for i in range(0, len(body), 65536))
        error(live.client.post("/v1/completions", content=chunks), 413)
    assert live.chat().status_code == 200


def test_a_huge_announced_body_is_refused_unread(live):
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_routes_that_are_not_there(live):
    assert error(live.client.get("/v2/none"), 404)["code"] == "not_found"
    assert error(live.client.get("/v1/chat/completions"), 405)["code"] == "method_not_allowed"


def test_the_description_is_truthful(live):
    schema = live.client.get("/openapi.json").json()
    operations = {
        (method, path): operation for path, item in schema["paths"].items() for method, operation in item.items()
    }
    assert all("422" not in operation["responses"] for operation in operations.values())
    generate = operations["post", "/v1/chat/completions"]["responses"]
    assert set(generate) == {"200", "400", "401", "404", "413", "415", "429", "500", "503"}
    assert set(generate["200"]["content"]) == {"application/json", "text/event-stream"}
    assert "HTTPValidationError" not in schema["components"]["schemas"]

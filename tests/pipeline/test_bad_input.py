"""Whatever is sent, given or done to it: one clear sentence, the right status or exit code, and it goes on serving."""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from glmserve.profiles import load_profile
from glmserve.store.pull import pull
from glmserve.store.sources import parse_source

from .conftest import Server, assert_refusal, refused, refused_here

ASK: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "temperature": 0}
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": ASK,
    "/v1/completions": {"prompt": "hi", "max_tokens": 2, "temperature": 0},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5]},
}
SAMPLES: dict[str, tuple[Any, ...]] = {
    "string": ("text", "5", "true"),
    "number": (0.5,),
    "integer": (3,),
    "boolean": (True, False),
    "array": ([], [None], [[[]]]),
    "object": ({}, {"a": {"b": []}}),
}
HUGE = (10**40, -(10**40), 2**63, -(2**63) - 1, 1e308, -1e308)
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def fields(http: httpx.Client) -> dict[str, dict[str, set[str]]]:
    """Route -> field -> the JSON types that the server's own description allows, for every route with a body."""
    description = http.get("/openapi.json").json()
    found: dict[str, dict[str, set[str]]] = {}
    for path, item in description["paths"].items():
        if "post" in item:
            schema = item["post"]["requestBody"]["content"]["application/json"]["schema"]
            properties = resolve(description, schema)["properties"]
            found[path] = {name: types_of(description, sub) for name, sub in properties.items()}
    assert set(found) == set(GOOD)
    return found


def resolve(description: Any, schema: Any) -> Any:
    while "$ref" in schema:
        schema = description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def types_of(description: Any, schema: Any) -> set[str]:
    schema = resolve(description, schema)
    if "anyOf" in schema:
        return set().union(*(types_of(description, branch) for branch in schema["anyOf"]))
    return {schema["type"]}


@pytest.fixture
def still_serves(http: httpx.Client) -> Iterator[None]:
    """After the test a good request gets the answer it always gets."""
    yield
    replies = [http.post("/v1/chat/completions", json=ASK) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].json()["choices"] == replies[1].json()["choices"]


@pytest.mark.usefixtures("still_serves")
@pytest.mark.parametrize("route", GOOD)
def test_every_field_refuses_every_other_type(http: httpx.Client, fields: Any, route: str) -> None:
    assert http.post(route, json=GOOD[route]).status_code == 200
    for name, allowed in fields[route].items():
        for kind, values in SAMPLES.items():
            if kind in allowed or (kind == "integer" and "number" in allowed):
                continue
            for value in values:
                response = http.post(route, json=GOOD[route] | {name: value})
                error = assert_refusal(response)
                assert response.status_code == 400, (name, value, error)
                assert str(error["param"]).partition("[")[0].partition(".")[0] == name, (value, error)


@pytest.mark.usefixtures("still_serves")
@pytest.mark.parametrize("route", GOOD)
def test_huge_numbers_in_every_field(http: httpx.Client, fields: Any, route: str) -> None:
    """Refused, or harmless because the field has no upper end, as top_k."""
    for name in fields[route]:
        for value in (*HUGE, [10**40], {"1": 10**40}):
            response = http.post(route, json=GOOD[route] | {name: value})
            if response.status_code != 200:
                assert_refusal(response)


@pytest.mark.usefixtures("still_serves")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"prompt": "hi"',
        b"null",
        b"[1]",
        b"'single'",
        b"\xff\xfe\x00",
        b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}], "tokens": ["\\udfff"]}',
        b'{"prompt": "a\\udc00b"}',
        b'{"temperature": NaN, "prompt": "x"}',
        b'{"temperature": Infinity, "prompt": "x"}',
        b'{"seed": ' + b"7" * 10_000 + b"}",
        b"[" * 100_000,
        b'{"metadata":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"prompt": ' + b"[" * 500 + b"1" + b"]" * 500 + b"}",
        b'{"prompt": "hi"} trailing',
        b"\x00" * 64,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_broken_json(http: httpx.Client, body: bytes) -> None:
    for route in GOOD:
        response = http.post(route, content=body, headers=JSON)
        assert_refusal(response)
        assert response.status_code == 400


@pytest.mark.usefixtures("still_serves")
@pytest.mark.parametrize("key", ["49152", "999999999999", "-1", "1.5", "", " 1", "x", "1" * 5000, "٣"])
def test_bias_outside_the_vocabulary(http: httpx.Client, key: str) -> None:
    error = assert_refusal(http.post("/v1/chat/completions", json=ASK | {"logit_bias": {key: 1}}))
    assert error["param"] == "logit_bias"


@pytest.mark.usefixtures("still_serves")
@pytest.mark.parametrize("tokens", [[49152], [-1], [10**18], [1, 2, 10**40]])
def test_token_ids_outside_the_vocabulary(http: httpx.Client, tokens: list[int]) -> None:
    assert_refusal(http.post("/v1/completions", json={"prompt": tokens, "max_tokens": 1}))
    assert_refusal(http.post("/detokenize", json={"tokens": tokens}))
    assert_refusal(http.post("/v1/chat/completions", json=ASK | {"stop_token_ids": tokens}))


@pytest.mark.usefixtures("still_serves")
@pytest.mark.parametrize("route", GOOD)
def test_two_megabytes_are_too_large(http: httpx.Client, route: str) -> None:
    body = json.dumps(GOOD[route] | {"prompt": "word " * 400_000}).encode()
    response = http.post(route, content=body, headers=JSON)
    assert response.status_code == 413
    assert_refusal(response)


@pytest.mark.usefixtures("still_serves")
def test_a_prompt_beyond_the_context_names_the_numbers(http: httpx.Client) -> None:
    response = http.post("/v1/completions", json={"prompt": "word " * 100_000, "max_tokens": 1})
    error = assert_refusal(response)
    assert error["code"] == "context_length_exceeded"
    assert "8192" in error["message"]


@pytest.mark.usefixtures("still_serves")
def test_what_is_not_http(server: Server) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    wild = [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ]
    wild += [b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", os.urandom(4096), b"\r\n" * 1000]
    for data in wild:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(4096)
            except TimeoutError:
                raise
            except OSError:  # hung up on, at whatever moment
                continue
            assert not answer or answer.split()[1].startswith(b"4")


@pytest.mark.usefixtures("still_serves")
def test_a_client_that_is_killed_in_mid_stream_leaves_nothing(server: Server) -> None:
    script = (
        "import httpx, sys\n"
        f"body = {ASK | {'max_tokens': 4000, 'stream': True, 'ignore_eos': True}!r}\n"
        f"with httpx.stream('POST', {server.url + '/v1/chat/completions'!r}, json=body, timeout=60) as reply:\n"
        "    for part in reply.iter_bytes():\n"
        "        print('.', flush=True)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert client.stdout is not None
    for _ in range(3):
        assert client.stdout.readline()
    client.kill()
    client.communicate()
    server.assert_idle()


@pytest.fixture(scope="module")
def model_file() -> Path:
    model = load_profile("local", environ={}).model
    return pull(parse_source(model.source), model.sha256)


def _overwrite(at: int, data: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    return damage


def _truncate(keep: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(keep) if keep > 1 else int(path.stat().st_size * keep))


CUT = _truncate(0.5)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_truncate(0), id="empty"),
        pytest.param(_truncate(10), id="cut in the header"),
        pytest.param(_truncate(5000), id="cut in the metadata"),
        pytest.param(CUT, id="cut in the tensors"),
        pytest.param(_truncate(0.9999), id="cut at the very end"),
        pytest.param(_overwrite(0, b"GGML"), id="another magic"),
        pytest.param(_overwrite(4, struct.pack("<I", 99)), id="another version"),
        pytest.param(_overwrite(8, struct.pack("<Q", 2**60)), id="too many tensors"),
        pytest.param(_overwrite(16, struct.pack("<Q", 2**60)), id="too many keys"),
        pytest.param(_overwrite(24, struct.pack("<Q", 2**50)), id="an endless key"),
        pytest.param(_overwrite(24, random.Random(2).randbytes(4000)), id="noise for metadata"),
    ],
)
def test_a_damaged_model_is_refused(model_file: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    copy = tmp_path / "model.gguf"
    shutil.copyfile(model_file, copy)
    damage(copy)
    run = refused if damage is CUT else refused_here
    code, sentence = run("--set", f"model.source=path:{copy}", "--set", "model.sha256=")
    copy.unlink()
    assert code in (2, 3), sentence
    assert str(copy) in sentence


def test_a_changed_weight_is_caught_by_the_digest(model_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.gguf"
    shutil.copyfile(model_file, copy)
    _overwrite(copy.stat().st_size - 1000, b"\x00\xff")(copy)
    code, sentence = refused_here("--set", f"model.source=path:{copy}")
    copy.unlink()
    assert code == 3
    assert "sha256" in sentence


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    code, sentence = refused_here("--set", f"model.source=path:{tmp_path / 'none.gguf'}")
    assert code == 3
    assert "does not exist" in sentence


def test_a_profile_with_a_typo_names_the_line_and_the_right_word(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text('[model]\nsource = "path:x"\nserved_name = "x"\n[engine]\nmax_contxt = 5\n')
    code, sentence = refused(profile=str(profile))
    assert code == 2
    assert "mine.toml:5" in sentence
    assert "max_context" in sentence


def test_a_port_in_use(server: Server) -> None:
    port = server.url.rpartition(":")[2]
    code, sentence = refused("--port", port)
    assert code == 1
    assert f"port {port} is in use" in sentence


def test_sigterm_in_mid_stream_lets_it_end_and_refuses_others(tmp_path: Path) -> None:
    server = Server(tmp_path).ready()
    texts: list[str] = []
    begun = threading.Event()

    def read() -> None:
        body = ASK | {"max_tokens": 60, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=60) as reply:
            for line in reply.iter_lines():
                texts.append(line)
                if len(texts) > 8:
                    begun.set()

    reading = threading.Thread(target=read)
    try:
        reading.start()
        assert begun.wait(30)
        server.popen.send_signal(signal.SIGTERM)
        statuses = set()
        while reading.is_alive():
            try:
                statuses.add(httpx.post(server.url + "/v1/chat/completions", json=ASK, timeout=30).status_code)
            except httpx.TransportError:
                break  # the stream has ended meanwhile, and the socket with it
            reading.join(0.1)
        reading.join(30)
        assert 503 in statuses
        assert statuses <= {200, 503}
        assert texts[-2:] == ["data: [DONE]", ""]
        assert '"finish_reason":"length"' in texts[-4]
        assert server.popen.wait(30) == 0
        assert "Traceback" not in server.err
    finally:
        server.end(signal.SIGKILL)

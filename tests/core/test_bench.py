"""`glmserve bench` against servers on a real socket: what it counts, and what it refuses to count."""

import json
import os
import socket
import sys
import threading

import pytest
from click.testing import CliRunner
from glmserve.bench.client import Sample, wave
from glmserve.bench.process import BenchError, server
from glmserve.bench.prompts import PROMPTS, prompt
from glmserve.bench.report import figures, medians, quantile
from glmserve.bench.run import measure_case
from glmserve.cli.bench import bench_command

from .server.conftest import start  # noqa: F401
from .server.fake_engine import FakeEngine


def roomy(**options):
    """The fake has a token a byte, so the long prompt needs room."""
    engine = FakeEngine(**options)
    engine.max_context = 1 << 14
    return engine


def bench(*args):
    return CliRunner().invoke(bench_command, args)


class Scripted:
    """A server that answers one request with exactly these bytes and hangs up."""

    def __init__(self, reply):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._answer, args=(reply,))
        self._thread.start()

    def _answer(self, reply):
        connection, _ = self._listener.accept()
        with connection:
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + reply)
            connection.shutdown(socket.SHUT_WR)
            # Closing with unread bytes would reset the connection, and the client could lose the reply.
            while connection.recv(65536):
                pass

    def close(self):
        self._thread.join()
        self._listener.close()


@pytest.fixture
def ask():
    """ask(events...) -> the sample of a server that streams these events, then what the last one says."""

    def ask(*events, max_tokens=2):
        scripted = Scripted(b"".join(b"data: " + event.encode() + b"\n\n" for event in events))
        (sample,) = wave(scripted.url, ["hi"], max_tokens)
        scripted.close()
        return sample

    return ask


TEXT = '{"choices":[{"index":0,"text":"a","finish_reason":null}]}'
END = '{"choices":[{"index":0,"text":"","finish_reason":"length"}]}'
USAGE = '{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'


def test_a_complete_stream_is_a_success(ask):
    sample = ask(TEXT, TEXT, END, USAGE, "[DONE]")
    assert sample.error is None
    assert (sample.prompt_tokens, sample.completion_tokens, len(sample.arrivals)) == (1, 2, 2)
    assert sample.sent < sample.arrivals[0] <= sample.arrivals[1] <= sample.ended


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([TEXT, '{"error":{"message":"It broke.","type":"server_error"}}', END, USAGE, "[DONE]"], "It broke."),
        ([TEXT, '{"error":"It broke."}', "[DONE]"], "It broke."),
        ([TEXT, TEXT, END, USAGE], "without [DONE]"),
        ([TEXT, TEXT, USAGE, "[DONE]"], "no finish reason"),
        ([END, USAGE, "[DONE]"], "no text"),
        ([TEXT, END, "[DONE]"], "2 tokens were asked for, 0 came"),
        (["{", "[DONE]"], "JSONDecodeError"),
        (["[]", "[DONE]"], "AttributeError"),
    ],
)
def test_an_error_frame_or_half_a_stream_is_a_failure(ask, events, error):
    assert error in str(ask(*events).error)


def test_a_refusal_and_a_dead_server_are_failures(start):  # noqa: F811
    (sample,) = wave(start().url, ["x" * 1000], 2)
    assert sample.error.startswith("HTTP status 400: ")
    (sample,) = wave("http://127.0.0.1:9", ["hi"], 2)
    assert "ConnectError" in sample.error


def test_requests_are_greedy_and_of_fixed_length_past_the_end_of_sequence(start):  # noqa: F811
    live = start(FakeEngine(reply="Hi"))
    case = measure_case(live.url, "short", 2, runs=2, output_tokens=9)
    assert case.failures == ()
    assert case.figures.accepted == 1 / 9
    measured = live.engine.requests[2:]
    assert len(measured) == 4
    assert all((r.sampling.temperature, r.ignore_eos, r.max_tokens) == (0, True, 9) for r in measured)
    prompts = [bytes(r.prompt).decode() for r in live.engine.requests]
    assert sorted(prompts) == sorted(prompt("short", copy) for copy in range(6))


def test_a_wave_with_a_failure_gives_no_figures(start):  # noqa: F811
    engine = FakeEngine()
    engine.fail_after = 6
    case = measure_case(start(engine).url, "short", 2, runs=2, output_tokens=9)
    assert case.figures is None
    assert len(case.failures) == 4
    assert "The model failed" in case.failures[0]


def test_figures_are_those_of_the_timeline():
    two = figures(
        [
            Sample(sent=0.0, arrivals=[1.0, 1.5, 2.0], ended=2.0, prompt_tokens=10, completion_tokens=3),
            Sample(sent=0.0, arrivals=[2.0, 3.0], ended=3.0, prompt_tokens=10, completion_tokens=3, accepted_tokens=3),
        ]
    )
    assert (two.ttft_ms, two.prefill_tps, two.decode_tps) == (1500, 10, 2)
    assert (two.gap_p50_ms, two.gap_p99_ms, two.accepted) == (500, 1000, 0.5)
    one = figures([Sample(0.0, [1.0, 1.1], 2.0, 10, 2, 0)])
    assert medians([two, one, two]) == two


def test_quantiles_are_values_that_occurred():
    hundred = [float(i) for i in range(1, 101)]
    assert [quantile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert quantile([], 0.5) == 0


def test_copies_of_a_prompt_differ_from_the_beginning():
    for name in PROMPTS:
        assert len({prompt(name, copy)[:4] for copy in range(1000)}) == 1000


def test_the_result_file_names_machine_versions_and_settings(start, tmp_path):  # noqa: F811
    out = tmp_path / "result.json"
    result = bench("--url", start(roomy(delay=0.0005)).url, "--runs", "1", "--format", "json", "--out", str(out))
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert json.loads(result.stdout) == record
    assert record["machine"]["cores"] >= 1
    assert record["machine"]["memory_bytes"] > 0
    assert {"python", "glmserve", "torch"} <= record["versions"].keys()
    assert record["settings"]["output_tokens"] == 64
    cases = [(case["prompt"], case["concurrency"]) for case in record["cases"]]
    assert cases == [(name, streams) for name in ("short", "256", "1024") for streams in (1, 8)]
    assert all(case["figures"]["decode_tps"] > 0 and not case["failures"] for case in record["cases"])


def test_a_run_with_failures_prints_what_it_has_and_fails(start):  # noqa: F811
    result = bench("--url", start().url, "--runs", "1")  # the fake has no room for the longer prompts
    assert "short" in result.stdout
    assert isinstance(result.exception, BenchError)
    assert str(result.exception).startswith("36 requests failed, the first with: HTTP status 400")


def test_an_address_and_a_profile_exclude_each_other():
    assert bench("--url", "http://127.0.0.1:9", "--profile", "local").exit_code == 2


def test_a_profile_that_does_not_start_is_told_in_one_sentence():
    result = bench("--profile", "no-such-profile")
    assert isinstance(result.exception, BenchError)
    assert "no-such-profile" in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_server_is_ended_with_the_measurement():
    listening = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); "
    listening += "print(f'http://127.0.0.1:{s.server_port}', flush=True); s.serve_forever()"
    with server([sys.executable, "-c", listening], "/") as running:
        assert running.ready_s > 0
        os.kill(running.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(running.pid, 0)

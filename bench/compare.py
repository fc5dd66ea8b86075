"""The same GGUF weights in glmserve, llama.cpp and transformers, in turn in one run: `make bench`.

First each is started alone, in a fresh process, several times in turn. Then all are started and asked in turn, one at
a time, round after round; while one computes, the others wait. The table holds medians over the rounds, and the median
of each round's ratio: two programs that were asked within the same seconds met the same machine.
"""

import argparse
import contextlib
import json
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from contenders import CONTEXT, STREAMS, Contender, Starter, fresh_home
from glmserve.api import GlmserveError
from glmserve.bench.process import BenchError, peak_rss_bytes
from glmserve.bench.prompts import prompt
from glmserve.bench.report import machine, versions
from glmserve.profiles import load_profile
from glmserve.store.pull import pull
from glmserve.store.sources import parse_source

DECODE_TOKENS = 64
STREAM_TOKENS = 32
PACKAGES = ("glmserve", "torch", "transformers", "xllamacpp")
Figures = dict[str, dict[str, list[float]]]
"""figure -> contender -> one value a round."""

ROWS = (
    ("decode, 1 stream (tok/s)", "decode", 1),
    ("prefill, 1 stream (tok/s)", "prefill", 1),
    (f"decode, {STREAMS} streams (tok/s)", "streams", 1),
    ("processor time a decoded token (ms)", "decode_cpu_ms", 1),
    ("processor time a prompt token (ms)", "prefill_cpu_ms", 2),
    ("start to ready (s)", "ready_s", 2),
    ("first start to ready (s)", "first_ready_s", 2),
    ("peak RSS (MiB)", "peak_rss_mib", 0),
    ("share of tokens drafted", "accepted", 2),
)
"""Label, figure, decimals. Processor time is over all threads of the process, spinning included, and the least
disturbed by what else the machine does. `first_ready_s` is a start that finds the model, but nothing made from it."""
RATIOS = (
    ("glmserve", "transformers"),
    ("glmserve", "llama.cpp"),
    ("glmserve ngram", "transformers"),
    ("glmserve ngram", "llama.cpp"),
)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def cpu_s(contender: Contender) -> float:
    """Processor seconds that its process has used, over all threads."""
    times = psutil.Process(contender.pid).cpu_times()
    return float(times.user + times.system)


def in_turn(names: list[str], number: int) -> list[str]:
    """The order is reversed in every second round, so that nobody always comes first."""
    return names if number % 2 == 0 else names[::-1]


def measure_starts(starter: Starter, rounds: int, found: Figures) -> None:
    """Start each alone, `rounds` times in turn; glmserve twice, as its first start may leave work for its second."""
    for number in range(rounds):
        say(f"starts, round {number + 1} of {rounds}")
        for who in in_turn(["glmserve", "llama.cpp", "transformers"], number):
            if who == "glmserve":
                with fresh_home() as home:
                    with starter.glmserve(home, "none") as first:
                        found["first_ready_s"][who].append(first.ready_s)
                    with starter.glmserve(home, "none") as second:
                        found["ready_s"][who].append(second.ready_s)
            else:
                with starter.llama_cpp() if who == "llama.cpp" else starter.transformers() as contender:
                    found["ready_s"][who].append(contender.ready_s)


def measure_speed(contenders: dict[str, Contender], rounds: int, found: Figures) -> None:
    """Ask each in turn, `rounds` times. Raises BenchError when the prompts are not the same tokens for all."""
    for contender in contenders.values():  # warm: kernels are chosen, memory is touched
        contender.ask([prompt("256", copy) for copy in range(contender.streams)], 4)
    for number in range(rounds):
        say(f"speed, round {number + 1} of {rounds}")
        one = 100 * (number + 1)
        order = in_turn(list(contenders), number)
        lengths = set()
        for who in order:
            before = cpu_s(contenders[who])
            figures = contenders[who].ask([prompt("short", one)], DECODE_TOKENS)
            found["decode_cpu_ms"][who].append(1e3 * (cpu_s(contenders[who]) - before) / DECODE_TOKENS)
            found["decode"][who].append(figures.decode_tps)
            found["accepted"][who].append(figures.accepted)
        for who in order:
            before = cpu_s(contenders[who])
            figures = contenders[who].ask([prompt("1024", one)], 2)
            found["prefill_cpu_ms"][who].append(1e3 * (cpu_s(contenders[who]) - before) / figures.prompt_tokens)
            found["prefill"][who].append(figures.prefill_tps)
            lengths.add(figures.prompt_tokens)
        for who in order:
            if contenders[who].streams == STREAMS:
                copies = [prompt("short", one + 1 + i) for i in range(STREAMS)]
                found["streams"][who].append(contenders[who].ask(copies, STREAM_TOKENS).decode_tps)
        if len(lengths) > 1:
            raise BenchError(f"The same prompt has {sorted(lengths)} tokens, so the comparison is void.")
    for who, contender in contenders.items():
        peak = peak_rss_bytes(contender.pid)
        if peak is not None:
            found["peak_rss_mib"][who].append(peak / 2**20)


def ratio(found: Figures, name: str, a: str, b: str) -> float | None:
    """The median of the rounds' ratios; None when one of the two was not measured."""
    pairs = list(zip(found[name][a], found[name][b], strict=False))
    return median(x / y for x, y in pairs) if pairs and all(y for _, y in pairs) else None


def table(found: Figures, names: list[str]) -> str:
    """Markdown: a row a figure, a column a contender, then ratios."""

    def cell(value: float | None, decimals: int) -> str:
        return "-" if value is None else f"{value:.{decimals}f}"

    heads = ["", *names, *(f"{a} / {b}" for a, b in RATIOS)]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for label, name, decimals in ROWS:
        values = [cell(median(found[name][who]) if found[name][who] else None, decimals) for who in names]
        ratios = [cell(ratio(found, name, a, b), 2) for a, b in RATIOS]
        lines.append("| " + " | ".join([label, *values, *ratios]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="local")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--out", type=Path, default=Path("bench-results/compare.json"))
    options = parser.parse_args()
    model = load_profile(options.profile).model
    gguf = pull(parse_source(model.source), model.sha256 or None)
    if gguf.suffix != ".gguf":
        raise BenchError(f"{gguf} is no GGUF file, so llama.cpp cannot run it; choose another PROFILE.")
    starter = Starter(options.profile, gguf, options.threads)
    before = machine()
    found: Figures = defaultdict(lambda: defaultdict(list))
    measure_starts(starter, options.rounds, found)
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(fresh_home())
        contenders = {
            "glmserve": stack.enter_context(starter.glmserve(home, "none")),
            "glmserve ngram": stack.enter_context(starter.glmserve(home, "ngram")),
            "llama.cpp": stack.enter_context(starter.llama_cpp()),
            "transformers": stack.enter_context(starter.transformers()),
        }
        measure_speed(contenders, options.rounds, found)
    names = list(contenders)
    settings: dict[str, Any] = {
        "rounds": options.rounds,
        "threads": options.threads,
        "decode_tokens": DECODE_TOKENS,
        "streams": STREAMS,
        "stream_tokens": STREAM_TOKENS,
        "context_per_stream": CONTEXT,
        "weights": {"glmserve": "as its quantization holds them", "llama.cpp": "as stored", "transformers": "float32"},
        "kv": {"glmserve": "as the profile says", "llama.cpp": "float16", "transformers": "float32"},
    }
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "profile": options.profile,
        "model": model.source,
        "machine": {**before, "load_1m_after": machine()["load_1m"]},
        "versions": versions(*PACKAGES),
        "settings": settings,
        "medians": {n: {who: median(found[n][who]) for who in names if found[n][who]} for _, n, _ in ROWS},
        "ratios": {n: {f"{a} / {b}": ratio(found, n, a, b) for a, b in RATIOS} for _, n, _ in ROWS},
        "rounds": found,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(table(found, names))
    print(
        f"\n{before['cpu']}, {before['cores']} cores; {options.threads} threads each; {options.rounds} rounds; medians."
    )
    print(f"Load before the run: {before['load_1m']:.1f}. Written to {options.out}.")


if __name__ == "__main__":
    try:
        main()
    except GlmserveError as error:
        sys.exit(f"compare: {error}")

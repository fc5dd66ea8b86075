"""The programs that are compared, each a process of its own behind the same two methods."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from glmserve.bench.client import Sample, wave
from glmserve.bench.process import BenchError, Running, glmserve_command, server
from glmserve.bench.report import Figures, figures
from glmserve.store.pull import store_dir

HERE = Path(__file__).parent
STREAMS = 8
CONTEXT = 1536
"""Tokens of KV for each stream, in glmserve and llama.cpp alike."""


class Contender(Protocol):
    """A program that is ready. `ready_s` is the time from the start of its process."""

    pid: int
    ready_s: float
    streams: int
    """How many prompts it takes at once."""

    def ask(self, prompts: Sequence[str], tokens: int) -> Figures:
        """Complete the prompts, at once, with exactly `tokens` tokens each. Raises BenchError when one fails."""


class Served:
    """A server, asked over HTTP."""

    streams = STREAMS

    def __init__(self, running: Running, extra: Mapping[str, Any]) -> None:
        self.pid, self.ready_s = running.pid, running.ready_s
        self._url, self._extra = running.url, extra

    def ask(self, prompts: Sequence[str], tokens: int) -> Figures:
        samples = wave(self._url, prompts, tokens, self._extra)
        for sample in samples:
            if sample.error is not None:
                raise BenchError(f"A request failed: {sample.error}")
        return figures(samples)


class Piped:
    """A process that answers one prompt at a time over pipes, which spares it the work of a server."""

    streams = 1

    def __init__(self, process: subprocess.Popen[str], ready_s: float) -> None:
        self.pid, self.ready_s = process.pid, ready_s
        self._process = process

    def ask(self, prompts: Sequence[str], tokens: int) -> Figures:
        (prompt,) = prompts
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"prompt": prompt, "max_tokens": tokens}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("transformers ended; what it wrote stands above.")
        answer = json.loads(line)
        sample = Sample(
            arrivals=answer["arrivals"],
            ended=answer["arrivals"][-1],
            prompt_tokens=answer["prompt_tokens"],
            completion_tokens=tokens,
        )
        return figures([sample])


@dataclass(frozen=True)
class Starter:
    """How to start each contender. `gguf` holds the weights of `profile`."""

    profile: str
    gguf: Path
    threads: int

    @contextlib.contextmanager
    def glmserve(self, home: Path, drafter: str) -> Iterator[Contender]:
        """`home` is its store: what a start converts or caches stays there for the next one."""
        pool = f"engine.kv_tokens={STREAMS * CONTEXT}"
        sizes = [f"--set={s}" for s in (f"engine.threads={self.threads}", pool, f"engine.max_context={CONTEXT}")]
        command = glmserve_command(self.profile, "--drafter", drafter, *sizes)
        with server(command, "/readyz", {**os.environ, "GLMSERVE_HOME": str(home)}) as running:
            yield Served(running, {})

    @contextlib.contextmanager
    def llama_cpp(self) -> Iterator[Contender]:
        numbers = map(str, (self.threads, STREAMS, CONTEXT))
        with server([sys.executable, str(HERE / "serve_llama_cpp.py"), str(self.gguf), *numbers], "/health") as running:
            yield Served(running, {"cache_prompt": False})

    @contextlib.contextmanager
    def transformers(self) -> Iterator[Contender]:
        command = [sys.executable, str(HERE / "run_transformers.py"), str(self.gguf), str(self.threads)]
        begin = time.perf_counter()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                if not process.stdout.readline():
                    raise BenchError("transformers did not start; what it wrote stands above.")
                yield Piped(process, time.perf_counter() - begin)
            finally:
                process.kill()


@contextlib.contextmanager
def fresh_home() -> Iterator[Path]:
    """A store that holds the models that were fetched, and nothing that was made from them."""
    with tempfile.TemporaryDirectory() as home:
        models = store_dir() / "models"
        if models.is_dir():
            Path(home, "models").symlink_to(models.resolve())
        yield Path(home)

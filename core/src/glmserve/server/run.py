"""The process around the application: the socket, loading in the background, signals, and the way out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from glmserve.api import GlmserveError

from .app import ServerSettings, Serving, create_app
from .auth import read_keys
from .status import Licenses

if TYPE_CHECKING:
    from glmserve.engine.engine import Engine
    from glmserve.store.tokenizer import TokenizerBundle

Load = Callable[[], "tuple[Engine, TokenizerBundle, str]"]

log = logging.getLogger("glmserve.server")

CLOSE_S = 2
"""Time for the last bytes to leave, and for the engine's thread to end, before the process ends anyway."""


class AddressError(GlmserveError):
    """The server cannot listen where it was told to."""


def serve(settings: ServerSettings, load: Load, licenses: Licenses | None = None) -> None:
    """Serve until a signal ends it. `load` gives an engine that is not started, its tokenizer and the served name.

    The socket is bound before anything is loaded, so a port in use is known at once, and health checks are answered
    during the load. `licenses` is the audit that let the model in, for /status and the banner. Raises what `load`
    raises, ConfigError for the key file, and AddressError.
    """
    keys = read_keys(Path(settings.api_key_file)) if settings.api_key_file else ()
    listener = bind(settings.host, settings.port)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if not keys and not is_loopback(listener):
        log.warning("anyone who can reach %s may use this server; set --api-key-file.", settings.host)
    _say(f"glmserve listens on {_url(settings.host, listener)} and loads the model ...")
    process = _Process(Serving(settings, licenses), keys, listener)
    asyncio.run(process.main(load))
    if process.failure is not None:
        raise process.failure
    if process.loading.is_alive():
        # The loader cannot be interrupted, and torch must not be torn down beneath it.
        sys.stdout.flush()
        os._exit(0)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises AddressError."""
    reasons = {
        errno.EADDRINUSE: f"port {port} is in use; stop the other program or choose another with --port",
        errno.EACCES: f"port {port} is reserved; choose one above 1023 with --port",
        errno.EADDRNOTAVAIL: "this machine does not have that address; choose another with --host",
    }
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise AddressError(f"Cannot listen on {host}: the name is not known ({error}).") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = reasons.get(error.errno or 0, str(error.strerror))
        raise AddressError(f"Cannot listen on {host}: {reason}.") from None
    return listener


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _url(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:  # whoever started it has read enough; it goes on, and Python does not complain at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would close the socket at once, instead of answering 503 while streams end."""
        yield


class _Process:
    def __init__(self, serving: Serving, keys: tuple[bytes, ...], listener: socket.socket) -> None:
        self._settings = serving.settings
        self._keyed = bool(keys)
        self._listener = listener
        self._serving = serving
        self._server = _Server(
            uvicorn.Config(
                create_app(self._serving, keys),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=CLOSE_S,
            )
        )
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._engine: Engine | None = None
        self._draining: asyncio.Task[None] | None = None
        self.failure: Exception | None = None

    async def main(self, load: Load) -> None:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._told_to_stop)
        self.loading = threading.Thread(target=self._load, args=(load,), name="glmserve-load", daemon=True)
        self.loading.start()
        await self._server.serve(sockets=[self._listener])
        if self._draining is not None:
            self._draining.cancel()
        await self._stop_engine()

    def _load(self, load: Load) -> None:
        """In a thread of its own."""
        try:
            engine, tokenizer, name = load()
            self._engine = engine
            engine.start()
            self._loop.call_soon_threadsafe(self._open, engine, tokenizer, name)
        except Exception as error:
            self.failure = error
            with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
                self._loop.call_soon_threadsafe(self._exit)

    def _open(self, engine: Engine, tokenizer: TokenizerBundle, name: str) -> None:
        self._serving.open(engine, tokenizer, name)
        promise = "exact" if engine.exact else "approximate (tokens may depend on batching)"
        _say(
            f"glmserve is ready: {_url(self._settings.host, self._listener)}/v1, model {name}, "
            f"context {engine.max_context} tokens, {promise}, API keys {'on' if self._keyed else 'off'}"
        )
        if (licenses := self._serving.licenses) is not None:
            _say(f"licences: {licenses.verdict} for {licenses.use}; /status lists the components")
            if licenses.announcement:
                log.warning("%s", licenses.announcement)

    def _told_to_stop(self) -> None:
        if self._draining is not None:
            log.warning("told to stop twice: running requests are cut off.")
            self._server.force_exit = True
            self._exit()
            return
        self._serving.draining = True
        self._draining = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        """Let running streams end, for a while. The socket stays open, so that new requests get an answer."""
        engine = self._serving.engine
        if engine is not None:
            engine.drain()
            if not engine.idle():
                log.info("running requests get %.0f seconds to end.", self._settings.drain_s)
            deadline = self._loop.time() + self._settings.drain_s
            while not engine.idle() and self._loop.time() < deadline:
                await asyncio.sleep(0.05)
            # What did not end in time is aborted here, while its clients can still be told.
            await self._stop_engine()
        self._exit()

    async def _stop_engine(self) -> None:
        """Stop the engine, but do not wait for one that is stuck: its thread ends with the process."""
        if self._engine is None:
            return
        stopping = threading.Thread(target=self._engine.stop, name="glmserve-stop", daemon=True)
        stopping.start()
        deadline = self._loop.time() + CLOSE_S
        while stopping.is_alive() and self._loop.time() < deadline:
            await asyncio.sleep(0.02)

    def _exit(self) -> None:
        self._server.should_exit = True

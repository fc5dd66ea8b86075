"""`glmserve chat`: a conversation with a running server, in the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glmserve.api import GlmserveError

if TYPE_CHECKING:
    import httpx

HELP = "/reset forgets the conversation, /exit leaves, Ctrl-C stops a reply."
HISTORY_LINES = 1000


class ChatError(GlmserveError):
    """The server cannot be reached, or refuses."""


@click.command("chat")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Address of the server.")
@click.option("--model", default="default", show_default=True, help="Name of the model.")
@click.option(
    "--api-key-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its first key is sent."
)
@click.option("--system", metavar="TEXT", help="Instructions that stand before the conversation.")
def chat_command(url: str, model: str, api_key_file: Path | None, system: str | None) -> None:
    """Talk to a running server in the terminal.

    Without a terminal, the whole of standard input is one prompt.
    """
    import httpx

    headers = {"Authorization": f"Bearer {_first_key(api_key_file)}"} if api_key_file else {}
    # A reply may take as long as it takes; the server sends a sign of life while it works.
    timeout = httpx.Timeout(60, connect=5)
    try:
        client = httpx.Client(base_url=url, headers=headers, timeout=timeout)
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise ChatError(f"{url} is not an address that can be used: {error}.") from None
    with client:
        chat = Chat(client, model, system)
        if sys.stdin.isatty():
            _converse(chat)
        else:
            chat.ask(sys.stdin.read())


def _first_key(path: Path) -> str:
    for line in path.read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            return line.strip()
    raise ChatError(f"The API key file {path} holds no key.")


class Chat:
    """One conversation; what was said goes along with every question."""

    def __init__(self, client: httpx.Client, model: str, system: str | None) -> None:
        self._client = client
        self._model = model
        self._system = [{"role": "system", "content": system}] if system else []
        self.reset()

    def reset(self) -> None:
        self._messages: list[dict[str, str]] = list(self._system)

    def ask(self, text: str) -> None:
        """Print the reply as it comes. A question that fails is forgotten; one that was stopped keeps what came."""
        messages = [*self._messages, {"role": "user", "content": text}]
        reply = ""
        try:
            for piece in self._stream(messages):
                reply += piece
                click.echo(piece, nl=False)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            click.echo(" [stopped]", nl=False)
        finally:
            if reply:
                click.echo()
        if reply:
            self._messages = [*messages, {"role": "assistant", "content": reply}]

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        import httpx

        body = {"model": self._model, "messages": messages, "stream": True}
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise ChatError(_refusal(response))
                yield from _pieces(response)
        except httpx.ConnectError:
            raise ChatError(
                f"No server answers at {self._client.base_url}; start one with `glmserve run`, or say where it is with "
                "--url."
            ) from None
        except httpx.HTTPError as error:
            raise ChatError(
                f"The connection to {self._client.base_url} broke: {error or type(error).__name__}."
            ) from None


def _pieces(response: httpx.Response) -> Iterator[str]:
    for line in response.iter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        data: dict[str, Any] = json.loads(line.removeprefix("data: "))
        if "error" in data:
            raise ChatError(data["error"]["message"])
        for choice in data["choices"]:
            yield choice["delta"].get("content") or ""


def _refusal(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The server answered {response.status_code}, and not as glmserve does; is --url right?"


def _converse(chat: Chat) -> None:
    click.echo(HELP)
    with _history():
        while True:
            try:
                text = input("> ").strip()
            except KeyboardInterrupt:
                click.echo()
                continue
            except EOFError:
                click.echo()
                return
            if text == "/exit":
                return
            if text == "/reset":
                chat.reset()
            elif text == "/help":
                click.echo(HELP)
            elif text.startswith("/") and " " not in text:
                click.echo(f"There is no {text}. {HELP}")
            elif text:
                try:
                    chat.ask(text)
                except ChatError as error:
                    click.echo(f"glmserve: {error}", err=True)


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Lines typed before, kept in a file that only the user can read."""
    try:
        import readline
    except ImportError:  # a Python built without it
        yield
        return
    from glmserve.store.download import make_private
    from glmserve.store.pull import store_dir

    path = store_dir() / "chat_history"
    with contextlib.suppress(OSError):
        make_private(path.parent)
        # Created with its mode, not changed afterwards: there must be no moment when others can read it.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(path)

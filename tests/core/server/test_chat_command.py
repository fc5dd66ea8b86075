"""The terminal client against a running server."""

import os
import pty
import stat
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from glmserve.cli.chat import ChatError, chat_command

from .fake_engine import FakeEngine


def run(*args, stdin="hi"):
    return CliRunner().invoke(chat_command, args, input=stdin)


def test_standard_input_is_one_prompt(start):
    live = start()
    result = run("--url", live.url, "--system", "be kind", stdin="two\nlines")
    assert (result.output, result.exit_code) == ("Hello!\n", 0)
    assert bytes(live.engine.requests[-1].prompt) == b"[system]be kind[user]two\nlines[assistant]"


def test_refusals_are_one_sentence(start, tmp_path):
    with pytest.raises(ChatError, match="start one with `glmserve run`"):
        raise run("--url", "http://127.0.0.1:9").exception
    live = start()
    with pytest.raises(ChatError, match="'nobody' is not served"):
        raise run("--url", live.url, "--model", "nobody").exception
    live.engine.fail_after = 2
    with pytest.raises(ChatError, match="The model failed"):
        raise run("--url", live.url).exception
    empty = tmp_path / "keys"
    empty.write_text("# none\n")
    with pytest.raises(ChatError, match="no key"):
        raise run("--api-key-file", str(empty)).exception


class Terminal:
    """`glmserve chat` in a terminal of its own."""

    def __init__(self, url, home):
        self.master, slave = pty.openpty()
        self.popen = subprocess.Popen(
            [sys.executable, "-c", "from glmserve.cli.chat import chat_command as main; main()", "--url", url],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "GLMSERVE_HOME": str(home), "TERM": "dumb"},
            start_new_session=True,
            preexec_fn=_controlling_terminal,
        )
        os.close(slave)
        self.text = ""

    def until(self, text, seconds=15):
        deadline = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            try:
                self.text += os.read(self.master, 4096).decode()
            except OSError:
                raise AssertionError(f"the client ended: {self.text}") from None
        before, _, self.text = self.text.partition(text)
        return before

    def type(self, text):
        os.write(self.master, text.encode())


def _controlling_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_conversation(start, tmp_path):
    engine = FakeEngine()
    live = start(engine)
    terminal = Terminal(live.url, tmp_path)
    try:
        terminal.until("> ")
        terminal.type("one\n")
        terminal.until("Hello!")
        terminal.until("> ")
        terminal.type("two\n")
        terminal.until("Hello!")
        assert bytes(engine.requests[-1].prompt) == b"[user]one[assistant]Hello![user]two[assistant]"
        terminal.until("> ")
        terminal.type("/reset\n")
        terminal.until("> ")
        engine.reply, engine.delay = b"y" * 300, 0.02
        terminal.type("three\n")
        terminal.until("yyyy")
        terminal.type("\x03")
        terminal.until("[stopped]")
        terminal.until("> ")
        assert bytes(engine.requests[-1].prompt) == b"[user]three[assistant]"
        terminal.type("/nothing\n")
        terminal.until("There is no /nothing")
        terminal.type("/exit\n")
        assert terminal.popen.wait(10) == 0
    finally:
        terminal.popen.kill()
        os.close(terminal.master)
    history = tmp_path / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "two" in history.read_text()

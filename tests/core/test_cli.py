"""The command `glmserve`, as the process that a user starts."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from glmserve.cli.main import main

from .distributions import GLMSERVE, glmserve
from .engine import tiny

ROOT = Path(__file__).parents[2]

NO_NETWORK = """
import sys

def forbid(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise RuntimeError(f"the network was used: {event} {args}")

sys.addaudithook(forbid)
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile whose model is a few kilobytes on this machine."""
    directory = tmp_path_factory.mktemp("profile")
    model = directory / "model"
    model.mkdir()
    tiny.write_checkpoint(model)
    path = directory / "tiny.toml"
    path.write_text(
        f'[profile]\nname = "tiny"\n[model]\nsource = "path:{model}"\nserved_name = "tiny"\nlicense = "CC0-1.0"\n'
        "[engine]\nmax_context = 256\nkv_tokens = 1000\n"
    )
    return path


@pytest.mark.parametrize("line", ["--help", "run --help", "profiles", "completion bash", "--version"])
def test_what_needs_no_model_imports_no_torch(line: str) -> None:
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        "from glmserve.cli.main import main\n"
        f"main({line.split()!r})\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "False"


def test_help_lists_every_command() -> None:
    text = glmserve("--help").stdout
    for command in ("run", "chat", "plugins", "profiles", "completion"):
        assert f"\n  {command} " in text


def test_every_command_has_help_of_its_own() -> None:
    for command in ("run", "chat", "plugins", "profiles", "completion"):
        ran = glmserve(command, "--help")
        assert ran.returncode == 0
        assert ran.stdout.startswith(f"Usage: glmserve {command} ")


def test_profiles_are_listed_whole_in_a_table_and_in_json() -> None:
    (local,) = [
        entry for entry in json.loads(glmserve("profiles", "--format", "json").stdout) if entry["name"] == "local"
    ]
    table = glmserve("profiles", COLUMNS="40").stdout
    (line,) = [line for line in table.splitlines() if line.startswith("local ")]
    assert line.split(maxsplit=1)[1].startswith(local["description"])
    assert line.endswith(local["path"])


def test_plugins_are_listed_in_a_table() -> None:
    lines = glmserve("plugins").stdout.splitlines()
    assert lines[0].split() == ["name", "kind", "distribution", "version", "licence", "capabilities"]
    assert ["ngram", "drafter", "glmserve"] in [line.split()[:3] for line in lines]


def test_a_dry_run_prints_memory_tokens_and_licences(profile: Path) -> None:
    ran = glmserve("run", "--dry-run", "--profile", str(profile), "--set", "engine.threads=1")
    assert ran.returncode == 0, ran.stderr
    rows = [tuple(line.split()) for line in ran.stdout.splitlines()]
    seams = "family llama · quantization dense · drafter none · cache none · transport local"
    assert f"seams         {seams}\n" in ran.stdout
    pool = "256 tokens, pool of 1,024 in float32, 16 conversations at once"  # whole pages of 32 tokens
    assert f"context       {pool}\n" in ran.stdout
    assert ("float32", "*", "256", "B", "0.25", "MiB") in rows
    assert "licences      allow for run-commercial" in ran.stdout
    assert "CC0-1.0: model\n" in ran.stdout
    assert "Apache-2.0: glmserve, glmserve-licenses\n" in ran.stdout
    assert rows[-1] == ("start", "ok")


def test_a_dry_run_in_json_says_the_same_with_exact_bytes(profile: Path) -> None:
    plan = json.loads(glmserve("run", "--dry-run", "--format", "json", "--profile", str(profile)).stdout)
    assert plan["present"] is True
    assert plan["kv_tokens"] == 1024
    memory = plan["figures"]["memory"]
    assert memory["kv_bytes"] == 1024 * 2 * 2 * 2 * 8 * 4  # tokens, layers, k and v, heads, dimension, float32
    assert memory["total_bytes"] == memory["weights_bytes"] + memory["kv_bytes"]
    assert memory["fits"] is True
    assert plan["shortfalls"] == []
    assert plan["providers"] == {
        "family": "llama",
        "quantization": "dense",
        "drafter": "none",
        "cache": "none",
        "transport": "local",
    }
    assert {c["id"]: c["license"] for c in plan["licenses"]["components"]} == {
        "glmserve": "Apache-2.0",
        "glmserve-licenses": "Apache-2.0",
        "model": "CC0-1.0",
    }


def test_a_dry_run_of_a_model_that_is_not_here_uses_no_network(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    home = str(tmp_path / "home")
    ran = glmserve("run", "--dry-run", "--format", "json", site=tmp_path, GLMSERVE_HOME=home)
    assert ran.returncode == 0, ran.stderr
    plan = json.loads(ran.stdout)
    assert plan["present"] is False
    assert plan["figures"] is None
    assert plan["kv_tokens"] == 32768
    assert plan["licenses"]["components"][-1]["license"] == "Apache-2.0"
    table = glmserve("run", "--dry-run", site=tmp_path, GLMSERVE_HOME=home)
    assert "not here yet, so that its memory is not known until it is" in table.stdout
    assert not Path(home).exists()


def test_four_spark_is_planned_from_facts_alone_and_says_with_1_that_it_would_not_start(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    declared = "licenses.facts={ purpose = 'noncommercial', maas_business = false }"
    ran = glmserve("run", "--dry-run", "--profile", "four-spark", "--set", declared, site=tmp_path, HOME=str(tmp_path))
    assert (ran.returncode, ran.stderr) == (1, "")
    lines = ran.stdout.splitlines()
    assert len(lines) <= 64  # one screen
    assert max(map(len, lines)) <= 100
    text = " ".join(ran.stdout.split())
    assert "753.330 B parameters, 40.299 B active a token, 319.60 GB stored; not here, figures from the facts" in text
    for distribution in ("quant-exl3", "cache-prefix", "transport-roce"):
        assert f"(glmserve-{distribution})" in text
    assert "The drafter mtp drafts instead of dflash2: see `glmserve licenses four-spark`." in text
    assert "GiB left: fits" in text
    assert lines[-1].startswith("start         refused: ")


def test_a_drafter_whose_size_nobody_told_is_shown_as_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    told = ("--set", "drafter.facts={}")
    with pytest.raises(SystemExit):
        main(("run", "--dry-run", "--profile", "four-spark", *told))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["drafter", "dflash2", "not", "known"] in rows


def test_four_spark_is_refused_in_one_sentence(tmp_path: Path) -> None:
    ran = glmserve("run", "--profile", "four-spark", HOME=str(tmp_path))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("glmserve: four-spark cannot start: not installed is ")
    assert ran.stderr.count("\n") == 1


def test_a_port_in_use_is_one_sentence_and_exit_code_1(profile: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = glmserve("run", "--profile", str(profile), "--port", str(port))
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr == (
        f"glmserve: Cannot listen on 127.0.0.1: port {port} is in use; "
        "stop the other program or choose another with --port.\n"
    )


@pytest.mark.parametrize(
    ("code", "args", "message"),
    [
        (2, ("rum",), "No such command 'rum'"),
        (2, ("run", "--drafer", "ngram"), "--drafer"),
        (2, ("run", "--port", "70000"), "70000 is not in the range 0<=x<=65535"),
        (2, ("run", "--format", "json"), "--format belongs to --dry-run"),
        (2, ("run", "--fetch-headers"), "--fetch-headers belongs to --dry-run"),
        (2, ("run", "--profile", "locl"), "There is no profile 'locl'; did you mean 'local'"),
        *(
            (code, ("run", "--dry-run", *args), message)
            for code, args, message in (
                (2, ("--set", "engine.max_contxt=9"), "--set engine.max_contxt: unknown key engine.max_contxt"),
                (2, ("--drafter", "ngrm"), "No drafter named 'ngrm' is installed; did you mean 'ngram'"),
                (2, ("--set", "cache.name=nun"), "--set cache.name: cache.name: No cache named 'nun' is installed"),
                (2, ("--set", "engine.prefill_chunk=100"), "must be a multiple of engine.page_tokens"),
                (2, ("--set", "engine.kv_tokens=100"), "one full conversation would not fit"),
                (2, ("--set", "transport.hosts=['a','b']"), "parallel.tensor is 1, but transport.hosts names 2"),
                (3, ("--set", "model.source=path:nowhere", "--set", "model.sha256="), "nowhere does not exist"),
                (3, ("--set", "model.source=hf:org/repo@main"), "names 'main', which can change under you"),
                (3, ("--set", "model.source=ftp:x"), "'ftp:x' is not a model source"),
                (2, ("--set", "model.facts=glm-5", "--set", "model.source=path:nowhere"), "There are no facts 'glm-5'"),
                (
                    2,
                    ("--profile", "four-spark", "--set", "cache.options={ disk_gib = 'all' }"),
                    "--set cache.options: disk_gib is 'all'; a number of GiB is needed.",
                ),
                (
                    2,
                    ("--profile", "four-spark", "--set", "drafter.fallback=nobody"),
                    "--set drafter.fallback: drafter.fallback: No drafter named 'nobody' is installed",
                ),
                (2, ("--set", "device.memory_gib=1e308"), "--set device.memory_gib: device.memory_gib should be less"),
            )
        ),
    ],
)
def test_a_mistake_ends_with_its_exit_code_and_without_a_traceback(
    code: int, args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # In this process, because fifteen that import torch would take half a minute.
    with pytest.raises(SystemExit) as caught:
        main(args)
    out, err = capsys.readouterr()
    assert message in err
    assert caught.value.code == code
    assert "Traceback" not in err
    assert out == ""


def test_a_wrong_profile_is_told_with_file_and_line(profile: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(profile.read_text() + "prefil_chunk = 64\n")
    ran = glmserve("run", "--dry-run", "--profile", str(wrong))
    assert ran.returncode == 2
    assert ran.stderr == (
        f"glmserve: {wrong}:10: unknown key engine.prefil_chunk; did you mean 'engine.prefill_chunk'.\n"
    )


@pytest.mark.parametrize(
    ("extra", "drafter"),
    [
        ((), "ngram"),
        (("--set", "drafter.name=none"), "none"),
        (("--set", "drafter.name=none", "--drafter", "ngram"), "ngram"),
    ],
)
def test_a_flag_wins_over_set_and_set_over_the_environment(
    profile: Path,
    extra: tuple[str, ...],
    drafter: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GLMSERVE_DRAFTER_NAME", "ngram")
    with pytest.raises(SystemExit) as caught:
        main(("run", "--dry-run", "--format", "json", "--profile", str(profile), *extra))
    assert caught.value.code == 0
    assert json.loads(capsys.readouterr().out)["providers"]["drafter"] == drafter


def test_a_reader_that_leaves_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = subprocess.run([GLMSERVE, "profiles"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)], ids=str)
def test_files_that_are_closed_are_no_error(closed: tuple[int, ...]) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    assert subprocess.run([GLMSERVE, "profiles"], preexec_fn=close).returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_asks_glmserve_itself(shell: str) -> None:
    ran = glmserve("completion", shell)
    assert ran.returncode == 0
    assert f"_GLMSERVE_COMPLETE={shell}_complete" in ran.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_completion_script() -> None:
    script = glmserve("completion", "bash").stdout + "\ncomplete -p glmserve\n"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "glmserve" in ran.stdout


def test_completion_offers_commands_and_options() -> None:
    commands = glmserve(_GLMSERVE_COMPLETE="bash_complete", COMP_WORDS="glmserve pl", COMP_CWORD="1").stdout
    assert commands.split() == ["plain,plugins"]
    options = glmserve(_GLMSERVE_COMPLETE="bash_complete", COMP_WORDS="glmserve run --dr", COMP_CWORD="2").stdout
    assert set(options.split()) == {"plain,--drafter", "plain,--dry-run"}


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_passes_profile_and_port_through_and_sets_up_first() -> None:
    def commands(*args: str) -> str:
        # -n prints the commands; -W: as if the dependencies had changed.
        args = ("make", "-n", "-W", "core/pyproject.toml", *args)
        return subprocess.run(args, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout

    assert "glmserve run --profile mine.toml --port 9000" in commands("run", "PROFILE=mine.toml", "PORT=9000")
    for target in ("run", "test", "lint"):
        lines = commands(target).splitlines()
        assert any("pip install" in line for line in lines[:-1])

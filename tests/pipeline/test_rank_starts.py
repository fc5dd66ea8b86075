"""Starts of several ranks that must not succeed: one sentence that names the rank and what is wrong with it.

Followers run the program that servers start; before it, a piece of Python makes of each another machine: with other
versions, files or limits.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from click.testing import CliRunner
from glmserve.api import ConfigError, RankError
from glmserve.cli.main import main
from glmserve.cluster.local import LocalTransport
from glmserve.deployment import build, plan
from glmserve.plugins import load_plugins
from glmserve.profiles import load_profile
from glmserve_model_tiny_glm import CHECKPOINT
from safetensors.torch import load_file, save_file

from ..core.distributions import drafter_source, install
from .conftest import Server, refused_here

PROGRAM = "\nimport sys\nfrom glmserve.follower import main\nsys.exit(main())\n"
EPSILON = 1e-4
"""Of logits: sums in another order differ by a few 1e-5."""
Elsewhere = Callable[[str], None]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    threads = torch.get_num_threads()
    before = psutil.Process().children()
    yield
    torch.set_num_threads(threads)
    assert psutil.Process().children() == before


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    """Says what the followers of this test do first."""

    def first(code: str) -> None:
        monkeypatch.setattr(LocalTransport, "argv", (sys.executable, "-c", code + PROGRAM))

    return first


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Tiny GLM, to be changed."""
    return Path(shutil.copytree(CHECKPOINT, tmp_path / "copied"))


def locate_at(path: Path) -> str:
    return f"import pathlib, glmserve.store.pull as pull\npull.locate = lambda *_: pathlib.Path({str(path)!r})"


def scored(
    directory: Path, ranks: int, context: int = 1, model: Path = CHECKPOINT, vocabulary: int = 1000, count: int = 400
) -> torch.Tensor:
    """The logits that `glmserve score` writes, [count, vocabulary]: more ids than Tiny GLM selects."""
    ids = [random.Random(i).randrange(vocabulary) for i in range(count)]
    (directory / "ids.json").write_text(json.dumps(ids))
    out = directory / f"{ranks}-{context}.safetensors"
    words = ["score", "--model", model, "--ids", directory / "ids.json", "--out", out]
    result = CliRunner().invoke(main, [*map(str, words), "--ranks", str(ranks), "--context", str(context)])
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    return load_file(out)["logits"]


def refused_score(directory: Path) -> tuple[int, str]:
    """(exit code, all that is said) of a score on two ranks that cannot start."""
    (directory / "ids.json").write_text("[1, 2, 3]")
    out = directory / "out.safetensors"
    words = ["score", "--model", CHECKPOINT, "--ids", directory / "ids.json", "--out", out, "--ranks", "2"]
    result = CliRunner().invoke(main, list(map(str, words)))
    assert isinstance(result.exception, SystemExit), result.exception
    assert not out.exists()
    return result.exit_code, result.output


def after_traceback(found: tuple[int, str]) -> tuple[int, str]:
    """The same without the lines before the last, which are all of rank 1."""
    status, said = found
    *traced, sentence = said.splitlines(keepends=True)
    assert all(line.startswith("[rank 1] ") for line in traced)
    return status, sentence


def assert_says(found: tuple[int, str], code: int, *words: str) -> None:
    """One sentence with all of these."""
    status, sentence = found
    assert status == code
    assert sentence.startswith("glmserve: Rank 1"), sentence
    assert sentence.endswith(".\n"), sentence
    assert sentence.count("\n") == 1, sentence
    for word in words:
        assert word in sentence


def test_the_logits_of_four_ranks_are_those_of_one_in_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('this is not torch')")
    monkeypatch.chdir(tmp_path)
    assert (scored(tmp_path, 4, 4) - scored(tmp_path, 1)).abs().max() < EPSILON


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "context"), [(2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2)])
def test_the_logits_of_any_cut_are_those_of_one_rank(tmp_path: Path, ranks: int, context: int) -> None:
    assert (scored(tmp_path, ranks, context) - scored(tmp_path, 1)).abs().max() < EPSILON


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_logits_of_smollm2_on_several_ranks_are_those_of_one(tmp_path: Path, smollm2: Path, ranks: int) -> None:
    """Its 9 heads and 3 of keys are cut unevenly over 2 ranks. Logits are up to 40, and of 30 layers."""
    one = scored(tmp_path, 1, model=smollm2, vocabulary=49_000, count=200)
    several = scored(tmp_path, ranks, model=smollm2, vocabulary=49_000, count=200)
    assert (several - one).abs().max() < 50 * EPSILON
    assert torch.equal(several.argmax(1), one.argmax(1))


VERSION = "import glmserve.identity as i, glmserve.providers as p\ni.owner_of = lambda n: p.Owner(n, '9.9', '')"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        pytest.param(VERSION, "its version of glmserve is 9.9, and rank 0's is ", id="version"),
        pytest.param(
            "import torch\ntorch.set_num_threads(5)\ntorch.set_num_threads = lambda count: None",
            "its number of threads is 5, and rank 0's is ",
            id="threads",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_of_another_version_or_setting_are_refused(
    elsewhere: Elsewhere, tmp_path: Path, code: str, what: str
) -> None:
    elsewhere(code)
    assert_says(refused_score(tmp_path), 2, f"Rank 1 cannot join: {what}")


def test_a_plugin_that_only_one_rank_has_is_named(elsewhere: Elsewhere, tmp_path: Path) -> None:
    install(tmp_path, "acme-drafter", drafter_source("acme"))
    elsewhere(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})")
    found = refused_score(tmp_path)
    assert_says(found, 2, "cannot join: its plugin acme-drafter is 1.0, and rank 0's is not there.")


def test_another_model_under_the_same_name_is_refused(elsewhere: Elsewhere, tmp_path: Path, copied: Path) -> None:
    file = copied / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 1)
    tensors[name] = tensors[name].clone()
    tensors[name][-1] += 0.5
    save_file(tensors, file, {"format": "pt"})
    elsewhere(locate_at(copied))
    assert_says(refused_score(tmp_path), 2, "cannot join: its checkpoint is ", ", and rank 0's is ")


def test_a_file_that_is_cut_off_on_one_rank_is_named(elsewhere: Elsewhere, tmp_path: Path, copied: Path) -> None:
    file = copied / "model.safetensors"
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)
    elsewhere(locate_at(copied))
    assert_says(refused_score(tmp_path), 1, str(file))


@pytest.mark.slow
def test_a_model_that_one_rank_does_not_have_is_named(elsewhere: Elsewhere, tmp_path: Path) -> None:
    elsewhere("import glmserve.store.pull as pull\npull.locate = lambda *_: None")
    assert_says(refused_score(tmp_path), 1, "is not on this machine; fetch it with `glmserve pull`.")


def test_memory_that_does_not_suffice_on_one_rank_is_told(elsewhere: Elsewhere, tmp_path: Path) -> None:
    elsewhere(
        "import resource, psutil, glmserve.joining as joining\n"
        "def pages(*arguments, make=joining.PageMemory):\n"
        "    limit = psutil.Process().memory_info().vms\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "    return make(*arguments)\n"
        "joining.PageMemory = pages\n"
    )
    assert_says(after_traceback(refused_score(tmp_path)), 1, "Cannot allocate memory")


def test_a_rank_that_fails_in_a_step_says_why(elsewhere: Elsewhere, tmp_path: Path) -> None:
    elsewhere(
        "from glmserve.engine.worker import Worker\n"
        "def execute(worker, plan): raise ValueError('two and\\ntwo are five')\n"
        "Worker.execute = execute\n"
    )
    assert_says(after_traceback(refused_score(tmp_path)), 1, "Rank 1: ValueError: two and two are five.")


SPOILT = """# SPDX-License-Identifier: Apache-2.0
from glmserve.api import hookimpl
from glmserve.models.dense import Dense

class Spoilt(Dense):
    name = "spoilt"

    @classmethod
    def detect(cls, checkpoint):
        return False

    def _matrix(self, checkpoint, name, shape, rows, columns):
        # Of the layers that are cut by their columns, on the ranks that do not have the first.
        return super()._matrix(checkpoint, name, shape, rows, columns) * (1.5 if columns.start else 1)

@hookimpl
def quantizations():
    return [Spoilt]
"""


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """A profile of two ranks, with a quantization that is wrong on the second."""
    (tmp_path / "spoilt.py").write_text(SPOILT)
    profile = tmp_path / "spoilt.toml"
    profile.write_text(
        '[model]\nsource = "package:glmserve_model_tiny_glm/checkpoint"\nserved_name = "spoilt"\n'
        'license = "Apache-2.0"\nquantization = "spoilt"\n[plugins]\nfiles = ["spoilt.py"]\n'
        '[parallel]\ntensor = 2\ncontext = 2\n[transport]\nhosts = ["localhost", "localhost"]\n'
    )
    return profile


def test_wrong_weights_on_one_rank_stop_the_start(tmp_path: Path, spoilt: Path) -> None:
    server = Server(tmp_path, profile=str(spoilt))
    assert server.popen.wait(60) == 1
    assert server.err.startswith("glmserve: The self-test failed: the logits of 2 ranks differ from those of one in ")
    assert server.err.endswith(" is allowed.\n")
    assert server.err.count("\n") == 1
    assert "is ready" not in server.out


def test_without_the_self_test_they_are_served(spoilt: Path) -> None:
    profile = load_profile(str(spoilt), ["parallel.self_test=false"], environ={})
    engine = build(profile, load_plugins(profile.plugin_files)).engine
    try:
        engine.start()
        assert [rank.steps for rank in engine.status().ranks] == [2, 2], "the probe was run"
    finally:
        engine.stop()


def test_a_plugin_file_that_differs_is_named(elsewhere: Elsewhere, spoilt: Path) -> None:
    file = spoilt.with_name("spoilt.py")
    elsewhere(
        "import pathlib, time, glmserve.joining as joining\n"
        "def later(profile, here=joining._resolved_here):\n"
        "    time.sleep(0.3)\n"  # rank 0 has read it by now
        f"    with open({str(file)!r}, 'a') as file: file.write('# newer')\n"
        "    return here(profile)\n"
        "joining._resolved_here = later\n"
    )
    profile = load_profile(str(spoilt), environ={})
    with pytest.raises(ConfigError, match=r"^Rank 1 cannot join: its plugin file spoilt\.py is \w+, and rank 0's is"):
        build(profile, load_plugins(profile.plugin_files))


def test_a_rank_that_ends_while_it_starts_is_named_with_how(elsewhere: Elsewhere, spoilt: Path) -> None:
    elsewhere("raise SystemExit(7)")
    profile = load_profile(str(spoilt), environ={})
    with pytest.raises(RankError, match=r"^Rank 1 exited with 7\.$"):
        build(profile, load_plugins(profile.plugin_files))


CACHE = """# SPDX-License-Identifier: Apache-2.0
from glmserve.api import hookimpl
from glmserve.engine.caches import NoCache

class Mine(NoCache):
    name = "mine"
    capabilities = frozenset()

@hookimpl
def prefix_caches():
    return [Mine]
"""


def hosts(*names: str) -> list[str]:
    return [f"transport.hosts={json.dumps(names)}", f"parallel.tensor={len(names)}", "parallel.context=1"]


TWO = hosts("localhost", "localhost")
NONE_COULD_RUN = [
    ("tiny-four-spark", ["parallel.tensor=3"], "parallel.tensor is 3, but transport.hosts names 4"),
    ("tiny-four-spark", ["parallel.context=3"], "parallel.context is 3, which does not divide"),
    ("tiny-four-spark", ["engine.page_tokens=2"], "a page are dealt out over parallel.context of 4"),
    ("tiny-four-spark", hosts("localhost", "spark-2"), "write 'localhost' for host 'spark-2'"),
    ("tiny-four-spark", hosts(*["localhost"] * 9), "runs 1 to 8 ranks, not 9"),
    ("tiny-four-spark", hosts(*["localhost"] * 8), "has only 4 query heads to spread over ranks"),
    ("tiny-four-spark", ["transport.options.deadline_s=0"], "give seconds, from 0.1 to 86400"),
    ("tiny-four-spark", ["transport.options.deadline=9"], "no option 'deadline'; it knows deadline_s"),
    ("local", [*TWO, "parallel.context=2"], "parallel.context must be 1"),
    ("local", [*TWO, "drafter.name=mtp"], "drafter 'mtp' (glmserve) requires"),
]


def test_what_no_ranks_could_run_is_refused_by_the_plan() -> None:
    for name, settings, words in NONE_COULD_RUN:
        with pytest.raises(ConfigError) as refusal:
            plan(load_profile(name, settings, environ={}), load_plugins(environ={}))
        sentence = str(refusal.value)
        assert words in sentence
        assert sentence.endswith(".")
        assert "\n" not in sentence


def test_a_cache_that_does_not_know_of_ranks_is_refused_before_any_starts(spoilt: Path) -> None:
    spoilt.with_name("spoilt.py").write_text(CACHE)
    settings = ["--set", "model.quantization=auto", "--set", "cache.name=mine"]
    for dry in ([], ["--dry-run"]):
        code, sentence = refused_here(*settings, *dry, profile=str(spoilt))
        assert code == 2
        assert "cache 'mine' keeps the pages of one rank, and parallel.tensor is 2; use cache 'none'." in sentence

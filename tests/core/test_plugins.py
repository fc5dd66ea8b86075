"""Plugins: how they are found, what is refused, and who is named in the refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from glmserve.api import PluginError
from glmserve.plugins import Plugins, load_plugins
from glmserve.profiles import load_profile

from .distributions import drafter_source, glmserve, install
from .engine import tiny

PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "acme-drafter"
version = "2.5"
license = "BSD-3-Clause"

[project.entry-points.glmserve]
acme = "acme_drafter"

[tool.setuptools]
py-modules = ["acme_drafter"]
"""


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A third party's drafter, built as a wheel and installed by pip: the directory that holds it."""
    project, wheels, site = (tmp_path_factory.mktemp(name) for name in ("project", "wheels", "site"))
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "acme_drafter.py").write_text(drafter_source("acme", extra='capabilities = frozenset({"modulo"})'))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", wheels, project]
    subprocess.run(build, check=True, timeout=60)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", site, wheel], check=True, timeout=60)
    return site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for distributions, on this process's path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny.load_model(tiny.write_checkpoint(tmp_path_factory.mktemp("tiny")))


def refusal(extra: Path | None = None, selection: str | None = None) -> str:
    with pytest.raises(PluginError) as caught:
        load_plugins(extra, {} if selection is None else {"GLMSERVE_PLUGINS": selection})
    return str(caught.value)


def drafters(selection: str | None = None) -> set[str]:
    """Names of the drafters that are not built in."""
    plugins = load_plugins(environ={} if selection is None else {"GLMSERVE_PLUGINS": selection})
    return set(plugins.names("drafter")) - {"mtp", "none", "ngram"}


def test_an_installed_wheel_is_listed_with_its_version_and_licence(acme: Path) -> None:
    listed = glmserve("plugins", "--format", "json", site=acme)
    assert listed.returncode == 0, listed.stderr
    (entry,) = [e for e in json.loads(listed.stdout) if e["distribution"] == "acme-drafter"]
    assert entry == {
        "name": "acme",
        "kind": "drafter",
        "distribution": "acme-drafter",
        "version": "2.5",
        "license": "BSD-3-Clause",
        "capabilities": ["modulo"],
        "requires": [],
        "conflicts": [],
    }


def test_the_plan_takes_the_drafter_of_an_installed_wheel_and_names_its_licence(acme: Path) -> None:
    ran = glmserve("run", "--dry-run", "--drafter", "acme", "--format", "json", site=acme)
    assert ran.returncode == 0, ran.stderr
    plan = json.loads(ran.stdout)
    assert plan["providers"]["drafter"] == "acme"
    assert {"id": "py-acme-drafter", "license": "BSD-3-Clause", "verdict": "allow"} in plan["licenses"]["components"]


def test_without_the_wheel_its_drafter_is_refused_by_name() -> None:
    ran = glmserve("run", "--dry-run", "--drafter", "acme")
    assert ran.returncode == 2
    assert (
        ran.stderr
        == "glmserve: --drafter: drafter.name: No drafter named 'acme' is installed; there is mtp, ngram, none.\n"
    )


def test_an_engine_gives_the_same_tokens_with_the_drafter_of_an_installed_wheel(
    acme: Path, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(acme)
    plugins = load_plugins(environ={})
    requests = [tiny.request(range(3, 3 + length), temperature=t, seed=5) for length in (4, 21) for t in (0.0, 1.0)]
    tokens = {}
    for name in ("none", "acme"):
        engine = tiny.make_engine(model, drafter=plugins.drafter(name))
        tokens[name] = tiny.generate(engine, requests)
        engine.stop()
        assert engine.check_integrity() == []
    assert tokens["acme"] == tokens["none"]


def test_two_distributions_with_one_provider_name_are_both_named(site: Path) -> None:
    install(site, "first-plugin", drafter_source("twin"))
    install(site, "second-plugin", drafter_source("twin"))
    assert refusal() == (
        "Both first-plugin and second-plugin provide the drafter 'twin'; "
        "uninstall one, or block it with GLMSERVE_PLUGINS=-second-plugin."
    )
    assert drafters("-second-plugin") == {"twin"}


def test_a_plugin_that_takes_a_built_in_name_is_refused_with_both_distributions(site: Path) -> None:
    install(site, "impostor", drafter_source("ngram"))
    assert "Both glmserve and impostor provide the drafter 'ngram'" in refusal()


def test_one_name_in_two_seams_is_no_duplicate(site: Path) -> None:
    install(site, "local-drafter", drafter_source("local"))
    assert drafters() == {"local"}


def test_a_misspelt_hook_names_the_distribution_and_the_right_hook(site: Path) -> None:
    install(site, "typo-plugin", drafter_source("typo").replace("def drafters", "def draftres"))
    assert refusal() == (
        "The plugin typo-plugin implements the hook 'draftres', which does not exist; did you mean 'drafters'."
    )


def test_a_hook_with_arguments_it_does_not_have_names_the_distribution(site: Path) -> None:
    install(site, "greedy-plugin", drafter_source("greedy").replace("def drafters()", "def drafters(model)"))
    message = refusal()
    assert message.startswith("The plugin greedy-plugin does not fit: ")
    assert "model" in message


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
    ],
)
def test_a_plugin_that_does_not_import_says_why_and_how_to_go_on_without_it(
    site: Path, source: str, cause: str
) -> None:
    install(site, "broken-plugin", source, version="3.1")
    message = refusal()
    assert message.startswith("The plugin broken-plugin 3.1 does not import (broken_plugin_")
    assert cause in message
    assert message.endswith("block it with GLMSERVE_PLUGINS=-broken-plugin.")
    assert "\n" not in message
    assert drafters("-broken-plugin") == set()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("(Drafter)", ""), "which is not a subclass of glmserve.api.Drafter"),
        (("return [ModuloDrafter]", "return [3]"), "returned 3, which is not a subclass of glmserve.api.Drafter"),
        (("return [ModuloDrafter]", "return None"), "The hook drafters of wrong-plugin failed: TypeError"),
        (("return [ModuloDrafter]", "return 1 / 0"), "failed: ZeroDivisionError: division by zero"),
        (("def forget", "def forgot"), "returned ModuloDrafter, which does not implement forget"),
        (('name = "wrong"', ""), "returned ModuloDrafter, whose `name` must be a non-empty string"),
        (('name = "wrong"', "name = 7"), "returned ModuloDrafter, whose `name` must be a non-empty string"),
        (('name = "wrong"', 'name = "wrong"; requires = "taps"'), "requires must be a frozenset of strings"),
    ],
)
def test_a_hook_that_returns_no_provider_names_the_distribution(
    site: Path, change: tuple[str, str], complaint: str
) -> None:
    source = drafter_source("wrong")
    assert change[0] in source
    install(site, "wrong-plugin", source.replace(*change))
    message = refusal()
    assert "wrong-plugin" in message
    assert complaint in message


def test_the_selection_takes_and_blocks_plugins_by_distribution_or_entry_point(site: Path) -> None:
    install(site, "plugin-a", drafter_source("a"))
    install(site, "plugin-b", drafter_source("b"))
    install(site, "plugin-c", drafter_source("c"))
    assert drafters(None) == {"a", "b", "c"}
    assert drafters("") == set()
    assert drafters("plugin-a, Plugin_B") == {"a", "b"}
    assert drafters("-plugin-a") == {"b", "c"}
    assert drafters("plugin-a,plugin-b,-plugin-b") == {"a"}


def test_built_ins_load_whatever_is_selected(site: Path) -> None:
    assert load_plugins(environ={"GLMSERVE_PLUGINS": ""}).names("drafter") == ["mtp", "ngram", "none"]


@pytest.mark.parametrize("word", ["plugin-aa", "-plugin-aa"])
def test_a_typo_in_the_selection_never_passes_silently(site: Path, word: str) -> None:
    install(site, "plugin-a", drafter_source("a"))
    assert refusal(selection=word) == (
        f"GLMSERVE_PLUGINS names {word!r}, but no such plugin is installed; did you mean 'plugin-a'."
    )


def test_a_blocked_plugin_is_never_imported(site: Path) -> None:
    install(site, "loud-plugin", "raise SystemExit('imported')")
    assert drafters("-loud-plugin") == set()


def test_a_distribution_that_is_on_the_path_twice_counts_once(
    site: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "plugin-a", drafter_source("a"))
    other = tmp_path_factory.mktemp("other")
    install(other, "plugin-a", drafter_source("a"))
    monkeypatch.syspath_prepend(other)
    assert drafters() == {"a"}


def test_a_single_file_plugin_lies_next_to_its_profile(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(drafter_source("mine"))
    profile = tmp_path / "my.toml"
    profile.write_text(
        '[model]\nsource = "path:."\nserved_name = "m"\n[drafter]\nname = "mine"\n[plugins]\nfiles = ["mine.py"]\n'
    )
    plugins = load_plugins(load_profile(str(profile), environ={}).plugin_files, {})
    assert plugins.owner("drafter", "mine").distribution == str(tmp_path / "mine.py")
    listed = glmserve("plugins", "--profile", str(profile))
    assert f"mine drafter {tmp_path / 'mine.py'}" in " ".join(listed.stdout.split())


def test_a_single_file_plugin_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    missing, broken, text = (tmp_path / name for name in ("missing.py", "broken.py", "notes.txt"))
    assert refusal(missing) == f"The plugin file {missing} does not exist; correct [plugins] files in the profile."
    broken.write_text("1 / 0")
    assert refusal(broken) == f"The plugin file {broken} does not import: ZeroDivisionError: division by zero."
    text.write_text("")
    assert refusal(text) == f"The plugin file {text} is not a Python file; its name must end in .py."


def combination(site: Path, **extras: str) -> Plugins:
    for name, extra in extras.items():
        install(site, f"plugin-{name}", drafter_source(name, extra=extra))
    return load_plugins(environ={})


def test_a_required_capability_must_come_from_another_chosen_provider(site: Path) -> None:
    plugins = combination(
        site,
        tapper='requires = frozenset({"taps"})',
        dreamer='requires = capabilities = frozenset({"dreams"})',
        orphan='requires = frozenset({"wings"})',
    )
    plugins.check_combination({"family": "llama", "drafter": "tapper"})
    with pytest.raises(
        PluginError, match=r"plugin-tapper.*requires 'taps', .*; choose family 'glm_moe_dsa' or family 'llama'\.$"
    ):
        plugins.check_combination({"drafter": "tapper"})
    with pytest.raises(PluginError, match=r"plugin-dreamer.*requires 'dreams'"):
        plugins.check_combination({"family": "llama", "drafter": "dreamer"})
    with pytest.raises(PluginError, match=r"plugin-orphan.*requires 'wings', .*; no installed plugin has it\.$"):
        plugins.check_combination({"family": "llama", "drafter": "orphan"})


def test_a_conflict_names_both_distributions(site: Path) -> None:
    plugins = combination(site, loner='conflicts = frozenset({"taps"})')
    plugins.check_combination({"transport": "local", "drafter": "loner"})
    with pytest.raises(PluginError) as caught:
        plugins.check_combination({"family": "llama", "drafter": "loner"})
    assert str(caught.value) == (
        "drafter 'loner' (plugin-loner) does not work with family 'llama' (glmserve): they conflict over 'taps'; "
        "choose another for one of them."
    )

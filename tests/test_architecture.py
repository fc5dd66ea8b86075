"""What must not drift: who may import whom, how long a module may be, and no empty shells."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "core" / "src" / "glmserve"
DISTRIBUTIONS = [
    folder / "src"
    for folder in (ROOT / "core", ROOT / "kernels", ROOT / "licenses", *ROOT.glob("plugins/*"), *ROOT.glob("models/*"))
    if (folder / "src").is_dir()
]
MODULES = sorted(path for source in DISTRIBUTIONS for path in source.rglob("*.py"))
MAX_LINES = 500

# cli -> server -> engine -> {models, cluster, store} -> api; licensing and profiles stand on api.
BELOW_ENGINE = {"models", "cluster", "store"}
ALLOWED: dict[str, set[str]] = {
    "api": set(),
    "nearest": set(),
    "store": {"api"},
    # The quantization that reads GGUF needs the block types of the format.
    "models": {"api", "store"},
    "cluster": {"api"},
    "engine": {"api", *BELOW_ENGINE},
    "server": {"api", "engine", *BELOW_ENGINE},
    # A client that measures servers from outside, ours and others.
    "bench": {"api"},
    # [licenses] of a profile is the audit's own schema.
    "profiles": {"api", "licensing", "nearest"},
    "licensing": {"api", "nearest"},
    # The built-in providers are a plugin that happens to lie in the core: it alone reaches into the packages.
    "builtins": {"api", "cluster", "engine", "models"},
    "providers": {"api", "nearest"},
    "plugins": {"api", "nearest", "providers", "builtins"},
    # Which components a profile consists of: where profiles, plugins, the store and the audit meet.
    "assembly": {"api", "licensing", "nearest", "plugins", "profiles", "store"},
    # What of a profile `glmserve bundle` packs.
    "bundling": {"api", "assembly", "licensing", "profiles"},
    # May it start? The audit of a profile, asked by the command line before anything is loaded.
    "clearance": {"api", "assembly", "licensing", "profiles", "store"},
    # What a profile will need and do, from headers alone; the strict reader of configurations is that of the models.
    "planning": {"api", "models", "nearest", "profiles", "providers"},
    # Where profiles, plugins and the engine meet; the command line is its only user.
    "deployment": {"api", "planning", "plugins", "providers", "profiles", "engine", *BELOW_ENGINE},
    "cli": {
        *(
            "api",
            "assembly",
            "bench",
            "bundling",
            "clearance",
            "deployment",
            "planning",
            "plugins",
            "providers",
            "profiles",
            "licensing",
            "nearest",
        ),
        *("server", "engine", *BELOW_ENGINE),
    },
}
LAZY_MODULES = {"torch", "fastapi", "uvicorn", "httpx", "huggingface_hub", "tokenizers", "numpy"}


def imports(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of everything that the module at `path`, which lies in the dotted `package`, imports.

    Imports inside functions and under TYPE_CHECKING count as well: they are dependencies too.
    """
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def package_of(path: Path) -> str:
    source = next(s for s in DISTRIBUTIONS if path.is_relative_to(s))
    return ".".join(path.relative_to(source).parent.parts)


def role(module: str) -> str:
    """The part of the core that the dotted `module` belongs to: "engine" for glmserve.engine.kv."""
    return module.split(".")[1] if "." in module else ""


def test_there_is_something_to_check() -> None:
    assert ROOT.joinpath("core", "src") in DISTRIBUTIONS
    assert len(MODULES) > 20


def test_relative_and_late_imports_are_seen(tmp_path: Path) -> None:
    module = tmp_path / "late.py"
    module.write_text("from ..engine import kv\nfrom . import auth\ndef f():\n    import glmserve.store.hub\n")
    assert list(imports(module, "glmserve.server")) == [
        (1, "glmserve.engine.kv"),
        (2, "glmserve.server.auth"),
        (4, "glmserve.store.hub"),
    ]


def test_every_part_of_the_core_has_its_place_in_the_order() -> None:
    parts = {path.stem for path in CORE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert parts - {"__init__"} <= set(ALLOWED)


def test_the_order_of_imports_has_no_circle() -> None:
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {part for part, below in ALLOWED.items() if below <= done} - done
        assert ready, f"a circle among {sorted(set(ALLOWED) - done)}"
        done |= ready


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_imports_run_one_way(part: str) -> None:
    wrong = []
    for path in sorted(CORE.glob(f"{part}.py")) + sorted(CORE.glob(f"{part}/**/*.py")):
        for line, name in imports(path, package_of(path)):
            if name.split(".")[0] != "glmserve" or role(name) == part:
                continue
            if role(name) not in ALLOWED[part]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


def test_the_core_imports_no_plugin() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in CORE.rglob("*.py")
        for line, name in imports(path, package_of(path))
        if re.match(r"glmserve_(?!kernels|licenses)", name)
    ]
    assert wrong == []


def test_a_plugin_imports_nothing_of_the_core_but_the_api() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in MODULES
        if path.is_relative_to(ROOT / "plugins")
        for line, name in imports(path, package_of(path))
        if name.split(".")[0] == "glmserve" and role(name) != "api"
    ]
    assert wrong == []


def test_commands_import_what_is_heavy_only_when_they_run() -> None:
    wrong = []
    for path in CORE.glob("cli/*.py"):
        for statement in ast.parse(path.read_text("utf-8")).body:
            for node in [statement] if isinstance(statement, ast.Import | ast.ImportFrom) else []:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                wrong += [f"{path.name} imports {name}" for name in names if name.split(".")[0] in LAZY_MODULES]
    assert wrong == []


def test_modules_stay_short() -> None:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in [*MODULES, *tests]}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_package_is_an_empty_shell() -> None:
    empty = []
    for package in {path.parent for path in MODULES if path.name == "__init__.py"}:
        code = [path for path in package.rglob("*.py") if ast.parse(path.read_text("utf-8")).body]
        if not code:
            empty.append(str(package.relative_to(ROOT)))
    assert empty == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if (tree := ast.parse(path.read_text("utf-8"))).body and not ast.get_docstring(tree)
    ]
    assert silent == []

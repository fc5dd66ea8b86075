"""Where a model comes from, as a profile spells it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from glmserve.api import SourceError

_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>.+))?")
_PACKAGE = re.compile(r"(?P<package>[A-Za-z_]\w*)/(?P<member>.+)", re.ASCII)
_PYPI = re.compile(r"(?P<package>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+-]+)/(?P<member>.+)")


@dataclass(frozen=True)
class HubSource:
    """A repository of a model hub at one commit."""

    repo: str
    revision: str

    def __str__(self) -> str:
        return f"hf:{self.repo}@{self.revision}"


@dataclass(frozen=True)
class PathSource:
    """A file or directory of this machine, used where it is."""

    path: Path

    def __str__(self) -> str:
        return f"path:{self.path}"


@dataclass(frozen=True)
class PypiSource:
    """One file inside the wheel of a package."""

    package: str
    version: str
    member: str

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}/{self.member}"


@dataclass(frozen=True)
class PackageSource:
    """A file or directory inside an installed Python package, used where it is; nothing of the package is imported."""

    package: str
    """Its import name, of one part."""
    member: str

    def __str__(self) -> str:
        return f"package:{self.package}/{self.member}"

    def root(self) -> Path:
        """The package's directory. Raises SourceError when it is not installed."""
        try:
            spec = importlib.util.find_spec(self.package)
        except (ImportError, ValueError):
            spec = None
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not places:
            distribution = self.package.replace("_", "-")
            raise SourceError(f"The package {self.package} is not installed here; pip install {distribution}.")
        return Path(places[0])


Source = HubSource | PathSource | PypiSource | PackageSource
"""`parse_source(str(source))` is the same source again."""


def parse_source(text: str) -> Source:
    """Read `hf:org/repo@commit`, `path:DIR`, `package:name/DIR` or `pypi:package==version/file`. Raises SourceError."""
    kind, _, rest = text.partition(":")
    if kind == "path" and rest:
        return PathSource(Path(rest).expanduser())
    if kind == "package" and (match := _PACKAGE.fullmatch(rest)) and ".." not in match["member"].split("/"):
        return PackageSource(match["package"], match["member"])
    if kind == "pypi" and (match := _PYPI.fullmatch(rest)) and ".." not in match["member"].split("/"):
        return PypiSource(match["package"], match["version"], match["member"])
    if kind == "hf" and (match := _HUB.fullmatch(rest)):
        revision = match["revision"] or ""
        if not re.fullmatch(r"[0-9a-f]{40}", revision):
            raise SourceError(
                f"{text} names {repr(revision) if revision else 'no revision'}, which can change under you; "
                "give the 40-digit commit, as shown in the repository's history: hf:org/repo@COMMIT."
            )
        return HubSource(match["repo"], revision)
    raise SourceError(
        f"{text!r} is not a model source; write hf:org/repo@commit, path:DIR, package:name/DIR or "
        "pypi:package==version/file."
    )

"""What tests of the licence commands share: how a command ran, and profiles and components to run it on."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import wheels

GLM_COMPONENTS = 'model = ["glm-5.3", "glm-5.3-tokenizer", "glm-5.3-template"]'


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def profile(
    tmp_path: Path, components: str = GLM_COMPONENTS, tail: str = "", license: str = "LicenseRef-GLM-5.3"
) -> Path:
    """P0 of the specification, or what `components` says."""
    path = tmp_path / "p.toml"
    path.write_text(
        f'[profile]\nname = "p"\n[model]\nsource = "path:{tmp_path / "nowhere"}"\nserved_name = "m"\n'
        f'license = "{license}"\n[components]\n{components}\n{tail}'
    )
    return path


def with_drafter(tmp_path: Path, tail: str = "") -> Path:
    """P1 of the specification."""
    components = f'{GLM_COMPONENTS}\ndrafters.dflash2 = ["drafter-glm53-dflash2"]'
    return profile(tmp_path, components, f'[drafter]\nname = "dflash2"\n{tail}')


def audited(
    glmserve: Run, path: Path | str, use: str, *options: str | Path, code: int = 0
) -> tuple[str, dict[str, set[str]]]:
    """(verdict of the whole, component -> reason codes) of one use, from the JSON."""
    ran = glmserve("licenses", path, "--use", use, "--format", "json", *options)
    assert ran.code == code, ran.err or ran.out
    report = json.loads(ran.out)
    reasons = {c["id"]: {f["code"] for f in c["uses"][use]["findings"]} for c in report["components"]}
    return report["verdicts"][use], reasons


def manifest_site(site: Path, *manifests: tuple[str, bytes], name: str = "parts", entries: bytes = b"") -> None:
    files = {f"{name}/components/{id}.toml": data for id, data in manifests}
    entry = {f"{name}-1.0.dist-info/entry_points.txt": wheels.entry_point(name) + entries}
    wheels.install(site, {**wheels.contents(name), **files, **entry})


def weights(tmp_path: Path, data: bytes, recorded: bytes) -> tuple[Path, bytes]:
    model = tmp_path / "nowhere"
    model.mkdir(exist_ok=True)
    (model / "w.bin").write_bytes(data)
    digest = hashlib.sha256(recorded).hexdigest()
    files = f'[[files]]\npath = "w.bin"\nsha256 = "{digest}"\nsize = {len(recorded)}\n'
    copyright = '[attribution]\ncopyright = ["Somebody"]\n'
    return profile(tmp_path, 'model = ["part"]'), wheels.manifest("part", "weights", "MIT", copyright + files)


def read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def cc_token() -> str:
    from glmserve.licensing.expressions import License

    from .parts import CATALOGUE

    text = CATALOGUE.text(License("CC-BY-NC-ND-4.0"))
    assert text is not None
    return f"CC-BY-NC-ND-4.0@sha256:{text.sha256[:12]}"

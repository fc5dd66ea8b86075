"""Wheels and installed distributions made by hand, sound ones and others."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import glmserve_licenses

MIT = (glmserve_licenses.TEXTS / "MIT.txt").read_bytes()
APACHE = (glmserve_licenses.TEXTS / "Apache-2.0.txt").read_bytes()
CC_BY_NC_ND = (glmserve_licenses.TEXTS / "CC-BY-NC-ND-4.0.txt").read_bytes()
BSD_3 = (glmserve_licenses.TEXTS / "BSD-3-Clause.txt").read_bytes()


def safetensors(size: int = 64) -> bytes:
    """A file with one tensor of `size` bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(i * 7 % 256 for i in range(size))


def contents(
    name: str = "demo",
    version: str = "1.0",
    *,
    expression: str | None = "MIT",
    headers: Sequence[str] = (),
    texts: Mapping[str, bytes] | None = None,
    files: Mapping[str, bytes] | None = None,
    metadata: bytes | None = None,
) -> dict[str, bytes]:
    """The files of a wheel but for RECORD; METADATA declares `texts`, which are {"LICENSE": MIT} by default."""
    texts = {"LICENSE": MIT} if texts is None else texts
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    lines += [f"License-Expression: {expression}"] if expression is not None else []
    lines += [f"License-File: {text}" for text in texts]
    described = "\n".join([*lines, *headers, "", "License: said in the description, which counts for nothing", ""])
    return {
        f"{name.replace('-', '_')}/__init__.py": b"raise RuntimeError('imported by an audit')\n",
        **(files or {}),
        f"{info}/METADATA": described.encode() if metadata is None else metadata,
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **{f"{info}/licenses/{path}": data for path, data in texts.items()},
    }


def info_of(files: Mapping[str, bytes]) -> str:
    """The name of the .dist-info directory."""
    return next(name.partition("/")[0] for name in files if name.endswith("/METADATA"))


def record(files: Mapping[str, bytes]) -> bytes:
    """A RECORD of the files."""

    def line(name: str, data: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(data)}\n"

    lines = [line(name, data) for name, data in files.items()]
    return "".join([*lines, f"{info_of(files)}/RECORD,,\n"]).encode()


def with_record(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {**files, f"{info_of(files)}/RECORD": record(files)}


def zipped(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def wheel(directory: Path, files: Mapping[str, bytes], name: str = "demo-1.0-py3-none-any.whl") -> Path:
    """Write a wheel of `files` and a RECORD that fits them."""
    path = directory / name
    path.write_bytes(zipped(with_record(files)))
    return path


def install(site: Path, files: Mapping[str, bytes], *, recorded: bool = True) -> Path:
    """Lay the files into `site` as an installer does; the path of the .dist-info directory."""
    for name, data in (with_record(files) if recorded else files).items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return site / info_of(files)


def manifest(id: str, kind: str = "code", expression: str = "MIT", extra: str = "", delivery: str = "bundled") -> bytes:
    """A component manifest; `extra` is TOML after its [license] table."""
    head = f'schema = "glmserve.component/1"\nid = "{id}"\nname = "{id}"\nkind = "{kind}"\ndelivery = "{delivery}"\n'
    return f'{head}[license]\nexpression = "{expression}"\n{extra}'.encode()


def entry_point(package: str) -> bytes:
    return f"[glmserve.components]\nhere = {package}\n".encode()

"""A small assembly on disk: code, weights that may be passed on, and a drafter that may not."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glmserve.licensing.bundle.archive import member_of, write_archive
from glmserve.licensing.bundle.index import FILE_NAME, BundleIndex
from glmserve.licensing.bundle.make import BundleInputs, make_bundle
from glmserve.licensing.bundle.packing import PackedFile
from glmserve.licensing.report import Component, Finding, Reason, Report, Row, Use, Verdict

from .reports import APACHE_TEXT, DRAFTER, NEVER, component, report, row, text

USE = Use.REDISTRIBUTE_IMAGE
CC_TEXT = "Creative Commons Attribution-NonCommercial-NoDerivatives 4.0 International\n"
TEXTS = {"Apache-2.0": APACHE_TEXT, "MIT": "MIT License\n", "CC-BY-NC-ND-4.0": CC_TEXT}
PROFILE = b'[profile]\nname = "four-spark"\n\n[licenses.facts]\npurpose = "noncommercial"\n\n[drafter]\nname = "mtp"\n'
SHARED = frozenset(use for use in Use if use.shares)


def safetensors(tensors: Mapping[str, tuple[int, ...]], seed: int = 1, **metadata: str) -> bytes:
    """A safetensors file of random bfloat16 tensors: name -> shape."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, shape in tensors.items():
        count = 2
        for extent in shape:
            count *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + count]}
        end += count
    spelt = json.dumps(header).encode()
    return struct.pack("<Q", len(spelt)) + spelt + random.Random(seed).randbytes(end)


TENSORS = {"fc.weight": (32, 96), "layers.0.q_proj.weight": (64, 64), "layers.0.k_proj.weight": (16, 64)}
DRAFTER_FILES = {
    "model.safetensors": safetensors(TENSORS, seed=7),
    "config.json": json.dumps({"architectures": ["DFlash2"], "hidden_size": 64, "block_size": 8}).encode(),
    "LICENSE": CC_TEXT.encode(),
}


def write(root: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def entries(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    return [
        {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for path, data in files.items()
    ]


def packed(root: Path) -> tuple[PackedFile, ...]:
    """Every file below `root`."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".glmserve"))
    return tuple(PackedFile(path, path.relative_to(root).as_posix()) for path in paths)


def drafter(root: Path | None = None, **changes: Any) -> Component:
    fields: dict[str, Any] = {
        "name": "GLM-5.3-DFlash2",
        "delivery": "fetch",
        "origin": {
            "type": "hf",
            "url": "https://huggingface.co/incoai/GLM-5.3-DFlash2",
            "revision": DRAFTER,
            "publisher": "incoai",
        },
        "license": {
            "declared_at": "https://huggingface.co/incoai/GLM-5.3-DFlash2",
            "texts": [{"path": "LICENSE"}],
        },
        "attribution": {"copyright": ["incoai"]},
        "files": entries(DRAFTER_FILES),
        "policy": {"redistribute": "never", "accept_before_fetch": True, "reason": "its user fetches it"},
    }
    return component("drafter", "drafter", "CC-BY-NC-ND-4.0", root=root, **{**fields, **changes})


def drafter_row(part: Component, *findings: Finding, counted: bool = False) -> Row:
    return row(part, findings or (NEVER,), uncounted=frozenset() if counted else SHARED)


def code(root: Path | None = None, id: str = "glmserve", **changes: Any) -> Component:
    fields = {"texts": (text("LICENSE", APACHE_TEXT),), "version": "0.1.0"}
    return component(id, "code", "Apache-2.0", root=root, **{**fields, **changes})


def weights(root: Path, **changes: Any) -> Component:
    files = entries({file.path: file.source.read_bytes() for file in packed(root)})
    return component("tiny", "weights", "Apache-2.0", root=root, **{"files": files, **changes})


def inputs(place: Path, *extra: Row, code_files: Mapping[str, bytes] | None = None, **changes: Any) -> BundleInputs:
    """Code and weights that may be passed on, and the drafter on this machine, below `place`."""
    source = write(place / "code", code_files or {"glmserve/__init__.py": b'"""Code."""\n', "LICENSE": b"Apache\n"})
    model = place / "model"
    if not model.exists():
        write(model, {"model.safetensors": safetensors({"w": (8, 8)}, seed=3), "config.json": b'{"a": 1}\n'})
    rows = [row(code(source)), row(weights(model)), drafter_row(drafter(write(place / "drafter", DRAFTER_FILES)))]
    made = BundleInputs(
        report=report([*rows, *extra]),
        contents={"glmserve": packed(source), "tiny": packed(model)},
        text_of=TEXTS.get,
        extra_files={"profile.toml": PROFILE, "requirements.txt": b"glmserve==0.1.0\n"},
        trees=(source, model),
    )
    return replace(made, **changes)


def strictly(made: BundleInputs) -> BundleInputs:
    """The same question, with fetched components counted."""
    rows = [
        replace(one, rulings={use: replace(ruling, counted=True) for use, ruling in one.rulings.items()})
        for one in made.report.rows
    ]
    return replace(made, report=replace(made.report, rows=tuple(rows), strict=True))


def refusal(code: Reason, verdict: Verdict = Verdict.DENY) -> Finding:
    return Finding(code, verdict, "the licence says so", uses=SHARED)


def with_rows(report_: Report, *rows: Row) -> Report:
    return report([*report_.rows, *rows])


def bundled(place: Path, made: BundleInputs | None = None, **options: Any) -> Path:
    """Made with stubs, unless said otherwise."""
    out = place / "out" / "bundle.tar"
    out.parent.mkdir(exist_ok=True)
    make_bundle(made or inputs(place), out, **{"use": USE, "strict": False, **options})
    return out


def files(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]


def rebuilt(place: Path, contents: dict[str, bytes], change: Callable[[dict[str, Any]], object] = len) -> Path:
    """An archive that is written properly, with an index that vouches for whatever is in it."""
    value = json.loads(contents.pop(FILE_NAME))
    del value["sha256"]
    owners = {file["path"]: file["component"] for file in value["files"]}
    value["files"] = [
        {**entry, "component": owners.get(entry["path"]), "executable": False}
        for entry in sorted(entries(contents), key=lambda entry: str(entry["path"]))
    ]
    change(value)
    index = BundleIndex.model_validate(value).serialise()
    write_archive(
        place / "rebuilt.tar",
        [member_of(path, data) for path, data in {**contents, FILE_NAME: index}.items()],
        epoch_s=0,
    )
    return place / "rebuilt.tar"

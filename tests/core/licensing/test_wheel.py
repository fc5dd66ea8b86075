"""The packaging gate: a sound wheel passes, and every way to break one is a finding."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import random
import re
import stat
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from glmserve.licensing.report import Reason, Verdict
from glmserve.licensing.wheel.check import check_wheel
from hypothesis import given, settings
from hypothesis import strategies as st

from .wheels import (
    APACHE,
    CC_BY_NC_ND,
    MIT,
    contents,
    entry_point,
    manifest,
    record,
    safetensors,
    wheel,
    with_record,
    zipped,
)

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
WEIGHTS = safetensors(300)
ANSWERED = (
    f'[[files]]\npath = "model.safetensors"\nsha256 = "{hashlib.sha256(WEIGHTS).hexdigest()}"\nsize = {len(WEIGHTS)}\n'
)
SOUND = contents(
    files={
        "demo/table.py": b"ROWS = [1, 2, 3]\n" * 50,
        "demo/model.safetensors": WEIGHTS,
        "demo/components/demo.toml": manifest("demo"),
        "demo/components/model.toml": manifest("model", "weights", "MIT", ANSWERED),
        f"{INFO}/entry_points.txt": entry_point("demo"),
    }
)
Files = dict[str, bytes]


def codes(path: Path) -> set[Reason]:
    return {finding.code for finding in check_wheel(path)}


def test_a_sound_wheel_has_no_findings(tmp_path: Path) -> None:
    assert check_wheel(wheel(tmp_path, SOUND)) == ()


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_a_record_may_use_stronger_digests(algorithm: str, tmp_path: Path) -> None:
    def stronger(match: re.Match[str]) -> str:
        digest = base64.urlsafe_b64encode(hashlib.new(algorithm, SOUND[match[1]]).digest()).rstrip(b"=").decode()
        return f"{match[1]},{algorithm}={digest},"

    lines = re.sub(r"(.+?),sha256=[\w-]+,", stronger, record(SOUND).decode())
    path = tmp_path / NAME
    path.write_bytes(zipped({**SOUND, f"{INFO}/RECORD": lines.encode()}))
    assert check_wheel(path) == ()


def header(line: str) -> Callable[[Files], Files]:
    """Add a header to METADATA."""

    def add(files: Files) -> Files:
        data = files[f"{INFO}/METADATA"]
        return {**files, f"{INFO}/METADATA": data.replace(b"\nVersion:", f"\n{line}\nVersion:".encode(), 1)}

    return add


def metadata(old: str, new: str) -> Callable[[Files], Files]:
    return edit(f"{INFO}/METADATA", old, new)


def edit(name: str, old: str, new: str) -> Callable[[Files], Files]:
    def replace(files: Files) -> Files:
        assert old.encode() in files[name]
        return {**files, name: files[name].replace(old.encode(), new.encode(), 1)}

    return replace


def add(name: str, data: bytes) -> Callable[[Files], Files]:
    return lambda files: {**files, name: data}


def drop(name: str) -> Callable[[Files], Files]:
    return lambda files: {key: data for key, data in files.items() if key != name}


LICENSE = f"{INFO}/licenses/LICENSE"
ENCODED = b'W = "' + base64.b64encode(random.Random(0).randbytes(90_000)) + b'"\n'
VENDORED = (
    add("demo/components/part.toml", manifest("part", expression="MIT AND Apache-2.0")),
    add("demo/components/demo.toml", manifest("demo", extra='[[derived_from]]\nid = "part"\nrelation = "vendored"\n')),
)

# Built with a RECORD that fits: what is wrong is what the wheel says.
WRONG_CONTENT: dict[str, tuple[Callable[[Files], Files], Reason]] = {
    "old metadata version": (metadata("Metadata-Version: 2.4", "Metadata-Version: 2.1"), Reason.MALFORMED),
    "no metadata version": (metadata("Metadata-Version: 2.4", "X-Version: 2.4"), Reason.MALFORMED),
    "nonsense metadata version": (metadata("Metadata-Version: 2.4", "Metadata-Version: two"), Reason.MALFORMED),
    "no expression": (metadata("License-Expression: MIT\n", ""), Reason.NO_LICENSE),
    "empty expression": (metadata("License-Expression: MIT", "License-Expression:"), Reason.NO_LICENSE),
    "expression says nothing": (metadata("Expression: MIT", "Expression: NOASSERTION"), Reason.NO_LICENSE),
    "trailing operator": (metadata("Expression: MIT", "Expression: MIT OR"), Reason.MALFORMED_EXPRESSION),
    "slash": (metadata("Expression: MIT", "Expression: MIT/X11"), Reason.MALFORMED_EXPRESSION),
    "look-alike letter": (metadata("Expression: MIT", "Expression: \u041cIT"), Reason.MALFORMED_EXPRESSION),
    "not canonical": (metadata("Expression: MIT", "Expression: mit"), Reason.MALFORMED_EXPRESSION),
    "two expressions": (header("License-Expression: MIT"), Reason.METADATA_CONFLICT),
    "old license header": (header("License: MIT"), Reason.METADATA_CONFLICT),
    "classifier": (header("Classifier: License :: OSI Approved :: MIT License"), Reason.METADATA_CONFLICT),
    "other classifier": (
        header("Classifier: License :: OSI Approved :: GNU Affero General Public License v3"),
        Reason.METADATA_CONFLICT,
    ),
    "another name": (metadata("Name: demo", "Name: other"), Reason.METADATA_CONFLICT),
    "another version": (metadata("\nVersion: 1.0", "\nVersion: 1.1"), Reason.METADATA_CONFLICT),
    "bad requirement": (header("Requires-Dist: not (a requirement"), Reason.MALFORMED),
    "no license file": (metadata("License-File: LICENSE\n", ""), Reason.TEXT_MISSING),
    "license file not shipped": (drop(LICENSE), Reason.TEXT_MISSING),
    "license file outside": (metadata("License-File: LICENSE", "License-File: ../../x"), Reason.MALFORMED),
    "license file absolute": (metadata("License-File: LICENSE", "License-File: /etc/passwd"), Reason.MALFORMED),
    "license file empty": (add(LICENSE, b""), Reason.TEXT_MISSING),
    "license file binary": (add(LICENSE, b"\0\1\2\3"), Reason.TEXT_MISSING),
    "license file in latin-1": (add(LICENSE, b"Copyright J\xe9r\xf4me\n" + MIT), Reason.TEXT_MISSING),
    "license file of another licence": (add(LICENSE, CC_BY_NC_ND), Reason.TEXT_MISMATCH),
    "license file of no licence": (add(LICENSE, b"NOTTHETEXT\n"), Reason.TEXT_MISSING),
    "half a licence": (add(LICENSE, MIT[: len(MIT) // 2]), Reason.TEXT_MISSING),
    "a second licence in the file": (add(LICENSE, MIT + b"\n\n" + CC_BY_NC_ND), Reason.METADATA_CONFLICT),
    "license file not declared": (add(f"{INFO}/licenses/LICENSE.other", APACHE), Reason.METADATA_CONFLICT),
    "text of an AND missing": (metadata("Expression: MIT", "Expression: MIT AND Apache-2.0"), Reason.TEXT_MISSING),
    "text of a LicenseRef missing": (metadata("Expression: MIT", "Expression: LicenseRef-Own"), Reason.TEXT_MISSING),
    "weights": (add("demo/other.safetensors", safetensors()), Reason.WEIGHTS_IN_WHEEL),
    "renamed weights": (add("demo/table.dat", safetensors()), Reason.WEIGHTS_IN_WHEEL),
    "small pickle": (add("demo/x.txt", b"\x80\x04\x95\x02\0\0\0\0\0\0\0N."), Reason.WEIGHTS_IN_WHEEL),
    "weights in a zip": (add("demo/docs.zip", zipped({"readme": safetensors()})), Reason.WEIGHTS_IN_WHEEL),
    "weights in a zip in a gz": (
        add("demo/docs.bin", gzip.compress(zipped({"readme": safetensors()}))),
        Reason.WEIGHTS_IN_WHEEL,
    ),
    "weights as base64": (add("demo/constants.py", ENCODED), Reason.WEIGHTS_IN_WHEEL),
    "weights longer than answered for": (add("demo/model.safetensors", safetensors(301)), Reason.WEIGHTS_IN_WHEEL),
    "weights other than answered for": (add("demo/model.safetensors", WEIGHTS[:-1] + b"!"), Reason.HASH_MISMATCH),
    "answered weights not shipped": (drop("demo/model.safetensors"), Reason.FILE_MISSING),
    "damaged archive inside": (add("demo/docs.zip", zipped({"a": b"b" * 99})[:-30]), Reason.MALFORMED),
    "archive that nobody can open": (add("demo/docs.7z", b"7z\xbc\xaf\x27\x1c" + bytes(40)), Reason.MALFORMED),
    "manifest of another licence": (
        edit("demo/components/demo.toml", 'expression = "MIT"', 'expression = "Apache-2.0"'),
        Reason.METADATA_CONFLICT,
    ),
    "manifest with a permission": (
        edit("demo/components/demo.toml", 'id = "demo"', 'id = "demo"\ncommercial = true'),
        Reason.MALFORMED,
    ),
    "manifest that is no TOML": (add("demo/components/demo.toml", b"\xff["), Reason.MALFORMED),
    "manifests announced and missing": (add(f"{INFO}/entry_points.txt", entry_point("other")), Reason.FILE_MISSING),
    "bad entry points": (add(f"{INFO}/entry_points.txt", b"[glmserve.components\nx"), Reason.MALFORMED),
    "manifest text not shipped": (
        edit("demo/components/model.toml", "[license]\n", '[license]\ntexts = [{ path = "LICENSE.model" }]\n'),
        Reason.TEXT_MISSING,
    ),
    "vendored Apache code without NOTICE": (lambda files: VENDORED[1](VENDORED[0](files)), Reason.NOTICE_MISSING),
    "bundled weights of another licence": (
        edit("demo/components/model.toml", 'expression = "MIT"', 'expression = "CC-BY-NC-ND-4.0"'),
        Reason.METADATA_CONFLICT,
    ),
    "bundled weights that are never redistributed": (
        edit("demo/components/model.toml", "[license]", '[policy]\nredistribute = "never"\n[license]'),
        Reason.PROJECT_POLICY,
    ),
    "no WHEEL": (drop(f"{INFO}/WHEEL"), Reason.MALFORMED),
    "WHEEL of version 2": (edit(f"{INFO}/WHEEL", "Wheel-Version: 1.0", "Wheel-Version: 2.0"), Reason.MALFORMED),
    "WHEEL without purity": (edit(f"{INFO}/WHEEL", "Root-Is-Purelib: true\n", ""), Reason.MALFORMED),
    "tags of another platform": (edit(f"{INFO}/WHEEL", "py3-none-any", "py3-none-win32"), Reason.METADATA_CONFLICT),
    "tag that is none": (edit(f"{INFO}/WHEEL", "py3-none-any", "py3"), Reason.METADATA_CONFLICT),
    "no METADATA": (lambda files: {**drop(f"{INFO}/METADATA")(files), f"{INFO}/X": b""}, Reason.MALFORMED),
    "METADATA is binary": (add(f"{INFO}/METADATA", bytes(range(256)) * 40), Reason.METADATA_CONFLICT),
    "two dist-info directories": (add("other-1.0.dist-info/METADATA", b"Name: other\n"), Reason.MALFORMED),
    "name that differs by case": (add("demo/TABLE.py", b"x\n"), Reason.MALFORMED),
    "name that climbs": (add("demo/../../x", b"x"), Reason.MALFORMED),
    "name that is absolute": (add("/etc/x", b"x"), Reason.MALFORMED),
    "name with a backslash": (add("demo\\x", b"x"), Reason.MALFORMED),
    "name with an escape": (add("demo/\x1b[2J", b"x"), Reason.MALFORMED),
}


@pytest.mark.parametrize("what", sorted(WRONG_CONTENT))
def test_a_wheel_that_is_wrong_in_content_does_not_pass(what: str, tmp_path: Path) -> None:
    change, reason = WRONG_CONTENT[what]
    files = change(SOUND)
    path = tmp_path / NAME
    known = f"{INFO}/METADATA" in files
    path.write_bytes(zipped(with_record(files) if known else files))
    assert reason in codes(path)


def raw(change: Callable[[bytes], bytes]) -> Callable[[Files], bytes]:
    return lambda files: change(zipped(with_record(files)))


def recorded(change: Callable[[str], str]) -> Callable[[Files], bytes]:
    return lambda files: zipped({**files, f"{INFO}/RECORD": change(record(files).decode()).encode()})


def infos(change: Callable[[zipfile.ZipInfo], None], name: str = "demo/table.py") -> Callable[[Files], bytes]:
    """Change the attributes of one member."""

    def build(files: Files) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for key, data in with_record(files).items():
                info = zipfile.ZipInfo(key)
                if key == name:
                    change(info)
                archive.writestr(info, data)
        return buffer.getvalue()

    return build


def mode(bits: int) -> Callable[[zipfile.ZipInfo], None]:
    return lambda info: setattr(info, "external_attr", bits << 16)


def encrypted(data: bytes) -> bytes:
    """The same zip, its first member marked as encrypted in the index."""
    flags = data.index(b"PK\x01\x02") + 8
    return data[:flags] + b"\x01" + data[flags + 1 :]


# The container is wrong: zip, names and RECORD.
WRONG_CONTAINER: dict[str, tuple[Callable[[Files], bytes], Reason]] = {
    "empty file": (raw(lambda data: b""), Reason.MALFORMED),
    "no zip": (raw(lambda data: b"hello"), Reason.MALFORMED),
    "first half": (raw(lambda data: data[: len(data) // 2]), Reason.MALFORMED),
    "last half": (raw(lambda data: data[len(data) // 2 :]), Reason.MALFORMED),
    "last byte missing": (raw(lambda data: data[:-1]), Reason.MALFORMED),
    "bytes in front": (raw(lambda data: safetensors() + data), Reason.MALFORMED),
    "bytes behind": (raw(lambda data: data + safetensors()), Reason.MALFORMED),
    "comment": (raw(lambda data: data[:-2] + b"\x05\x00hello"), Reason.MALFORMED),
    "two wheels in a row": (raw(lambda data: data + data), Reason.MALFORMED),
    "a member's data changed": (
        lambda files: zipped(with_record(files)).replace(b"demo/table.py", b"demo/tab1e.py", 1),
        Reason.MALFORMED,
    ),
    "central name changed": (
        lambda files: b"demo/tab1e.py".join(zipped(with_record(files)).rsplit(b"demo/table.py", 1)),
        Reason.FILE_MISSING,
    ),
    "no RECORD": (lambda files: zipped(files), Reason.MALFORMED),
    "RECORD is empty": (recorded(lambda text: ""), Reason.UNOWNED_FILE),
    "RECORD is binary": (lambda files: zipped({**files, f"{INFO}/RECORD": b"\xff\0"}), Reason.MALFORMED),
    "file not recorded": (recorded(lambda text: text.split("\n", 1)[1]), Reason.UNOWNED_FILE),
    "recorded file missing": (recorded(lambda text: f"gone.py,,\n{text}"), Reason.FILE_MISSING),
    "recorded twice": (recorded(lambda text: text.split("\n", 1)[0] + "\n" + text), Reason.MALFORMED),
    "wrong digest": (recorded(lambda text: re.sub(r"sha256=.", "sha256=_", text, count=1)), Reason.HASH_MISMATCH),
    "wrong size": (recorded(lambda text: re.sub(r",(\d+)\n", r",1\1\n", text, count=1)), Reason.HASH_MISMATCH),
    "no digest": (recorded(lambda text: re.sub(r"sha256=[\w-]+", "", text, count=1)), Reason.MALFORMED),
    "no size": (recorded(lambda text: re.sub(r",\d+\n", ",\n", text, count=1)), Reason.MALFORMED),
    "negative size": (recorded(lambda text: re.sub(r",(\d+)\n", r",-\1\n", text, count=1)), Reason.MALFORMED),
    "weak digest": (recorded(lambda text: text.replace("sha256=", "md5=", 1)), Reason.MALFORMED),
    "digest is no base64": (recorded(lambda text: re.sub(r"sha256=..", "sha256=!!", text, count=1)), Reason.MALFORMED),
    "RECORD lists its own digest": (
        recorded(lambda text: text.replace("RECORD,,", f"RECORD,sha256={'A' * 43},1")),
        Reason.MALFORMED,
    ),
    "RECORD does not list itself": (recorded(lambda text: text.replace(f"{INFO}/RECORD,,\n", "")), Reason.MALFORMED),
    "line with two fields": (recorded(lambda text: f"a,b\n{text}"), Reason.MALFORMED),
    "symbolic link": (infos(mode(stat.S_IFLNK | 0o777)), Reason.MALFORMED),
    "device": (infos(mode(stat.S_IFCHR | 0o666)), Reason.MALFORMED),
    "pipe": (infos(mode(stat.S_IFIFO | 0o666)), Reason.MALFORMED),
    "license file is a link": (infos(mode(stat.S_IFLNK | 0o777), LICENSE), Reason.TEXT_MISSING),
    "encrypted": (raw(encrypted), Reason.MALFORMED),
}


@pytest.mark.parametrize("what", sorted(WRONG_CONTAINER))
def test_a_wheel_that_is_wrong_as_a_container_does_not_pass(what: str, tmp_path: Path) -> None:
    build, reason = WRONG_CONTAINER[what]
    path = tmp_path / NAME
    path.write_bytes(build(SOUND))
    assert reason in codes(path)


WRONG_NAMES = [
    *("demo.whl", "demo-1.0-py3-none-any.zip", "demo-one-py3-none-any.whl"),
    *("other-1.0-py3-none-any.whl", "demo-1.1-py3-none-any.whl", "demo-1.0-cp311-none-any.whl"),
]


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_wheel_under_another_name_does_not_pass(name: str, tmp_path: Path) -> None:
    assert check_wheel(wheel(tmp_path, SOUND, name)) != ()


def test_a_linked_wheel_is_checked_like_the_wheel_itself(tmp_path: Path) -> None:
    link = tmp_path / "links" / NAME
    link.parent.mkdir()
    link.symlink_to(tmp_path / NAME)
    wheel(tmp_path, SOUND)
    assert check_wheel(link) == ()
    wheel(tmp_path, {**SOUND, "demo/x.bin": safetensors()})
    assert codes(link) == {Reason.WEIGHTS_IN_WHEEL}


def test_what_is_no_file_is_a_finding(tmp_path: Path) -> None:
    assert codes(tmp_path / "missing.whl") == codes(tmp_path) == {Reason.MALFORMED}


def test_a_bomb_is_a_finding(tmp_path: Path) -> None:
    bomb = {**SOUND, "demo/zeros.bin": bytes(100 << 20)}
    start = time.monotonic()
    found = check_wheel(wheel(tmp_path, bomb))
    assert any("unpacks to more than" in finding.message for finding in found)
    assert time.monotonic() - start < 10


def test_every_license_ref_has_its_text(tmp_path: Path) -> None:
    texts = {"LICENSES/LicenseRef-Own.txt": b"You may do as you like.\n"}
    assert check_wheel(wheel(tmp_path, contents(expression="LicenseRef-Own", texts=texts))) == ()


def test_one_text_of_an_or_is_enough(tmp_path: Path) -> None:
    assert check_wheel(wheel(tmp_path, contents(expression="MIT OR Apache-2.0", texts={"LICENSE": APACHE}))) == ()


def test_vendored_apache_code_with_its_notice_passes(tmp_path: Path) -> None:
    texts = {"LICENSE": MIT, "LICENSE.part": APACHE, "NOTICE": b"From elsewhere.\n"}
    files = contents(
        expression="MIT AND Apache-2.0", texts=texts, files={f"{INFO}/entry_points.txt": entry_point("demo")}
    )
    whole = "MIT AND Apache-2.0"
    extra = '[[derived_from]]\nid = "part"\nrelation = "vendored"\n'
    files["demo/components/demo.toml"] = manifest("demo", expression=whole, extra=extra)
    files["demo/components/part.toml"] = manifest("part", expression="Apache-2.0")
    assert check_wheel(wheel(tmp_path, files)) == ()


def test_findings_say_what_is_wrong_in_a_phrase(tmp_path: Path) -> None:
    for change, _ in WRONG_CONTENT.values():
        files = change(SOUND)
        if f"{INFO}/METADATA" in files:
            for finding in check_wheel(wheel(tmp_path, files)):
                assert 10 < len(finding.message) < 400
                assert finding.message.isprintable()
                assert finding.verdict > Verdict.ALLOW or finding.code is Reason.METADATA_CONFLICT


WHOLE = zipped(with_record(SOUND))


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@settings(max_examples=250, deadline=None)
@given(at=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_or_changes_no_file(at: int, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = bytearray(WHOLE)
    data[at] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / NAME
    path.write_bytes(data)
    if not check_wheel(path):
        assert members(bytes(data)) == members(WHOLE)


@pytest.mark.parametrize("seed", range(40))
def test_a_wheel_that_was_damaged_at_random_does_not_pass(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    data = bytearray(WHOLE)
    kind = chance.choice(["overwrite", "cut", "insert", "swap"])
    at, length = chance.randrange(len(data) - 80), chance.randrange(20, 60)
    if kind == "overwrite":
        data[at : at + length] = chance.randbytes(length)
    elif kind == "cut":
        del data[at : at + length]
    elif kind == "insert":
        data[at:at] = chance.randbytes(length)
    else:
        data = data[at:] + data[:at]
    path = tmp_path / NAME
    path.write_bytes(data)
    assert check_wheel(path) != ()

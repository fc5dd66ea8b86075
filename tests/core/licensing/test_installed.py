"""Installed distributions as components: texts, integrity, clarifications, and nothing imported."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import pytest
from glmserve.api import ConfigError
from glmserve.licensing.expressions import parse
from glmserve.licensing.installed import claims
from glmserve.licensing.installed.clarify import shipped_clarifications
from glmserve.licensing.installed.distributions import closure, distributions
from glmserve.licensing.installed.manifests import manifests
from glmserve.licensing.policy import Clarification
from glmserve.licensing.report import Component, Reason, Use, Verdict
from glmserve.licensing.texts import digest
from hypothesis import given, settings
from hypothesis import strategies as st

from .wheels import APACHE, BSD_3, CC_BY_NC_ND, MIT, contents, entry_point, install, manifest, safetensors

PROPRIETARY = "Classifier: License :: Other/Proprietary License"


def read(site: Path, **options: object) -> Component:
    (component,) = distributions([str(site)], **options)  # type: ignore[arg-type]
    return component


def codes(component: Component) -> list[Reason]:
    return [finding.code for finding in component.findings]


def test_a_sound_distribution_is_a_component_without_findings(tmp_path: Path) -> None:
    install(tmp_path, contents("Demo.Pkg", "1.2", texts={"LICENSE": MIT, "NOTICE": b"Keep this.\n"}))
    found = read(tmp_path, verify=True)
    assert (found.id, found.distribution, found.environment) == ("py-demo-pkg", "demo-pkg", True)
    assert (found.manifest.name, found.manifest.version, found.manifest.kind) == ("Demo.Pkg", "1.2", "code")
    assert found.manifest.origin is not None
    assert (found.manifest.origin.type, found.manifest.origin.revision) == ("wheel", "1.2")
    assert found.manifest.license.expression == "MIT"
    assert found.manifest.license.declared_at == "METADATA, License-Expression"
    assert [(t.path, t.sha256) for t in found.texts] == [("Demo.Pkg-1.2.dist-info/licenses/LICENSE", digest(MIT))]
    assert found.notices == ("Keep this.\n",)
    assert found.root == tmp_path
    assert (found.readings, found.findings) == ((), ())


def test_nothing_of_an_audited_distribution_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"demo/components/demo.toml": manifest("demo"), "demo-1.0.dist-info/entry_points.txt": entry_point("demo")}
    install(tmp_path, contents(files=files))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert read(tmp_path, verify=True).findings == ()
    for paths in (None, [str(tmp_path)]):
        assert "demo" in [found.manifest.id for found in manifests(paths)]
    assert "demo" not in sys.modules


@pytest.mark.parametrize("place", ["licenses/LICENSE", "LICENSE", "license_files/LICENSE"])
def test_license_files_are_found_where_older_tools_put_them(place: str, tmp_path: Path) -> None:
    files = contents(texts={}, headers=["License-File: LICENSE"])
    install(tmp_path, {**files, f"demo-1.0.dist-info/{place}": MIT})
    found = read(tmp_path)
    assert [text.path for text in found.texts] == [f"demo-1.0.dist-info/{place}"]
    assert found.findings == ()


def test_texts_that_no_header_declares_are_found(tmp_path: Path) -> None:
    install(tmp_path, {**contents(texts={}), "demo-1.0.dist-info/COPYING": MIT, "demo-1.0.dist-info/NOTICE.txt": b"n"})
    found = read(tmp_path)
    assert [text.path for text in found.texts] == ["demo-1.0.dist-info/COPYING"]
    assert found.notices == ("n\n",)


@pytest.mark.parametrize("data", [None, b"", b"\xef\xbb\xbf\r\n \r\n", b"\0\1\2binary"])
def test_a_declared_text_that_is_not_there_bars_sharing_only(data: bytes | None, tmp_path: Path) -> None:
    files = contents(
        texts={} if data is None else {"LICENSE": data}, headers=[] if data is not None else ["License-File: LICENSE"]
    )
    install(tmp_path, files)
    (finding,) = read(tmp_path).findings
    assert (finding.code, finding.verdict) == (Reason.TEXT_MISSING, Verdict.DENY)
    assert finding.bears_on(Use.REDISTRIBUTE_IMAGE)
    assert not finding.bears_on(Use.RUN_COMMERCIAL)


@pytest.mark.parametrize(("encoding", "end"), [("latin-1", "\n"), ("utf-8-sig", "\r\n"), ("utf-16", "\n")])
def test_texts_in_other_encodings_are_read(encoding: str, end: str, tmp_path: Path) -> None:
    text = "Copyright (c) 2020 J\u00e9r\u00f4me\n" + MIT.decode()
    install(tmp_path, contents(texts={"LICENSE": text.replace("\n", end).encode(encoding)}))
    found = read(tmp_path)
    assert found.texts[0].sha256 == digest(text)
    assert found.findings == ()


@pytest.mark.parametrize("name", ["../../../secret", "/etc/passwd", "..\\secret", "a/../../secret"])
def test_a_license_file_outside_its_directory_is_never_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret words")
    install(tmp_path / "site", contents(texts={}, headers=[f"License-File: {name}"]))
    found = read(tmp_path / "site")
    assert codes(found) == [Reason.MALFORMED]
    assert found.texts == ()
    assert "secret words" not in repr(found)


def test_a_linked_license_file_outside_the_installation_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret words")
    info = install(tmp_path / "site", contents(texts={}), recorded=False)
    (info / "LICENSE").symlink_to(tmp_path / "secret")
    assert "secret words" not in repr(read(tmp_path / "site"))


def test_an_edited_text_is_found_by_its_record(tmp_path: Path) -> None:
    info = install(tmp_path, contents())
    (info / "licenses" / "LICENSE").write_bytes(MIT + b"\nNo commercial use.\n")
    assert Reason.HASH_MISMATCH in codes(read(tmp_path))


def test_edited_metadata_is_found_by_its_record(tmp_path: Path) -> None:
    info = install(tmp_path, contents(expression="GPL-3.0-only", texts={}))
    metadata = info / "METADATA"
    metadata.write_bytes(metadata.read_bytes().replace(b"GPL-3.0-only", b"MIT"))
    assert codes(read(tmp_path)) == [Reason.HASH_MISMATCH]


def test_verifying_reads_every_file(tmp_path: Path) -> None:
    install(tmp_path, contents(files={"demo/a.py": b"1", "demo/b.py": b"2"}))
    (tmp_path / "demo" / "a.py").write_bytes(b"3")
    (tmp_path / "demo" / "b.py").unlink()
    assert codes(read(tmp_path)) == []
    assert codes(read(tmp_path, verify=True)) == [Reason.HASH_MISMATCH, Reason.FILE_MISSING]


def test_a_text_that_was_added_later_is_not_counted(tmp_path: Path) -> None:
    info = install(tmp_path, contents(texts={}, expression=None))
    (info / "LICENSE").write_bytes(MIT)
    found = read(tmp_path)
    assert found.texts == ()
    assert Reason.UNOWNED_FILE in codes(found)


def test_without_a_record_integrity_is_unknown_and_nothing_worse(tmp_path: Path) -> None:
    install(tmp_path, contents(), recorded=False)
    (finding,) = read(tmp_path, verify=True).findings
    assert (finding.code, finding.verdict) == (Reason.INTEGRITY_UNKNOWN, Verdict.ALLOW)


def test_a_working_copy_has_unknown_integrity(tmp_path: Path) -> None:
    url = json.dumps({"dir_info": {"editable": True}, "url": "file:///somewhere"}).encode()
    install(tmp_path, {**contents(), "demo-1.0.dist-info/direct_url.json": url})
    assert codes(read(tmp_path)) == [Reason.INTEGRITY_UNKNOWN]


@pytest.mark.parametrize(
    "record", [b"\xff\xfe", b'"unclosed', b"demo/x.py,sha256=short,1\n", b"a,md5=xyz,1\n", b"only one\n"]
)
def test_a_damaged_record_is_a_finding(record: bytes, tmp_path: Path) -> None:
    info = install(tmp_path, contents(texts={}))
    (info / "RECORD").write_bytes(record)
    assert Reason.MALFORMED in codes(read(tmp_path, verify=True))


@pytest.mark.parametrize("name", ["plain.toml", "PKG-INFO"])
def test_an_egg_is_read_as_well(name: str, tmp_path: Path) -> None:
    egg = tmp_path / "old-1.0.egg-info"
    metadata = "Metadata-Version: 1.1\nName: old\nVersion: 1.0\nLicense: MIT\n"
    if name == "PKG-INFO":
        egg.mkdir()
        (egg / name).write_text(metadata)
    else:
        egg.write_text(metadata)
    found = read(tmp_path)
    assert (found.id, found.manifest.license.expression) == ("py-old", "MIT")
    assert codes(found) == [Reason.INTEGRITY_UNKNOWN]


def test_a_text_of_another_licence_is_a_mismatch(tmp_path: Path) -> None:
    install(tmp_path, contents(expression="Apache-2.0", texts={"LICENSE": CC_BY_NC_ND}))
    (finding,) = read(tmp_path).findings
    assert (finding.code, finding.verdict) == (Reason.TEXT_MISMATCH, Verdict.UNKNOWN)
    assert "CC-BY-NC-ND-4.0" in finding.message


def test_texts_of_vendored_parts_count_as_well(tmp_path: Path) -> None:
    texts = {"LICENSE": MIT, "vendored/LICENSE": CC_BY_NC_ND}
    install(tmp_path, contents(expression="MIT OR Apache-2.0", texts=texts))
    found = read(tmp_path)
    assert found.readings == ("(MIT OR Apache-2.0) AND CC-BY-NC-ND-4.0",)
    assert codes(found) == [Reason.METADATA_CONFLICT]


def test_texts_in_a_notice_count_as_well(tmp_path: Path) -> None:
    install(tmp_path, contents(texts={"LICENSE": MIT, "THIRD_PARTY_LICENSES.txt": b"Of parts:\n\n" + CC_BY_NC_ND}))
    assert read(tmp_path).readings == ("MIT AND CC-BY-NC-ND-4.0",)


def test_every_alternative_of_an_or_may_bring_its_text(tmp_path: Path) -> None:
    texts = {"LICENSE": b"Choose one of the two.\n", "LICENSE.APACHE": APACHE, "LICENSE.MIT": MIT}
    install(tmp_path, contents(expression="MIT OR Apache-2.0", texts=texts))
    assert (read(tmp_path).readings, read(tmp_path).findings) == ((), ())


def test_the_wheels_of_nvidia_that_contradict_themselves_are_found(tmp_path: Path) -> None:
    # nvidia-nvtx 13.5.25 and nvidia-nvtx-cu12 12.9.79 both install the text of Apache-2.0 and declare these.
    new = contents("nvidia-nvtx", "13.5.25", expression="LicenseRef-NVIDIA-Proprietary", texts={"License.txt": APACHE})
    old = contents(
        "nvidia-nvtx-cu12",
        "12.9.79",
        expression=None,
        headers=["License: Apache 2.0", PROPRIETARY],
        texts={"License.txt": APACHE},
    )
    install(tmp_path, new)
    install(tmp_path, old)
    first, second = distributions([str(tmp_path)])
    assert (first.manifest.kind, second.manifest.kind) == ("native-lib", "native-lib")
    assert codes(first) == [Reason.TEXT_MISMATCH]
    assert codes(second) == [Reason.METADATA_CONFLICT, Reason.NO_LICENSE]
    assert second.manifest.license.expression == ""
    pinned = {"path": "License.txt", "sha256": digest(APACHE)}
    read_by_a_person = [
        Clarification.model_validate({"dist": dist, "expression": "Apache-2.0", "texts": [pinned]})
        for dist in ("nvidia-nvtx", "nvidia_nvtx.cu12")
    ]
    for component in distributions([str(tmp_path)], read_by_a_person):
        assert (component.manifest.license.expression, component.readings) == ("Apache-2.0", ())
        assert component.findings == ()


def clarified(**changes: object) -> Clarification:
    entry = {"dist": "demo", "expression": "BSD-3-Clause", "texts": [{"path": "LICENSE", "sha256": digest(BSD_3)}]}
    return Clarification.model_validate(entry | changes)


UNCLEAR = contents(expression=None, headers=["License: BSD"], texts={"LICENSE": BSD_3})


def test_what_is_undeclared_is_quoted_with_the_clarification_to_record(tmp_path: Path) -> None:
    install(tmp_path, UNCLEAR)
    found = read(tmp_path)
    assert found.manifest.license.expression == ""
    (finding,) = found.findings
    assert finding.code == Reason.NO_LICENSE
    assert "'BSD'" in finding.message
    assert "BSD-3-Clause" in finding.message
    assert digest(BSD_3) in finding.remedies[0]


@pytest.mark.parametrize("path", ["LICENSE", "licenses/LICENSE", "demo-1.0.dist-info/licenses/LICENSE"])
@pytest.mark.parametrize("version", ["", "==1.0", ">=0.9,<2"])
def test_a_clarification_holds_for_the_texts_that_were_read(path: str, version: str, tmp_path: Path) -> None:
    install(tmp_path, UNCLEAR)
    entry = clarified(version=version, texts=[{"path": path, "sha256": digest(BSD_3)}])
    found = read(tmp_path, clarify=[entry])
    assert found.manifest.license.expression == "BSD-3-Clause"
    assert found.manifest.license.declared_at == "clarified by the user"
    assert found.findings == ()


@pytest.mark.parametrize(
    "changes",
    [{"texts": [{"path": "LICENSE", "sha256": "0" * 64}]}, {"texts": [{"path": "COPYING", "sha256": digest(BSD_3)}]}],
)
def test_a_clarification_is_void_when_a_text_has_changed(changes: dict[str, object], tmp_path: Path) -> None:
    install(tmp_path, UNCLEAR)
    found = read(tmp_path, clarify=[clarified(**changes)])
    assert found.manifest.license.expression == ""
    stale = next(f for f in found.findings if f.code == Reason.CLARIFY_STALE)
    assert stale.verdict == Verdict.UNKNOWN


def test_a_clarification_of_another_version_or_distribution_says_nothing(tmp_path: Path) -> None:
    install(tmp_path, UNCLEAR)
    entries = [clarified(version="==2.0"), clarified(dist="other")]
    assert codes(read(tmp_path, clarify=entries)) == [Reason.NO_LICENSE]
    install(tmp_path / "odd", contents(version="not-a-version", expression=None, texts={"LICENSE": BSD_3}))
    assert codes(read(tmp_path / "odd", clarify=entries)) == [Reason.NO_LICENSE]


def test_a_clarification_does_not_mend_an_edited_text(tmp_path: Path) -> None:
    info = install(tmp_path, contents(expression=None, texts={"LICENSE": MIT}))
    (info / "licenses" / "LICENSE").write_bytes(BSD_3)
    found = read(tmp_path, clarify=[clarified()])
    assert Reason.HASH_MISMATCH in codes(found)


@pytest.mark.parametrize(
    "changes", [{"expression": "BSD"}, {"version": "one"}, {"texts": [{"path": "LICENSE"}]}, {"expression": "MIT OR"}]
)
def test_a_clarification_that_cannot_be_meant_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="demo"):
        distributions([str(tmp_path)], [clarified(**changes)])


def test_the_shipped_clarifications_are_canonical_and_pinned() -> None:
    shipped = shipped_clarifications()
    assert len({entry.dist for entry in shipped}) == len(shipped) >= 4
    for entry in shipped:
        assert str(parse(entry.expression)) == entry.expression
        assert all(text.sha256 for text in entry.texts)


def test_the_shipped_clarifications_settle_what_this_environment_leaves_open() -> None:
    names = closure(["glmserve"])
    found = {c.distribution: c for c in distributions() if c.distribution in names}
    assert {"jinja2", "numpy", "torch", "glmserve"} <= found.keys()
    open_questions = {name for name, c in found.items() if not c.manifest.license.expression}
    # Its wheel carries no licence text that could settle it.
    assert open_questions <= {"tokenizers"}
    assert not [f for c in found.values() for f in c.findings if f.code is Reason.HASH_MISMATCH]


def test_a_stale_shipped_clarification_leaves_a_declared_licence_alone(tmp_path: Path) -> None:
    install(tmp_path, contents("jinja2", expression="MIT"))
    assert (read(tmp_path).manifest.license.expression, read(tmp_path).findings) == ("MIT", ())


def test_of_two_copies_on_the_path_the_first_counts(tmp_path: Path) -> None:
    install(tmp_path / "one", contents(version="1.0"))
    install(tmp_path / "two", contents(version="2.0"))
    for order in (["one", "two"], ["two", "one"]):
        (found,) = distributions([str(tmp_path / name) for name in order])
        assert found.manifest.version == {"one": "1.0", "two": "2.0"}[order[0]]


def test_skipped_distributions_are_left_out(tmp_path: Path) -> None:
    install(tmp_path, contents("First.One"))
    install(tmp_path, contents("second"))
    assert [c.distribution for c in distributions([str(tmp_path)], skip=["first_one"])] == ["second"]


@pytest.mark.parametrize("name", ["demo/model.safetensors", "demo/table.dat"])
@pytest.mark.parametrize("verify", [False, True])
def test_weights_in_a_distribution_are_found(name: str, verify: bool, tmp_path: Path) -> None:
    large = name.endswith(".dat")
    install(tmp_path, contents(files={name: safetensors(2 << 20 if large else 64)}))
    (finding,) = read(tmp_path, verify=verify).findings
    assert (finding.code, finding.verdict) == (Reason.WEIGHTS_IN_WHEEL, Verdict.UNKNOWN)
    assert name in finding.message


def test_small_weights_under_another_name_and_in_archives_need_verifying(tmp_path: Path) -> None:
    install(tmp_path, contents(files={"demo/a.dat": safetensors(), "demo/b.bin.gz": gzip.compress(safetensors())}))
    assert codes(read(tmp_path)) == []
    (finding,) = read(tmp_path, verify=True).findings
    assert "and 1 more" in finding.message


def test_weights_that_a_manifest_answers_for_are_no_finding(tmp_path: Path) -> None:
    weights = safetensors()
    sha256 = hashlib.sha256(weights).hexdigest()
    entry = f'[[files]]\npath = "model.safetensors"\nsha256 = "{sha256}"\nsize = {len(weights)}\n'
    files = {
        "demo/model.safetensors": weights,
        "demo/components/model.toml": manifest("model", "weights", "Apache-2.0", entry),
        "demo-1.0.dist-info/entry_points.txt": entry_point("demo"),
    }
    install(tmp_path, contents(files=files))
    assert read(tmp_path, verify=True).findings == ()
    (tmp_path / "demo" / "model.safetensors").write_bytes(safetensors(65))
    assert Reason.WEIGHTS_IN_WHEEL in codes(read(tmp_path))


def test_small_arrays_are_test_data_and_no_weights(tmp_path: Path) -> None:
    install(tmp_path, contents(files={"demo/tests/a.npy": b"\x93NUMPY\x01\x00" + bytes(200)}))
    assert read(tmp_path, verify=True).findings == ()


@pytest.mark.parametrize(
    "metadata",
    [
        *(b"", b"\0" * 4000, b"x" * (1 << 20), b"Name: \xff\xfe\nVersion: \xff\n", b"Name: \nVersion:\n"),
        *(b"Name: ../../x\nVersion: ../y\n", "Name: d\u00e9mo \u202e\nVersion: 1\n".encode(), b"Name: " + b"n" * 5000),
    ],
)
def test_broken_metadata_is_unknown_and_no_traceback(metadata: bytes, tmp_path: Path) -> None:
    install(tmp_path, contents(metadata=metadata))
    found = read(tmp_path, verify=True)
    assert found.manifest.license.expression == ""
    assert Reason.NO_LICENSE in codes(found)


def test_a_directory_without_metadata_is_unknown_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "~emo-1.0.dist-info").mkdir()
    (tmp_path / "-.dist-info").mkdir()
    assert all(not c.manifest.license.expression for c in distributions([str(tmp_path)]))


NAMES = ["License-Expression", "License", "License-File", "Classifier", "Name", "Version", "Requires-Dist"]
VALUES = ["MIT", "LICENSE", "../x", "License :: Public Domain", "a; b"]
HEADERS = st.lists(st.tuples(st.sampled_from(NAMES), st.text(max_size=30) | st.sampled_from(VALUES)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(headers=HEADERS)
def test_any_metadata_gives_a_component(
    headers: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = "".join(f"{name}: {value}\n" for name, value in headers)
    site = tmp_path_factory.getbasetemp() / "fuzzed-site"
    info = site / "demo-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_bytes(lines.encode("utf-8", "surrogatepass"))
    (found,) = distributions([str(site)])
    assert found.manifest.license.expression or Reason.NO_LICENSE in codes(found)
    closure([found.distribution], [str(site)])


def needs(name: str, *requires: str) -> dict[str, bytes]:
    return contents(name, headers=[f"Requires-Dist: {line}" for line in requires])


def test_a_closure_follows_requirements_markers_and_extras(tmp_path: Path) -> None:
    install(tmp_path, needs("app", "lib-a>=1", "lib_b[fast]", "lib-x; extra == 'x'", "lib-w; sys_platform == 'never'"))
    install(tmp_path, needs("lib-a", "app"))
    install(tmp_path, needs("Lib.B", "lib-c; extra == 'fast'", "lib-d; extra == 'slow'", "not installed (at all"))
    for name in ("lib-c", "lib-d", "lib-x", "lib-w", "alone"):
        install(tmp_path, needs(name))
    assert closure(["app"], [str(tmp_path)]) == {"app", "lib-a", "lib-b", "lib-c"}
    assert closure(["App[x]"], [str(tmp_path)]) == {"app", "lib-a", "lib-b", "lib-c", "lib-x"}
    assert closure(["lib-b", "alone", "missing"], [str(tmp_path)]) == {"lib-b", "alone"}


def test_two_thousand_distributions_take_less_than_three_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies, expressions = (MIT, APACHE, BSD_3), ("MIT", "Apache-2.0", "BSD-3-Clause")
    for i in range(2000):
        text = f"Copyright (c) 2020 Author {i}\n\n".encode() + bodies[i % 3]
        topics = [f"Classifier: Topic :: Number {j}" for j in range(10)]
        says, texts = expressions[i % 3], {"LICENSE": text}
        install(tmp_path, contents(f"package-{i}", expression=says, headers=topics, texts=texts))
    opened, searched = [0], [0]
    real_open, real_search = os.open, claims.contained

    def counting_open(*args: object, **options: object) -> int:
        opened[0] += 1
        return real_open(*args, **options)  # type: ignore[arg-type]

    def counting_search(text: str) -> frozenset[str]:
        searched[0] += 1
        return real_search(text)

    monkeypatch.setattr(os, "open", counting_open)
    monkeypatch.setattr(claims, "contained", counting_search)
    claims._recognised.cache_clear()
    start = time.process_time()
    found = distributions([str(tmp_path)])
    elapsed = time.process_time() - start
    assert len(found) == 2000
    assert not any(component.findings for component in found)
    # Metadata, RECORD, entry points, direct_url.json and the text; metadata once more for its digest.
    assert opened[0] <= 2000 * 7
    # A text that differs from a known one by its copyright line only is not searched again.
    assert searched[0] == 3
    # Of this process, so that others on the machine do not count.
    assert elapsed < 3

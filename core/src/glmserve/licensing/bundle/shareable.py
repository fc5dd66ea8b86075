"""A profile as it may be passed on: without what is true of its user alone."""

from __future__ import annotations

import re
import tomllib

from glmserve.api.errors import ConfigError

_HEADER = re.compile(r"\s*\[{1,2}\s*(?P<first>[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')")


def shareable_profile(data: bytes, where: str) -> bytes:
    """The profile without its tables [licenses...]: facts, grants and approvals hold for who states them, and a
    recipient states his own.

    Everything else stays as it is written, comments included. `where` names the file in errors. Raises ConfigError for
    text that is no TOML, and for a section that is written so that it cannot be cut out.
    """
    try:
        text = data.decode("utf-8")
        wanted = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is not a profile: {error}.") from None
    if wanted.pop("licenses", None) is None:
        return data
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if header := _HEADER.match(line):
            inside = header["first"].strip("\"'") == "licenses"
        if not inside:
            kept.append(line)
    result = "".join(kept)
    try:
        # Not by eye: a line inside a longer string can look like a table's head.
        cut = tomllib.loads(result) == wanted
    except tomllib.TOMLDecodeError:
        cut = False
    if not cut:
        raise ConfigError(f"{where}: write everything on licences in tables of their own, such as [licenses.facts].")
    return result.encode()

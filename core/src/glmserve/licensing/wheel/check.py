"""The packaging gate: whether a wheel says truly what it is under which licence, before anybody publishes it."""

from __future__ import annotations

import stat
import zipfile
from dataclasses import replace
from pathlib import Path

from ..content.unpack import UNPACK_ERRORS
from ..outputs.plain import one_line
from ..report import Finding
from .archive import OpenWheel, check_container, malformed
from .contents import check_contents


def check_wheel(path: Path) -> tuple[Finding, ...]:
    """Everything that is wrong with a wheel; () when it may be published. Never raises for what the file is."""
    try:
        # A pipe would block, and a directory has no bytes.
        if not stat.S_ISREG(path.stat().st_mode):
            return (malformed(f"{path.name} is no regular file"),)
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            infos = sorted({name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name})
            infos = [name for name in infos if name.endswith(".dist-info")]
            if len(infos) != 1:
                return (malformed(f"it has {len(infos)} .dist-info directories instead of one"),)
            wheel = OpenWheel(path, file, archive, infos[0])
            found = [*check_container(wheel), *check_contents(wheel)]
    except UNPACK_ERRORS as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return (malformed(f"{path.name} is no wheel that can be read: {reason}"),)
    # Names in it can have control sequences.
    return tuple(dict.fromkeys(replace(finding, message=one_line(finding.message)) for finding in found))

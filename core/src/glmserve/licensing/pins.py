"""Whether an origin names something that cannot change under the user."""

from __future__ import annotations

import re

from glmserve.api.components import Origin

_PINNED = {
    "hf": (r"[0-9a-f]{40}", "the full 40-digit commit"),
    "git": (r"[0-9a-f]{40}", "the full 40-digit commit"),
    "oci": (r"sha256:[0-9a-f]{64}", "a digest, sha256:..."),
    "wheel": (r"[0-9][\w.!+-]*", "an exact version"),
}


def unpinned(origin: Origin | None) -> str | None:
    """A phrase that says why `origin` can move, or None when it cannot. A file of this machine has no revision."""
    if origin is None or origin.type == "file":
        return None
    pattern, wanted = _PINNED[origin.type]
    if re.fullmatch(pattern, origin.revision):
        return None
    found = repr(origin.revision) if origin.revision else "nothing"
    return f"its revision is {found} instead of {wanted}, so that it can change"

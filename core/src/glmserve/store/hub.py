"""Repositories of a model hub, at one commit. Endpoint and token are those of huggingface-hub's own settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from glmserve.api import IntegrityError, SourceError

from .download import TIMEOUT_S, Progress, Remote, check, download, persist
from .sources import HubSource

WANTED = (
    "*.safetensors",
    "*.json",
    "*.gguf",
    "*.model",
    "*.jinja",
    "tokenizer*",
    "merges.txt",
    "LICENSE*",
    "README.md",
)
UNWANTED = ("manifest.json",)
"""The name of the store's own record; no model needs a file of that name."""


def fetch(
    source: HubSource, directory: Path, sound: Collection[str], progress: Progress | None = None
) -> Iterator[tuple[Path, str | None]]:
    """Fetch the model's files but those named in `sound`; gives (file, its sha256 if known) as each is there, checked.

    Raises SourceError when the hub cannot be reached or has no such model, IntegrityError for wrong bytes.
    """
    for name, remote in remotes(source, progress).items():
        if name not in sound:
            yield download(remote, directory / name, progress), remote.sha256


def remotes(source: HubSource, progress: Progress | None = None) -> dict[str, Remote]:
    """The model's files, name -> where it is and what it has to be. One request; raises as `fetch` does."""
    # Its client is not used: which exceptions it raises depends on its version, and it does not resume as we do.
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise SourceError(f"{source} is not here, and HF_HUB_OFFLINE forbids to fetch it; unset it and repeat.")
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # Named, because a hub behind HF_ENDPOINT need not be the one that the user has in mind.
    endpoint = constants.ENDPOINT
    listing = _listing(source, endpoint, headers, progress)
    found = {}
    for sibling in listing:
        name, lfs = str(sibling.get("rfilename", "")), sibling.get("lfs")
        if not _wanted(name):
            continue
        sha256 = lfs.get("sha256") or lfs.get("oid") if isinstance(lfs, dict) else None
        blob_sha1 = None if sha256 else sibling.get("blobId")
        if not (sha256 or blob_sha1):
            raise IntegrityError(f"The hub at {endpoint} gives no digest for {name} of {source}, so it is not fetched.")
        url = f"{endpoint}/{source.repo}/resolve/{source.revision}/{quote(name)}"
        found[name] = Remote(url, sha256, blob_sha1, sibling.get("size"), headers)
    if not found:
        raise SourceError(f"{source.repo} holds no model file at commit {source.revision}.")
    return found


def _listing(
    source: HubSource, endpoint: str, headers: dict[str, str], progress: Progress | None
) -> list[dict[str, Any]]:
    """The repository's files as the hub describes them."""
    import httpx

    url = f"{endpoint}/api/models/{source.repo}/revision/{source.revision}"

    def ask() -> httpx.Response:
        response = httpx.get(url, params={"blobs": "true"}, headers=headers, follow_redirects=True, timeout=TIMEOUT_S)
        if response.status_code != 404:
            check(response)
        return response

    if progress is not None:
        progress(f"asking {endpoint}", 0, 0)
    response = persist(f"The list of files of {source.repo} at {endpoint}", ask)
    if response.status_code == 404:
        raise SourceError(
            f"There is no repository {source.repo} with the commit {source.revision} at {endpoint}; correct the source."
        )
    try:
        answer = response.json()
        siblings, commit = answer["siblings"], answer["sha"]
        named = all(isinstance(sibling["rfilename"], str) for sibling in siblings)
    except (ValueError, KeyError, TypeError):
        named = False
    if not named:
        raise SourceError(f"{endpoint} does not answer as a model hub does; is HF_ENDPOINT right?")
    if commit != source.revision:
        raise IntegrityError(f"{endpoint} answers with the commit {commit} of {source.repo}, not the one asked for.")
    listing: list[dict[str, Any]] = siblings
    return listing


def _wanted(name: str) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or name in UNWANTED:
        return False
    return any(fnmatch(name, pattern) for pattern in WANTED)

"""Repositories of a model hub, at one commit. Endpoint and token are those of huggingface-hub's own settings."""

from __future__ import annotations

import hashlib
from fnmatch import fnmatch
from pathlib import Path

from glmserve.api import IntegrityError, SourceError

from .download import Progress, download, sha256_of
from .sources import HubSource

WANTED = ("*.safetensors", "*.json", "*.gguf", "*.model", "*.jinja", "LICENSE*", "README.md")


def fetch(source: HubSource, directory: Path, progress: Progress | None = None) -> list[Path]:
    """Fetch the model's files that are not here yet, each checked against the hub's digest; returns all of them."""
    from huggingface_hub import HfApi, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        info = HfApi().model_info(source.repo, revision=source.revision, files_metadata=True)
    except RepositoryNotFoundError:
        raise SourceError(f"There is no public repository {source.repo} at commit {source.revision}.") from None
    except (HfHubHTTPError, OSError) as error:
        raise SourceError(f"The hub cannot be asked for {source.repo}: {type(error).__name__}.") from None
    files = []
    for sibling in info.siblings or []:
        name = sibling.rfilename
        if (
            not any(fnmatch(name, pattern) for pattern in WANTED)
            or ".." in Path(name).parts
            or Path(name).is_absolute()
        ):
            continue
        target = directory / name
        files.append(target)
        if sibling.lfs is not None:
            if not (target.exists() and sha256_of(target) == sibling.lfs.sha256):
                url = hf_hub_url(source.repo, name, revision=source.revision)
                download(url, target, sibling.lfs.sha256, progress)
        elif not (target.exists() and _blob_sha1(target) == sibling.blob_id):
            hf_hub_download(source.repo, name, revision=source.revision, local_dir=directory)
            if _blob_sha1(target) != sibling.blob_id:
                target.unlink()
                raise IntegrityError(f"{name} of {source.repo} is not what the hub's commit says; fetch it again.")
    if not files:
        raise SourceError(f"{source.repo} holds no model file at commit {source.revision}.")
    return files


def _blob_sha1(path: Path) -> str:
    """The id that git gives the file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

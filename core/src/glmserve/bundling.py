"""From a profile to what `glmserve bundle` packs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from glmserve.assembly import Assembly, assemble, audit_profile, catalogue_of
from glmserve.licensing.audit import Question
from glmserve.licensing.bundle.make import BundleInputs
from glmserve.licensing.bundle.packing import PackedFile
from glmserve.licensing.evidence import CARD, Progress
from glmserve.licensing.policy import LicensesSection
from glmserve.licensing.report import Component, Use
from glmserve.profiles import Profile

MODEL_KINDS = frozenset({"weights", "drafter", "tokenizer", "template", "dataset", "cache"})
CODE_KINDS = frozenset({"code", "docs", "native-lib"})
KINDS = {
    Use.REDISTRIBUTE_SOURCE: CODE_KINDS,
    Use.REDISTRIBUTE_IMAGE: CODE_KINDS | MODEL_KINDS,
    Use.PUBLISH_WEIGHTS: MODEL_KINDS,
}
"""What each use passes on."""
_NOT_PACKED = ("__pycache__", ".dist-info")


def bundle_inputs(
    profile: Profile,
    use: Use,
    *,
    strict: bool,
    commercial: bool,
    policy: LicensesSection | None = None,
    progress: Progress | None = None,
) -> BundleInputs:
    """The audit of the parts that `use` passes on, and their files.

    Python distributions of others are not packed: the recipient's installer fetches them, as requirements.txt says.
    """
    assembly = assemble(profile, policy=policy, progress=progress)
    parts = [c for c in assembly.components if not c.environment and c.manifest.kind in KINDS[use]]
    ids = {component.id for component in parts}
    rest = [c for c in (*assembly.components, *assembly.ancestors) if c.id not in ids and not c.environment]
    chosen = Assembly(assembly.profile, tuple(parts), tuple(rest), assembly.section)
    question = Question((use,), commercial=commercial, strict=strict)
    policies = () if policy is None else (policy.policy,)
    files = {component.id: tuple(_files(component)) for component in parts}
    return BundleInputs(
        report=audit_profile(chosen, question, policies=policies),
        contents=files,
        text_of=catalogue_of(assembly.section).text_of,
        extra_files={
            "profile.toml": profile.source_text.encode(),
            "requirements.txt": _requirements(assembly).encode(),
        },
        restricted=tuple(c for c in rest if c.manifest.policy.redistribute == "never"),
        trees=tuple({c.root for c in parts if c.root is not None and c.manifest.delivery == "user-supplied"}),
    )


def _files(component: Component) -> Iterator[PackedFile]:
    if component.root is None:
        return
    if component.distribution:
        yield from _files_of_distribution(component)
        return
    manifest = component.manifest
    names = [entry.path for entry in manifest.files]
    names += [text.path for text in component.texts] + list(manifest.attribution.notice_files) + [CARD]
    for name in dict.fromkeys(names):
        if (component.root / name).is_file():
            yield PackedFile(component.root / name, name)


def _files_of_distribution(component: Component) -> Iterator[PackedFile]:
    """Its package as it lies there, and its licence files."""
    assert component.root is not None
    package = component.root
    for path in sorted(package.rglob("*")):
        relative = path.relative_to(package.parent)
        if path.is_file() and not any(part.endswith(_NOT_PACKED) for part in relative.parts):
            yield PackedFile(path, relative.as_posix())
    dist = distribution(component.distribution)
    for file in dist.files or ():
        if "licenses" in file.parts and file.parts[0].endswith(".dist-info"):
            yield PackedFile(Path(str(dist.locate_file(file))), "/".join(("licenses", *file.parts[2:])))


def _requirements(assembly: Assembly) -> str:
    """Exact versions of what the packed code needs, for an installer to fetch."""
    pins = sorted(
        f"{c.distribution}=={c.manifest.version}\n"
        for c in assembly.components
        if c.environment and c.distribution and c.manifest.version
    )
    return "".join(pins)

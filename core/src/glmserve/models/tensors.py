"""A checkpoint's tensors against those a model family needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from glmserve.api import Checkpoint, CheckpointError, LinearSpec

Shapes = Mapping[str, tuple[int, ...]]


def check_tensors(
    checkpoint: Checkpoint, needed: Shapes, optional: Shapes, ignored: Collection[str] = (), suffixes: str = ""
) -> None:
    """Every tensor has its place, and every place its tensor of the right shape, by the headers alone.

    `ignored` names may be there and are never read; so may names that end with `suffixes`.
    Raises CheckpointError naming what is missing, unexpected or misshapen.
    """
    found = checkpoint.tensors
    unexpected = sorted(found.keys() - needed.keys() - optional.keys() - set(ignored))
    if suffixes:
        unexpected = [name for name in unexpected if not name.endswith(suffixes)]
    for what, names in (("lacks", sorted(needed.keys() - found.keys())), ("has unexpected", unexpected)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(f"{checkpoint.path} {what} tensors: {', '.join(names[:3])}{more}.")
    for name, shape in {**optional, **needed}.items():
        if name in found and found[name].shape != shape:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name!r} has shape {list(found[name].shape)}, but the configuration "
                f"needs {list(shape)}."
            )


def bias_shapes(checkpoint: Checkpoint, linears: Iterable[LinearSpec], required: Collection[str]) -> dict[str, Shapes]:
    """The biases of linear layers: {"needed": ..., "optional": ...}.

    A layer's parts have all a bias or none: one that is there makes the others needed. So does a part whose last name
    (such as "q_proj") is in `required`.
    """
    shapes: dict[str, dict[str, tuple[int, ...]]] = {"needed": {}, "optional": {}}
    for spec in linears:
        names = [f"{part}.bias" for part in spec.parts]
        asked = any(part.rpartition(".")[2] in required for part in spec.parts)
        kind = "needed" if asked or any(name in checkpoint.tensors for name in names) else "optional"
        shapes[kind] |= {name: (n,) for name, n in zip(names, spec.part_features, strict=True)}
    return dict(shapes)

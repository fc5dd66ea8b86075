"""What a component inherits from what it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from glmserve.api import ConfigError
from glmserve.api.components import Relation

from .expressions import ABSENT, And, Expression, License, MalformedExpression, licenses, parse
from .report import Component
from .terms import Change

if TYPE_CHECKING:
    from .catalogue import Catalogue

CHANGE: Mapping[Relation | str, Change] = {
    "verbatim": Change.NONE,
    "distill": Change.NONE,
    "reshard": Change.LOSSLESS,
    "format": Change.LOSSLESS,
    **dict.fromkeys(
        ("quantize", "finetune", "merge", "prune", "pad", "config-edit", "vendored", "snippet"), Change.MODIFIED
    ),
}
PERMISSIONS = ("use", "commercial", "hosted_service", "redistribute", "modify", "share_modified", "sublicense")
_RANK = {"no": 0, "unknown": 1, "yes": 2}


def check_circles(known: Mapping[str, Component]) -> None:
    """Raises ConfigError when a component is, through any number of steps, made from itself."""
    done: set[str] = set()
    for start in sorted(known):
        _walk(known, start, [], done)


def _walk(known: Mapping[str, Component], id: str, path: list[str], done: set[str]) -> None:
    if id in path:
        circle = " from ".join([*path[path.index(id) :], id])
        raise ConfigError(f"The manifests say that {circle} was made; correct derived_from in one of them.")
    if id in done or id not in known:
        return
    for ancestor in known[id].manifest.derived_from:
        _walk(known, ancestor.id, [*path, id], done)
    done.add(id)


def conflict(catalogue: Catalogue, component: Component, ancestor: Component) -> str | None:
    """A sentence when a component declares laxer terms than what it was made from, else None.

    Unknown terms on either side are no conflict: they are findings of their own.
    """
    mine, theirs = _parsed(component), _parsed(ancestor)
    if mine is None or theirs is None or not (_catalogued(catalogue, mine) and _catalogued(catalogue, theirs)):
        return None
    laxer = [
        name
        for name in PERMISSIONS
        if _grade(catalogue, theirs, name) == _RANK["no"] and _grade(catalogue, mine, name) == _RANK["yes"]
    ]
    if _gates(catalogue, theirs) - _gates(catalogue, mine):
        laxer.append("a gate that is left out")
    if not laxer:
        return None
    said = ", ".join(name.replace("_", " ") for name in laxer)
    return f"it declares {mine}, which is laxer than {theirs} of {ancestor.id} that it was made from ({said})"


def _parsed(component: Component) -> Expression | None:
    text = component.manifest.license.choice or component.manifest.license.expression
    try:
        return None if text.strip().casefold() in ABSENT else parse(text)
    except MalformedExpression:
        return None


def _catalogued(catalogue: Catalogue, tree: Expression) -> bool:
    return all(catalogue.find(license) is not None for license in licenses(tree))


def _grade(catalogue: Catalogue, tree: Expression, permission: str) -> int:
    if isinstance(tree, License):
        return _RANK[getattr(catalogue.find(tree), permission)]
    grades = [_grade(catalogue, term, permission) for term in tree.terms]
    return min(grades) if isinstance(tree, And) else max(grades)


def _gates(catalogue: Catalogue, tree: Expression) -> frozenset[str]:
    """Gates that cannot be avoided: those of any term of an AND, and of every branch of an OR."""
    if isinstance(tree, License):
        terms = catalogue.find(tree)
        return frozenset(gate.summary for gate in terms.gates) if terms is not None else frozenset()
    every = [_gates(catalogue, term) for term in tree.terms]
    return frozenset.union(*every) if isinstance(tree, And) else frozenset.intersection(*every)

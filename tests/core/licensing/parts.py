"""Components for tests of the verdict: GLM-5.3, its drafter, and whatever else a case needs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from glmserve.api.components import (
    SCHEMA,
    Ancestor,
    Attribution,
    ComponentPolicy,
    LicenseDeclaration,
    Manifest,
    Origin,
)
from glmserve.licensing.audit import Question, audit
from glmserve.licensing.catalogue import Catalogue, load_catalogue
from glmserve.licensing.policy import LicensesSection
from glmserve.licensing.report import Component, LicenseText, Reason, Report, Use, Verdict

CATALOGUE = load_catalogue()
TODAY = date(2026, 12, 1)
REVISION = "425aa615ce320caac34400208b30808c8f14f76c"
OTHER_REVISION = "0" * 40


def part(
    id: str,
    expression: str,
    *,
    kind: str = "code",
    delivery: str = "bundled",
    copyright: Sequence[str] = ("Copyright (c) 2026 Somebody",),
    text: str | None = None,
    made_from: Sequence[tuple[str, str]] = (),
    never: bool = False,
    accept: bool = False,
    revision: str = REVISION,
    choice: str = "",
    publisher: str = "somebody",
    origin: str = "hf",
) -> Component:
    """`text` is a licence text that lies beside it."""
    manifest = Manifest.model_validate(
        {
            "schema": SCHEMA,
            "id": id,
            "name": id,
            "kind": kind,
            "delivery": delivery,
            "origin": Origin.model_validate(
                {
                    "type": origin,
                    "url": f"https://huggingface.co/x/{id}",
                    "revision": revision,
                    "publisher": publisher,
                }
            ),
            "license": LicenseDeclaration(expression=expression, choice=choice),
            "attribution": Attribution(copyright=tuple(copyright)),
            "derived_from": tuple(Ancestor.model_validate({"id": i, "relation": r}) for i, r in made_from),
            "policy": ComponentPolicy(redistribute="never" if never else "as-licensed", accept_before_fetch=accept),
        }
    )
    texts = (LicenseText("LICENSE", "ab" * 32, text),) if text is not None else ()
    return Component(manifest, "a test", texts=texts)


def runtime() -> Component:
    return part("runtime", "Apache-2.0", origin="file", revision="")


GLM_TEXT = "The GLM-5.3 License, as its publisher wrote it."


def glm(*, text: str | None = GLM_TEXT, **changes: Any) -> Component:
    made: dict[str, Any] = {
        "kind": "weights",
        "delivery": "fetch",
        "copyright": ("Copyright (c) 2026 Z.AI",),
        "publisher": "zai-org",
    }
    return part("glm-5.3", "LicenseRef-GLM-5.3", text=text, **{**made, **changes})


def drafter(**changes: Any) -> Component:
    made: dict[str, Any] = {"kind": "drafter", "delivery": "fetch", "never": True, "publisher": "incoai"}
    expression = changes.pop("expression", "CC-BY-NC-ND-4.0")
    return part(changes.pop("id", "drafter"), expression, **{**made, **changes})


def p0() -> list[Component]:
    tokenizer = part("glm-5.3-tokenizer", "LicenseRef-GLM-5.3", kind="tokenizer", delivery="fetch", text=GLM_TEXT)
    return [runtime(), glm(), tokenizer]


def p1() -> list[Component]:
    return [*p0(), drafter()]


def judged(
    components: Sequence[Component],
    *,
    facts: dict[str, Any] | None = None,
    section: dict[str, Any] | None = None,
    ancestors: Sequence[Component] = (),
    catalogue: Catalogue = CATALOGUE,
    **question: Any,
) -> Report:
    stated = LicensesSection.model_validate({"facts": facts or {}, **(section or {})})
    return audit("test", components, stated, catalogue, Question(**question), ancestors=ancestors, today=TODAY)


def verdict_of(report: Report, use: Use, id: str | None = None) -> Verdict:
    """Of the whole, or of one component."""
    return report.verdicts[use] if id is None else report.find(id).rulings[use].verdict


def reasons(report: Report, use: Use, id: str) -> set[Reason]:
    return {finding.code for finding in report.find(id).rulings[use].findings}

"""Reports made by hand, as an audit would draw them, for the tests of what is drawn from a report."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glmserve.api.components import Manifest
from glmserve.licensing.report import (
    Component,
    Finding,
    LicenseText,
    Reason,
    Report,
    Row,
    Ruling,
    Use,
    Verdict,
)

USES = tuple(Use)
SHARES = frozenset(use for use in Use if use.shares)
GLM = "935644c05e76fc198714f4cca449fd8b970ff6d7"
DRAFTER = "425aa615ce320caac34400208b30808c8f14f76c"
MIT_TEXT = "MIT License\n\nCopyright (c) 2021 Example\n\nPermission is hereby granted, free of charge, ...\n"
APACHE_TEXT = "                                 Apache License\n                           Version 2.0, January 2004\n"
VERSIONS = {"glmserve": "0.1.0", "catalogue": "2026.11.30", "spdx-list": "3.27.0"}

NOTICES = Finding(Reason.CONDITION, Verdict.CONDITIONS, "The copies carry the copyright notice and the licence.", "4")
GATE = Finding(
    Reason.GATE_FACTS_MISSING,
    Verdict.ACTION,
    "Commercial use is gated on maas_business and group_revenue_over_usd_10b_12m, which are undeclared.",
    "2",
    ("state maas_business under [licenses.facts]", "state group_revenue_over_usd_10b_12m there"),
    frozenset({Use.RUN_COMMERCIAL}),
)
NONCOMMERCIAL = Finding(
    Reason.NC_PURPOSE,
    Verdict.DENY,
    "The licence permits noncommercial purposes only.",
    "2(a)(1)",
    (
        "--drafter mtp, which uses GLM-5.3's own layer (LicenseRef-GLM-5.3)",
        "--drafter none",
        "record a written grant from incoai under [[licenses.grants]]",
    ),
    frozenset({Use.RUN_COMMERCIAL}),
)
NEVER = Finding(
    Reason.PROJECT_POLICY,
    Verdict.DENY,
    "This project does not redistribute it, though the licence permits verbatim noncommercial sharing.",
    "",
    ("share a stub, from which each user fetches it from its publisher (--stub)",),
    SHARES,
)
NO_LICENCE = Finding(
    Reason.NO_LICENSE,
    Verdict.UNKNOWN,
    "No licence is declared anywhere.",
    "",
    ("read its texts and record what they are under [[licenses.clarify]]",),
)


def component(component_id: str, kind: str, expression: str = "", **changes: Any) -> Component:
    """`changes` are fields of the component, or of its manifest where the component has none of that name."""
    own = {key: changes.pop(key) for key in list(changes) if key in Component.__dataclass_fields__}
    license_ = {"expression": expression, **changes.pop("license", {})}
    manifest = Manifest.model_validate(
        {
            "schema": "glmserve.component/1",
            "id": component_id,
            "name": component_id,
            "kind": kind,
            "delivery": "bundled",
            "license": license_,
            **changes,
        }
    )
    return Component(**{"manifest": manifest, "source": "profile four-spark", **own})


def row(
    part: Component,
    findings: Sequence[Finding] = (),
    *,
    concluded: str | None = None,
    uncounted: frozenset[Use] = frozenset(),
    uses: Sequence[Use] = USES,
) -> Row:
    """Rulings are the worst of the findings that bear on a use."""
    rulings = {}
    for use in uses:
        bearing = sorted((f for f in findings if f.bears_on(use)), key=lambda f: -f.verdict)
        worst = max((f.verdict for f in bearing), default=Verdict.ALLOW)
        rulings[use] = Ruling(worst, tuple(bearing), use not in uncounted)
    declared = part.manifest.license.expression
    return Row(part, declared, declared if concluded is None else concluded, rulings)


def report(rows: Sequence[Row], uses: Sequence[Use] = USES, **changes: Any) -> Report:
    verdicts = {
        use: max((r.rulings[use].verdict for r in rows if r.rulings[use].counted), default=Verdict.ALLOW)
        for use in uses
    }
    ordered = sorted(rows, key=lambda r: (r.component.environment, r.component.manifest.kind, r.component.id))
    made = Report("four-spark", tuple(uses), tuple(ordered), verdicts, False, False, VERSIONS)
    return replace(made, **changes)


def glm_origin() -> dict[str, str]:
    url = "https://huggingface.co/zai-org/GLM-5.3"
    return {"type": "hf", "url": url, "revision": GLM, "publisher": "Z.AI"}


def runtime() -> Component:
    return component(
        "glmserve",
        "code",
        "Apache-2.0",
        version="0.1.0",
        origin={"type": "wheel", "revision": "0.1.0", "publisher": "the glmserve authors"},
        attribution={"copyright": ["Copyright 2026 the glmserve authors"]},
        distribution="glmserve",
        texts=(text("LICENSE", APACHE_TEXT),),
        notices=("Kernels\nCopyright 2025 The Kernel Authors\n",),
        source="glmserve/components/glmserve.toml of glmserve 0.1.0",
    )


def text(path: str, content: str) -> LicenseText:
    return LicenseText(path, hashlib.sha256(content.encode()).hexdigest(), content)


def glm_weights() -> Component:
    return component(
        "glm-5.3",
        "weights",
        "LicenseRef-GLM-5.3",
        name="GLM-5.3",
        version=GLM[:8],
        delivery="fetch",
        origin=glm_origin(),
        license={"declared_at": "https://huggingface.co/zai-org/GLM-5.3/raw/main/LICENSE"},
        attribution={"copyright": ["Copyright (c) 2026 Z.AI"]},
        files=[
            {"path": "model-00001-of-00002.safetensors", "sha256": "a" * 64, "size": 5_000_000_000},
            {"path": "model-00002-of-00002.safetensors", "sha256": "b" * 64, "size": 4_000_000_000},
        ],
        to_confirm=["the bytes of LICENSE at the pinned revision"],
    )


def glm_tokenizer() -> Component:
    return component(
        "glm-5.3-tokenizer",
        "tokenizer",
        "LicenseRef-GLM-5.3",
        name="GLM-5.3 tokenizer and chat template",
        version=GLM[:8],
        delivery="fetch",
        origin=glm_origin(),
        attribution={"copyright": ["Copyright (c) 2026 Z.AI"]},
        files=[{"path": "tokenizer.json", "sha256": "c" * 64, "size": 19_970_000}],
    )


def drafter() -> Component:
    return component(
        "drafter-glm53-dflash2",
        "drafter",
        "CC-BY-NC-ND-4.0",
        name="GLM-5.3-DFlash2",
        version=DRAFTER[:8],
        delivery="fetch",
        origin={
            "type": "hf",
            "url": "https://huggingface.co/incoai/GLM-5.3-DFlash2",
            "revision": DRAFTER,
            "publisher": "incoai",
        },
        license={"declared_at": "https://huggingface.co/incoai/GLM-5.3-DFlash2"},
        attribution={"copyright": ["incoai"]},
        files=[{"path": "model.safetensors", "sha256": "d" * 64, "size": 4_917_000_000}],
        derived_from=[{"id": "glm-5.3", "relation": "distill"}],
        policy={"redistribute": "never", "accept_before_fetch": True, "reason": "fetched from its publisher"},
        to_confirm=["the wording of the model card"],
    )


def installed(name: str, version: str, expression: str, **changes: Any) -> Component:
    return component(
        f"py-{name}",
        "code",
        expression,
        name=name,
        version=version,
        origin={"type": "wheel", "url": f"https://pypi.org/project/{name}/", "revision": version},
        environment=True,
        distribution=name,
        source=f"{name} {version}",
        **changes,
    )


def environment() -> list[Row]:
    """Three distributions: one in order, one with a choice, one that says nothing."""
    runs = frozenset({Use.RUN_LOCAL, Use.RUN_COMMERCIAL})
    share = replace(NOTICES, uses=SHARES)
    return [
        row(installed("click", "8.1.7", "BSD-3-Clause"), [share], uncounted=runs),
        row(
            installed("dual", "2.0", "MIT OR GPL-3.0-only", texts=(text("LICENSE", MIT_TEXT),)),
            [share],
            concluded="MIT",
            uncounted=runs,
        ),
        row(installed("silent", "1.0", ""), [NO_LICENCE], concluded="", uncounted=runs),
    ]


def p0_rows() -> list[Row]:
    share = replace(NOTICES, uses=SHARES)
    return [
        row(runtime(), [share]),
        row(glm_weights(), [share, GATE], uncounted=SHARES),
        row(glm_tokenizer(), [share, GATE], uncounted=SHARES),
    ]


def p0() -> Report:
    """Runtime, weights and tokenizer."""
    return report(p0_rows())


def p1(*more: Row, **changes: Any) -> Report:
    """The same with the drafter and an environment."""
    share = replace(NOTICES, uses=SHARES, clause="3(a)")
    rows = [*p0_rows(), row(drafter(), [share, NONCOMMERCIAL, NEVER], uncounted=SHARES), *environment(), *more]
    return report(rows, **changes)

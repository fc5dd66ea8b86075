"""What was found about a component: its declared expression, and the text of each licence in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glmserve.api import ConfigError

from .expressions import ABSENT, Expression, License, MalformedExpression, licenses, parse
from .report import Component, LicenseText
from .texts import identify

if TYPE_CHECKING:
    from .catalogue import Catalogue


def declared_tree(component: Component) -> Expression | None:
    """The declared expression, or None when there is none. Raises MalformedExpression."""
    text = component.manifest.license.expression
    return None if text.strip().casefold() in ABSENT else parse(text)


def license_text(catalogue: Catalogue, component: Component, license: License, alone: bool) -> LicenseText | None:
    """The text of one licence of a component: its own first, then that of the catalogue.

    `alone`: it is the only licence of the component, so that its own text can only be this one.
    """
    for text in component.texts:
        if alone or license.id in identify(text.text):
            return text
    return catalogue.text(license)


def texts_to_accept(component: Component, catalogue: Catalogue) -> list[tuple[License, LicenseText]]:
    """Every licence of the component with the text that the user has to read.

    Raises ConfigError when there is no licence, or no text of one.
    """
    try:
        tree = declared_tree(component)
    except MalformedExpression as error:
        raise ConfigError(f"{component.id} declares no licence that can be accepted: {error}.") from None
    if tree is None:
        raise ConfigError(f"{component.id} declares no licence, so that there is nothing to accept.")
    leaves = {license.key: license for license in licenses(tree)}
    found = []
    for license in leaves.values():
        text = license_text(catalogue, component, license, len(leaves) == 1)
        if text is None:
            terms = catalogue.find(license)
            where = f" from {terms.canonical_url}" if terms is not None and terms.canonical_url else ""
            raise ConfigError(
                f"The text of {license} is not on this machine; fetch it{where} with the files it covers."
            )
        found.append((license, text))
    return found

"""Providers that a profile may name before they are installed: which distribution brings each."""

from __future__ import annotations

from dataclasses import dataclass

from glmserve.providers import Kind, Plugins

BRINGS: dict[tuple[Kind, str], str] = {
    ("quantization", "exl3"): "glmserve-quant-exl3",
    ("drafter", "dflash2"): "glmserve-drafter-dflash2",
    ("cache", "prefix"): "glmserve-cache-prefix",
    ("transport", "roce"): "glmserve-transport-roce",
}
"""The first-party plugins. Any other name that nobody provides is a mistake, and refused as one."""


@dataclass(frozen=True)
class Missing:
    """A provider that is named and not installed."""

    kind: Kind
    name: str
    distribution: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.distribution})"


def missing_provider(plugins: Plugins, kind: Kind, name: str) -> Missing | None:
    """None when the provider is installed. Raises PluginError for a name that no distribution is known to bring."""
    if name not in plugins.names(kind) and (kind, name) in BRINGS:
        return Missing(kind, name, BRINGS[kind, name])
    plugins.get(kind, name)
    return None

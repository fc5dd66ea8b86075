"""The layers of a model, kept in memory or read whenever they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Loaded(Protocol):
    """A layer in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""

    @property
    def row_invariant(self) -> bool:
        """Whether all its linear layers are."""


L = TypeVar("L", bound=Loaded)


class Layers(Generic[L]):
    """`count` layers, each made by `load` from its index: all at once when `resident`, else anew at each access.

    Call them as `layers[i](...)`: a name or a loop variable would keep one beside the next.
    """

    def __init__(self, load: Callable[[int], L], count: int, resident: bool) -> None:
        self._load = load
        self._count = count
        self._held = [load(i) for i in range(count)] if resident else None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> L:
        return self._load(index) if self._held is None else self._held[index]

    @property
    def nbytes(self) -> int:
        """Bytes of what is held between calls."""
        return 0 if self._held is None else sum(layer.nbytes for layer in self._held)

    @property
    def row_invariant(self) -> bool:
        """Never said of layers that are not held: nobody has seen them yet."""
        return self._held is not None and all(layer.row_invariant for layer in self._held)

"""How the parts of a layer are dealt out over ranks: whole heads, rows or columns, as evenly as they go."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from glmserve.api import ConfigError


def even(total: int, parts: int) -> list[range]:
    """0 .. total - 1 cut into contiguous parts whose sizes differ by at most one, the larger ones first."""
    size, larger = divmod(total, parts)
    starts = [i * size + min(i, larger) for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def spread(total: int, ranks: int, what: str) -> list[range]:
    """`even`, with something for every rank. Raises ConfigError saying that there are too few of `what`."""
    if total < ranks:
        raise ConfigError(
            f"parallel.tensor is {ranks}, but the model has only {total} {what} to spread over ranks; choose at most "
            f"{total}."
        )
    return even(total, ranks)


@dataclass(frozen=True)
class Heads:
    """What one rank computes of a layer's grouped-query attention."""

    query: range
    """A whole multiple of `kv`: each of these heads reads the key-value head of its group, in order."""
    kv: range

    def rows(self, dim: int) -> tuple[range, range, range]:
        """The output rows of the query, key and value projections, for heads of `dim`."""
        query, kv = (range(part.start * dim, part.stop * dim) for part in (self.query, self.kv))
        return query, kv, kv


def attention(heads: int, kv_heads: int, ranks: int) -> list[Heads]:
    """The heads of each rank; kv_heads divides heads. Every query head is on one rank, with its key-value head.

    Whole groups are dealt out while there is one for each rank. With more ranks than groups, the ranks are dealt out
    over the groups, each rank holds the one key-value head of its group, and the group's query heads are cut evenly.
    Raises ConfigError when there are more ranks than query heads.
    """
    group = heads // kv_heads
    if ranks <= kv_heads:
        return [Heads(range(kv.start * group, kv.stop * group), kv) for kv in even(kv_heads, ranks)]
    spread(heads, ranks, "query heads")
    found = []
    for kv, sharers in enumerate(even(ranks, kv_heads)):
        for part in even(group, len(sharers)):
            query = range(kv * group + part.start, kv * group + part.stop)
            found.append(Heads(query, range(kv, kv + 1)))
    return found

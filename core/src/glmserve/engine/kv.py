"""The paged pool: the memory of the pages, on every rank, and who owns which page, which rank 0 decides.

One tensor per paged tensor of the model, [pages, page_entries, *per_token]; entry i of page P belongs to the same token
in all of them. A page stands for `page_tokens` positions, of which a rank keeps its share. It has one owner or is free;
`check_integrity` proves it. Pages of a sequence are placed one after the other where there is room, so that attention
can read a run of pages without gathering.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Mapping, Sequence

import torch

from glmserve.api import ContextShare, ModelInfo


def _untouched(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take no memory until they are written; torch.zeros would write them all."""
    return torch.frombuffer(mmap.mmap(-1, math.prod(shape) * dtype.itemsize), dtype=dtype).view(*shape)


class PageMemory:
    """The tensors of a rank's pages. Memory is committed by the operating system as pages are first written."""

    def __init__(self, info: ModelInfo, num_pages: int, page_tokens: int, share: ContextShare = ContextShare()) -> None:  # noqa: B008 - immutable
        """`page_tokens` is a multiple of the shares."""
        if page_tokens % share.count:
            raise ValueError(f"pages of {page_tokens} tokens cannot be dealt out evenly over {share.count} ranks")
        self.page_tokens = page_tokens
        self.page_entries = page_tokens // share.count
        self.share = share
        self.tensors: dict[str, torch.Tensor] = {
            paged.name: _untouched((num_pages, self.page_entries, *paged.per_token), getattr(torch, paged.dtype))
            for paged in info.paged
        }

    def image(self, page: int) -> Mapping[str, torch.Tensor]:
        """Views of every paged tensor of one page."""
        return {name: tensor[page] for name, tensor in self.tensors.items()}


class PagePool:
    """Who owns which page."""

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.num_pages = num_pages
        self._free = [True] * num_pages
        self.num_free = num_pages

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens`."""
        return -(-tokens // self.page_tokens)

    def grow(self, pages: list[int], count: int) -> bool:
        """Append free pages until `pages` has `count`. All or nothing; False when there are too few."""
        missing = count - len(pages)
        if missing <= 0:
            return True
        if missing > self.num_free:
            return False
        page = pages[-1] + 1 if pages else self.num_pages
        rooms: list[range] = []
        while len(pages) < count:
            if page >= self.num_pages or not self._free[page]:
                # Looked for once, however many pieces a long context has to be put in.
                rooms = rooms or self._rooms()
                page = self._start_in(rooms.pop(), count - len(pages))
            self._free[page] = False
            self.num_free -= 1
            pages.append(page)
            page += 1
        return True

    def release(self, pages: list[int]) -> None:
        """Give all pages back and empty the list."""
        for page in pages:
            if self._free[page]:
                raise AssertionError(f"page {page} is released twice")
            self._free[page] = True
        self.num_free += len(pages)
        pages.clear()

    def _rooms(self) -> list[range]:
        """The runs of free pages, the longest last, of equal ones the first."""
        rooms, start = [], None
        for page, free in enumerate([*self._free, False]):
            if free:
                start = page if start is None else start
            elif start is not None:
                rooms.append(range(start, page))
                start = None
        return sorted(rooms, key=lambda room: (len(room), -room.start))

    @staticmethod
    def _start_in(room: range, wanted: int) -> int:
        """Its first page; one in its middle when that leaves the sequence before it room to grow."""
        return room.start + (len(room) // 2 if room.start and len(room) >= 2 * wanted else 0)

    def check_integrity(self, owned: Iterable[Sequence[int]]) -> list[str]:
        """Faults, one sentence each: a page owned twice, owned and free, or lost."""
        faults = []
        seen: set[int] = set()
        for pages in owned:
            for page in pages:
                if page in seen:
                    faults.append(f"page {page} has two owners")
                if self._free[page]:
                    faults.append(f"page {page} is owned and free")
                seen.add(page)
        if len(seen) + self.num_free != self.num_pages or sum(self._free) != self.num_free:
            faults.append(f"{self.num_pages - len(seen) - self.num_free} pages are lost")
        return faults

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
        while len(pages) < count:
            page = pages[-1] + 1 if pages else self.num_pages
            if page >= self.num_pages or not self._free[page]:
                page = self._start_of_room(count - len(pages))
            self._free[page] = False
            self.num_free -= 1
            pages.append(page)
        return True

    def release(self, pages: list[int]) -> None:
        """Give all pages back and empty the list."""
        for page in pages:
            if self._free[page]:
                raise AssertionError(f"page {page} is released twice")
            self._free[page] = True
        self.num_free += len(pages)
        pages.clear()

    def _start_of_room(self, wanted: int) -> int:
        """A page in the longest free run; in its middle when that leaves the run's predecessor room to grow."""
        best_start, best_length, start = 0, 0, None
        for page, free in enumerate([*self._free, False]):
            if free:
                start = page if start is None else start
            elif start is not None:
                if page - start > best_length:
                    best_start, best_length = start, page - start
                start = None
        room_before = best_start > 0 and best_length >= 2 * wanted
        return best_start + (best_length // 2 if room_before else 0)

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

"""Recognising pieces of a large file inside other files, whatever stands around them.

Of the pieces of 64 bytes some are remembered: those that begin with a certain byte, and of them, in large files, those
whose checksum has certain bits. The content alone decides, so a piece is chosen again wherever it has moved to, and
looking for it needs one pass over the other file at the speed of a byte search.

The limit: in random bytes one position in 256 begins a piece, and of very many pieces only a part is kept, so
what two files share has to be some kilobytes long to be found almost surely. Bytes that were changed throughout, as by
a cast or a quantization, share no piece at all; that is what records of origin and tensor names are for.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import BinaryIO

PIECE_BYTES = 64
MAX_PIECES = 1 << 19
_START = b"\x5a"
_MIN_DISTINCT = 20
"""Different bytes in a piece that says something: padding and tables of repeated numbers occur anywhere."""
_CHUNK_BYTES = 1 << 22


class Windows:
    """Pieces of files, and whose they are."""

    def __init__(self, total_bytes: int) -> None:
        """`total_bytes`: about how much will be added."""
        self._pieces: dict[bytes, str] = {}
        self._mask = 0
        while total_bytes >> 8 > MAX_PIECES * (self._mask + 1):
            self._mask = self._mask * 2 + 1

    def add(self, file: BinaryIO, owner: str, limit_bytes: int, seen: Callable[[bytes], object] | None = None) -> int:
        """Remember pieces of the first `limit_bytes` of `file`; return how much was read. `seen` gets every chunk."""
        done, before = 0, b""
        while done < limit_bytes and (chunk := file.read(min(_CHUNK_BYTES, limit_bytes - done))):
            done += len(chunk)
            if seen is not None:
                seen(chunk)
            data = before + chunk
            at = data.find(_START)
            while 0 <= at <= len(data) - PIECE_BYTES:
                piece = data[at : at + PIECE_BYTES]
                # The header of a safetensors file is text, and alike in every model of a family.
                if not zlib.crc32(piece) & self._mask and not piece.isascii() and len(set(piece)) >= _MIN_DISTINCT:
                    self._pieces.setdefault(piece, owner)
                at = data.find(_START, at + 1)
            before = data[-(PIECE_BYTES - 1) :]
        return done

    def __len__(self) -> int:
        return len(self._pieces)

    def find(self, data: bytes) -> str:
        """The owner of a remembered piece in `data`, or ""."""
        at = data.find(_START) if self._pieces else -1
        while 0 <= at <= len(data) - PIECE_BYTES:
            if (owner := self._pieces.get(data[at : at + PIECE_BYTES])) is not None:
                return owner
            at = data.find(_START, at + 1)
        return ""


class Search:
    """Looks through one file, given in chunks, for remembered pieces."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._before = b""
        self.found = ""
        """The owner of the first piece that was found, or ""."""

    def feed(self, chunk: bytes) -> None:
        if not self.found and len(self._windows):
            data = self._before + chunk
            self.found = self._windows.find(data)
            self._before = data[-(PIECE_BYTES - 1) :]

"""What bytes are, by how they begin: model weights in the usual containers, archives, and binary data spelt as text."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Literal

HEAD_BYTES = 512
"""How much of the beginning of a file `sniff` and `archive` want to see; a tar says what it is at byte 257."""

GENERAL = frozenset({"npy", "npz", "pickle"})
"""Containers that hold all kinds of data, that of tests included, and not only weights."""

WEIGHT_SUFFIXES = frozenset(
    {
        *(".bin", ".ckpt", ".ggml", ".gguf", ".h5", ".npy", ".npz", ".onnx", ".pickle", ".pkl"),
        *(".pt", ".pt2", ".pth", ".safetensors", ".tensors"),
    }
)
"""Names under which weights usually lie: where to look first, never what to conclude from."""

_MAX_SAFETENSORS_HEADER = 100_000_000
_PICKLE_STARTS = frozenset(b"(]}){tcXKMJGNqBCTV\x8a\x85\x86\x87\x88\x89\x8c\x8f\x93\x95U\x8e\x91")
"""Opcodes that a pickle of protocol 2 or newer begins with, after the protocol."""

_BYTE_ORDERS: tuple[Literal["little", "big"], ...] = ("little", "big")
_STARTS = {
    b"\x1f\x8b\x08": "gz",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}

_SOURCE_SUFFIXES = frozenset(
    {
        *(".py", ".pyi", ".pyx", ".ipynb", ".json", ".toml", ".yaml", ".yml", ".txt", ".md", ".rst", ".csv"),
        *(".js", ".html", ".c", ".cc", ".cpp", ".cu", ".h", ".sh"),
    }
)
_ENCODED_BYTES = 64 * 1024
_SYMBOL_BITS = 5.0
"""Base64 of weights has nearly 6 bits a character; digests in hexadecimal have 4, and prose has spaces."""
_RUN = re.compile(rb"[A-Za-z0-9+/_-]{60,}={0,2}|(?:\\x[0-9a-fA-F]{2}){15,}|(?:[0-9a-fA-F]{2}){512,}")


def sniff(head: bytes, size: int) -> str | None:
    """The container of weights that a file of `size` bytes beginning with `head` is: "safetensors", "gguf",
    "torch-zip", "npz", "npy" or "pickle"; None for anything else.

    `head` is the first HEAD_BYTES of the file, or all of it when it is shorter.
    """
    length = int.from_bytes(head[:8], "little")
    if 2 <= length <= min(size - 8, _MAX_SAFETENSORS_HEADER) and re.match(rb"\{\s*[\"}]", head[8:]):
        return "safetensors"
    if head[:4] == b"GGUF" and 0 < min(int.from_bytes(head[4:8], order) for order in _BYTE_ORDERS) < 1000:
        return "gguf"
    if head[:6] == b"\x93NUMPY":
        return "npy"
    if head[:4] == b"PK\x03\x04":
        first = head[30 : 30 + int.from_bytes(head[26:28], "little")]
        if re.search(rb"(^|/)(data\.pkl|\.format_version|\.data/serialization_id)$", first):
            return "torch-zip"
        if first.endswith(b".npy"):
            return "npz"
    if len(head) >= 3 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[2] in _PICKLE_STARTS:
        # Protocols 4 and 5 begin with a frame, whose length has to fit the file.
        framed = head[2] == 0x95
        return "pickle" if not framed or int.from_bytes(head[3:11], "little") <= size else None
    return None


def archive(head: bytes, tail: bytes = b"") -> str | None:
    """The archive that a file with this beginning and end is: "zip", "tar", "gz", "bz2" or "xz", which can be looked
    into, "zstd", "7z" or "rar", which cannot; None for anything else.

    `tail` is its last 22 bytes: a zip may stand behind a program.
    """
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06") or tail[:4] == b"PK\x05\x06":
        return "zip"
    if head[257:262] == b"ustar" or (len(head) == HEAD_BYTES and _old_tar(head)):
        return "tar"
    if head[:3] == b"BZh" and head[4:10] == b"1AY&SY":
        return "bz2"
    for start, name in _STARTS.items():
        if head.startswith(start):
            return name
    return None


class EncodedData:
    """Watches a text go by for long runs of base64, hexadecimal or \\x escapes, as weights in a source file have."""

    def __init__(self, name: str) -> None:
        """`name` is that of the file: only in what is meant to be read, such runs are suspicious."""
        dot = name.rfind(".")
        self._watching = dot >= 0 and name[dot:].lower() in _SOURCE_SUFFIXES
        self._length = 0
        self._symbols: Counter[int] = Counter()

    def feed(self, chunk: bytes) -> None:
        """The next bytes. A run that is cut between two chunks counts as two."""
        if self._watching:
            for run in _RUN.findall(chunk):
                self._length += len(run)
                self._symbols.update(run)

    @property
    def warning(self) -> str:
        """A phrase, or "" when nothing was conspicuous."""
        if self._length < _ENCODED_BYTES:
            return ""
        total = self._symbols.total()
        bits = -sum(n / total * math.log2(n / total) for n in self._symbols.values())
        escapes = self._symbols[ord("\\")] * 4 > total // 2
        if bits < _SYMBOL_BITS and not escapes:
            return ""
        return f"it spells {self._length:,} bytes of binary data as text, {bits:.1f} bits a character"


def _old_tar(block: bytes) -> bool:
    """Whether the block is the header of a tar without a magic: its checksum, over itself with blanks, is right."""
    field = block[148:156].strip(b" \0")
    if not field or not re.fullmatch(rb"[0-7]+", field):
        return False
    return int(field, 8) == sum(block[:148]) + 8 * 0x20 + sum(block[156:])

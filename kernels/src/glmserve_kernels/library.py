"""Loads the native library and says which instruction set it runs on.

Environment: GLMSERVE_KERNELS_LIBRARY, the path of another build of the library (a sanitized one); GLMSERVE_KERNELS_ISA,
"avx512", "avx2", "neon" or "portable" instead of the best that the machine has.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

ABI_VERSION = 1


class KernelsError(RuntimeError):
    """The library is missing, of another version, or asked for what it does not have. One sentence."""


class Library:
    """The functions of native/gk.h."""

    def __init__(self, path: Path) -> None:
        """Raises KernelsError when `path` is no library of this version."""
        try:
            self.functions = ctypes.CDLL(str(path))
            version = int(self.functions.gk_abi_version())
        except (OSError, AttributeError) as error:
            raise KernelsError(f"{path} is not the kernels' library: {error}.") from None
        if version != ABI_VERSION:
            raise KernelsError(f"{path} is of version {version}, not {ABI_VERSION}; install glmserve-kernels again.")
        self.functions.gk_isa.restype = ctypes.c_char_p

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return bytes(self.functions.gk_isa()).decode()

    def select_isa(self, name: str) -> None:
        """Raises KernelsError when this machine or this build has it not."""
        if self.functions.gk_select_isa(name.encode()):
            raise KernelsError(f"The instruction set {name!r} is not at hand here; this machine would use {self.isa}.")

    @property
    def threads(self) -> int:
        return int(self.functions.gk_threads())

    @threads.setter
    def threads(self, count: int) -> None:
        """Of every call, the calling thread included."""
        self.functions.gk_set_threads(count)


@functools.cache
def library() -> Library:
    """The library of this process. Raises KernelsError when there is none that can be used."""
    names = ("libglmserve_kernels.so", "libglmserve_kernels.dylib")
    paths = [Path(__file__).with_name(name) for name in names]
    asked = os.environ.get("GLMSERVE_KERNELS_LIBRARY")
    path = Path(asked) if asked else next((path for path in paths if path.exists()), paths[0])
    found = Library(path)
    isa = os.environ.get("GLMSERVE_KERNELS_ISA")
    if isa:
        found.select_isa(isa)
    return found

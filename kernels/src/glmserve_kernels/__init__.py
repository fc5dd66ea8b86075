"""CPU kernels whose output rows do not depend on each other, bit for bit."""

from .library import KernelsError, Library, library

__all__ = ["KernelsError", "Library", "library"]

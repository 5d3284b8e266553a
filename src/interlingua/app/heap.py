"""Memory of a server process: large blocks go back to the system when they are freed."""

from __future__ import annotations

import contextlib
import os
import sys

_MMAP_THRESHOLD = -3  # the option's number in malloc.h of the GNU C library
_LARGE = 256 * 1024  # bytes


def return_large_blocks() -> None:
    """Keeps the C library from raising its limit for blocks that have pages of their own.

    By itself it raises the limit to 32 MiB as soon as such a block is freed. Later blocks then share the heap with
    small ones, and a server that held a hundred megabytes for a moment keeps them. An operator's MALLOC_MMAP_THRESHOLD_
    wins. Does nothing where there is no GNU C library.
    """
    if not sys.platform.startswith("linux") or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)

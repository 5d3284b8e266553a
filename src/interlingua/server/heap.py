"""Returns freed memory of a server process to the system."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

_MMAP_THRESHOLD = -3  # the option's number in malloc.h of the GNU C library
_LARGE = 256 * 1024  # bytes
_LOOK_EVERY = 5.0  # seconds
_WORTH_IT = 32 * 1024 * 1024  # bytes that are free, and not given back


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


def return_free_pages() -> None:
    """Gives back the pages between blocks that are in use, a few seconds after they are free.

    The C library by itself gives back only what is free at the end of its heap. Does nothing where that is not the GNU
    C library 2.33 or newer.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(ImportError, OSError, AttributeError):
        threading.Thread(target=_Heap().watch, name="interlingua-heap", daemon=True).start()


class _Heap:
    """The heap of the GNU C library in this process."""

    def __init__(self) -> None:
        import ctypes

        class Info(ctypes.Structure):
            """`struct mallinfo2` of malloc.h."""

            _fields_ = tuple(
                (name, ctypes.c_size_t)
                for name in (
                    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                    "keepcost",
                )
            )  # fmt: skip

        library = ctypes.CDLL(None)
        self._trim = library.malloc_trim
        self._trim.argtypes = [ctypes.c_size_t]
        self._info: Any = library.mallinfo2
        self._info.restype = Info
        self._page = os.sysconf("SC_PAGE_SIZE")

    def unused(self) -> int:
        """The bytes that the process has and that no block of the heap uses: code and small objects are among them."""
        info = self._info()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * self._page
        return resident - int(info.uordblks) - int(info.hblkhd)

    def watch(self) -> None:
        """Trims the heap whenever more has become free, for as long as the process lives."""
        left = self.unused()
        with contextlib.suppress(OSError):  # no /proc any more
            while True:
                time.sleep(_LOOK_EVERY)
                unused = self.unused()
                if unused > left + _WORTH_IT:
                    self._trim(0)
                    left = self.unused()
                else:
                    left = min(left, unused)

"""Ids and time. UUIDv7 grows with time, so new rows land at the end of an index (random ids halve insert rates)."""

from __future__ import annotations

import os
import time

_last = 0
_pool = ""  # random hex digits
_at = 0


def now() -> int:
    """Microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def new_id() -> str:
    """A UUIDv7. Two ids of one process are never out of order."""
    global _last, _pool, _at
    # 48 bits of milliseconds, then 12 bits that count within one millisecond.
    stamp = (time.time_ns() * 4096) // 1_000_000
    if stamp <= _last:
        stamp = _last + 1
    _last = stamp
    if _at == len(_pool):
        _pool, _at = os.urandom(15 * 128).hex(), 0
    start, _at = _at, _at + 15
    text = f"{stamp:015x}"
    # The 8 is the variant; the two random bits beside it are not worth computing.
    return f"{text[:8]}-{text[8:12]}-7{text[12:]}-8{_pool[start : start + 3]}-{_pool[start + 3 : _at]}"


def _forget() -> None:
    """Drops the random digits in a forked process: the remaining ones belong to the parent."""
    global _pool, _at
    _pool, _at = "", 0


os.register_at_fork(after_in_child=_forget)

"""Ids and time. UUIDv7 grows with time, so new rows land at the end of an index (random ids halve insert rates)."""

from __future__ import annotations

import os
import time

_last = 0
_pool = b""
_at = 0


def now() -> int:
    """Microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def new_id() -> str:
    """A UUIDv7. Two ids of one process are never out of order."""
    global _last, _pool, _at
    # 48 bits of milliseconds, then 12 bits that go on counting within one millisecond.
    stamp = (time.time_ns() * 4096) // 1_000_000
    if stamp <= _last:
        stamp = _last + 1
    _last = stamp
    if _at + 8 > len(_pool):
        _pool, _at = os.urandom(4096), 0
    tail = int.from_bytes(_pool[_at : _at + 8], "big") & 0x3FFFFFFFFFFFFFFF | 0x8000000000000000
    _at += 8
    text = f"{stamp >> 12:012x}7{stamp & 0xFFF:03x}{tail:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

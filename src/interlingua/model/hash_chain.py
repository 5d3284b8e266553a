"""The hash chain of a log: H(previous, run, seq, kind, time, H(body)).

The body enters as its own hash, so a body can be erased and the chain still verifies.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

GENESIS = bytes(32)


def link(previous: bytes, run: str, seq: int, kind: str, time: int, body_hash: bytes) -> bytes:
    return sha256(previous + f"{run}\n{seq}\n{kind}\n{time}\n".encode() + body_hash).digest()


def body_hash(body: bytes) -> bytes:
    return sha256(body).digest()


def first_broken(
    rows: Iterable[tuple[str, int, str, int, bytes, bytes]], previous: bytes = GENESIS, expected: int = 1
) -> int | None:
    """Returns the seq of the first event that does not follow from its predecessor, or None.

    Rows are (run, seq, kind, time, body hash, hash) in order; `previous` and `expected` say where the chain continues.
    """
    for run, seq, kind, time, hashed_body, stored in rows:
        if seq != expected or link(previous, run, seq, kind, time, hashed_body) != stored:
            return expected
        previous, expected = stored, seq + 1
    return None

"""Numbers that an index finds JSON objects by: hashes of their members. Pure, and the same on every database.

A member stands for itself: its name with its value, or its name alone where the value is an object or a list. Equal
numbers give rows that may have the member, so a search still compares the JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from ...model import json_values

TERMED = 32  # members; what has more is looked at in every search
_NONE = (b"{}", b"null")


def members_of(json: bytes) -> dict[str, Any]:
    """The members of an object; none of anything else."""
    if json in _NONE:
        return {}
    members = json_values.decode(json)
    return members if isinstance(members, dict) else {}


def named(name: str) -> bytes:
    return json_values.encode(name)


def looked_for(name: str, value: Any) -> bytes:
    """Returns the text whose hash a search for this member looks for."""
    if isinstance(value, dict | list):
        return named(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1 and 1.0 are equal
    return named(name) + b":" + json_values.encode(value)


def number(text: bytes) -> int:
    """64 bits, as databases have them."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


# -- as rows of a table -----------------------------------------------------------------------------------------

_MANY = b""  # in place of a member, for an object with more than TERMED members
_CALLERS = 0xFFFF  # the last bits tell the caller, so that all rows of a rare member lie beside each other


def rows_of(column: str, json: bytes, caller: str) -> set[int]:
    """The terms of an object in a column ("runs.metadata"): of each member, one for everybody and one for its caller,
    whose searches find the few of theirs among many that are like them."""
    members = members_of(json)
    if len(members) > TERMED:
        return set(_both(column, _MANY, caller))
    return {
        term for name, value in members.items() for term in _both(column, looked_for(name, value), caller)
    }  # fmt: skip


def searched(column: str, name: str, value: Any, caller: str | None) -> tuple[int, int]:
    """The terms of which a row with this member has one."""
    return _of(column, looked_for(name, value), caller), _of(column, _MANY, caller)


def _both(column: str, text: bytes, caller: str) -> Iterator[int]:
    yield _of(column, text, None)
    yield _of(column, text, caller)


def _of(column: str, text: bytes, caller: str | None) -> int:
    whose = 0 if caller is None else number(caller.encode()) % _CALLERS + 1
    return number(column.encode() + b">" + text) & ~_CALLERS | whose

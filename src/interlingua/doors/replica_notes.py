"""The note of a client session in the store. When the process that holds the session dies, another one rebuilds the
session from it, under the same id."""

from __future__ import annotations

from typing import Any

import msgspec

from ..model.run import Caller


class Note(msgspec.Struct):
    id: str
    caller: str
    scopes: list[str]
    params: Any
    """The params of the client's first request."""
    extra: Any = None
    """Data of the protocol."""

    def is_of(self, id_: str, caller: Caller) -> bool:
        """Tells if this is the session that a caller means. Other callers do not learn that it exists."""
        return self.id == id_ and self.caller == caller.id and set(self.scopes) == set(caller.scopes)


def read(body: bytes) -> Note:
    return msgspec.json.decode(body, type=Note)


def same_rights(caller: Caller, other: Caller) -> bool:
    """Tells if two callers are the same, with the same rights: a token with fewer rights must not gain more through a
    session."""
    return caller.id == other.id and set(caller.scopes) == set(other.scopes)


__all__ = ["Note", "read", "same_rights"]

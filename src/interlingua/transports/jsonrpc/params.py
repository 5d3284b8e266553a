"""Reads typed members and cursors of pages from the params of JSON-RPC methods, and refuses wrong ones with -32602."""

from __future__ import annotations

import base64
import binascii
from typing import Any, TypeVar

import msgspec

from .core import INVALID_PARAMS, RpcError

T = TypeVar("T")


def read(params: Any, type_: type[T]) -> T:
    """The params of a request. None at all are as good as an empty object."""
    try:
        return msgspec.convert({} if params is None else params, type_)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"params: {error}") from None


def cursor(offset: int) -> str:
    """Makes a cursor. It is opaque: clients must not count with it."""
    return base64.urlsafe_b64encode(str(offset).encode()).decode()


def offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    try:
        return max(0, int(base64.urlsafe_b64decode(cursor.encode())))
    except (ValueError, binascii.Error, UnicodeError):
        raise RpcError(INVALID_PARAMS, f"cursor {cursor!r} is none of ours; leave it out to begin") from None

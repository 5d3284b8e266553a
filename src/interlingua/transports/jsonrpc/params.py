"""Reads the params of JSON-RPC methods as wire types, and refuses wrong ones with -32602."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from .core import INVALID_PARAMS, RpcError

T = TypeVar("T")


def read(params: Any, type_: type[T]) -> T:
    """Returns the params of a request. Absent params count as an empty object."""
    try:
        return msgspec.convert({} if params is None else params, type_)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"params: {error}") from None

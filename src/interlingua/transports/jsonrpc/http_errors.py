"""Answers HTTP requests that are refused before their JSON-RPC request begins: a status, with an error that carries its
id."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from ...model.errors import InterlinguaError, TooLarge
from ..http.body import json_response
from ..json_text import glimpse
from .core import INVALID_REQUEST, Id, RpcError

_UNAUTHENTICATED = -32000


def refusal(status: int, error: RpcError, headers: dict[str, str] | None = None, *, id_: Any = None) -> Response:
    """`id_`: that of the request, wherever it can be read. What is no id is left out."""
    told = id_ if type(id_) in (int, str) else None
    return json_response({"jsonrpc": "2.0", "id": told, "error": error.plain()}, status, headers)


def id_of(body: bytes) -> Id | None:
    """Returns the id of the request in a body, as far as it can be read. An answer has none: its id is that of a
    request of the other side."""
    seen = glimpse(body)
    return None if seen.kind == "answer" else seen.id


def refused(error: InterlinguaError) -> Response:
    """An error that came before any message was read."""
    id_ = id_of(error.refused_message)
    challenge = getattr(error, "challenge", None)
    if challenge:
        return refusal(401, RpcError(_UNAUTHENTICATED, error.message), {"www-authenticate": challenge}, id_=id_)
    status = 413 if isinstance(error, TooLarge) else {"slow_body": 408}.get(error.code, 400)
    return refusal(status, RpcError(INVALID_REQUEST, error.message), id_=id_)

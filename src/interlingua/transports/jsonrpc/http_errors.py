"""Answers HTTP requests that are refused before their JSON-RPC request begins: a status, with an error that carries its
id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from ...model.errors import InterlinguaError, TooLarge
from ..http.body import json_response
from ..json_text import glimpse
from .core import INVALID_REQUEST, Id, RpcError, failure_message

_UNAUTHENTICATED = -32000


class Refused(Exception):
    """An answer with an error status."""

    def __init__(
        self, status: int, message: str, code: int = INVALID_REQUEST, data: Any = None, id_: Any = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = RpcError(code, message, data)
        self.id = id_


def error_response(error: Refused | InterlinguaError) -> Response:
    """Returns the answer to a request that raised this before a JSON-RPC connection took it."""
    if isinstance(error, Refused):
        return _response(error.status, error.error, id_=error.id)
    id_ = id_of(error.refused_message)
    challenge = getattr(error, "challenge", None)
    if challenge:
        unauthenticated = RpcError(_UNAUTHENTICATED, error.message)
        return _response(401, unauthenticated, {"www-authenticate": challenge}, id_=id_)
    status = 413 if isinstance(error, TooLarge) else {"slow_body": 408}.get(error.code, 400)
    return _response(status, RpcError(INVALID_REQUEST, error.message), id_=id_)


def _response(status: int, error: RpcError, headers: dict[str, str] | None = None, *, id_: Any = None) -> Response:
    """`id_`: that of the request, wherever it can be read. A value that cannot be an id is left out."""
    id_ = id_ if type(id_) in (int, str) else None
    return json_response(failure_message(id_, error.plain()), status, headers)


def id_of(body: bytes) -> Id | None:
    """Returns the id of the request in a body, as far as it can be read. An answer has none: its id is that of a
    request of the other side."""
    seen = glimpse(body)
    return None if seen.kind == "answer" else seen.id


@contextlib.contextmanager
def about(body: bytes) -> Iterator[None]:
    """Gives every refusal in this context the id of the request in the body."""
    try:
        yield
    except Refused as error:
        error.id = id_of(body) if error.id is None else error.id
        raise
    except InterlinguaError as error:
        error.refused_message = error.refused_message or body
        raise

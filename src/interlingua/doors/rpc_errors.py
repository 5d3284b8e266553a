"""Answers HTTP requests that are refused before their JSON-RPC request begins: a status, and a JSON-RPC error that
carries the id of the request where it can be read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from starlette.requests import HTTPConnection

from ..model.errors import InterlinguaError, Invalid
from ..security.errors import Unauthenticated
from ..transports.json_text import glimpse
from ..transports.jsonrpc.core import INTERNAL_ERROR, INVALID_REQUEST, Id, RpcError, failure_message
from .errors import STATUSES, HttpErrors

__all__ = ["ERRORS", "Refused", "about", "id_of"]

_UNAUTHENTICATED = -32000


class Refused(Invalid):
    """The request is refused with a status of its own."""

    code = "refused"

    def __init__(
        self, status: int, message: str, rpc_code: int = INVALID_REQUEST, data: Any = None, id_: Any = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = RpcError(rpc_code, message, data)
        self.id = id_


class _RpcHttpErrors(HttpErrors):
    def status(self, error: InterlinguaError) -> int:
        return error.status if isinstance(error, Refused) else super().status(error)


def _body(error: InterlinguaError, status: int, request: HTTPConnection) -> dict[str, Any]:
    id_ = id_of(error.refused_message)
    if isinstance(error, Refused):
        rpc_error = error.error
        id_ = error.id if type(error.id) in (int, str) else id_
    else:
        code = INTERNAL_ERROR if status >= 500 else INVALID_REQUEST
        rpc_error = RpcError(_UNAUTHENTICATED if isinstance(error, Unauthenticated) else code, error.message)
    return failure_message(id_, rpc_error.plain())


ERRORS = _RpcHttpErrors(STATUSES, _body)


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
    except InterlinguaError as error:
        error.refused_message = error.refused_message or body
        raise

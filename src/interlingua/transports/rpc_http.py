"""JSON-RPC over HTTP where there is no request to answer: refusals, as a status with an error that has no id."""

from __future__ import annotations

from starlette.responses import Response

from ..model.errors import InterlinguaError, TooLarge
from .http import json_response
from .jsonrpc import INVALID_REQUEST, RpcError

_UNAUTHENTICATED = -32000


def refusal(status: int, error: RpcError, headers: dict[str, str] | None = None) -> Response:
    return json_response({"jsonrpc": "2.0", "id": None, "error": error.plain()}, status, headers)


def refused(error: InterlinguaError) -> Response:
    """An error that came before any message was read."""
    challenge = getattr(error, "challenge", None)
    if challenge:
        return refusal(401, RpcError(_UNAUTHENTICATED, error.message), {"www-authenticate": challenge})
    status = 413 if isinstance(error, TooLarge) else {"slow_body": 408}.get(error.code, 400)
    return refusal(status, RpcError(INVALID_REQUEST, error.message))

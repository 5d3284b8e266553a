"""The errors of this protocol: one envelope with a code, for every error of the tree."""

from __future__ import annotations

from typing import Any

from ....model.errors import (
    Conflict,
    DefinitionError,
    Denied,
    ErrorTable,
    InterlinguaError,
    Invalid,
    InvalidOutput,
    NotFound,
    OverBudget,
    Overloaded,
    RunError,
    StoreError,
    TooLarge,
    Unavailable,
)
from ....security.errors import Unauthenticated
from ....transports import json_text

NOT_CONNECTED = "ERR_NOT_CONNECTED"
TOO_LARGE = "ERR_MSG_TOO_LARGE"
NOT_FOUND = "ERR_NOT_FOUND"
INVALID = "ERR_INVALID_REQUEST"
TIMEOUT = "ERR_TIMEOUT"
INTERNAL = "ERR_INTERNAL"
AMBIGUOUS = "ERR_AMBIGUOUS_PEER"
NO_PEERS = "ERR_NO_PEERS"
PING_TIMEOUT = "ERR_PING_TIMEOUT"
BUSY = "ERR_RATE_LIMIT"
FORBIDDEN = "ERR_FORBIDDEN"
UNAUTHORIZED = "ERR_UNAUTHORIZED"

ROWS: dict[type[InterlinguaError], tuple[str, int]] = {
    InterlinguaError: (INTERNAL, 500), Invalid: (INVALID, 400), InvalidOutput: (INTERNAL, 500),
    TooLarge: (TOO_LARGE, 413), NotFound: (NOT_FOUND, 404), Conflict: (INVALID, 400), Denied: (FORBIDDEN, 403),
    Unauthenticated: (UNAUTHORIZED, 401), OverBudget: (INTERNAL, 500), Overloaded: (BUSY, 429),
    Unavailable: (NOT_CONNECTED, 503), RunError: (INTERNAL, 500), StoreError: (INTERNAL, 500),
    DefinitionError: (INTERNAL, 500),
}  # fmt: skip
"""The code and the status of each error of the tree."""
_TABLE = ErrorTable(ROWS)


class Refusal(InterlinguaError):
    """An error with a code of this protocol's own, and the other members of its envelope."""

    code = "peer_refusal"

    def __init__(self, error_code: str, status: int, message: str, **extra: Any) -> None:
        super().__init__(message, transient=status in (408, 429, 503))
        self.error_code = error_code
        self.status = status
        self.extra = extra


def envelope(error: InterlinguaError) -> dict[str, Any]:
    """Returns the body of an error. It holds the client's own id of a refused message, so that the client knows which
    message to repeat."""
    if isinstance(error, Refusal):
        code, extra = error.error_code, error.extra
    else:
        code = _TABLE.of(type(error))[0]
        # Its own code beside the few of the protocol: our mount acts by it.
        extra = {"code": error.code, **({"details": error.details} if error.details is not None else {})}
    told: dict[str, Any] = {"ok": False, "error_code": code, "error": error.message, "message": error.message}
    if code in (TIMEOUT, TOO_LARGE):
        message_id = json_text.members(error.refused_message, "message_id").get("message_id")
        if isinstance(message_id, str):
            told["failed_message_id"] = message_id
    return {**told, **extra}

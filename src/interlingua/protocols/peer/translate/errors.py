"""The errors of this protocol: one envelope with a code, for every error of the tree."""

from __future__ import annotations

from typing import Any

from ....model.errors import InterlinguaError

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

# By the code of the error tree; codes that are not here are internal.
TABLE: dict[str, tuple[str, int]] = {
    "invalid": (INVALID, 400), "invalid_input": (INVALID, 400), "invalid_config": (INVALID, 400),
    "invalid_answer": (INVALID, 400), "invalid_request": (INVALID, 400), "invalid_state": (INVALID, 400),
    "invalid_question": (INVALID, 400), "wrong_content_type": (INVALID, 400), "slow_body": (INVALID, 400),
    "too_large": (TOO_LARGE, 413),
    "not_found": (NOT_FOUND, 404), "agent_not_found": (NOT_FOUND, 404), "run_not_found": (NOT_FOUND, 404),
    "thread_not_found": (NOT_FOUND, 404), "question_not_found": (NOT_FOUND, 404),
    "conflict": (INVALID, 400), "thread_busy": (INVALID, 400), "already_finished": (INVALID, 400),
    "already_answered": (INVALID, 400), "key_reused": (INVALID, 400),
    "denied": (FORBIDDEN, 403), "unauthenticated": (UNAUTHORIZED, 401), "host_refused": (FORBIDDEN, 403),
    "origin_refused": (FORBIDDEN, 403),
    "overloaded": (BUSY, 429), "unavailable": (NOT_CONNECTED, 503), "store_error": (INTERNAL, 500),
}  # fmt: skip


class Refusal(InterlinguaError):
    """An error with a code of this protocol's own, and the other members of its envelope."""

    code = "peer_refusal"

    def __init__(self, error_code: str, status: int, message: str, **extra: Any) -> None:
        super().__init__(message, transient=status in (408, 429, 503))
        self.error_code = error_code
        self.status = status
        self.extra = extra


def envelope(error: InterlinguaError, *, message_id: str | None = None) -> tuple[int, dict[str, Any]]:
    """Returns the status and the body of an error. `message_id` is the client's own, so that it knows which message to
    repeat."""
    if isinstance(error, Refusal):
        code, status, extra = error.error_code, error.status, error.extra
    else:
        code, status = TABLE.get(error.code, (INTERNAL, 500))
        # Its own code beside the few of the protocol: our mount acts by it.
        extra = {"code": error.code, **({"details": error.details} if error.details is not None else {})}
    told: dict[str, Any] = {"ok": False, "error_code": code, "error": error.message, "message": error.message}
    if message_id is not None and code in (TIMEOUT, TOO_LARGE):
        told["failed_message_id"] = message_id
    return status, {**told, **extra}

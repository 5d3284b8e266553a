"""Error codes as numbers, for team policies and for wires that carry numbers.

The numbers are HTTP status codes. Every code of the error tree has one; a number maps back to the nearest code.
"""

from __future__ import annotations

from enum import IntEnum

from .errors import ErrorInfo
from .team.authority import OVER_BUDGET


class ErrorNumber(IntEnum):
    """The error codes, with the HTTP status codes of the same meaning."""

    INVALID = 400
    UNAUTHENTICATED = 401
    PERMISSION = 403
    NOT_FOUND = 404
    CONFLICT = 409
    TOO_LARGE = 413
    REJECTED = 422  # by the overseer
    BUDGET = 429  # depth, runs or hops are used up
    CANCELLED = 499
    INTERNAL = 500  # our fault
    FAILED = 502  # the agent failed
    UNAVAILABLE = 503
    TIMEOUT = 504


REJECTED = "rejected"
N = ErrorNumber

# By the code of the error tree. Any other code belongs to an agent and maps to FAILED.
NUMBERS_BY_CODE: dict[str, ErrorNumber] = {
    "invalid": N.INVALID, "invalid_input": N.INVALID, "invalid_config": N.INVALID,
    "invalid_question": N.FAILED, "invalid_answer": N.INVALID, "invalid_state": N.INVALID,
    "invalid_request": N.INVALID, "invalid_output": N.FAILED, "too_large": N.TOO_LARGE,
    "not_found": N.NOT_FOUND, "agent_not_found": N.NOT_FOUND, "run_not_found": N.NOT_FOUND,
    "task_not_found": N.NOT_FOUND,
    "thread_not_found": N.NOT_FOUND, "question_not_found": N.NOT_FOUND, "checkpoint_not_found": N.NOT_FOUND,
    "conflict": N.CONFLICT, "thread_busy": N.CONFLICT, "thread_exists": N.CONFLICT,
    "thread_conflict": N.CONFLICT, "already_answered": N.CONFLICT, "already_finished": N.CONFLICT,
    "key_reused": N.CONFLICT,
    "denied": N.PERMISSION, "host_refused": N.PERMISSION, "origin_refused": N.PERMISSION,
    "unauthenticated": N.UNAUTHENTICATED,
    "run_failed": N.FAILED, "agent_error": N.FAILED, "agent_crashed": N.FAILED, "child_failed": N.FAILED,
    "step_failed": N.FAILED, "tool_failed": N.FAILED,
    REJECTED: N.REJECTED, OVER_BUDGET: N.BUDGET, "too_many_hops": N.BUDGET, "cancelled": N.CANCELLED,
    "timed_out": N.TIMEOUT, "question_expired": N.TIMEOUT,
    "run_lost": N.UNAVAILABLE, "overloaded": N.UNAVAILABLE, "unavailable": N.UNAVAILABLE,
    "store_error": N.INTERNAL, "definition_error": N.INTERNAL, "internal": N.INTERNAL,
}  # fmt: skip

CODES_BY_NUMBER: dict[ErrorNumber, str] = {
    N.INVALID: "invalid_request", N.UNAUTHENTICATED: "unauthenticated", N.PERMISSION: "denied",
    N.NOT_FOUND: "not_found", N.CONFLICT: "conflict", N.TOO_LARGE: "too_large", N.REJECTED: REJECTED,
    N.BUDGET: OVER_BUDGET, N.CANCELLED: "cancelled", N.INTERNAL: "internal", N.FAILED: "run_failed",
    N.UNAVAILABLE: "unavailable", N.TIMEOUT: "timed_out",
}  # fmt: skip


def number_of(error: ErrorInfo) -> ErrorNumber:
    """The number of an error. For a failed child, the number of the child's own error."""
    if error.code == "child_failed" and isinstance(error.details, dict):
        inner = error.details.get("error")
        if isinstance(inner, dict) and isinstance(inner.get("code"), str):
            return number_of(ErrorInfo(inner["code"], "", details=inner.get("details")))
    return NUMBERS_BY_CODE.get(error.code, ErrorNumber.FAILED)


def error_from_number(number: int, message: str) -> ErrorInfo:
    """Builds an error from its number. An unknown number in the 400s blames the request; any other means failure."""
    if number in CODES_BY_NUMBER:
        return ErrorInfo(
            CODES_BY_NUMBER[ErrorNumber(number)], message, number in (ErrorNumber.UNAVAILABLE, ErrorNumber.TIMEOUT)
        )
    return ErrorInfo("invalid_request" if 400 <= number < 500 else "run_failed", message)

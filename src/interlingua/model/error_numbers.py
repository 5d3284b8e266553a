"""Error codes as numbers, for those who decide by them: what policies of teams name, and what wires with numbers carry.

The numbers are HTTP's. Every code of the error tree has one; the way back gives the nearest code of the tree.
"""

from __future__ import annotations

from enum import IntEnum

from .errors import ErrorInfo
from .team.authority import OVER_BUDGET


class Code(IntEnum):
    """The error codes, with the numbers that HTTP has for the same."""

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
    FAILED = 502  # the agent that had the work did not manage
    UNAVAILABLE = 503
    TIMEOUT = 504


REJECTED = "rejected"

# By the code of the error tree. What is not here is an error of an agent's own: it failed.
TABLE: dict[str, Code] = {
    "invalid": Code.INVALID, "invalid_input": Code.INVALID, "invalid_config": Code.INVALID,
    "invalid_question": Code.FAILED, "invalid_answer": Code.INVALID, "invalid_state": Code.INVALID,
    "invalid_request": Code.INVALID, "invalid_output": Code.FAILED, "too_large": Code.TOO_LARGE,
    "not_found": Code.NOT_FOUND, "agent_not_found": Code.NOT_FOUND, "run_not_found": Code.NOT_FOUND,
    "task_not_found": Code.NOT_FOUND,
    "thread_not_found": Code.NOT_FOUND, "question_not_found": Code.NOT_FOUND, "checkpoint_not_found": Code.NOT_FOUND,
    "conflict": Code.CONFLICT, "thread_busy": Code.CONFLICT, "thread_exists": Code.CONFLICT,
    "thread_conflict": Code.CONFLICT, "already_answered": Code.CONFLICT, "already_finished": Code.CONFLICT,
    "key_reused": Code.CONFLICT,
    "denied": Code.PERMISSION, "host_refused": Code.PERMISSION, "origin_refused": Code.PERMISSION,
    "unauthenticated": Code.UNAUTHENTICATED,
    "run_failed": Code.FAILED, "agent_error": Code.FAILED, "agent_crashed": Code.FAILED, "child_failed": Code.FAILED,
    "step_failed": Code.FAILED, "tool_failed": Code.FAILED,
    REJECTED: Code.REJECTED, OVER_BUDGET: Code.BUDGET, "too_many_hops": Code.BUDGET, "cancelled": Code.CANCELLED,
    "timed_out": Code.TIMEOUT, "question_expired": Code.TIMEOUT,
    "run_lost": Code.UNAVAILABLE, "overloaded": Code.UNAVAILABLE, "unavailable": Code.UNAVAILABLE,
    "store_error": Code.INTERNAL, "definition_error": Code.INTERNAL, "internal": Code.INTERNAL,
}  # fmt: skip

BACK: dict[Code, str] = {
    Code.INVALID: "invalid_request", Code.UNAUTHENTICATED: "unauthenticated", Code.PERMISSION: "denied",
    Code.NOT_FOUND: "not_found", Code.CONFLICT: "conflict", Code.TOO_LARGE: "too_large", Code.REJECTED: REJECTED,
    Code.BUDGET: OVER_BUDGET, Code.CANCELLED: "cancelled", Code.INTERNAL: "internal", Code.FAILED: "run_failed",
    Code.UNAVAILABLE: "unavailable", Code.TIMEOUT: "timed_out",
}  # fmt: skip


def code_of(error: ErrorInfo) -> Code:
    """The number of an error. One that came up from a child is the child's."""
    if error.code == "child_failed" and isinstance(error.details, dict):
        inner = error.details.get("error")
        if isinstance(inner, dict) and isinstance(inner.get("code"), str):
            return code_of(ErrorInfo(inner["code"], "", details=inner.get("details")))
    return TABLE.get(error.code, Code.FAILED)


def error_of(number: int, message: str) -> ErrorInfo:
    """An error by its number. An unknown number below 500 is the sender's fault; any other means that it failed."""
    if number in BACK:
        return ErrorInfo(BACK[Code(number)], message, number in (Code.UNAVAILABLE, Code.TIMEOUT))
    return ErrorInfo("invalid_request" if 400 <= number < 500 else "run_failed", message)

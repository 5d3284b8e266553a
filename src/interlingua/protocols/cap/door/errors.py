"""The errors of this protocol: an `error_response`, whose code is also the status of the answer."""

from __future__ import annotations

import contextlib
from typing import Any

from starlette.requests import HTTPConnection

from ....doors.errors import HttpErrors
from ....engine.ids import now
from ....model.error_numbers import NUMBERS_BY_CODE, ErrorNumber
from ....model.errors import InterlinguaError, InvalidRequest, all_errors
from ....model.team.manifest import ORCHESTRATOR, USER, instance_of
from ....security.errors import Unauthenticated
from ....transports import json_text
from ....transports.http.body import SlowBody, WrongContentType
from .. import translate, wire

UNKNOWN = "unknown"  # the task of an error that came before one could be read


def refused(error: InterlinguaError) -> dict[str, Any]:
    """Returns the members of a refused message that say what it is about, as far as they can be read."""
    return json_text.members(error.refused_message, "task_id", "sender_id") if error.refused_message else {}


def addressed(message: Any) -> tuple[str, str]:
    """Returns the task and the sender of a possible message, as far as they can be read."""
    members = message if isinstance(message, dict) else {}
    task, sender = members.get("task_id"), members.get("sender_id")
    recipient = USER
    with contextlib.suppress(InvalidRequest):
        instance_of(sender if isinstance(sender, str) and len(sender) <= wire.MAX_ID else "")
        recipient = str(sender)
    return task if isinstance(task, str) and task else UNKNOWN, recipient


def error_message(error: InterlinguaError, task: str, recipient: str = USER) -> wire.ErrorResponse:
    return translate.error_response(error.info(), task=task, sender=ORCHESTRATOR, recipient=recipient, time=now())


def _body(error: InterlinguaError, status: int, request: HTTPConnection) -> Any:
    task = request.path_params.get("task_id")
    answer = error_message(error, task) if task else error_message(error, *addressed(refused(error)))
    answer.error_code = status
    return wire.write(answer)


ERRORS = HttpErrors(
    {
        **{error: int(NUMBERS_BY_CODE[error.code]) for error in all_errors()},
        Unauthenticated: int(ErrorNumber.UNAUTHENTICATED), SlowBody: 408, WrongContentType: 415,
    },
    _body,
)  # fmt: skip

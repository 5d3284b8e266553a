"""Why a remote task came to nothing, as an error of the run here."""

from __future__ import annotations

from typing import Any

import msgspec

from ...engine.mounting import RemoteError
from ...model.errors import ErrorInfo, RunCancelled, RunError, RunTimedOut


def failure(status: str, message: str | None, info: Any) -> RunError:
    """The end of a task that came to nothing. Ours tell code, details and whether it may succeed later."""
    try:
        told = msgspec.convert(info, ErrorInfo) if isinstance(info, dict) else None
    except msgspec.ValidationError:
        told = None
    said = message or (told.message if told is not None else "") or "the remote agent said no more"
    code = told.code if told is not None else None
    if status == "canceled" or code == "cancelled":
        return RunCancelled(f"the remote task was cancelled{f': {said}' if message else ''}")
    if code == "timed_out":
        return RunTimedOut(said)
    if told is None:
        return RemoteError(said)
    return RemoteError(said, code=code, transient=told.transient, details=told.details)

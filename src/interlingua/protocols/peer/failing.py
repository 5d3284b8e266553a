"""Why a remote task came to nothing, as an error of the run here."""

from __future__ import annotations

from typing import Any

import msgspec

from ...model.errors import ErrorInfo, RunCancelled, RunError, RunTimedOut


class RemoteError(RunError):
    """The remote agent failed. Its own code and details are kept."""

    code = "remote_failed"

    def __init__(
        self, message: str, *, code: str | None = None, transient: bool | None = None, details: Any = None
    ) -> None:
        super().__init__(message, transient=transient, details=details)
        self.remote_code = code or type(self).code

    def info(self) -> ErrorInfo:
        return ErrorInfo(self.remote_code, self.message, self.transient, self.details)


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

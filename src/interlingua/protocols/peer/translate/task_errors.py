"""Why a remote task came to nothing, as an error of the run here."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from ....engine.handler.mounted_run import RemoteError
from ....model.errors import ErrorInfo, RunCancelled, RunError


def failure(status: str, message: str | None, info: Any) -> RunError:
    """The end of a task that came to nothing. Ours tell code, details and whether it may succeed later."""
    if status != "canceled":
        with contextlib.suppress(msgspec.ValidationError):
            told = msgspec.convert(info, ErrorInfo)
            return RemoteError(told.message, code=told.code, transient=told.transient, details=told.details)
        return RemoteError(message or "the remote agent said no more")
    return RunCancelled(f"the remote task was cancelled{f': {message}' if message else ''}")

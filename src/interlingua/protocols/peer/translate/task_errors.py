"""Turns the failure of a remote task into an error of the local run."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from ....model.errors import ErrorInfo, RunCancelled, RunError
from ....mounts.errors import RemoteError


def failure(status: str, message: str | None, info: Any) -> RunError:
    """Returns the error of a failed task. Interlingua nodes add code, details and if it may succeed later."""
    if status != "canceled":
        with contextlib.suppress(msgspec.ValidationError):
            told = msgspec.convert(info, ErrorInfo)
            return RemoteError(told.message, code=told.code, transient=told.transient, details=told.details)
        return RemoteError(message or "the remote agent said no more")
    return RunCancelled(f"the remote task was cancelled{f': {message}' if message else ''}")

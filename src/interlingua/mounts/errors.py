"""Errors of mounted agents: the failure of a remote agent, and what other servers of ours tell of theirs."""

from __future__ import annotations

from typing import Any

from ..model.errors import ErrorInfo, RunError, RunNotFound


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


def remote_error(error: ErrorInfo) -> RemoteError:
    """Returns an error that the remote side told, or that a step has recorded."""
    return RemoteError(error.message, code=error.code, transient=error.transient, details=error.details)


def no_such_run(run: str, where: str) -> RemoteError:
    """Returns the error of a run to go on with that a server does not have."""
    return RemoteError(f"there is no run {run!r} at {where}", code=RunNotFound.code)


def our_failure(message: str, details: Any) -> RemoteError | None:
    """Returns the error of a run at a server that tells, as ours do, both its code and whether it may pass: as it was
    raised there, over any number of mounts. None for what another maker's server tells."""
    code, transient = (details.get("code"), details.get("transient")) if isinstance(details, dict) else (None, None)
    if not isinstance(code, str) or not isinstance(transient, bool):
        return None
    return RemoteError(message, code=code, transient=transient, details=details.get("details"))

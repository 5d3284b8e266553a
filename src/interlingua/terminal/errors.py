"""Turns errors into a message on stderr and an exit code: the one place for both."""

from __future__ import annotations

import os
import sys
from enum import IntEnum

from ..model.errors import (
    AlreadyAnswered,
    AlreadyFinished,
    Conflict,
    DefinitionError,
    InterlinguaError,
    Invalid,
    NotFound,
    QuestionNotFound,
    RunNotFound,
    ThreadBusy,
    ThreadNotFound,
)
from ..model.status import Status


class ExitCode(IntEnum):
    SUCCEEDED = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    WAITING = 4
    CONFLICT = 5
    TIMED_OUT = 124
    CANCELLED = 130
    BROKEN_PIPE = 141


OF_STATUS = {
    Status.SUCCEEDED: ExitCode.SUCCEEDED,
    Status.FAILED: ExitCode.FAILED,
    Status.TIMED_OUT: ExitCode.TIMED_OUT,
    Status.CANCELLED: ExitCode.CANCELLED,
}

# The first class that fits counts.
_OF_ERROR: list[tuple[type[InterlinguaError], ExitCode]] = [
    (Invalid, ExitCode.USAGE),
    (DefinitionError, ExitCode.USAGE),
    (NotFound, ExitCode.NOT_FOUND),
    (Conflict, ExitCode.CONFLICT),
]

_HINTS: list[tuple[type[InterlinguaError], str]] = [
    (RunNotFound, "interlingua runs list shows the runs of this store"),
    (ThreadNotFound, "interlingua threads list shows the threads of this store"),
    (QuestionNotFound, "interlingua questions list shows what waits for an answer"),
    (ThreadBusy, "wait for the run that has the thread, or end it: interlingua runs cancel RUN"),
    (AlreadyFinished, "interlingua runs show RUN tells how it ended"),
    (AlreadyAnswered, "interlingua questions show QUESTION tells the answer"),
]


class CommandError(InterlinguaError):
    """A command that cannot be carried out as it was given."""

    code = "usage"

    def __init__(self, message: str, *, hint: str = "", exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code


def exit_code_of(error: InterlinguaError) -> ExitCode:
    if isinstance(error, CommandError):
        return error.exit_code
    return next((code for cls, code in _OF_ERROR if isinstance(error, cls)), ExitCode.FAILED)


def debugging() -> bool:
    return os.environ.get("INTERLINGUA_DEBUG", "") not in ("", "0")


def report(error: InterlinguaError) -> ExitCode:
    """Prints an error on stderr."""
    if debugging():
        import traceback

        traceback.print_exception(error)
    hint = getattr(error, "hint", "") or next((text for cls, text in _HINTS if isinstance(error, cls)), "")
    complain(str(error), hint)  # a person who types commands is the owner
    return exit_code_of(error)


def complain(message: str, hint: str = "") -> None:
    from rich.text import Text

    from .console import clean, error_console

    console = error_console()
    console.print(Text.assemble(("error: ", "bold red"), clean(message)), soft_wrap=True)
    if hint:
        console.print(Text.assemble(("hint: ", "bold cyan"), clean(hint)), soft_wrap=True)


def surprise(error: Exception) -> ExitCode:
    """Reports an unexpected error as a bug of the program, in one line unless in debug mode."""
    if debugging():
        import traceback

        traceback.print_exception(error)
    else:
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f" ({at.tb_frame.f_code.co_filename}:{at.tb_lineno})" if at is not None else ""
        complain(
            f"something unexpected happened: {type(error).__name__}: {error}{where}",
            "this is a bug of Interlingua; interlingua --debug … shows the whole traceback",
        )
    sys.stderr.flush()
    return ExitCode.FAILED

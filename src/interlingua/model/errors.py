"""Every error that the system raises on purpose, as one tree.

    InterlinguaError
    ├── Invalid                 the caller sent something wrong; sending it again will not help
    │   ├── InvalidInput  InvalidConfig  InvalidOutput  InvalidQuestion  InvalidAnswer  InvalidState
    │   ├── InvalidRequest      a request or argument that makes no sense
    │   └── TooLarge            over one of the limits
    ├── NotFound                AgentNotFound  RunNotFound  ThreadNotFound  QuestionNotFound  CheckpointNotFound
    ├── Conflict                the thing exists, but its state does not allow this
    │   ├── ThreadBusy  ThreadExists  ThreadConflict
    │   ├── AlreadyAnswered     somebody else's answer was first, or the question was withdrawn
    │   ├── AlreadyFinished     the run has ended
    │   └── KeyReused           an idempotency key came again with another request
    ├── Denied                  the caller may not do this
    ├── RunError                why a run did not succeed
    │   ├── AgentError          raised by an agent on purpose; agents subclass it for errors of their own
    │   ├── AgentCrashed        the agent raised something else
    │   ├── RunCancelled  RunTimedOut
    │   ├── RunLost             the process that ran it died, and the run could not be taken up again
    │   ├── QuestionExpired     nobody answered in time
    │   └── ChildFailed         an agent that was called did not succeed
    ├── Overloaded              a queue is full; later is fine
    ├── Unavailable             something that is needed is down or shutting down
    └── DefinitionError         an agent is declared wrongly; raised where it is declared

Each class has a stable `code` and a `transient` flag: true means that the same request may succeed later.
`details` is JSON. Doors map the tree to their own errors by a table; nothing else should look at classes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it stands in the log and travels over wires."""

    code: str
    message: str
    transient: bool = False
    details: Any = None


class InterlinguaError(Exception):
    code: ClassVar[str] = "internal"
    transient: bool = False

    def __init__(self, message: str, *, details: Any = None, transient: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        if transient is not None:
            self.transient = transient

    def info(self) -> ErrorInfo:
        return ErrorInfo(self.code, self.message, self.transient, self.details)


class Invalid(InterlinguaError):
    """Something does not fit what was declared. `path` points at the first thing that is wrong."""

    code = "invalid"

    def __init__(self, message: str, *, path: str = "", details: Any = None) -> None:
        super().__init__(message, details=details)
        self.path = path
        if details is None and path:
            self.details = {"path": path}


class InvalidInput(Invalid):
    code = "invalid_input"


class InvalidConfig(Invalid):
    code = "invalid_config"


class InvalidOutput(Invalid):
    code = "invalid_output"


class InvalidQuestion(Invalid):
    code = "invalid_question"


class InvalidAnswer(Invalid):
    code = "invalid_answer"


class InvalidState(Invalid):
    code = "invalid_state"


class InvalidRequest(Invalid):
    code = "invalid_request"


class TooLarge(Invalid):
    code = "too_large"


class NotFound(InterlinguaError):
    code = "not_found"


class AgentNotFound(NotFound):
    code = "agent_not_found"


class RunNotFound(NotFound):
    code = "run_not_found"


class ThreadNotFound(NotFound):
    code = "thread_not_found"


class QuestionNotFound(NotFound):
    code = "question_not_found"


class CheckpointNotFound(NotFound):
    code = "checkpoint_not_found"


class Conflict(InterlinguaError):
    code = "conflict"


class ThreadBusy(Conflict):
    code = "thread_busy"
    transient = True


class ThreadExists(Conflict):
    code = "thread_exists"


class ThreadConflict(Conflict):
    code = "thread_conflict"
    transient = True


class AlreadyAnswered(Conflict):
    code = "already_answered"


class AlreadyFinished(Conflict):
    code = "already_finished"


class KeyReused(Conflict):
    code = "key_reused"


class Denied(InterlinguaError):
    code = "denied"


class RunError(InterlinguaError):
    code = "run_failed"


class AgentError(RunError):
    """Raise this, or a subclass with a `code` of its own, to end a run as failed on purpose.

    Subclasses listed in `@agent(errors=[...])` become error definitions on the card: the code, the
    docstring as description, the transient flag, and the schema of `Details` where the class has one.
    """

    code = "agent_error"


class AgentCrashed(RunError):
    code = "agent_crashed"


class RunCancelled(RunError):
    code = "cancelled"


class RunTimedOut(RunError):
    code = "timed_out"
    transient = True


class RunLost(RunError):
    code = "run_lost"
    transient = True


class QuestionExpired(RunError):
    code = "question_expired"
    transient = True


class ChildFailed(RunError):
    """The called agent did not succeed; its own error is kept whole."""

    code = "child_failed"

    def __init__(self, message: str, *, error: ErrorInfo, run: str = "") -> None:
        super().__init__(message, details={"run": run, "error": msgspec.to_builtins(error)})
        self.error = error
        self.run = run
        self.transient = error.transient


class Overloaded(InterlinguaError):
    code = "overloaded"
    transient = True


class Unavailable(InterlinguaError):
    code = "unavailable"
    transient = True


class DefinitionError(InterlinguaError):
    code = "definition_error"


def describe(error: BaseException) -> ErrorInfo:
    """What the log says of an exception: ours as they are, any other by its type and text."""
    if isinstance(error, InterlinguaError):
        return error.info()
    text = str(error)
    return ErrorInfo(AgentCrashed.code, f"{type(error).__name__}: {text}" if text else type(error).__name__)


def all_errors() -> list[type[InterlinguaError]]:
    """The whole tree, parents first: for tables in docs and on doors."""
    found: list[type[InterlinguaError]] = []

    def walk(cls: type[InterlinguaError]) -> None:
        if cls.__module__ == __name__ and cls not in found:
            found.append(cls)
            for sub in cls.__subclasses__():
                walk(sub)

    walk(InterlinguaError)
    return found

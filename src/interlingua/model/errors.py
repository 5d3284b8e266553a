"""The tree of all errors that the system raises deliberately.

    InterlinguaError
    ├── Invalid                 the caller sent something wrong; sending it again will not help
    │   ├── InvalidInput  InvalidConfig  InvalidOutput  InvalidQuestion  InvalidAnswer  InvalidState
    │   ├── InvalidRequest      a malformed request or argument
    │   └── TooLarge            exceeds a size limit
    ├── NotFound                AgentNotFound  RunNotFound  ThreadNotFound  QuestionNotFound  CheckpointNotFound
    ├── Conflict                the object exists, but its state does not allow this
    │   ├── ThreadBusy  ThreadExists  ThreadConflict
    │   ├── AlreadyAnswered     another answer was first, or the question was withdrawn or expired
    │   ├── AlreadyFinished     the run has ended
    │   └── KeyReused           the idempotency key belongs to a different request
    ├── Denied                  the caller may not do this
    ├── OverBudget              a limit on a team's work is used up
    ├── RunError                the run did not succeed
    │   ├── AgentError          raised by an agent deliberately; agents subclass it for their own errors
    │   ├── AgentCrashed        the agent raised any other exception
    │   ├── RunCancelled  RunTimedOut
    │   ├── RunLost             the process that ran it died, and the run could not be resumed
    │   ├── QuestionExpired     no answer came before the deadline
    │   ├── ChildFailed         a called agent did not succeed
    │   ├── Rejected            the overseer did not approve the result
    │   ├── StepFailed          a step failed for good
    │   ├── ToolFailed          a tool reported a failure
    │   └── TooManyHops         a call passed through too many mounts, which probably form a loop
    ├── Overloaded              a queue is full; try again later
    ├── Unavailable             a required service is down or shutting down
    ├── StoreError              a read or write of the store failed
    └── DefinitionError         an invalid agent definition; raised at the definition

Each class has a stable `code` and a `transient` flag: true means that the same request may succeed later.
`details` is JSON, described by `details_schema` where a class always has them. Doors map the tree to their own errors
by an `ErrorTable`; no other code should test for classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as the log stores it and wires carry it."""

    code: str
    message: str
    transient: bool = False
    details: Any = None


class InterlinguaError(Exception):
    """The root of the tree. Raised as such, it is an internal error."""

    code: ClassVar[str] = "internal"
    details_schema: ClassVar[dict[str, Any] | None] = None
    transient: bool = False
    refused_message: bytes = b""
    """The refused message or its beginning, which may contain the id of the request."""

    def __init__(self, message: str, *, details: Any = None, transient: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        if transient is not None:
            self.transient = transient

    def info(self) -> ErrorInfo:
        return ErrorInfo(self.code, self.message, self.transient, self.details)


class Invalid(InterlinguaError):
    """A value does not fit its declaration. `path` points at the first mismatch."""

    code = "invalid"
    details_schema: ClassVar[dict[str, Any] | None] = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "A JSON pointer to the mismatch"},
            "problem": {"type": "string", "description": "The reason"},
        },
    }

    def __init__(self, message: str, *, path: str = "", details: Any = None) -> None:
        super().__init__(message, details=details)
        self.path = path
        if details is None and path:
            self.details = {"path": path}


class InvalidInput(Invalid):
    """The input does not fit the agent's schema."""

    code = "invalid_input"


class InvalidConfig(Invalid):
    """The configuration does not fit the agent's schema, or the agent takes none."""

    code = "invalid_config"


class InvalidOutput(Invalid):
    """The agent returned, yielded or recorded a value that does not fit its schema."""

    code = "invalid_output"


class InvalidQuestion(Invalid):
    """The agent asked an undeclared question, or one that does not fit its declaration."""

    code = "invalid_question"


class InvalidAnswer(Invalid):
    """The answer does not fit the question."""

    code = "invalid_answer"


class InvalidState(Invalid):
    """The state of a thread does not fit its schema."""

    code = "invalid_state"


class InvalidRequest(Invalid):
    """The request or an argument is malformed."""

    code = "invalid_request"


class TooLarge(Invalid):
    """The value exceeds a size limit."""

    code = "too_large"


class NotFound(InterlinguaError):
    """The requested object does not exist."""

    code = "not_found"


class AgentNotFound(NotFound):
    """No process serves an agent of this name."""

    code = "agent_not_found"


class TaskNotFound(NotFound):
    """The team has no such task."""

    code = "task_not_found"


class RunNotFound(NotFound):
    """The run does not exist, or it was deleted."""

    code = "run_not_found"


class ThreadNotFound(NotFound):
    """The thread does not exist."""

    code = "thread_not_found"


class QuestionNotFound(NotFound):
    """The question does not exist."""

    code = "question_not_found"


class CheckpointNotFound(NotFound):
    """The thread has no such checkpoint."""

    code = "checkpoint_not_found"


class Conflict(InterlinguaError):
    """The object exists, but its state does not allow this."""

    code = "conflict"


class ThreadBusy(Conflict):
    """Another run is using the thread."""

    code = "thread_busy"
    transient = True


class ThreadExists(Conflict):
    """A thread with this id already exists."""

    code = "thread_exists"


class ThreadConflict(Conflict):
    """The thread was changed while the run was using it."""

    code = "thread_conflict"
    transient = True


class AlreadyAnswered(Conflict):
    """Another answer was first, or the question was withdrawn or has expired."""

    code = "already_answered"


class AlreadyFinished(Conflict):
    """The run has ended."""

    code = "already_finished"


class KeyReused(Conflict):
    """The idempotency key belongs to an earlier, different request."""

    code = "key_reused"


class Denied(InterlinguaError):
    """The caller may not do this."""

    code = "denied"


class OverBudget(InterlinguaError):
    """The task has used up the depth or the number of runs that its team allows."""

    code = "over_budget"


class RunError(InterlinguaError):
    """The run did not succeed."""

    code = "run_failed"


class AgentError(RunError):
    """Ends a run as failed. An agent raises it, or a subclass with a `code` of its own.

    Subclasses listed in `@agent(errors=[...])` become error definitions on the card: the code, the
    docstring as description, the transient flag, and the schema of `Details` where the class has one.
    """

    code = "agent_error"


class AgentCrashed(RunError):
    """The agent raised an exception that is not an AgentError."""

    code = "agent_crashed"


class RunCancelled(RunError):
    """The run was cancelled."""

    code = "cancelled"


class RunTimedOut(RunError):
    """The run exceeded its timeout."""

    code = "timed_out"
    transient = True


class RunLost(RunError):
    """The process that executed the run died, and the run could not be resumed."""

    code = "run_lost"
    transient = True


class QuestionExpired(RunError):
    """No answer came before the deadline."""

    code = "question_expired"
    transient = True


class ChildFailed(RunError):
    """A called agent did not succeed; `error` holds its own error."""

    code = "child_failed"
    details_schema: ClassVar[dict[str, Any] | None] = {
        "type": "object",
        "properties": {"run": {"type": "string"}, "error": {"type": "object"}},
    }

    def __init__(self, message: str, *, error: ErrorInfo, run: str = "") -> None:
        super().__init__(message, details={"run": run, "error": msgspec.to_builtins(error)})
        self.error = error
        self.run = run
        self.transient = error.transient


class Rejected(RunError):
    """The overseer did not approve the result."""

    code = "rejected"


class StepFailed(RunError):
    """A step failed for good; `error` describes the exception."""

    code = "step_failed"
    details_schema: ClassVar[dict[str, Any] | None] = {
        "type": "object",
        "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
    }

    def __init__(self, step: str, error: ErrorInfo) -> None:
        super().__init__(f"step {step}: {error.message}", details=msgspec.to_builtins(error))
        self.error = error
        self.transient = error.transient


class ToolFailed(RunError):
    """A tool reported a failure or returned an unusable result."""

    code = "tool_failed"


class TooManyHops(RunError):
    """The call passed through more mounts than `max_hops` allows; they probably form a loop."""

    code = "too_many_hops"


class Overloaded(InterlinguaError):
    """A queue is full; try again later."""

    code = "overloaded"
    transient = True


class Unavailable(InterlinguaError):
    """A required service is down or shutting down."""

    code = "unavailable"
    transient = True


class StoreError(InterlinguaError):
    """A read or write of the store failed.

    `why` is the text of the database, which may name hosts and files: the log and the owner see it, callers do not.
    """

    code = "store_error"
    transient = True

    def __init__(self, message: str, *, why: object = "") -> None:
        super().__init__(message)
        self.why = " ".join(str(why).split())

    def __str__(self) -> str:
        return f"{self.message}: {self.why}" if self.why else self.message


class DefinitionError(InterlinguaError):
    """An agent definition is invalid; raised at the definition."""

    code = "definition_error"


def describe(error: BaseException) -> ErrorInfo:
    """Describes an exception for the log: an error of the tree as it is, any other by its type and text."""
    if isinstance(error, InterlinguaError):
        return error.info()
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return ErrorInfo(AgentCrashed.code, f"the agent called sys.exit({code})")
    try:
        text = str(error)
    except Exception:
        text = "(str() of it fails)"
    return ErrorInfo(AgentCrashed.code, f"{type(error).__name__}: {text}" if text else type(error).__name__)


def from_info(info: ErrorInfo) -> InterlinguaError:
    """Rebuilds an exception from its description in the log. Classes with their own arguments become the root class."""
    plain_inits = (InterlinguaError.__init__, Invalid.__init__)
    error_class = next(
        (cls for cls in all_errors() if cls.code == info.code and cls.__init__ in plain_inits), InterlinguaError
    )
    error = error_class(info.message, details=info.details)
    error.transient = info.transient
    if isinstance(error, Invalid) and isinstance(info.details, dict):
        error.path = str(info.details.get("path", ""))
    return error


def all_errors() -> list[type[InterlinguaError]]:
    """Lists all classes of the tree, parents first, for tables in docs and doors."""
    classes: list[type[InterlinguaError]] = []

    def walk(cls: type[InterlinguaError]) -> None:
        if cls.__module__ == __name__ and cls not in classes:
            classes.append(cls)
            for sub in cls.__subclasses__():
                walk(sub)

    walk(InterlinguaError)
    return classes


Row = TypeVar("Row")


class ErrorTable(Generic[Row]):
    """Rows by error class. A class without a row has that of its nearest base, so every error has one."""

    def __init__(self, rows: Mapping[type[InterlinguaError], Row]) -> None:
        if InterlinguaError not in rows:
            raise ValueError("a table of errors has a row for InterlinguaError")
        self.rows = dict(rows)
        self._by_code: dict[str, Row] = {}

    def of(self, error: type[InterlinguaError]) -> Row:
        return self.rows[self.base(error)]

    def base(self, error: type[InterlinguaError]) -> type[InterlinguaError]:
        """Returns the class whose row an error has."""
        return next(base for base in error.__mro__ if base in self.rows)

    def of_code(self, code: str) -> Row:
        """Returns the row of an error of which only the code is known, as in a log. A code of no class here is an
        agent's own, or that of another server: its row is that of InterlinguaError."""
        if not self._by_code:
            self._by_code = {error.code: self.of(error) for error in _all(InterlinguaError)}
        return self._by_code.get(code, self.rows[InterlinguaError])


def _all(error: type[InterlinguaError]) -> list[type[InterlinguaError]]:
    """Returns a class and those below it, without the classes of agents. A base comes after its subclasses: a code
    that they share is that of the base."""
    below = [found for sub in error.__subclasses__() for found in _all(sub)]
    return [*below, error] if error.__module__.startswith("interlingua.") else below

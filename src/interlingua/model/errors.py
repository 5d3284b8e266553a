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
    ├── OverBudget              a limit of a team on its work is used up
    ├── RunError                why a run did not succeed
    │   ├── AgentError          raised by an agent on purpose; agents subclass it for errors of their own
    │   ├── AgentCrashed        the agent raised something else
    │   ├── RunCancelled  RunTimedOut
    │   ├── RunLost             the process that ran it died, and the run could not be taken up again
    │   ├── QuestionExpired     nobody answered in time
    │   ├── ChildFailed         an agent that was called did not succeed
    │   ├── Rejected            its overseer did not approve the result
    │   ├── StepFailed          a step raised, and will raise again
    │   ├── ToolFailed          a tool of a server says that it failed
    │   └── TooManyHops         a call went through too many mounts: they probably form a loop
    ├── Overloaded              a queue is full; later is fine
    ├── Unavailable             something that is needed is down or shutting down
    ├── StoreError              the store could not read or write
    └── DefinitionError         an agent is declared wrongly; raised where it is declared

Each class has a stable `code` and a `transient` flag: true means that the same request may succeed later.
`details` is JSON, described by `details_schema` where a class always has them. Doors map the tree to their own errors
by a table; nothing else should look at classes.
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
    """Something went wrong that is nobody's fault but ours."""

    code: ClassVar[str] = "internal"
    details_schema: ClassVar[dict[str, Any] | None] = None
    transient: bool = False
    unread: bytes = b""
    """The message that was refused, or its beginning: the id of the request may be there."""

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
    details_schema: ClassVar[dict[str, Any] | None] = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "A JSON pointer to what is wrong"},
            "problem": {"type": "string", "description": "What is wrong with it"},
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
    """The configuration does not fit the agent's schema, or it takes none."""

    code = "invalid_config"


class InvalidOutput(Invalid):
    """The agent returned, yielded or recorded what does not fit its schema."""

    code = "invalid_output"


class InvalidQuestion(Invalid):
    """The agent asked what it does not declare, or what does not fit its declaration."""

    code = "invalid_question"


class InvalidAnswer(Invalid):
    """The answer does not fit what was asked."""

    code = "invalid_answer"


class InvalidState(Invalid):
    """The state of a thread does not fit its schema."""

    code = "invalid_state"


class InvalidRequest(Invalid):
    """A request or argument that makes no sense."""

    code = "invalid_request"


class TooLarge(Invalid):
    """Over one of the limits."""

    code = "too_large"


class NotFound(InterlinguaError):
    """There is no such thing."""

    code = "not_found"


class AgentNotFound(NotFound):
    """Nobody has that agent."""

    code = "agent_not_found"


class TaskNotFound(NotFound):
    """There is no such task of a team."""

    code = "task_not_found"


class RunNotFound(NotFound):
    """There is no such run, or it was deleted."""

    code = "run_not_found"


class ThreadNotFound(NotFound):
    """There is no such thread."""

    code = "thread_not_found"


class QuestionNotFound(NotFound):
    """There is no such question."""

    code = "question_not_found"


class CheckpointNotFound(NotFound):
    """The thread has no such checkpoint."""

    code = "checkpoint_not_found"


class Conflict(InterlinguaError):
    """It exists, but its state does not allow this."""

    code = "conflict"


class ThreadBusy(Conflict):
    """Another run has the thread."""

    code = "thread_busy"
    transient = True


class ThreadExists(Conflict):
    """There is a thread of that id already."""

    code = "thread_exists"


class ThreadConflict(Conflict):
    """The thread changed while the run was using it."""

    code = "thread_conflict"
    transient = True


class AlreadyAnswered(Conflict):
    """Another answer was first, or the question was withdrawn or has expired."""

    code = "already_answered"


class AlreadyFinished(Conflict):
    """The run has ended."""

    code = "already_finished"


class KeyReused(Conflict):
    """The idempotency key came before, with another request."""

    code = "key_reused"


class Denied(InterlinguaError):
    """The caller may not do this."""

    code = "denied"


class OverBudget(InterlinguaError):
    """The depth or the number of runs that a team may use for a task is used up."""

    code = "over_budget"


class RunError(InterlinguaError):
    """The run did not succeed."""

    code = "run_failed"


class AgentError(RunError):
    """Raise this, or a subclass with a `code` of its own, to end a run as failed on purpose.

    Subclasses listed in `@agent(errors=[...])` become error definitions on the card: the code, the
    docstring as description, the transient flag, and the schema of `Details` where the class has one.
    """

    code = "agent_error"


class AgentCrashed(RunError):
    """The agent raised something that is no error of its own."""

    code = "agent_crashed"


class RunCancelled(RunError):
    """Somebody wanted the run to stop."""

    code = "cancelled"


class RunTimedOut(RunError):
    """The run took longer than it may."""

    code = "timed_out"
    transient = True


class RunLost(RunError):
    """The process that ran it died, and the run could not be taken up again."""

    code = "run_lost"
    transient = True


class QuestionExpired(RunError):
    """Nobody answered in time."""

    code = "question_expired"
    transient = True


class ChildFailed(RunError):
    """The called agent did not succeed; its own error is kept whole."""

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
    """Its overseer did not approve the result."""

    code = "rejected"


class StepFailed(RunError):
    """A step failed for good. What it raised is described in `error`."""

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
    """A tool was called, and says that it failed, or gave back what nobody can use."""

    code = "tool_failed"


class TooManyHops(RunError):
    """The call went through more mounts than `max_hops` allows; probably they form a loop."""

    code = "too_many_hops"


class Overloaded(InterlinguaError):
    """A queue is full; later is fine."""

    code = "overloaded"
    transient = True


class Unavailable(InterlinguaError):
    """Something that is needed is down, or shutting down."""

    code = "unavailable"
    transient = True


class StoreError(InterlinguaError):
    """The store could not read or write.

    `why` is the database's own words, with hosts and files in them: for the log and the owner, and not for callers.
    """

    code = "store_error"
    transient = True

    def __init__(self, message: str, *, why: object = "") -> None:
        super().__init__(message)
        self.why = " ".join(str(why).split())

    def __str__(self) -> str:
        return f"{self.message}: {self.why}" if self.why else self.message


class DefinitionError(InterlinguaError):
    """An agent is declared wrongly; raised where it is declared."""

    code = "definition_error"


def describe(error: BaseException) -> ErrorInfo:
    """What the log says of an exception: ours as they are, any other by its type and text."""
    if isinstance(error, InterlinguaError):
        return error.info()
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return ErrorInfo(AgentCrashed.code, f"the agent called sys.exit({code})")
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be had)"
    return ErrorInfo(AgentCrashed.code, f"{type(error).__name__}: {text}" if text else type(error).__name__)


def from_info(info: ErrorInfo) -> InterlinguaError:
    """An error as it was raised, from what the log says of it. One that needs more to be made is of the root class."""
    plain = (InterlinguaError.__init__, Invalid.__init__)
    made = next((cls for cls in all_errors() if cls.code == info.code and cls.__init__ in plain), InterlinguaError)
    error = made(info.message, details=info.details)
    error.transient = info.transient
    if isinstance(error, Invalid) and isinstance(info.details, dict):
        error.path = str(info.details.get("path", ""))
    return error


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

"""Runs, threads, questions and callers: the types of the engine's requests and answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .card import Schema
from .content import Message
from .errors import AlreadyAnswered, ErrorInfo, InvalidRequest
from .status import Status
from .team.authority import Authority
from .team.oversight import Assignment

WhenBusy = Literal["reject", "enqueue", "interrupt", "rollback"]


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """An identity with scopes. The local owner (a CLI, a stdio process) may do everything."""

    id: str
    name: str | None = None
    scopes: tuple[str, ...] = ("*",)


OWNER = Caller("owner")
MAX_ID_BYTES = 512
"""The longest id or key. Databases index them, and index entries must be short."""


def check_id(id_: str, what: str, path: str = "", *, most: int = MAX_ID_BYTES) -> None:
    """Raises InvalidRequest for an id that is too long. `what` is the subject of the error message."""
    if len(id_) * 4 > most and len(id_.encode(errors="replace")) > most:
        raise InvalidRequest(f"{what} is longer than {most} bytes; use a shorter one", path=path)


class Callback(msgspec.Struct, frozen=True):
    """An address that is notified of every change of status, in the format of the door that received it."""

    url: str
    format: str


class RunRequest(msgspec.Struct, omit_defaults=True):
    agent: str
    version: str | None = None
    input: Any = msgspec.field(default_factory=dict)
    config: Any = None
    messages: list[Message] = []  # the caller's full messages, where the input is only their text
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    caller: Caller = OWNER
    thread: str | None = None
    create_thread: bool = False
    when_busy: WhenBusy = "reject"
    delay: float = 0.0  # seconds before the run may start
    timeout: float | None = None  # seconds of execution; waiting does not count
    key: str | None = None  # idempotency: the same key from the same caller is the same run
    trace: dict[str, str] | None = None  # W3C trace context: see `trace_context`
    callback: Callback | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)  # data of the door, returned with the run
    authority: Authority | None = None  # of a team member; set by the engine, never by a caller
    assignment: Assignment | None = None  # likewise


class Instance(msgspec.Struct, omit_defaults=True):
    """An agent with a configuration, reusable in many runs."""

    id: str
    agent: str
    version: str
    config: Any
    caller: str
    created_at: int
    name: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class Blocked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason why a run cannot continue although it has not ended. Other code resumes it by itself."""

    reason: Literal["no_code", "history_mismatch", "failed_on_resume"]
    message: str
    details: Any = None


class Run(msgspec.Struct, omit_defaults=True):
    """The current state of a run."""

    id: str
    agent: str
    version: str
    status: Status
    created_at: int
    updated_at: int
    caller: str
    seq: int  # of the last event
    head: str  # hash of the last event
    thread: str | None = None
    parent: str | None = None
    root: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    request: RunRequest | None = None
    output: Any = None
    error: ErrorInfo | None = None
    usage: dict[str, Any] | None = None
    questions: list[Question] = []  # open questions, oldest first; those of descendants included
    origin: str = ""  # project and source of its code
    blocked: Blocked | None = None  # beside the status: a blocked run may wait, be answered and be cancelled


class Option(msgspec.Struct, omit_defaults=True):
    """One of the choices of a question."""

    id: str
    label: str
    kind: Literal["allow_once", "allow_always", "reject_once", "reject_always"] | None = None


class Question(msgspec.Struct, omit_defaults=True):
    id: str
    run: str
    type: str
    payload: Any
    answer_schema: Schema
    asked_at: int
    prompt: str = ""  # one line for a human
    options: list[Option] = []
    deadline: int | None = None
    key: str = ""
    digest: str = ""  # of type and payload: an answer counts only for the same question
    answerer: str | None = None  # who must answer; None: anyone who may see the run


class Answer(msgspec.Struct, omit_defaults=True):
    value: Any
    by: str = ""
    door: str = ""  # the door that received it


QuestionState = Literal["open", "answered", "withdrawn", "expired"]


class QuestionRecord(msgspec.Struct, omit_defaults=True):
    """A question with its state, answer and reminders."""

    question: Question
    state: QuestionState
    path: str  # "/first/…/run/": the runs whose logs show it
    answer: Answer | None = None
    closed_at: int | None = None
    reason: str = ""  # of the withdrawal
    reminders: int = 0  # number of reminders in all
    reminded: int = 0  # reminders that were sent, or fell due while no process served
    reminded_at: int | None = None
    remind_at: int | None = None  # when the next reminder is due
    change: int = 0  # grows with every change of any question

    @property
    def runs(self) -> list[str]:
        """The runs of the path, from the first ancestor down to the run that asks."""
        return self.path.strip("/").split("/")

    def too_late(self) -> AlreadyAnswered:
        """The error for an answer that comes after the question was closed."""
        id_, answer = self.question.id, self.answer
        if answer is None:
            why = f": {self.reason}" if self.reason else ""
            return AlreadyAnswered(f"question {id_} is {self.state} already{why}", details={"state": self.state})
        who = f" by {answer.by}" if answer.by else ""
        where = f" through {answer.door}" if answer.door else ""
        details = {"state": self.state, "by": answer.by, "door": answer.door}
        return AlreadyAnswered(f"question {id_} is answered already{who}{where}", details=details)


class Checkpoint(msgspec.Struct, omit_defaults=True):
    """The state of a thread at one moment."""

    id: str
    thread: str
    version: int
    values: Any
    created_at: int
    messages: int = 0  # number of messages on the thread at that moment
    run: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


ThreadStatus = Literal["idle", "busy", "interrupted", "error"]


class Thread(msgspec.Struct, omit_defaults=True):
    id: str
    status: ThreadStatus
    created_at: int
    updated_at: int
    caller: str
    version: int = 0
    values: Any = None
    checkpoint: str | None = None
    active: str | None = None  # the run that uses it now
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)

"""The types of the control API, as JSON has them. Client, server and the OpenAPI document share them.

Times are RFC 3339 in UTC. A cursor is opaque: it comes with a page, and asks for the next one.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..model.card import AgentCard, Schema
from ..model.content import Message
from ..model.errors import ErrorInfo
from ..model.events import Body
from ..model.run import Blocked, Option, QuestionState, ThreadStatus, WhenBusy
from ..model.status import Status

PREFIX = "/api/v1"

Limit = Annotated[int, Meta(ge=1, le=1000, description="Items of the page.")]
Cursor = Annotated[str | None, Meta(description="The cursor of the page before; none for the first page.")]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Time = datetime.datetime


class _Wire(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The base of all answers."""


class _Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base of all queries and request bodies: a name that is not known is refused."""


# -- errors -------------------------------------------------------------------------------------------------


class Problem(_Wire):
    code: str
    message: str
    transient: bool = False
    path: Annotated[str, Meta(description="Where in the request, as a JSON pointer.")] = ""
    details: Any = None


class Failure(_Wire):
    """The body of every response with a status of 400 or more."""

    error: Problem


# -- agents -------------------------------------------------------------------------------------------------


class Agent(_Wire):
    card: AgentCard
    available: bool = True
    reason: Annotated[str, Meta(description="Why it is not available.")] = ""
    origin: str = ""
    mount_path: Annotated[list[str], Meta(description="Ids of the servers that it came through, this one last.")] = []


class Agents(_Wire):
    agents: list[Agent]


# -- runs ---------------------------------------------------------------------------------------------------


class Question(_Wire):
    id: str
    run: str
    type: str
    payload: Any
    answer_schema: Schema
    asked_at: Time
    state: QuestionState = "open"
    runs: Annotated[list[str], Meta(description="From the first ancestor down to the run that asks.")] = []
    prompt: str = ""
    options: list[Option] = []
    deadline: Time | None = None
    answerer: Annotated[str | None, Meta(description="Who must answer; null: anyone who may see the run.")] = None
    answer: Any = None
    answered_by: str = ""
    door: str = ""
    closed_at: Time | None = None
    reason: str = ""
    change: Annotated[int, Meta(description="Grows with every change of any question.")] = 0


class Run(_Wire):
    id: str
    agent: str
    version: str
    status: Status
    created_at: Time
    updated_at: Time
    caller: str
    seq: Annotated[int, Meta(description="The number of the last event.")]
    head: Annotated[str, Meta(description="The hash of the last event.")] = ""
    thread: str | None = None
    parent: str | None = None
    root: str | None = None
    metadata: dict[str, Any] = {}
    origin: str = ""
    blocked: Blocked | None = None
    input: Any = None
    config: Any = None
    output: Any = None
    error: ErrorInfo | None = None
    usage: dict[str, Any] | None = None
    questions: list[Question] = []


class RunSearch(_Query):
    """Filters of runs. All of them must hold."""

    status: list[Status] = []
    agent: Annotated[list[str], Meta(description="NAME, NAME@VERSION or PREFIX*; any of them.")] = []
    caller: str | None = None
    thread: str | None = None
    parent: str | None = None
    root: Annotated[str | None, Meta(description="This run and all that came of it.")] = None
    blocked: bool = False
    since: Annotated[Time | None, Meta(description="Created then, or later.")] = None
    until: Annotated[Time | None, Meta(description="Created before then.")] = None
    metadata: Annotated[
        dict[str, Any],
        Meta(description="Members that the metadata must have. In a query: metadata.NAME=VALUE."),
    ] = {}
    text: Annotated[
        Annotated[str, Meta(max_length=200)] | None,
        Meta(
            description="Words in the agent's name, the error or the beginning of the input. The newest runs are "
            "searched, up to a limit; the answer says where the search stopped.",
        ),
    ] = None
    limit: Limit = 50
    cursor: Cursor = None


class Runs(_Wire):
    runs: list[Run]
    cursor: str | None = None
    searched: Annotated[int | None, Meta(description="With text: how many runs were looked at.")] = None
    complete: Annotated[
        bool, Meta(description="With text: false where the search stopped at its limit; the cursor goes on there.")
    ] = True


class Page(_Query):
    limit: Limit = 50
    cursor: Cursor = None


class NewRun(_Query):
    """A run to start."""

    agent: str
    version: str | None = None
    input: Annotated[Any, Meta(description="A JSON object, or the text for the agent's text field.")] = {}
    config: Any = None
    metadata: dict[str, Any] = {}
    thread: str | None = None
    create_thread: Annotated[bool, Meta(description="Makes the thread where there is none.")] = False
    when_busy: WhenBusy = "reject"
    delay: Annotated[float, Meta(ge=0, le=1e9, description="Seconds before the run may start.")] = 0.0
    timeout: Annotated[Seconds | None, Meta(description="Seconds of execution.")] = None
    idempotency_key: Annotated[str | None, Meta(description="The same key is the same run.")] = None


class Wait(_Query):
    timeout: Annotated[Annotated[float, Meta(ge=0, le=600)] | None, Meta(description="Seconds to wait; none: 30.")] = (
        None
    )
    settled: Annotated[bool, Meta(description="Also return when the run waits for an answer.")] = True


class After(_Query):
    after: Annotated[int, Meta(ge=0, description="Only events after this number.")] = 0
    limit: Limit = 500


class Event(_Wire):
    """An event of a run's log. `first` differs from `seq` where several pieces of output were joined into one."""

    run: str
    seq: int
    first: int
    time: Time
    hash: str
    kind: str
    body: Annotated[Body | None, Meta(description="Null where it was erased.")]


class Events(_Wire):
    events: list[Event]
    over: Annotated[bool, Meta(description="The run has ended, and these are its last events.")] = False


class Step(_Wire):
    """Something that a run did or waited for, from its log."""

    kind: Literal["queued", "step", "question", "child", "message"]
    name: str
    key: str
    seq: int
    ended_at: Time | None = None
    started_at: Annotated[Time | None, Meta(description="Null where the log does not say.")] = None
    run: Annotated[str | None, Meta(description="The child's run.")] = None
    question: str | None = None
    error: ErrorInfo | None = None
    arguments: str = ""


class Steps(_Wire):
    steps: list[Step]


class Lineage(_Wire):
    """A run and all that came of it."""

    run: Run
    children: list[Lineage] = []


class Cancel(_Query):
    reason: str = ""
    rollback: Annotated[bool, Meta(description="Delete the run once it has ended.")] = False


class Send(_Query):
    message: Message | str


class Move(_Query):
    origin: Annotated[str, Meta(description="The origin of the code that goes on with it: PROJECT SOURCE.")]
    version: str | None = None


class Action(_Query):
    """One action on many runs: on these, or on those that fit the filter."""

    action: Literal["cancel", "retry", "delete", "move", "send"]
    runs: Annotated[list[str], Meta(max_length=1000)] = []
    where: RunSearch | None = None
    reason: str = ""
    origin: str = ""
    version: str | None = None
    message: Message | str = ""


class Result(_Wire):
    run: str
    ok: bool = True
    error: Problem | None = None
    continued_by: Annotated[str | None, Meta(description="The run that continues a failed one.")] = None


class Results(_Wire):
    results: list[Result]
    cursor: Annotated[str | None, Meta(description="Of the rest, where more runs fit the filter.")] = None


# -- questions ----------------------------------------------------------------------------------------------


class QuestionSearch(_Query):
    state: Literal["open", "answered", "withdrawn", "expired", "any"] = "open"
    run: Annotated[str | None, Meta(description="Of this run and the runs that it called.")] = None
    cursor: Annotated[int, Meta(ge=0, description="Only questions changed after this number.")] = 0
    limit: Limit = 100


class Questions(_Wire):
    questions: list[Question]
    cursor: int


class GiveAnswer(_Query):
    value: Any


class Withdraw(_Query):
    reason: str = ""


# -- threads ------------------------------------------------------------------------------------------------


class Thread(_Wire):
    id: str
    status: ThreadStatus
    created_at: Time
    updated_at: Time
    caller: str
    version: int = 0
    values: Any = None
    checkpoint: str | None = None
    active: Annotated[str | None, Meta(description="The run that uses it now.")] = None
    metadata: dict[str, Any] = {}


class ThreadSearch(_Query):
    status: ThreadStatus | None = None
    metadata: dict[str, Any] = {}
    limit: Limit = 50
    cursor: Cursor = None


class Threads(_Wire):
    threads: list[Thread]
    cursor: str | None = None


class NewThread(_Query):
    id: Annotated[str, Meta(min_length=1)] | None = None
    metadata: dict[str, Any] = {}


class ThreadChange(_Query):
    values: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, Any] | None = None
    checkpoint: Annotated[str | None, Meta(description="The state that values are merged into; none: the newest.")] = (
        None
    )


class Checkpoint(_Wire):
    id: str
    thread: str
    version: int
    values: Any
    created_at: Time
    run: str | None = None
    metadata: dict[str, Any] = {}


class HistoryPage(_Query):
    before: Annotated[str | None, Meta(description="Only checkpoints older than this one.")] = None
    limit: Limit = 50


class History(_Wire):
    checkpoints: list[Checkpoint]


class Messages(_Wire):
    messages: list[Message]


# -- the server ---------------------------------------------------------------------------------------------


class Mount(_Wire):
    mount: str
    state: str
    since: Time
    agents: list[str] = []
    reason: str = ""
    tries: int = 0
    next_try_in: float | None = None


class Mounts(_Wire):
    mounts: list[Mount]


class Edge(_Wire):
    kind: str
    source: str
    target: str
    label: str = ""


class Team(_Wire):
    name: str
    entry: str
    agents: list[str]
    nodes: list[str]
    edges: list[Edge]


class Teams(_Wire):
    teams: list[Team]


class Worker(_Wire):
    id: str
    host: str
    pid: int
    started_at: Time
    agents: list[str] = []
    queues: list[str] = []


class Workers(_Wire):
    workers: list[Worker]


class Health(_Wire):
    status: Literal["ready", "stopping", "unavailable"]
    version: str
    server: str = ""
    blocked: dict[str, int] = {}
    open_questions: int = 0


class Caller(_Wire):
    """The caller of the request, as the server knows it."""

    id: str
    name: str | None = None
    scopes: list[str] = []

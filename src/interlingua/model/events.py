"""The events of a run, as one tagged union.

A run is its log: these events in order. Each is stored with run id, seq (from 1, no gaps), time and a hash that chains
it to its predecessor (see `hash_chain`). The body types below are the content of the log; `Event` is a body with its
place in the log.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .content import Artifact, Message, Part, TextPart
from .errors import ErrorInfo
from .run import Answer, Question, RunRequest
from .status import Status


class _Body(msgspec.Struct, tag_field="kind", omit_defaults=True):
    pass


class Continued(msgspec.Struct, omit_defaults=True):
    """The run that a retry continues, and the last record that was copied. The copies follow in the new log."""

    run: str
    seq: int
    head: str
    first: str  # the original run, which differs if a retry was retried
    copied: int  # number of copied events


class RunCreated(_Body, tag="created"):
    request: RunRequest
    card: str  # digest of the card that the request was checked against
    parent: str | None = None
    parent_head: str | None = None  # the parent's hash at this moment: links the two chains
    origin: str = ""  # project and source of the run's code
    code: str = ""  # digest of that code
    continues: Continued | None = None  # the failed run that this one continues


class RunStarted(_Body, tag="started"):
    worker: str
    epoch: int
    checkpoint: str | None = None  # on the first start: the thread state that every entry of this run starts from
    thread_version: int = 0
    code: str = ""  # digest of the code, if it differs from that of RunCreated


class RunRestarted(_Body, tag="restarted"):
    """Revokes all emissions after event `keep`."""

    keep: int
    reason: str = ""


class OutputDelta(_Body, tag="delta"):
    delta: Any
    step: str | None = None  # the step that emitted it: replayed with its record
    branch: str | None = None  # the branch of the handler that emitted it; None: the handler itself


class MessageSent(_Body, tag="message"):
    message: Message
    step: str | None = None
    branch: str | None = None


class Thought(_Body, tag="thought"):
    text: str
    id: str | None = None
    step: str | None = None
    branch: str | None = None


class PlanEntry(msgspec.Struct, omit_defaults=True):
    content: str
    status: Literal["pending", "in_progress", "completed", "cancelled"] = "pending"
    priority: Literal["high", "medium", "low"] = "medium"


class Plan(_Body, tag="plan"):
    """The whole current plan; a later one replaces it."""

    entries: list[PlanEntry]
    step: str | None = None
    branch: str | None = None


class Location(msgspec.Struct, omit_defaults=True):
    path: str
    line: int | None = None


class Diff(msgspec.Struct, omit_defaults=True):
    path: str
    new: str
    old: str | None = None


ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"]
ToolStatus = Literal["pending", "in_progress", "completed", "failed", "cancelled"]


class ToolCall(_Body, tag="tool_call"):
    """A tool call or an update of one: fields that are not None replace those of earlier events with this id."""

    id: str
    title: str | None = None
    tool: str | None = None
    kind_: ToolKind | None = msgspec.field(default=None, name="tool_kind")
    status: ToolStatus | None = None
    input: Any = None
    output: Any = None
    content: list[Any] | None = None
    diffs: list[Diff] | None = None
    locations: list[Location] | None = None
    step: str | None = None
    branch: str | None = None


class ArtifactAdded(_Body, tag="artifact"):
    artifact: Artifact
    step: str | None = None
    branch: str | None = None


class Warned(_Body, tag="warning"):
    """A problem that did not stop the run."""

    message: str
    details: Any = None
    step: str | None = None
    branch: str | None = None


class QuestionAsked(_Body, tag="asked"):
    question: Question
    run: str | None = None  # on an ancestor's log: the descendant that asks


class QuestionAnswered(_Body, tag="answered"):
    question: str
    answer: Answer
    still_open: bool = False
    run: str | None = None


class QuestionWithdrawn(_Body, tag="withdrawn"):
    question: str
    reason: str
    still_open: bool = False
    run: str | None = None
    by: str = ""  # the caller that withdrew it; empty: the agent did, or the deadline passed


class Recorded(_Body, tag="recorded"):
    """The result of a step (or of now, uuid, random), or its final failure. It is never computed again."""

    key: str
    value: Any = None
    error: ErrorInfo | None = None
    digest: str = ""  # of the arguments; "?" if they cannot be encoded
    args: str = ""  # the beginning of the arguments, for display


class MessageReceived(_Body, tag="received"):
    """A message from the run's mailbox. The events stand in the order in which the agent reads the messages."""

    message: Message


class Notice(msgspec.Struct, omit_defaults=True):
    """The notice that responsibility for a task was handed over, with the reason."""

    recipient: str  # the agent's id in the team
    rule: str | None = None  # the manifest's rule on when the sender may delegate to it
    reason: str | None = None  # the sender's reason why the rule applies
    context_summary: str | None = None  # digest of the summary; the text is part of the child's input


class ChildCalled(_Body, tag="called"):
    key: str
    run: str
    agent: str
    input: str  # digest of the input
    notice: Notice | None = None  # if a team member delegates
    proposal: str | None = None  # if it is asked for a verdict: the hash of the proposal
    args: str = ""  # the beginning of the input, if others may see it


class ChildEnded(_Body, tag="child_ended"):
    key: str
    run: str
    status: Status
    head: str  # the child's last hash
    output: Any = None
    error: ErrorInfo | None = None


class DelegationRefused(_Body, tag="refused"):
    agent: str
    reason: str
    code: str = "denied"  # of the error that the sender received
    key: str = ""
    input: str = ""  # digest, as in ChildCalled
    run: str | None = None  # the run that was called but never created, if it was refused at the last moment


class ToolRefused(_Body, tag="tool_refused"):
    """A team member called a tool that it may not call."""

    server: str
    tool: str
    reason: str
    code: str = "denied"
    key: str = ""
    input: str = ""  # digest of the arguments


Form = Literal["message", "delegation", "error", "inquiry"]


class Said(_Body, tag="said"):
    """A message between two participants of a team's task. The log of the team's run has all visible ones.

    A message about a result that is not approved yet is held: it stands on sealed logs and is repeated, with its
    original time, once exactly that result is approved.
    """

    task: str
    sender: str  # an instance, the user or the orchestrator
    recipient: str
    form: Form
    message: Message  # the first text part is the text, all other parts are attachments
    code: str | None = None  # of the error, if form is "error"
    time: int | None = None  # the original time of a repeated message
    run: str | None = None  # on the log of the team's run: the run of the sender
    key: str = ""
    held: bool = False

    @property
    def text(self) -> str:
        first = self.message.parts[0] if self.message.parts else None
        return first.text if isinstance(first, TextPart) else ""

    @property
    def attachments(self) -> list[Part]:
        parts = self.message.parts
        return parts[1:] if parts and isinstance(parts[0], TextPart) else list(parts)


def thought_from_message(said: Said) -> Thought | None:
    """Turns a team message into a thought, for wires that can carry thoughts.

    Questions and results return None: every wire has its own place for them.
    """
    if said.held or "question" in said.message.metadata or said.message.metadata.get("final"):
        return None
    return Thought(f"{said.sender} → {said.recipient} ({said.task}): {said.text}")


class ErrorHandled(_Body, tag="handled"):
    """The action that a team's policy took after a failed delegation."""

    key: str
    agent: str
    code: str
    number: int
    do: Literal["retry", "reassign", "escalate", "fail"]
    to: str | None = None
    delay: float = 0.0
    attempt: int = 1


class CodeChanged(_Body, tag="code_changed"):
    """The run continues with different code."""

    old: str
    new: str


BlockReason = Literal["no_code", "history_mismatch", "failed_on_resume"]


class RunBlocked(_Body, tag="blocked"):
    """The code could not resume this run, which now waits for other code or for `runs retry`."""

    reason: BlockReason
    message: str
    details: Any = None
    code: str = ""  # digest of the code that could not resume the run


def blocked_warning(body: RunBlocked) -> Warned:
    """Turns a blocked run into a warning, for wires without a state for it: the run is alive and needs attention."""
    return Warned(f"this run is blocked: {body.message}", {"blocked": body.reason})


class RunMoved(_Body, tag="moved"):
    """An operator moved the run to code of another origin."""

    old: str
    new: str
    by: str = ""


class CancelRequested(_Body, tag="cancel_requested"):
    by: str = ""
    reason: str = ""
    rollback: bool = False  # delete the run once it has ended


class RunFinished(_Body, tag="finished"):
    status: Status
    output: Any = None
    error: ErrorInfo | None = None
    usage: dict[str, Any] | None = None
    checkpoint: str | None = None


Body = (
    RunCreated
    | RunStarted
    | RunRestarted
    | OutputDelta
    | MessageSent
    | Thought
    | Plan
    | ToolCall
    | ArtifactAdded
    | Warned
    | QuestionAsked
    | QuestionAnswered
    | QuestionWithdrawn
    | Recorded
    | MessageReceived
    | ChildCalled
    | ChildEnded
    | DelegationRefused
    | ToolRefused
    | Said
    | ErrorHandled
    | CodeChanged
    | RunBlocked
    | RunMoved
    | CancelRequested
    | RunFinished
)

# The visible output of an agent. A replayed handler emits it again, so emissions are compared with the log instead of
# being appended twice.
Emission = OutputDelta | MessageSent | Thought | Plan | ToolCall | ArtifactAdded | Warned
EMISSIONS = (OutputDelta, MessageSent, Thought, Plan, ToolCall, ArtifactAdded, Warned)


def emission_json(body: Emission) -> dict[str, Any]:
    """An emission as JSON, without its place in the handler."""
    plain: dict[str, Any] = msgspec.to_builtins(body)
    plain.pop("step", None)
    plain.pop("branch", None)
    return plain


KINDS: dict[type, str] = {cls: cls.__struct_config__.tag for cls in Body.__args__}

body_decoder = msgspec.json.Decoder(Body)
body_encoder = msgspec.json.Encoder()


class Event(msgspec.Struct, gc=False):
    """A body with its place in the log. `erased` events keep their place and hash but have no body.

    `first` differs from `seq` when a slow reader receives several output deltas composed into one: the event then
    stands for first..seq.
    """

    run: str
    seq: int
    time: int  # microseconds since 1970, UTC
    hash: bytes
    body: Body | None
    first: int = 0
    size: int = 0  # bytes of the encoded body, if known

    @property
    def kind(self) -> str:
        return "erased" if self.body is None else KINDS[type(self.body)]

"""Shows a team at work: messages with their senders and receivers, tool calls, and refusals.

`Conversation` turns events of all runs of a task into lines, indented by the tree of delegations; it does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from rich.text import Text

from ...model import json_values
from ...model.content import DataPart, FilePart, Message, Part, TextPart, ToolResultPart
from ...model.error_numbers import number_of
from ...model.errors import ErrorInfo
from ...model.events import (
    ArtifactAdded,
    CancelRequested,
    ChildCalled,
    DelegationRefused,
    ErrorHandled,
    Event,
    Form,
    MessageSent,
    RunBlocked,
    RunCreated,
    RunFinished,
    RunRestarted,
    Said,
    Thought,
    ToolCall,
    ToolRefused,
    Warned,
)
from ...model.run import RunRequest
from ...model.status import Status
from ...model.team.authority import Authority
from ...model.team.manifest import ORCHESTRATOR, USER
from ...model.team.oversight import Proposal, read_verdict
from ..console import clean
from ..parts import LONG, file_text, one_line, short_value
from .heads import MARKS, ToolCalls, head

_STYLES = {
    "delegation": "cyan", "error": "red", "inquiry": "yellow", "question": "yellow", "answer": "green",
    "result": "green", "message": "blue",
}  # fmt: skip


class Line(NamedTuple):
    depth: int  # in the tree of delegations
    text: Text


class Who(NamedTuple):
    """The agent of a run, and the label of its part of the task."""

    task: str
    agent: str


class Conversation:
    """Turns the events of a task's runs into lines for people. An event that stands on several logs makes one line."""

    def __init__(self, root: str) -> None:
        self.label = ""  # the label of the whole task, once it has begun
        self.asked: set[str] = set()  # questions that were shown as part of the conversation
        self._root = root
        self._who: dict[str, Who] = {}
        self._told: set[str] = set()
        self._refusals: set[tuple[str, str]] = set()  # agent and reason, as far as they were not shown yet
        self._proposed: set[str] = set()  # runs that judge what an agent proposed by itself
        self._reviews: dict[str, tuple[Authority, Proposal]] = {}  # the others that judge
        self._tools = ToolCalls()

    def lines(self, event: Event) -> list[Line]:
        return list(self._lines(event))

    def _lines(self, event: Event) -> Iterator[Line]:
        unknown = Who(self.label, ORCHESTRATOR if event.run == self._root else "")
        who = self._who.get(event.run, unknown)
        body = event.body
        match body:
            case RunCreated(request=request):
                if request.authority is not None and event.run != self._root:
                    self._who[event.run] = Who(request.authority.task, request.authority.me)
                if asked := self._review(event.run, request):
                    yield from self._say(event.run, asked)
            case ChildCalled(run=run, proposal=str()):
                self._proposed.add(run)
            case RunFinished(status=Status.SUCCEEDED, output=output) if event.run in self._reviews:
                yield from self._say(event.run, _verdict(self._reviews[event.run], output))
            case Said():
                yield from self._say(event.run, body)
            case DelegationRefused(reason=reason) | ToolRefused(reason=reason):
                self._refusals.add((who.agent, reason))
                yield self._headed(who, event)
            case CancelRequested() if event.run == self._root:
                yield Line(0, head(event, one_line) or Text())
            case ErrorHandled() | RunBlocked():
                yield self._headed(who, event)
            case RunRestarted() if who.agent:
                yield self._headed(who, event)
            case _ if event.run != self._root:  # the team's run has copies of its agents' activity, for other readers
                yield from self._activity(who, event)

    def _activity(self, who: Who, event: Event) -> Iterator[Line]:
        """Shows what an agent of the team does beside its messages."""
        match event.body:
            case ToolCall() as call:
                yield from self._tool(event.run, who, call)
            case Thought(text=text) if text.strip():
                yield self._headed(who, event)
            case Warned():
                yield self._headed(who, event)
            case ArtifactAdded(artifact=artifact) if self._once("artifact", who.task, artifact.id, artifact.parts):
                yield self._headed(who, event)
            case MessageSent(message=message) if self._once("message", message.id or event.run, message.parts):
                yield self._headed(who, event)

    def _say(self, run: str, said: Said) -> Iterator[Line]:
        """A message stands on its sender's log and on the team's; one that was held back is said again when it may."""
        new = not said.key or self._once("said", said.run or run, said.key)
        if _was_held(said):
            about, final = (said.message.metadata.get(name) for name in ("result_hash", "final"))
            text = said.text if said.form != "delegation" else ""
            new &= self._once("held", said.task, said.sender, said.recipient, said.form, text, about, bool(final))
        refused = (said.recipient, said.text)
        if new and said.form == "error" and said.sender == ORCHESTRATOR and refused in self._refusals:
            self._refusals.discard(refused)  # its line says the same
        elif new:
            yield from self._said(said)

    def _review(self, run: str, request: RunRequest) -> Said | None:
        """Returns the message that asks for a review which only the engine started: no log has it before the review is
        over, if ever.

        If an agent proposes its own result, that is part of the conversation already.
        """
        authority, review = request.authority, request.assignment.review if request.assignment is not None else None
        if authority is None or review is None or run in self._proposed or not request.agent.endswith("/review"):
            return None
        self._reviews[run] = authority, review
        message = Message("agent", [TextPart("Please review.")], metadata={"result_hash": review.result_hash})
        return Said(authority.task, review.agent, authority.me, "delegation", message, held=True)

    def _once(self, *what: Any) -> bool:
        digest = json_values.digest(msgspec.to_builtins(what))
        if digest in self._told:
            return False
        self._told.add(digest)
        return True

    # -- what is said -------------------------------------------------------------------------------------

    def _said(self, said: Said) -> Iterator[Line]:
        self.label = self.label or said.task.partition(".")[0]
        depth, metadata = _depth(said.task), said.message.metadata
        if isinstance(question := metadata.get("question"), str):
            self.asked.add(question)
        word = form_of(said)
        head = Text.assemble(
            (f"{clean(said.task)} ", "dim"), (clean(said.sender), "bold"), " → ", (clean(said.recipient), "bold"),
            (f"  {word}", _STYLES.get(word.partition(" ")[0], "")),
        )  # fmt: skip
        if said.held or (_was_held(said) and not metadata.get("final")):  # whichever of the two logs is read first
            head.append("  in review", "dim")
        yield Line(depth, head)
        for text in _some_lines(said.text):
            yield Line(depth, Text(f"  {text}"))
        for name, style in (("rule", "dim"), ("reason", "dim")):
            if isinstance(metadata.get(name), str):
                yield Line(depth, Text(f"  {name}: {one_line(metadata[name])}", style))
        for part in said.attachments:
            yield Line(depth, attachment(part))

    # -- what is done -------------------------------------------------------------------------------------

    def _tool(self, run: str, who: Who, news: ToolCall) -> Iterator[Line]:
        call, is_new = self._tools.joined(run, news)
        name = (one_line(call.title or call.tool or call.id), "bold")
        if call.status in ("completed", "failed", "cancelled"):
            mark, style = MARKS[call.status]
            result = f" → {short_value(news.output)}" if news.output is not None else ""
            yield self._line(who, (f"{mark} ", style), name, result)
        elif is_new:
            input_ = f" {short_value(call.input)}" if call.input else ""
            yield self._line(who, ("▸ ", "yellow"), name, (input_, "dim"))

    def _headed(self, who: Who, event: Event) -> Line:
        return self._line(who, head(event, one_line) or Text())

    def _line(self, who: Who, *pieces: Text | str | tuple[str, str]) -> Line:
        task, agent = (f"{clean(one)} " if one else "" for one in who)
        return Line(_depth(who.task), Text.assemble((task, "dim"), (agent, "bold"), *pieces))


# -- small things ---------------------------------------------------------------------------------------------


def form_of(said: Said) -> str:
    """Returns the form of a message, in a word or two."""
    metadata = said.message.metadata
    if said.form == "error":
        code = said.code or "internal"
        return f"error {int(number_of(ErrorInfo(code, '')))} {clean(code)}"
    word: str = said.form
    if word == "message" and metadata.get("final"):
        word = "result"
    elif word == "message" and "question" in metadata:
        word = "answer" if said.sender == USER else "question"
    verdict = metadata.get("verdict")
    return f"{word} ({clean(verdict)})" if isinstance(verdict, str) and word != "inquiry" else word


def _was_held(said: Said) -> bool:
    """Returns whether a message was sent while a result was in review: it is on the sender's log at once, and on the
    team's log after the approval."""
    return said.held or said.time is not None


def _verdict(review: tuple[Authority, Proposal], output: Any) -> Said:
    """Returns the message that carries the verdict of a review: to the agent, or, if it approves, to the one that waits
    for the result."""
    (authority, proposal), verdict = review, read_verdict(output)
    approved = verdict.approves(proposal.result_hash)
    to = authority.path[-3] if approved and len(authority.path) > 2 else proposal.agent
    said = verdict.text or {"approve": "Approved.", "reject": "Rejected.", "inquire": "?"}[verdict.decision]
    metadata = {"result_hash": proposal.result_hash, "verdict": verdict.decision}
    form: Form = "inquiry" if verdict.decision == "inquire" else "message"
    return Said(
        authority.task, authority.me, to, form, Message("agent", [TextPart(said)], metadata=metadata), held=True
    )


def attachment(part: Part) -> Text:
    """Renders an attachment of a message as one line."""
    match part:
        case ToolResultPart(server=server, tool=tool, result=result, failed=failed, meta=meta):
            name = f"{server}.{tool}" if server else tool
            line = Text.assemble(
                "  + ", (one_line(name), "bold"), " failed" if failed else "", f": {short_value(result)}"
            )
            return line.append("  unverified", "bold red") if (meta or {}).get("unverified") else line
        case FilePart():
            return Text(f"  + {file_text(part)}")
        case DataPart(data=data):
            return Text(f"  + object {short_value(data)}")
        case TextPart(text=text):
            return Text(f"  + text {one_line(text)}")


def _some_lines(text: str) -> list[str]:
    lines = clean(text).strip().splitlines()
    return [*lines[:LONG], f"… {len(lines) - LONG} more lines"] if len(lines) > LONG + 1 else lines


def _depth(task: str) -> int:
    return task.count(".")

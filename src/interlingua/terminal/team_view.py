"""Shows a team at work: messages with their senders and receivers, tool calls, and refusals.

`Conversation` turns events of all runs of a task into lines, indented by the tree of delegations; it does no I/O.
`Screen` prints them, or the events themselves as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TextIO

import msgspec
from rich.padding import Padding
from rich.text import Text

from ..model import json_values
from ..model.content import DataPart, FilePart, Message, Part, TextPart, ToolResultPart
from ..model.error_numbers import number_of
from ..model.errors import ErrorInfo
from ..model.events import (
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
from ..model.run import Question, RunRequest
from ..model.status import Status
from ..model.team.authority import Authority
from ..model.team.manifest import ORCHESTRATOR, USER
from ..model.team.oversight import Proposal, read_verdict
from .console import clean, error_console, note, question_view
from .output import JsonView

LONG = 120  # characters of what stands in one line
MANY = 12  # lines of a message

_STYLES = {
    "delegation": "cyan", "error": "red", "inquiry": "yellow", "question": "yellow", "answer": "green",
    "result": "green", "message": "blue",
}  # fmt: skip
_MARKS = {"completed": ("✓", "green"), "failed": ("✗", "red"), "cancelled": ("–", "dim")}


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
        self._tools: dict[tuple[str, str], ToolCall] = {}

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
            case DelegationRefused(agent=agent, reason=reason, code=code):
                yield self._refused(who, f"to delegate to {agent}", reason, code)
            case ToolRefused(server=server, tool=tool, reason=reason, code=code):
                yield self._refused(who, f"{server}.{tool}", reason, code)
            case ErrorHandled():
                yield self._line(who, ("policy ", "magenta"), handled(body))
            case CancelRequested(reason=reason) if event.run == self._root:
                yield Line(0, Text(f"cancelling{f': {one_line(reason)}' if reason else ''} …", "yellow"))
            case RunBlocked(message=text):
                yield self._line(who, ("blocked: ", "bold yellow"), one_line(text))
            case RunRestarted(reason=reason) if who.agent:
                yield self._line(who, (f"started again: {one_line(reason)}", "yellow"))
            # The activity of a team's agents is copied to the team's run at the end, for readers who see only that run.
            case ToolCall() if event.run != self._root:
                yield from self._tool(event.run, who, body)
            case Thought(text=text) if event.run != self._root and text.strip():
                yield self._line(who, (f"· {one_line(text)}", "dim italic"))
            case Warned(message=text) if event.run != self._root:
                yield self._line(who, ("warning: ", "bold yellow"), one_line(text))
            case ArtifactAdded(artifact=artifact) if event.run != self._root:
                if self._once("artifact", who.task, artifact.id, artifact.parts):
                    yield self._line(who, ("artifact ", "magenta"), one_line(artifact.name or artifact.id))
            case MessageSent(message=message) if event.run != self._root:
                if self._once("message", message.id or event.run, message.parts):
                    yield self._line(who, ("says ", "blue"), one_line(message.text))

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
        known = self._tools.get((run, news.id))
        changes = {name: value for name in news.__struct_fields__ if (value := getattr(news, name)) is not None}
        call = self._tools[run, news.id] = news if known is None else msgspec.structs.replace(known, **changes)
        name = (one_line(call.title or call.tool or call.id), "bold")
        if call.status in _MARKS:
            mark, style = _MARKS[call.status]
            result = f" → {short_value(news.output)}" if news.output is not None else ""
            yield self._line(who, (f"{mark} ", style), name, result)
        elif known is None:
            given = f" {short_value(call.input)}" if call.input else ""
            yield self._line(who, ("▸ ", "yellow"), name, (given, "dim"))

    def _refused(self, who: Who, what: str, reason: str, code: str) -> Line:
        self._refusals.add((who.agent, reason))
        told = f": {one_line(reason, 4 * LONG)}", (f" ({clean(code)})", "dim")
        return self._line(who, ("✗ refused ", "red"), (one_line(what), "bold"), *told)

    def _line(self, who: Who, *parts: str | tuple[str, str]) -> Line:
        task, agent = (f"{clean(one)} " if one else "" for one in who)
        return Line(_depth(who.task), Text.assemble((task, "dim"), (agent, "bold"), *parts))


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


def handled(decision: ErrorHandled) -> str:
    """Describes what the policy of the team does about an error."""
    then = {
        "retry": f"retry in {decision.delay:g} s" if decision.delay else "retry at once",
        "reassign": f"reassign to {decision.to or 'the next one that is allowed'}",
        "escalate": f"escalate to {decision.to or 'nobody'}",
        "fail": "give up",
    }[decision.do]
    return one_line(f"{decision.agent} failed with {decision.number} {decision.code}: {then}") + (
        f" (step {decision.attempt})" if decision.attempt > 1 else ""
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
            size = part.size or len(part.data or part.text or "")
            what = part.url or part.name or part.title or part.media_type or "without a name"
            return Text(f"  + file {one_line(what)}" + (f" ({size} bytes)" if size else ""))
        case DataPart(data=data):
            return Text(f"  + object {short_value(data)}")
        case TextPart(text=text):
            return Text(f"  + text {one_line(text)}")


def short_value(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json_values.encode(value).decode())


def one_line(text: str, length: int = LONG) -> str:
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def _some_lines(text: str) -> list[str]:
    lines = clean(text).strip().splitlines()
    return [*lines[:MANY], f"… {len(lines) - MANY} more lines"] if len(lines) > MANY + 1 else lines


def _depth(task: str) -> int:
    return task.count(".")


# -- on the screen --------------------------------------------------------------------------------------------


class Screen:
    """The conversation on stderr, with a prompt below it that stays the last thing.

    `events`: instead of the conversation, every event of every run as a line of JSON there.
    """

    def __init__(self, conversation: Conversation, events: TextIO | None = None) -> None:
        self.conversation = conversation
        self._json = JsonView(events) if events is not None else None
        self._prompt = ""
        self._open = False  # the prompt is on the screen, and perhaps something typed behind it

    def event(self, event: Event) -> None:
        lines = self.conversation.lines(event)
        if self._json is not None:
            self._json.event(event)
        else:
            self.lines(lines)

    def lines(self, lines: list[Line]) -> None:
        def put() -> None:
            for line in lines:
                _print(line)

        if lines:
            self._put(put)

    def aside(self, text: str) -> None:
        self._put(lambda: note(text))

    def waits(self, questions: list[Question], how: str) -> None:
        def put() -> None:
            for question in questions:
                if not self._was_told(question):
                    error_console().print(question_view(question))
            note(how)

        self._put(put)

    def asks(self, question: Question, choices: list[str]) -> None:
        """Prints a question, as far as the conversation has not shown it, and its choices."""

        def put() -> None:
            if not self._was_told(question):
                error_console().print(question_view(question))
            for choice in choices:
                error_console().print(Text(f"  {clean(choice)}"), soft_wrap=True)

        self._put(put)

    def _was_told(self, question: Question) -> bool:
        payload = question.payload
        more = [one for one in payload.values() if one != question.prompt] if isinstance(payload, dict) else [payload]
        return self._json is None and question.id in self.conversation.asked and not more

    # -- the prompt ---------------------------------------------------------------------------------------

    def prompt(self, text: str) -> None:
        """Writes the text that stands before what a person types; an empty text removes it."""
        if self._open:
            _write("\n")
        self._prompt, self._open = text, bool(text)
        _write(text)

    def entered(self) -> None:
        """A line was typed to its end: the cursor is on a new one."""
        self._open = False

    def again(self) -> None:
        """The prompt is still to be answered."""
        if self._prompt and not self._open:
            self.prompt(self._prompt)

    def _put(self, put: Callable[[], object]) -> None:
        was_open = self._open
        if was_open:
            _write("\n")
        put()
        if was_open:
            _write(self._prompt)


def _write(text: str) -> None:
    stream = error_console().file
    stream.write(text)
    stream.flush()


def _print(line: Line) -> None:
    console, indent = error_console(), 2 * line.depth
    if console.is_terminal:
        # A message stays under its own indentation if a line is too long for the window.
        inner = len(line.text.plain) - len(line.text.plain.lstrip(" "))
        console.print(Padding(line.text[inner:], (0, 0, 0, indent + inner), expand=False))
    else:
        console.print(Text(" " * indent).append_text(line.text), soft_wrap=True)

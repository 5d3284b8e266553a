"""The log of a run as a conversation: messages, changes of status and pieces of output, in the order of the log. Pure.

A team's run holds the messages of its participants. The conversation of an agent without a team is derived: its task,
its questions with their answers, and its result.

The id of an update is the seq of its event. Where several updates come from one event, the last of them has that id,
and the others add their number behind a dot, so that a reader can resume between them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...engine.ports import unclaimed
from ...model.content import DataPart, Message, Part, TextPart
from ...model.delta import ABSENT
from ...model.errors import ErrorInfo
from ...model.events import (
    ArtifactAdded,
    CancelRequested,
    Event,
    MessageReceived,
    MessageSent,
    OutputDelta,
    Plan,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    RunBlocked,
    RunCreated,
    RunFinished,
    RunRestarted,
    RunStarted,
    Said,
    Thought,
    ToolCall,
    Warned,
    blocked_warning,
    emission_json,
)
from ...model.run import Question, RunRequest
from ...model.status import Status
from ...model.team.attachments import text_and_attached
from ...model.team.manifest import ORCHESTRATOR, USER
from ...model.team.oversight import join_chunks
from . import translate, wire

Kind = Literal["message", "status", "delta", "reset", "activity"]
_LAST = 1_000_000  # the number of an event's last update

Place = tuple[int, int]


class Update(msgspec.Struct):
    place: Place
    kind: Kind
    data: dict[str, Any]

    @property
    def id(self) -> str:
        return id_of(self.place)


def id_of(place: Place) -> str:
    return str(place[0]) if place[1] == _LAST else f"{place[0]}.{place[1]}"


def place_of(id_: str) -> Place | None:
    """Reads back an id; returns None where the id is not one of this projection."""
    seq, dot, number = id_.partition(".")
    if not (seq.isdecimal() and len(seq) <= 15) or (dot and not (number.isdecimal() and len(number) <= 6)):
        return None
    return int(seq), int(number) if dot else _LAST


START: Place = (0, _LAST)


class View(msgspec.Struct):
    """The reader of a task, and the names that it has there."""

    task: str  # the reader's name for the whole task
    agent: str  # the id of the agent that has the task
    label: str = ""  # the engine's name for it, where it is a team's
    below: str = ""  # of a part of it: .1.2
    team: bool = False
    caller: str = ""  # the reader
    output_text: str | None = None
    input_text: str | None = None
    parts_of: str = ""  # prefix of the names of its parts, where that is not the reader's name for the whole task

    @property
    def part(self) -> str:
        """Returns the part that is read, under the reader's name."""
        return (self.parts_of or self.task) + self.below if self.below else self.task

    def name(self, label: str) -> str:
        if not self.label or label == self.label:
            return self.task if self.label else label
        return translate.renamed(label, self.label, self.parts_of or self.task)

    def has(self, label: str) -> bool:
        """Tells if a message about a task belongs to the part that is read."""
        wanted = self.label + self.below
        return not self.below or label == wanted or label.startswith(f"{wanted}.")


class Conversation:
    """Events in, updates out."""

    def __init__(self, run: str, view: View) -> None:
        self.view = view
        self.questions: dict[str, Question] = {}  # those that messages of the next events ask, where they were found
        self._run = run
        self._status: Status | None = None
        self._artifacts: list[Any] = []
        self._asked: dict[str, tuple[str, str]] = {}  # open questions that were shown: (agent that asks, task)
        self._back = ORCHESTRATOR  # to whom the result goes
        self._final: wire.AnyMessage | None = None  # the result of a team: sent after everything else
        self._failed = False  # the error of a team was sent

    def feed(self, event: Event, output: Any = ABSENT) -> list[Update]:
        """Returns the updates of an event. `output` is what remains of the output where a run was restarted. The output
        itself is not kept here, because there may be many readers."""
        found: list[tuple[Kind, dict[str, Any]]] = []
        body = event.body
        if isinstance(body, Said):
            found += self._said(body, event.time)
        elif isinstance(body, QuestionWithdrawn):
            found += self._withdrawn(body, event.time)
            found += [] if self.view.below else self._moved(body)
        elif self.view.below:
            return []  # of a part of a task, only its messages are known here
        elif isinstance(body, OutputDelta):
            found.append(("delta", {"task_id": self.view.task, "delta": body.delta}))
        elif isinstance(body, RunRestarted):
            found.append(("reset", {"task_id": self.view.task, "output": {} if output is ABSENT else output}))
        elif isinstance(body, RunBlocked):
            warning = msgspec.to_builtins(blocked_warning(body))
            found.append(("activity", {"task_id": self.view.task, **warning}))
        elif isinstance(body, Thought | Plan | ToolCall | Warned):
            found.append(("activity", {"task_id": self.view.task, **emission_json(body)}))
        elif isinstance(body, RunFinished):
            found += [("message", wire.write(message)) for message in self._end(body, event.time)]
            found.append(("status", self._told(body.status, translate.outcome(body.status, body.output, body.error))))
            self._status = body.status
        else:
            if isinstance(body, ArtifactAdded):
                self._artifacts.append(body.artifact)
            elif not self.view.team or isinstance(body, MessageSent):
                found += [("message", wire.write(message)) for message in self._derived(body, event.time)]
            found += self._moved(body)
        last = len(found) - 1
        return [
            Update((event.seq, _LAST if number == last else number), kind, data)
            for number, (kind, data) in enumerate(found)
        ]

    # -- status -------------------------------------------------------------------------------------------

    def _told(self, status: Status, more: dict[str, Any]) -> dict[str, Any]:
        return {"task_id": self.view.task, "run_id": self._run, "status": status.value, "final": status.final, **more}

    def _moved(self, body: Any) -> list[tuple[Kind, dict[str, Any]]]:
        match body:
            case RunCreated():
                status = Status.PENDING
            case RunStarted() if self._status is Status.PENDING:
                status = Status.RUNNING
            case QuestionAsked() if self._status is not Status.CANCELLING:
                status = Status.WAITING
            case QuestionAnswered() | QuestionWithdrawn() if self._status is Status.WAITING and not body.still_open:
                status = Status.RUNNING
            case CancelRequested():
                status = Status.CANCELLING
            case _:
                return []
        if status is self._status:
            return []
        self._status = status
        return [("status", self._told(status, {}))]

    # -- a team -------------------------------------------------------------------------------------------

    def _said(self, body: Said, time: int) -> list[tuple[Kind, dict[str, Any]]]:
        if not self.view.label and body.form == "delegation" and body.sender == ORCHESTRATOR:
            self.view.label = body.task
        if body.held or not self.view.has(body.task):
            return []
        message = translate.said(body, time, self.view.name(body.task))
        if message.metadata is not None and message.metadata.get("task") == body.task:
            del message.metadata["task"]  # the message has it in `task_id`, under the reader's name
            message.metadata = message.metadata or None
        if body.recipient == ORCHESTRATOR and body.task == self.view.label and self._is_verdict(body, message):
            return []
        self._note_question(body, message)
        about = body.message.metadata.get("question")
        question = self.questions.get(about) if isinstance(about, str) else None
        if body.recipient == USER and "question" not in body.message.metadata:
            message.metadata = {"reply_expected": False, **(message.metadata or {})}
        elif body.recipient == USER and question is not None and question.answerer in (None, self.view.caller):
            message.metadata = {**(message.metadata or {}), **translate.asked(question)}
        return [("message", wire.write(message))]

    def _is_verdict(self, body: Said, message: wire.AnyMessage) -> bool:
        """Note how the task went. Its result is kept for the end, and not said before."""
        self._failed = self._failed or body.form == "error"
        if body.form == "error" or not body.message.metadata.get("final"):
            return False
        self._final = message
        return True

    def _note_question(self, body: Said, message: wire.AnyMessage) -> None:
        """Note who asked a question of the user, until it is answered."""
        about = body.message.metadata.get("question")
        if not isinstance(about, str):
            return
        if body.recipient == USER:
            self._asked[about] = message.sender_id, message.task_id
        else:
            self._asked.pop(about, None)

    def _withdrawn(self, body: QuestionWithdrawn, time: int) -> list[tuple[Kind, dict[str, Any]]]:
        """Returns the messages with which an agent withdraws its question from the participant that it asked."""
        if body.question not in self._asked:
            return []
        sender, task = self._asked.pop(body.question)
        about = {"question": body.question, "withdrawn": body.reason, "reply_expected": False}
        message = Message("agent", [TextPart(f"I no longer ask: {body.reason}.")], metadata=about)
        return [("message", wire.write(translate.wire_message("message", task, sender, USER, message, time=time)))]

    # -- an agent without a team --------------------------------------------------------------------------

    def _derived(self, body: Any, time: int) -> list[wire.AnyMessage]:
        view = self.view
        match body:
            case RunCreated(request=request):
                cap = request.extra.get("cap")
                if isinstance(cap, dict) and cap.get("sender") == USER:
                    self._back = USER
                message = _notice(request, view.input_text)
                return [self._message("delegation", self._back, view.agent, message, time)]
            case QuestionAsked(question=question):
                self._asked[question.id] = view.agent, view.task
                about = translate.asked(question) if question.answerer in (None, view.caller) else {}
                message = Message("agent", [TextPart(question.prompt)], metadata={"question": question.id, **about})
                return [self._message("message", view.agent, USER, message, time)]
            case QuestionAnswered(question=id_, answer=answer):
                self._asked.pop(id_, None)
                about = {"question": id_, "answer": answer.value}
                message = Message("user", [TextPart(translate.answer_text(answer.value))], metadata=about)
                return [self._message("message", USER, view.agent, message, time)]
            case MessageReceived(message=message):
                sender = ORCHESTRATOR if message.sender == ORCHESTRATOR else USER
                message = msgspec.structs.replace(message, metadata=unclaimed(message.metadata))
                return [self._message("message", sender, view.agent, message, time)]
            case MessageSent(message=message):
                metadata = {"reply_expected": False, **unclaimed(message.metadata)}
                message = msgspec.structs.replace(message, metadata=metadata)
                return [self._message("message", view.agent, USER, message, time)]
        return []

    def _message(self, form: Any, sender: str, recipient: str, message: Message, time: int) -> wire.AnyMessage:
        return translate.wire_message(form, self.view.task, sender, recipient, message, time=time)

    def _end(self, body: RunFinished, time: int) -> list[wire.AnyMessage]:
        """Returns the messages for the end of the run. In a team the agent that had the task sends the result itself,
        but not where the run was stopped, or where its overseer was the last to speak."""
        view, final = self.view, self._final
        if body.status is Status.SUCCEEDED and final is not None:
            return [msgspec.structs.replace(final, timestamp=wire.timestamp(time))]
        if body.status is Status.SUCCEEDED:
            parts = translate.output_parts(body.output, view.output_text)
            parts += [part for artifact in join_chunks(self._artifacts) for part in artifact.parts]
            message = Message("agent", parts, metadata={"final": True})
            return [self._message("message", view.agent, self._back, message, time)]
        if self._failed:
            return []
        error = body.error or ErrorInfo("run_failed", f"{view.agent} {body.status.value}")
        told = translate.error_response(error, task=view.task, sender=view.agent, recipient=self._back, time=time)
        return [told]


def _notice(request: RunRequest, input_text: str | None) -> Message:
    """Returns the request to an agent. The first message is kept whole; without messages there is only the input."""
    metadata = unclaimed(request.metadata)
    if request.messages:
        text, attached = text_and_attached(request.messages[0])
        return Message("user", [TextPart(text), *attached], metadata=metadata)
    said = request.input.get(input_text or "")
    parts: list[Part] = [TextPart(said if isinstance(said, str) else "")]
    if not isinstance(said, str) or len(request.input) > 1:
        parts.append(DataPart(request.input))
    return Message("user", parts, metadata=metadata)

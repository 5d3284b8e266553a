"""Gathers what a person should know of a question before answering it: its asker, the runs on whose behalf it is asked,
who may answer, and what was said.

Reads the store for a list, for one question and for a watch over all of them. `tables` renders it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from ..model.content import Part
from ..model.events import (
    ArtifactAdded,
    Event,
    MessageReceived,
    MessageSent,
    OutputDelta,
    Plan,
    QuestionAsked,
    Said,
    Thought,
    ToolCall,
    Warned,
)
from ..model.run import OWNER, Caller, QuestionRecord
from ..security import scopes
from . import times
from .events import as_json as event_json
from .events.log_lines import line_of

if TYPE_CHECKING:
    from ..engine.reading import AnyEngine

_PAGE = 1000
_SAID = 5  # lines about the agent's last activity
_TAIL = 300  # characters of its output
_TOLD = (Thought, MessageSent, MessageReceived, ToolCall, Plan, ArtifactAdded, Warned)


class Link(msgspec.Struct, omit_defaults=True):
    """A run on the way from the one that was asked for to the one that asks."""

    run: str
    agent: str = ""  # empty: the run is gone
    version: str = ""
    status: str = ""
    caller: str = ""
    thread: str | None = None
    mounted_from: str | None = None


class Entry(msgspec.Struct):
    """A question in the inbox."""

    record: QuestionRecord
    lineage: list[Link]  # the run that was asked for first, the one that asks last
    names: dict[str, str]  # names of callers, by their ids

    def name(self, caller: str) -> str:
        """A caller as people know it: the name of its key, and its id."""
        named = self.names.get(caller)
        return f"{named} ({caller})" if named else caller

    @property
    def root(self) -> Link:
        return self.lineage[0]

    @property
    def asker(self) -> Link:
        return self.lineage[-1]

    @property
    def way(self) -> str:
        """The agents from the first run down to the asker: each one works on behalf of the one before it."""
        return " › ".join(link.agent or "(gone)" for link in self.lineage)

    @property
    def mount(self) -> str | None:
        """The place that the asking agent is mounted from, if it is a mounted one."""
        return self.asker.mounted_from

    def may_answer(self) -> str:
        """Returns in a few words who may answer."""
        answerer = self.record.question.answerer
        if answerer is not None:
            return f"only {self.names.get(answerer, answerer)}"
        caller = self.root.caller
        return f"{self.names.get(caller, caller)}, see:all"

    def may_answer_fully(self) -> str:
        question = self.record.question
        if question.answerer is not None:
            why = "whose approval it needs" if question.type == "review" else "who alone was asked"
            return f"only {self.name(question.answerer)}, {why}"
        caller = self.root.caller
        owner = "the owner of the store" + (", who began it" if caller == OWNER.id else "")
        who = owner if caller == OWNER.id else f"{self.name(caller)}, who began it, {owner}"
        return (
            f"whoever may see run {self.root.run} and has do:answer: {who}, and callers with the scope "
            f"{scopes.SEE_ALL} or {scopes.EVERYTHING}"
        )


class Context(msgspec.Struct):
    """Facts around a question that are not in the question itself."""

    participant: str | None  # the name of a team's member in its task, and the task
    said: list[tuple[str, str]]  # the agent's last activity: the kind, and a line
    attachments: list[Part]


async def entries(engine: AnyEngine, records: list[QuestionRecord]) -> list[Entry]:
    names = await _names(engine)
    links: dict[str, Link] = {}
    found = []
    for record in records:
        for run in record.runs:
            if run not in links:
                links[run] = await _link(engine, run)
        found.append(Entry(record, [links[run] for run in record.runs], names))
    return found


async def _names(engine: AnyEngine) -> dict[str, str]:
    from ..server.auth.stored_keys import StoredKeys

    return {f"key:{record.id}": record.name for record in await StoredKeys(engine.keys).all()}


async def _link(engine: AnyEngine, run: str) -> Link:
    from ..engine.handler.mounted_run import MOUNTED_FROM

    row = await engine.runs.find_row(run)
    if row is None:
        return Link(run)
    card = await engine.agents.find_card(row.agent, row.version, row.origin)
    place = card.metadata.get(MOUNTED_FROM) if card is not None else None
    protocol = card.metadata.get("protocol") if card is not None else None
    mounted = f"{protocol} {place}" if place and protocol and not str(place).startswith(str(protocol)) else place
    return Link(run, row.agent, row.version, row.status.value, row.caller, row.thread, mounted)


async def caller_of(engine: AnyEngine, name: str) -> Caller:
    """A caller by its id, or by the name or the id of its key."""
    from ..server.auth.stored_keys import StoredKeys
    from .errors import CommandError

    if name == OWNER.id:
        return OWNER
    keys = [key for key in await StoredKeys(engine.keys).all() if name in (key.name, key.id, f"key:{key.id}")]
    if len(keys) > 1:
        ids = ", ".join(f"key:{key.id}" for key in keys)
        raise CommandError(f"{len(keys)} keys are called {name!r}", hint=f"give one of {ids}")
    return Caller(f"key:{keys[0].id}", keys[0].name, tuple(keys[0].scopes)) if keys else Caller(name, scopes=())


def is_for(entry: Entry, caller: Caller) -> bool:
    """Returns whether a caller may answer this question, as far as its scopes say."""
    root = entry.root
    agent = f"{root.agent}@{root.version}" if root.agent else None
    return scopes.may(caller, "answer", agent).allowed


# -- one question ---------------------------------------------------------------------------------------------


async def context(engine: AnyEngine, entry: Entry) -> Context:
    """Returns what the agent said before it asked, and what it attached to the question."""
    question = entry.record.question
    said: deque[tuple[str, str]] = deque(maxlen=_SAID)
    found = Context(None, [], [])
    output, asked, after = "", False, 0
    while page := await engine.runs.page(question.run, after, _PAGE):
        after = page[-1].seq
        for event in page:
            body = event.body
            if isinstance(body, QuestionAsked) and body.question.id == question.id:
                asked = True
            elif (
                isinstance(body, Said)
                and body.message.metadata.get("question") == question.id
                and not found.participant
            ):
                found.participant, found.attachments = f"{body.sender} in task {body.task}", body.attachments
            if asked:
                continue
            if isinstance(body, OutputDelta):
                output += _text(body.delta)
            elif isinstance(body, _TOLD):
                output = _flush(said, output)
                said.append((event.kind, _line(event)))
    _flush(said, output)
    found.said = list(said)
    return found


def _line(event: Event) -> str:
    return line_of(event)


def _flush(said: deque[tuple[str, str]], output: str) -> str:
    text = " ".join(output.split())
    if text:
        said.append(("output", text if len(text) <= _TAIL else "…" + text[-_TAIL:]))
    return ""


def _text(delta: Any) -> str:
    """The words of a piece of output."""
    if isinstance(delta, str):
        return delta
    return "".join(map(_text, delta.values())) if isinstance(delta, dict) else ""


# -- as JSON --------------------------------------------------------------------------------------------------


def plain(entry: Entry) -> dict[str, Any]:
    """Returns an entry for programs: the question itself, and around it its state, its answer and the people and agents
    concerned."""
    record = entry.record
    answer = record.answer
    told: dict[str, Any] = {
        **event_json.plain(record.question),
        "state": record.state,
        "answer": None if answer is None else answer.value,
        "answered_by": None if answer is None else answer.by,
        "answered_through": None if answer is None else answer.door,
        "closed_at": _time(record.closed_at),
        "reason": record.reason or None,
        "reminders": {
            "of": record.reminders,
            "sent": record.reminded,
            "last": _time(record.reminded_at),
            "next": _time(record.remind_at),
        },
        "lineage": [msgspec.to_builtins(link) for link in entry.lineage],
        "may_answer": {
            "only": record.question.answerer,
            "caller": entry.root.caller,
            "words": entry.may_answer_fully(),
        },
    }
    return told


def plain_context(found: Context) -> dict[str, Any]:
    return {
        "participant": found.participant,
        "said": [{"kind": kind, "text": text} for kind, text in found.said],
        "attachments": msgspec.to_builtins(found.attachments),
    }


def _time(time: int | None) -> str | None:
    return None if time is None else times.iso(time)

"""Oversight: what an overseen agent proposes, and what its overseer says to that. Pure.

A verdict counts only for the exact result that it names by its hash. Whatever is no verdict (free text, for instance)
is something that the overseer wants to know, and never an approval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .. import json_values
from ..card import Schema
from ..content import Artifact, Message, Part

if TYPE_CHECKING:
    from ..run import Question

Ruling = Literal["approve", "inquire", "reject"]


class Result(msgspec.Struct, omit_defaults=True):
    """All that others would see of a piece of work."""

    output: Any = None
    artifacts: list[Artifact] = []
    messages: list[Message] = []
    state: Any = None  # of the thread, where it works on one

    @property
    def hash(self) -> str:
        return json_values.digest(msgspec.to_builtins(self))


class Exchange(msgspec.Struct, omit_defaults=True):
    """What the overseer had to say of an earlier result of the same task."""

    decision: Ruling
    text: str  # the inquiry, or the reason
    result_hash: str  # of what it was about
    reply: str | None = None  # where the agent answered without working again
    attachments: list[Part] = []  # that came with it


class Proposal(msgspec.Struct, omit_defaults=True):
    """A result that waits for a verdict."""

    agent: str  # the instance that proposes it
    result_hash: str
    result: Result
    summary: str | None = None  # what the agent says of it
    earlier: list[Exchange] = []
    note: str | None = None  # why the last verdict on this result did not count


class ReviewVerdict(msgspec.Struct, omit_defaults=True):
    decision: Ruling
    result_hash: str = ""
    inquiry: str | None = None
    reason: str | None = None
    attachments: list[Part] = []  # what goes along with an inquiry or a reason

    @property
    def text(self) -> str:
        return (self.inquiry if self.decision == "inquire" else self.reason) or self.inquiry or self.reason or ""

    def approves(self, result_hash: str) -> bool:
        return self.decision == "approve" and self.result_hash == result_hash

    def about(self, result_hash: str) -> Exchange:
        """This verdict, which approves nothing, as the agent gets it. `result_hash` is of what was judged."""
        asked: Ruling = "reject" if self.decision == "reject" else "inquire"
        return Exchange(asked, self.text, result_hash, attachments=list(self.attachments))


def read_verdict(value: Any, text: str | None = None) -> ReviewVerdict:
    """What an overseer gave. `text` names the member that holds the text of what is no verdict."""
    try:
        return msgspec.convert(value, ReviewVerdict)
    except msgspec.ValidationError:
        said = value.get(text or "text") if isinstance(value, dict) else value
        return ReviewVerdict("inquire", inquiry=said if isinstance(said, str) else json_values.encode(value).decode())


REVIEW = "review"
"""The type of the question that asks a person for a verdict."""


def is_review(question: Question) -> bool:
    """Whether a question asks for a verdict on a result."""
    payload = question.payload
    return question.type == REVIEW and isinstance(payload, dict) and isinstance(payload.get("result_hash"), str)


def verdict_schema(result_hash: str) -> Schema:
    """The schema of a verdict on one result."""
    return {
        "type": "object",
        "properties": {
            "decision": {"enum": ["approve", "inquire", "reject"]},
            "result_hash": {"type": "string", "enum": [result_hash], "default": result_hash},
            "inquiry": {"type": "string", "description": "What the agent is asked"},
            "reason": {"type": "string"},
            "attachments": {"type": "array", "items": {"type": "object"}, "description": "What goes along with it"},
        },
        "required": ["decision", "result_hash"],
        "additionalProperties": False,
    }


def join_chunks(chunks: list[Artifact]) -> list[Artifact]:
    """Artifacts, in the order in which they began, out of their chunks."""
    found: dict[str, Artifact] = {}
    for chunk in chunks:
        before = found.get(chunk.id)
        parts: list[Part] = [*before.parts, *chunk.parts] if before is not None and chunk.append else chunk.parts
        found[chunk.id] = msgspec.structs.replace(chunk, parts=list(parts), append=False, last=True)
    return list(found.values())


class Assignment(msgspec.Struct, omit_defaults=True):
    """How a run works for the one that called it. Only the engine makes these."""

    sealed: bool = False  # nobody but the caller's run reads what comes of it
    lent: bool = False  # it works on the thread of its caller: with this state, which it gives back at the end
    thread: str | None = None
    state: Any = None
    history: list[Message] = []
    earlier: list[Exchange] = []  # what its overseer said of what it gave before
    review: Proposal | None = None  # what it has to judge

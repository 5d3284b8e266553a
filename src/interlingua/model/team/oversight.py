"""Oversight: the proposal of an overseen agent, and the verdict of its overseer. Pure.

A verdict counts only for the exact result whose hash it names. Any other reply (free text, for instance) counts as an
inquiry, never as an approval.
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
    """The visible result of a piece of work."""

    output: Any = None
    artifacts: list[Artifact] = []
    messages: list[Message] = []
    state: Any = None  # of the thread, if the work has one

    @property
    def hash(self) -> str:
        return json_values.digest(msgspec.to_builtins(self))


class Exchange(msgspec.Struct, omit_defaults=True):
    """An earlier verdict of the overseer on the same task, with the agent's reply."""

    decision: Ruling
    text: str  # the inquiry, or the reason
    result_hash: str  # of the judged result
    reply: str | None = None  # of the agent, if it answered without new work
    attachments: list[Part] = []  # of the verdict


class Proposal(msgspec.Struct, omit_defaults=True):
    """A result that awaits a verdict."""

    agent: str  # the instance that proposes it
    result_hash: str
    result: Result
    summary: str | None = None  # by the agent
    earlier: list[Exchange] = []
    note: str | None = None  # the reason why the last verdict on this result did not count


class ReviewVerdict(msgspec.Struct, omit_defaults=True):
    decision: Ruling
    result_hash: str = ""
    inquiry: str | None = None
    reason: str | None = None
    attachments: list[Part] = []  # of an inquiry or a reason

    @property
    def text(self) -> str:
        return (self.inquiry if self.decision == "inquire" else self.reason) or self.inquiry or self.reason or ""

    def approves(self, result_hash: str) -> bool:
        return self.decision == "approve" and self.result_hash == result_hash

    def about(self, result_hash: str) -> Exchange:
        """Turns a verdict that is no approval into an Exchange for the agent. `result_hash` is of the judged result."""
        asked: Ruling = "reject" if self.decision == "reject" else "inquire"
        return Exchange(asked, self.text, result_hash, attachments=list(self.attachments))


def read_verdict(value: Any, text: str | None = None) -> ReviewVerdict:
    """Reads the reply of an overseer. In a reply that is no verdict, the member `text` holds the inquiry."""
    try:
        return msgspec.convert(value, ReviewVerdict)
    except msgspec.ValidationError:
        inquiry = value.get(text or "text") if isinstance(value, dict) else value
        return ReviewVerdict(
            "inquire", inquiry=inquiry if isinstance(inquiry, str) else json_values.encode(value).decode()
        )


REVIEW = "review"
"""The type of a question that asks a person for a verdict."""


def is_review(question: Question) -> bool:
    """True if a question asks for a verdict on a result."""
    payload = question.payload
    return question.type == REVIEW and isinstance(payload, dict) and isinstance(payload.get("result_hash"), str)


def verdict_schema(result_hash: str) -> Schema:
    """The schema of a verdict on one result."""
    return {
        "type": "object",
        "properties": {
            "decision": {"enum": ["approve", "inquire", "reject"]},
            "result_hash": {"type": "string", "enum": [result_hash], "default": result_hash},
            "inquiry": {"type": "string", "description": "The question to the agent"},
            "reason": {"type": "string"},
            "attachments": {
                "type": "array",
                "items": {"type": "object"},
                "description": "Files and data for the agent",
            },
        },
        "required": ["decision", "result_hash"],
        "additionalProperties": False,
    }


def join_chunks(chunks: list[Artifact]) -> list[Artifact]:
    """Assembles artifacts from their chunks, in the order in which they began."""
    artifacts: dict[str, Artifact] = {}
    for chunk in chunks:
        before = artifacts.get(chunk.id)
        parts: list[Part] = [*before.parts, *chunk.parts] if before is not None and chunk.append else chunk.parts
        artifacts[chunk.id] = msgspec.structs.replace(chunk, parts=list(parts), append=False, last=True)
    return list(artifacts.values())


class Assignment(msgspec.Struct, omit_defaults=True):
    """The terms on which a run works for its caller. Only the engine creates these."""

    sealed: bool = False  # only the caller's run reads the result
    lent: bool = False  # it works on its caller's thread, with this state, and returns the state at the end
    thread: str | None = None
    state: Any = None
    history: list[Message] = []
    earlier: list[Exchange] = []  # verdicts on its earlier results
    review: Proposal | None = None  # the proposal that it judges

"""The agent card: the public description of an agent, readable before a run starts."""

from __future__ import annotations

from typing import Any

import msgspec

Schema = dict[str, Any]

ANY_OBJECT: Schema = {"type": "object"}


class QuestionType(msgspec.Struct, omit_defaults=True):
    """A type of question that the agent may ask, with the schemas of its payload and its answer."""

    type: str
    payload: Schema
    answer: Schema
    description: str = ""


class ErrorDefinition(msgspec.Struct, omit_defaults=True):
    """An error that the agent declares."""

    code: str
    description: str
    transient: bool = False
    details: Schema | None = None


class Skill(msgspec.Struct, omit_defaults=True):
    id: str
    name: str
    description: str = ""
    tags: list[str] = []
    examples: list[str] = []


class AgentCard(msgspec.Struct, omit_defaults=True):
    """Describes an agent: its name, schemas, questions, errors and skills.

    Input and output are JSON objects. `input_text` and `output_text` name the member that carries plain text: protocols
    that exchange messages use it to reach agents that take objects.
    """

    name: str
    version: str = "0.1.0"
    description: str = ""
    input: Schema = msgspec.field(default_factory=lambda: dict(ANY_OBJECT))
    output: Schema = msgspec.field(default_factory=lambda: dict(ANY_OBJECT))
    config: Schema | None = None
    state: Schema | None = None
    input_text: str | None = None
    output_text: str | None = None
    streams: bool = False
    questions: list[QuestionType] = []
    errors: list[ErrorDefinition] = []
    skills: list[Skill] = []
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name and version. They identify an agent, and workers claim runs by them."""
        return f"{self.name}@{self.version}"

    def question(self, type_: str) -> QuestionType | None:
        return next((q for q in self.questions if q.type == type_), None)

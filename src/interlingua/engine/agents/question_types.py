"""Types of questions. A question is a class: its fields are the payload, its type argument is the answer."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from ...model.card import QuestionType, Schema
from ...model.errors import DefinitionError, InvalidQuestion, QuestionExpired
from ...model.run import Option
from .codec import Codec

A = TypeVar("A")

_LONGEST = 9_999_999_999  # seconds; later times are beyond the range of clocks


EXPIRED = "nobody answered in time"
"""The reason of a withdrawal after the deadline."""


class Gone(QuestionExpired):
    """A remote agent no longer asks this: it was answered there, or the agent continued without an answer."""


class Question(msgspec.Struct, Generic[A], omit_defaults=True):
    """The base of all questions. Subclass it with the type of the answer:

        class MailSendApproval(il.Question[Verdict]):
            subject: str
            body: str

    The type of the question is the class name in snake case (`mail_send_approval`).
    """

    def __prompt__(self) -> str:
        """One line for a human. The default is the first line of the class's docstring."""
        doc = type(self).__doc__
        own = doc and not doc.startswith("The base of all questions") and doc.strip().splitlines()[0]
        return own or type(self).__name__

    def __options__(self) -> list[Option]:
        """The choices, if the answer is one of several."""
        return []

    def __answer_schema__(self) -> Schema:
        """The schema of the answer. Override it if it depends on the question."""
        return question_codec(type(self)).answer.schema


class Verdict(msgspec.Struct, omit_defaults=True):
    """Yes or no, with a reason."""

    approved: bool
    reason: str | None = None


class Choice(msgspec.Struct):
    choice: str


class Text(msgspec.Struct):
    text: str


class Confirm(Question[Verdict]):
    """May this be done?"""

    message: str

    def __prompt__(self) -> str:
        return self.message


class Choose(Question[Choice]):
    """Choose one of several options."""

    message: str
    options: list[Option]

    def __prompt__(self) -> str:
        return self.message

    def __options__(self) -> list[Option]:
        return self.options

    def __answer_schema__(self) -> Schema:
        return {
            "type": "object",
            "properties": {"choice": {"enum": [option.id for option in self.options]}},
            "required": ["choice"],
        }


class AskText(Question[Text]):
    """Ask for a line of text."""

    message: str

    def __prompt__(self) -> str:
        return self.message


STANDARD: tuple[type[Question[Any]], ...] = (Confirm, Choose, AskText)


class QuestionCodec:
    def __init__(self, cls: type[Question[Any]]) -> None:
        self.cls = cls
        self.type = snake_case(cls.__name__)
        self.payload = Codec(cls, what=f"question {cls.__name__}")
        self.answer = Codec(_answer_type(cls), what=f"the answer of {cls.__name__}")

    def describe(self) -> QuestionType:
        payload = {key: value for key, value in self.payload.schema.items() if key != "title"}
        doc = self.cls.__doc__ or ""
        return QuestionType(self.type, payload, self.answer.schema, doc.strip().split("\n\n")[0])


def answer_schema(question: Question[Any], codec: QuestionCodec) -> Schema:
    """The answer schema of a question: its own, if it overrides it, else the codec's."""
    if type(question).__answer_schema__ is Question.__answer_schema__:
        return codec.answer.schema
    return question.__answer_schema__()


def deadline_at(seconds: float | None, asked_at: int) -> int | None:
    """The time at which a question expires; None if it never does (None or infinity)."""
    if seconds is None or seconds == math.inf:
        return None
    if not 0 <= seconds <= _LONGEST:
        raise InvalidQuestion(f"deadline is {seconds}; it is a number of seconds, from 0 to {_LONGEST:,}, or infinity")
    return asked_at + int(seconds * 1e6)


def remind_at(seconds: Iterable[float], asked_at: int) -> list[int]:
    """The times of the reminders of a question, in order and without duplicates."""
    delays = list(seconds)
    for delay in delays:
        if not 0 <= delay <= _LONGEST:
            raise InvalidQuestion(f"remind has {delay}; it is a number of seconds, from 0 to {_LONGEST:,}")
    return sorted({asked_at + int(delay * 1e6) for delay in delays})


_codecs: dict[type, QuestionCodec] = {}


def question_codec(cls: type[Question[Any]]) -> QuestionCodec:
    codec = _codecs.get(cls)
    if codec is None:
        codec = _codecs[cls] = QuestionCodec(cls)
    return codec


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _answer_type(cls: type) -> Any:
    for parent in cls.__mro__:
        for base in getattr(parent, "__orig_bases__", ()):
            if typing.get_origin(base) is Question:
                (answer,) = typing.get_args(base)
                if not isinstance(answer, TypeVar):
                    return answer
    raise DefinitionError(
        f"question {cls.__name__} does not say what its answer is; write `class {cls.__name__}(il.Question[Verdict])` "
        "with the type of the answer in brackets"
    )

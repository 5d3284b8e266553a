"""Reads what a person types while a team works: answers, messages to its agents, and commands.

`read` and `Answering` parse a line, and do no I/O; `Typed` has the terminal for as long as the command follows the
task, and passes every line to its receiver. Unlike in a run of one agent, lines come at any time, and not only when a
question is open.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ....model.errors import InvalidAnswer
from ....model.run import Question
from ....terminal import typed_answers
from ....terminal.console import clean
from ....terminal.events.screen import Screen
from ....terminal.keyboard import forget_typed

HELP = (
    "plain text  answers what is asked\n"
    "@AGENT TEXT sends a message to an agent: @analyst-1 hurry up\n"
    "/tree       shows who works on what\n"
    "/cancel     cancels the task, as Ctrl-C does\n"
    "/help       shows this; an answer that begins with @ or / has a space before it"
)
_COMMANDS = ("tree", "cancel", "help")
_TO = re.compile(r"@(?P<agent>[^\s:,]+)[:,]?\s+(?P<text>\S.*)", re.DOTALL)


class Tell(msgspec.Struct, frozen=True):
    agent: str
    text: str


class Command(msgspec.Struct, frozen=True):
    name: str


class Plain(msgspec.Struct, frozen=True):
    text: str


class Unclear(msgspec.Struct, frozen=True):
    why: str


def read(line: str) -> Tell | Command | Plain | Unclear:
    """Parses a line into a message to an agent, a command, plain text, or a line that is none of them."""
    if line.startswith("@"):
        to = _TO.fullmatch(line.rstrip())
        return (
            Tell(to["agent"], to["text"]) if to is not None else Unclear("write @AGENT TEXT, as in: @analyst-1 hello")
        )
    if line.startswith("/"):
        name = line[1:].strip()
        return Command(name) if name in _COMMANDS else Unclear(f"there is no {line.strip()[:40]}; /help tells what is")
    return Plain(line.strip())


# -- answers --------------------------------------------------------------------------------------------------

_RULINGS = {"approve": "approve", "reject": "reject", "inquire": "inquire", "ask": "inquire"}


class Answering:
    """An answer as it is typed, line by line: in one line where the question allows, else member by member."""

    def __init__(self, question: Question) -> None:
        self._schema, self._options = question.answer_schema, question.options
        self._shape = typed_answers.shape_of(self._schema, self._options)
        self._hash = _hash_to_judge(question)
        fields = self._shape.fields if isinstance(self._shape, typed_answers.Fields) else []
        self._fields = fields if len(fields) > 1 and self._hash is None else []
        self._at = 0
        self._given: dict[str, Any] = {}

    @property
    def choices(self) -> list[str]:
        if isinstance(self._shape, typed_answers.Pick):
            return [f"{number}) {label}" for number, (_, label) in enumerate(self._shape.options, 1)]
        return []

    @property
    def prompt(self) -> str:
        if self._hash is not None:
            return "[approve | reject WHY | inquire WHAT] "
        if self._fields:
            f = self._fields[self._at]
            return clean(f"{f.name} ({f.how}{'' if f.required else ', optional'}): ")
        match self._shape:
            case typed_answers.YesNo():
                return "[y/n] "
            case typed_answers.Pick(options=options):
                return f"[1-{len(options)}] "
            case typed_answers.Fields():
                return "answer: "
        return "answer, as JSON: "

    def take(self, line: str) -> Any:
        """The answer, or UNSET where more is asked. Raises ValueError or InvalidAnswer, which say what is wrong."""
        if self._hash is not None:
            return self._verdict(line)
        if not self._fields or (not self._given and line.startswith("{")):
            if not line and not isinstance(self._shape, typed_answers.Fields):
                raise ValueError("that is no answer")
            return typed_answers.answer_from(self._schema, self._options, line)
        f = self._fields[self._at]
        if line:
            self._given[f.name] = typed_answers.read_field(f.schema, line)
        elif f.required and f.default in (msgspec.UNSET, None):
            raise ValueError(f"{f.name} needs a value")
        elif f.required:
            self._given[f.name] = f.default
        self._at += 1
        return msgspec.UNSET if self._at < len(self._fields) else self._whole()

    def _whole(self) -> Any:
        given, self._given, self._at = self._given, {}, 0
        wrong = typed_answers.problem(self._schema, given, InvalidAnswer, "answer")
        if wrong is None:
            return given
        raise wrong

    def _verdict(self, line: str) -> Any:
        """Reads a verdict. Only the word `approve` approves, and it approves the result that was shown: a person need
        not type its hash."""
        if line.startswith("{"):
            return typed_answers.answer_from(self._schema, self._options, line)
        word, _, text = line.partition(" ")
        ruling, text = _RULINGS.get(word.lower().rstrip(":,.")), text.strip()
        if ruling is None:
            raise ValueError("say approve, reject and why, or inquire and what")
        if ruling == "inquire" and not text:
            raise ValueError("inquire what?")
        verdict = {"decision": ruling, "result_hash": self._hash}
        return {**verdict, "inquiry" if ruling == "inquire" else "reason": text} if text else verdict


def _hash_to_judge(question: Question) -> str | None:
    """Returns the hash of the result that a question asks a verdict on; None if it asks for none."""
    members = question.answer_schema.get("properties", {})
    of_result = members.get("result_hash", {}).get("enum", [])
    return of_result[0] if "decision" in members and len(of_result) == 1 else None


# -- the terminal ---------------------------------------------------------------------------------------------

Act = Callable[[Tell | Command], Awaitable[None]]


class Typed:
    """Reads lines for as long as it runs. Asks, too: `ask` gives back what was answered.

    `catch_up` shows what led to a question, before it is asked.
    """

    def __init__(self, screen: Screen, act: Act, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._screen = screen
        self._act = act
        self._catch_up = catch_up
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._answer: asyncio.Future[str] | None = None
        self._over = False  # Ctrl-D: nothing more is typed

    async def run(self) -> None:
        loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
        read_so_far = bytearray()

        def ready() -> None:
            try:
                chunk = os.read(fd, 65536)
            except OSError:  # the terminal is gone
                chunk = b""
            read_so_far.extend(chunk)
            while b"\n" in read_so_far:
                line, _, rest = bytes(read_so_far).partition(b"\n")
                read_so_far[:] = rest
                self._lines.put_nowait(line.decode(errors="replace").rstrip("\r"))
            if not chunk:
                loop.remove_reader(fd)
                self._lines.put_nowait(None)

        loop.add_reader(fd, ready)
        try:
            while (line := await self._lines.get()) is not None:
                self._screen.entered()
                await self._take(line)
        finally:
            loop.remove_reader(fd)
        self._over = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(EOFError())

    async def _take(self, line: str) -> None:
        meant = read(line)
        match meant:
            case Command(name="help"):
                self._screen.aside(HELP)
            case Tell() | Command():
                await self._act(meant)
            case Unclear(why=why):
                self._screen.aside(why)
            case Plain(text=text):
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(text)
                    return
                if text:
                    self._screen.aside("nothing is asked now; @AGENT TEXT sends a message, /help tells more")
        self._screen.again()

    async def ask(self, question: Question) -> Any:
        """Asks the question until the answer is valid. Raises EOFError if no more lines can come."""
        await self._catch_up()
        forget_typed()
        answering = Answering(question)
        self._screen.asks(question, answering.choices)
        try:
            while True:
                if self._over:
                    raise EOFError
                self._answer = asyncio.get_running_loop().create_future()
                self._screen.prompt(answering.prompt)
                line = await self._answer
                try:
                    value = answering.take(line)
                except (ValueError, InvalidAnswer) as error:
                    self._screen.aside(getattr(error, "message", str(error)))
                    continue
                if value is not msgspec.UNSET:
                    return value
        finally:
            self._answer = None
            self._screen.prompt("")

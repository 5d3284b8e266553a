"""Prints the conversation of a team on stderr, with a prompt below it, or the events themselves as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from rich.padding import Padding
from rich.text import Text

from ...model.events import Event
from ...model.run import Question
from ..console import clean, error_console, note
from ..parts import question_view
from .conversation import Conversation, Line
from .views import JsonView


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

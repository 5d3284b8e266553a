"""Prints a watched run: its output on stdout, everything else on stderr; or its events as JSON lines."""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol, TextIO

from rich.text import Text

from ...model.card import AgentCard
from ...model.events import Event, OutputDelta, RunFinished, Thought
from ...model.run import Question
from ...model.status import Status
from ..console import as_json, clean, error_console, note
from ..crash import CrashSite
from ..errors import complain
from ..parts import question_view
from ..short_ids import short
from .activity import Activity
from .as_json import event_json


class View(Protocol):
    def event(self, event: Event) -> None: ...

    def begin(self, output: Any) -> None:
        """The watch begins in the middle, where the output is this."""

    def restarted(self, output: Any) -> None:
        """Voids the output that was emitted; `output` is what still stands."""

    def make_room(self) -> None:
        """Prepares for other text that is about to be written to the terminal."""

    def aside(self, text: str) -> None:
        """Shows a remark of the program."""

    def waits(self, questions: list[Question], how: str) -> None:
        """Shows open questions that cannot be asked here."""


class JsonView:
    """Prints each event as a line of JSON."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def event(self, event: Event) -> None:
        self._out.write(as_json(event_json(event), pretty=False) + "\n")
        self._out.flush()

    def begin(self, output: Any) -> None:
        pass

    def restarted(self, output: Any) -> None:
        pass  # the event itself says so

    def make_room(self) -> None:
        pass

    def aside(self, text: str) -> None:
        note(text)

    def waits(self, questions: list[Question], how: str) -> None:
        note(how)


class TextView:
    """Prints the text of a run as it comes, and the agent's other activity beside it."""

    def __init__(
        self, card: AgentCard | None, out: TextIO | None = None, *, crash_site: CrashSite | None = None
    ) -> None:
        self._out = out or sys.stdout
        self._field = card.output_text if card is not None else None
        self._activity = Activity()
        self._shown: list[str] = []  # the pieces of the text, as they came
        self._line_open = False  # the cursor is behind text of the agent
        self._made_room = False  # the last that was written was not text of the agent
        self._thought: str | None = None  # the thought that comes piece by piece
        self._same = _same_file(self._out, sys.stderr)
        self._crash_site = crash_site
        self.run_name: str | None = None  # the name of the run at the server that keeps it

    def event(self, event: Event) -> None:
        match event.body:
            case OutputDelta(delta=delta):
                self._write(self._text(delta))
            case RunFinished() as end:
                self._finish(event.run, end)
            case Thought(text=text, id=id_) if id_ is not None and id_ == self._thought:
                error_console().print(Text(clean(text), "dim italic"), soft_wrap=True, end="")
            case _:
                view = self._activity.view(event)
                if view is not None:
                    self.make_room()
                    # The pieces of a thought read as one.
                    self._thought = event.body.id if isinstance(event.body, Thought) else None
                    stays = "\n" if self._thought is None else ""
                    error_console().print(view, soft_wrap=isinstance(view, Text), end=stays)

    def _text(self, output: Any) -> str:
        text = output.get(self._field) if isinstance(output, dict) and self._field else None
        return text if isinstance(text, str) else ""

    def begin(self, output: Any) -> None:
        self._shown = [self._text(output)]

    def restarted(self, output: Any) -> None:
        kept = self._text(output)
        if "".join(self._shown) != kept:
            self._end_line()
            self._shown = []
            self._write(kept)

    def aside(self, text: str) -> None:
        self.make_room()
        note(text)

    def waits(self, questions: list[Question], how: str) -> None:
        self.make_room()
        for question in questions:
            error_console().print(question_view(question))
        note(how)

    # -- stdout -------------------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        if not text:
            return
        self._shown.append(text)
        self._end_thought()
        if self._out.isatty():
            # After text of the program the cursor is on a new line already.
            self._out.write(clean(text.lstrip("\n") if self._made_room else text))
        else:
            self._out.write(text)
        self._made_room = False
        self._out.flush()
        self._line_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._line_open:
            self._out.write("\n")
            self._out.flush()
            self._line_open = False

    def make_room(self) -> None:
        """Begins the program's own messages on a new line where both streams end in one place. stdout itself stays as
        it is."""
        self._end_thought()
        self._made_room = self._same
        if self._same and self._line_open:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._line_open = False

    def _end_thought(self) -> None:
        if self._thought is not None:
            self._thought = None
            sys.stderr.write("\n")
            sys.stderr.flush()

    def _finish(self, run: str, end: RunFinished) -> None:
        self._end_thought()
        output = end.output if isinstance(end.output, dict) else {}
        if end.status is Status.SUCCEEDED:
            self._finish_output(output)
        self._end_line()
        if end.status is Status.CANCELLED:
            note("cancelled")
        elif end.error is not None:
            where = self._crash_site.text if self._crash_site is not None else ""
            complain(f"{end.error.message} ({end.error.code}){where}")
        if error_console().is_terminal:
            note(f"run {self.run_name or short(run)} {end.status.value.replace('_', ' ')}")

    def _finish_output(self, output: dict[str, Any]) -> None:
        rest = dict(output)
        text = rest.pop(self._field, None) if self._field else None
        if isinstance(text, str):
            shown = "".join(self._shown)
            if text.startswith(shown):
                self._write(text[len(shown) :])
            else:  # the agent returned something else than it had streamed: the result counts
                self._end_line()
                self._write(text)
        elif text is not None and self._field:
            rest = output
        self._end_line()
        if rest:
            self._out.write(as_json(rest) + "\n")
            self._out.flush()


def _same_file(one: TextIO, other: TextIO) -> bool:
    """Returns whether two streams end in the same place: one terminal, or one pipe."""
    try:
        return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except (OSError, ValueError):
        return False

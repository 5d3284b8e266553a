"""What a watched run looks like: its output on stdout, everything else on stderr; or its events as JSON lines."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from ..model.card import AgentCard
from ..model.events import Event, OutputDelta, RunFinished
from ..model.run import Question
from ..model.status import Status
from . import journal
from .errors import complain
from .ids import short
from .render import Activity, as_json, clean, error_console, note, question_view


class View(Protocol):
    def event(self, event: Event) -> None: ...

    def restarted(self, output: Any) -> None:
        """What was emitted is void; `output` is what still stands."""

    def aside(self, text: str) -> None:
        """A remark of ours."""

    def waits(self, questions: list[Question], how: str) -> None:
        """Nobody can be asked here."""


class JsonView:
    """One JSON object per event and line."""

    def event(self, event: Event) -> None:
        sys.stdout.write(as_json(journal.event_json(event), pretty=False) + "\n")
        sys.stdout.flush()

    def restarted(self, output: Any) -> None:
        pass  # the event itself says so

    def aside(self, text: str) -> None:
        note(text)

    def waits(self, questions: list[Question], how: str) -> None:
        note(how)


class TextView:
    """Text as it comes, and the agent's doings beside it."""

    def __init__(self, card: AgentCard | None, *, crash_site: Any = None) -> None:
        self._field = card.output_text if card is not None else None
        self._activity = Activity()
        self._shown: list[str] = []  # of the text, as it came
        self._line_open = False  # the cursor is behind text of the agent
        self._both = sys.stdout.isatty() and sys.stderr.isatty()
        self._crash_site = crash_site

    def event(self, event: Event) -> None:
        match event.body:
            case OutputDelta(delta=delta):
                text = delta.get(self._field) if isinstance(delta, dict) and self._field else None
                if isinstance(text, str):
                    self._write(text)
            case RunFinished() as end:
                self._finish(event.run, end)
            case _:
                self._step_aside()
                if not self._activity.show(event):
                    self._step_back()

    def restarted(self, output: Any) -> None:
        text = output.get(self._field) if isinstance(output, dict) and self._field else None
        kept = text if isinstance(text, str) else ""
        if "".join(self._shown) != kept:
            self._end_line()
            self._shown = []
            self._write(kept)

    def aside(self, text: str) -> None:
        self._step_aside()
        note(text)

    def waits(self, questions: list[Question], how: str) -> None:
        self._step_aside()
        for question in questions:
            error_console().print(question_view(question))
        note(how)

    # -- stdout -------------------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        if not text:
            return
        self._shown.append(text)
        sys.stdout.write(clean(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
        self._line_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._line_open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._line_open = False

    def _step_aside(self) -> None:
        """Where both streams are one screen, what we say begins on a line of its own; stdout itself stays as it is."""
        if self._both and self._line_open:
            self._aside_pending = True
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._line_open = False

    def _step_back(self) -> None:
        pass

    def _finish(self, run: str, end: RunFinished) -> None:
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
            note(f"run {short(run)} {end.status.value.replace('_', ' ')}")

    def _finish_output(self, output: dict[str, Any]) -> None:
        rest = dict(output)
        text = rest.pop(self._field, None) if self._field else None
        if isinstance(text, str):
            shown = "".join(self._shown)
            if text.startswith(shown):
                self._write(text[len(shown) :])
            else:  # what the agent returned is not what it had streamed: the result counts
                self._end_line()
                self._write(text)
        elif text is not None and self._field:
            rest = output
        self._end_line()
        if rest:
            sys.stdout.write(as_json(rest) + "\n")
            sys.stdout.flush()

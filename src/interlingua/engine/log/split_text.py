"""Joins characters that were split between two pieces of an output or a thought, before they are written.

JavaScript cuts text between UTF-16 units, so mounted agents send such pieces, and handlers pass them on. Only whole
characters are written and sent: a half waits for the other one, and becomes U+FFFD where that never comes.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from ...model.delta import ABSENT
from ...model.events import Emission, OutputDelta, Thought
from ...model.whole_text import REPLACEMENT, PairJoiner, whole, whole_value

log_ = logging.getLogger("interlingua.engine")


class Pieces:
    """Emissions of one run, from the first half of a character on."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._output = PairJoiner()
        self._thoughts: dict[str | None, tuple[str, str | None]] = {}  # by id: the half that waits, and its step

    def take(self, body: Any) -> Any:
        """Returns the emission with whole characters. A half at its end is held back."""
        if type(body) is OutputDelta:
            self._output.step = body.step
            return OutputDelta(self._output.add(body.delta), body.step, body.branch)
        if type(body) is Thought:
            half, _ = self._thoughts.pop(body.id, ("", None))
            text = half + body.text
            if "\ud800" <= text[-1:] <= "\udbff":
                self._thoughts[body.id] = text[-1], body.step
                text = text[:-1]
            return Thought(whole(text), body.id, body.step, body.branch)
        return self._whole(body)

    def end(self, step: str | None = None) -> list[Emission]:
        """Returns the remaining halves, as U+FFFD: those of one step, or all."""
        out: list[Emission] = []
        if self._output.holds and step in (None, self._output.step):
            delta = self._output.end()
            if delta is not ABSENT:
                out.append(OutputDelta(delta, self._output.step))
        for id_, (_, of_step) in list(self._thoughts.items()):
            if step in (None, of_step):
                del self._thoughts[id_]
                out.append(Thought(REPLACEMENT, id_, of_step))
        if out:
            log_.warning("run %s: a piece ended with half a character, which became U+FFFD", self._run)
        return out

    def _whole(self, body: Any) -> Any:
        plain = msgspec.to_builtins(body)
        clean = whole_value(plain)
        if clean is plain:
            return body
        log_.warning("run %s: half a character in a %s became U+FFFD", self._run, type(body).__name__)
        return msgspec.convert(clean, type(body))

"""The output of a remote task, as the local run shows it: each piece once, over any number of connections and crashes.

Two outputs are kept: the one of the remote side and the one in our log. While both are the same, pieces are passed on;
otherwise the difference between them is computed.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from ....engine.handler.mounted_run import MountedRun, step_place
from ....model.content import Message
from ....model.delta import ABSENT, DeltaError, Joiner, diff
from ....model.events import MessageSent, OutputDelta, Plan, Thought, ToolCall, Warned

_ACTIVITY = Thought | Plan | ToolCall | Warned


class Mirror:
    def __init__(self, mounted: MountedRun, text: str | None) -> None:
        self._mounted = mounted
        self._text = text  # the member of the output that plain text is
        self._step: str | None = None
        self._there = Joiner()
        self._here = Joiner()
        self._level = True  # both are the same
        self._known = 0  # activities that will be repeated

    @property
    def shown(self) -> Any:
        return None if self._here.value is ABSENT else self._here.value

    def go_on_from(self, shown: Any, *, fresh: bool) -> None:
        """Goes on after a stretch that ended with this output. `fresh` means that the output was read in this process,
        not from the log."""
        if not fresh and shown is not None:
            self._here, self._there = Joiner(shown), Joiner(shown)

    async def begin(self, step: str) -> None:
        """Begins a step, which owns all output from now on. Output that it showed before a crash stays, although the
        remote side sends it again."""
        self._step = step_place(step)
        self._known = 0
        for body in self._mounted.shown(step):
            if isinstance(body, OutputDelta):
                self._here.add(body.delta)
                self._level = False
            else:
                self._known += 1
            await self._mounted.show(body)

    async def add(self, delta: Any) -> None:
        delta = {self._text or "text": delta} if isinstance(delta, str) else delta
        if not isinstance(delta, dict):
            return
        try:
            self._there.add(delta)
        except DeltaError:  # begun in the middle; the result will tell
            self._level = False
            return
        if self._level:
            self._here.add(delta)
            await self._mounted.show(OutputDelta(delta, self._step))
        else:
            await self._catch_up()

    async def set(self, output: Any) -> None:
        """Replaces the output of the remote side, which began again."""
        if isinstance(output, dict):
            self._there, self._level = Joiner(output), False
            await self._catch_up()

    async def _catch_up(self) -> None:
        try:
            missing: Any = diff(self._here.value, self._there.value)
        except DeltaError:
            return  # no delta leads there; the result will tell
        self._level = True
        if missing is not ABSENT and missing:
            self._here.add(missing)
            await self._mounted.show(OutputDelta(missing, self._step))

    async def activity(self, told: dict[str, Any]) -> None:
        with contextlib.suppress(msgspec.ValidationError):
            await self._show(msgspec.convert({**told, "step": self._step}, _ACTIVITY))

    async def message(self, message: Message) -> None:
        await self._show(MessageSent(message, self._step))

    async def warn(self, said: str) -> None:
        await self._show(Warned(said, None, self._step))

    async def _show(self, body: Any) -> None:
        if self._known:
            self._known -= 1
        else:
            await self._mounted.show(body)

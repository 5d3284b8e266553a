"""The output and activities of a remote run, as the local run shows them: each once, over any number of connections.

Two values are kept: the output of the remote run and the output in our log. While both are the same, fragments are
passed on; otherwise the difference between them is computed.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from ....engine.handler.mounted_run import MountedRun, step_place
from ....model.delta import ABSENT, DeltaError, Joiner, diff
from ....model.events import ArtifactAdded, MessageSent, OutputDelta, Plan, Thought, ToolCall, Warned

_ACTIVITY = MessageSent | Thought | Plan | ToolCall | ArtifactAdded | Warned


class Mirror:
    def __init__(self, mounted: MountedRun) -> None:
        self._mounted = mounted
        self._place: str | None = None  # the step of the output, which is not shown again once it is recorded
        self._there = Joiner()  # the output as the remote run has it
        self._here = Joiner()  # the output as it stands in our log
        self._level = True  # both are the same
        self._known = 0  # activities that the stream will tell again
        self.last: Any = ABSENT  # the newest whole value

    @property
    def shown(self) -> Any:
        """Returns the output in our log; None where there is none."""
        return None if self._here.value is ABSENT else self._here.value

    def go_on_from(self, shown: Any, *, fresh: bool) -> None:
        """Goes on after a stretch that ended with this output. `fresh` means that the output was read in this process,
        not from the log."""
        self._here = Joiner(shown)
        if not fresh:
            # Fragments continue the shown output; a value that was not shown comes whole at the end.
            self._there = Joiner(shown)

    async def begin(self, step: str) -> None:
        """Begins a step, which owns all output from now on. After a crash in it, the output in the log stays, and the
        stream goes on after it."""
        self._place = step_place(step)
        self._known = 0
        for body in self._mounted.shown(step):
            if isinstance(body, OutputDelta):
                self._here.add(body.delta)
                self._level = False  # the stream begins before it
            else:
                self._known += 1
            await self._mounted.show(body)

    async def value(self, value: dict[str, Any]) -> None:
        """Takes the whole output as it is now."""
        self.last = value
        await self._set(value)

    async def custom(self, update: dict[str, Any]) -> None:
        """Takes an update of an Interlingua server: a fragment, a fresh start, or an activity."""
        kind, delta = update.get("kind"), update.get("delta")
        if kind == "reset" and isinstance(delta, dict):
            await self._set(delta)
        elif kind == "delta" and isinstance(delta, dict):
            await self._add(delta)
        else:
            with contextlib.suppress(msgspec.ValidationError):
                body = msgspec.convert({**update, "step": self._place}, _ACTIVITY)
                if self._known:
                    self._known -= 1
                else:
                    await self._mounted.show(body)

    async def _set(self, value: dict[str, Any]) -> None:
        self._there, self._level = Joiner(value), False
        await self._catch_up()

    async def _add(self, delta: dict[str, Any]) -> None:
        try:
            self._there.add(delta)
        except DeltaError:  # begun in the middle; the result will tell
            self._level = False
            return
        if self._level:
            self._here.add(delta)
            await self._mounted.show(OutputDelta(delta, self._place))
        else:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Shows the difference between the output in our log and the remote one; where no delta can, the result will
        show it."""
        try:
            delta: Any = diff(self._here.value, self._there.value)
        except DeltaError:
            return
        self._level = True
        if delta is not ABSENT and delta:
            self._here.add(delta)
            await self._mounted.show(OutputDelta(delta, self._place))

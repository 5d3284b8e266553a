"""The deltas of a remote run as the local run shows them, each once, and their sum beside the result.

Deltas are passed on in the order of the wire. After a reconnect the remote run sends them from the beginning: then the
difference between the shown output and the remote one is computed, until both are the same.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from ....engine.handler.mounted_run import MountedRun, step_place
from ....model.content import Artifact, Part
from ....model.delta import ABSENT, DeltaError, Joiner, diff, require_object
from ....model.events import ArtifactAdded, OutputDelta, Thought, Warned

STEP = "run"
"""The step of all output; it is never recorded, so that it can always be shown again."""

_PLACE = step_place(STEP)


class Mirror:
    def __init__(self, mounted: MountedRun) -> None:
        self._mounted = mounted
        self._there = Joiner()  # the output as the remote run has it
        self._here: Joiner | None = None  # the output as it stands in our log, while that is not the same
        self._deltas = 0
        self._joins = True
        self._warnings: set[str] = set()  # that were shown
        self._lines: Counter[str] = Counter()  # of activity, in this attempt
        self._repeats: Counter[str] = Counter()  # lines of earlier attempts, which this one may repeat
        self._gave = False  # files and data beside the output were shown

    async def begin_again(self) -> None:
        """Shows the output from before again, unchanged, when the run is resumed."""
        here = Joiner()
        for body in self._mounted.shown(STEP):
            if isinstance(body, OutputDelta):
                here.add(body.delta)
            elif isinstance(body, Warned):
                self._warnings.add(body.message)
            elif isinstance(body, ArtifactAdded):
                self._gave = True
            elif isinstance(body, Thought):
                self._repeats[body.text] += 1
            await self._mounted.show(body)
        self._here = here

    def met_again(self) -> None:
        """Notes a reconnect in the middle of the remote run, which sends its deltas from the beginning."""
        self._here = self._here or self._there
        self._there, self._joins, self._deltas = Joiner(), True, 0
        self._repeats |= self._lines
        self._lines = Counter()

    async def take(self, delta: Any) -> None:
        if not self._joins:
            return
        self._deltas += 1
        try:
            self._there.add(require_object(delta))
        except DeltaError as error:
            self._joins = False
            await self.warned(f"a delta does not join what came before ({error}); the result is what counts")
            return
        if self._here is None:
            await self._mounted.show(OutputDelta(delta, _PLACE))
            return
        try:
            missing = diff(self._here.value, self._there.value)
        except DeltaError:
            return  # it has not come as far as we have
        self._here = None
        if missing is not ABSENT and missing:
            await self._mounted.show(OutputDelta(missing, _PLACE))

    async def compare(self, output: dict[str, Any]) -> None:
        """Warns where the deltas do not add up to the result, which is the one that counts."""
        if self._deltas and self._joins and not _same(self._there.value, output):
            await self.warned("the deltas do not join to the result; the result is what counts")

    async def given(self, parts: list[Part]) -> None:
        """Shows the files and data beside the output, once."""
        if parts and not self._gave:
            self._gave = True
            await self._mounted.show(ArtifactAdded(Artifact("beside", parts), _PLACE))

    async def progress(self, line: str) -> None:
        """Shows a line of activity, unless an earlier attempt has shown it."""
        self._lines[line] += 1
        if self._lines[line] > self._repeats[line]:
            await self._mounted.show(Thought(line, step=_PLACE))

    async def warned(self, message: str) -> None:
        """Shows a warning once, although the remote run repeats it at every reconnect."""
        if message not in self._warnings:
            self._warnings.add(message)
            await self.warn(message)

    async def warn(self, message: str, details: Any = None) -> None:
        await self._mounted.show(Warned(message, details, _PLACE))


def _same(one: Any, other: Any) -> bool:
    """Tells if two values are the same. Null members count as absent: acp-sdk 0.0.6 writes out every default, and null
    in a delta adds nothing."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other)
    return bool(one == other)

"""The output and activities of a remote run, as the local run shows them: each once, over any number of connections.

Two outputs are compared: that of the remote run, and that in our log. While both are the same, deltas are passed on.
Otherwise the difference between them is shown as soon as a delta leads from one to the other.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from ..engine.handler.mounted_run import MountedRun, step_place
from ..model.delta import ABSENT, DeltaError, Joiner, diff
from ..model.events import Emission, OutputDelta, Warned, emission_json


class RemoteOutput:
    def __init__(self, mounted: MountedRun) -> None:
        self._mounted = mounted
        self._place: str | None = None  # the step of all emissions
        self._remote = Joiner()  # the output as the remote run has it
        self._logged = self._remote  # the output in our log: the same object while both are the same
        self._complete = True  # nothing of the remote output is missing
        self._shown: Counter[int] = Counter()  # the emissions of the step, except output
        self._repeats: Counter[int] = Counter()  # those of them that the remote side will send again

    @property
    def shown(self) -> Any:
        """Returns the output in our log; None where there is none."""
        return None if self._logged.value is ABSENT else self._logged.value

    @property
    def has_shown(self) -> bool:
        return bool(self._shown) or self._logged.value is not ABSENT

    @property
    def joined(self) -> Any:
        """Returns the sum of the remote deltas; ABSENT where there were none, or where some are missing."""
        return self._remote.value if self._complete else ABSENT

    # -- beginning, and beginning again -------------------------------------------------------------------

    async def begin(self, step: str) -> list[Emission]:
        """Begins a step, which owns all emissions from now on. A step that a crash has cut short shows again first what
        it has shown, unchanged; that is also returned. The remote side is expected to repeat it."""
        self._place = step_place(step)
        shown = self._mounted.shown(step)
        self._shown = Counter(_mark(body) for body in shown if not isinstance(body, OutputDelta))
        self._repeats = self._shown.copy()
        if any(isinstance(body, OutputDelta) for body in shown):
            self._logged = Joiner(self._logged.value)
        for body in shown:
            if isinstance(body, OutputDelta):
                self._logged.add(body.delta)
            await self._mounted.show(body)
        return shown

    def step_recorded(self, shown: Any, *, from_log: bool) -> None:
        """Ends a step that was recorded with this output, which remote deltas extend. `from_log`: it was recorded
        before a crash, and has shown nothing now."""
        self._place = None
        self._shown, self._repeats = Counter(), Counter()
        if from_log and shown is not None:
            self._remote = self._logged = Joiner(shown)

    def goes_on(self) -> None:
        """Notes that the remote side repeats nothing of what was shown in this step: its deltas extend that."""
        self._remote = self._logged
        self._repeats = Counter()

    def reconnected(self, *, repeats: bool) -> None:
        """Notes another connection to the remote run. `repeats`: it tells everything from its beginning; else it goes
        on from its present state."""
        self._repeats = self._shown.copy() if repeats else Counter()
        if repeats:
            if self._logged.value is not ABSENT:
                self._remote = Joiner()
            self._complete = True

    def gap(self) -> None:
        """Notes that a part of the output was lost. The rest is shown when the whole is known."""
        self._complete = False

    # -- what the remote side tells -----------------------------------------------------------------------

    async def delta(self, delta: dict[str, Any]) -> DeltaError | None:
        """Takes a piece of the output. Returns the reason where it does not join what came before; then the whole
        output has to follow."""
        if not self._complete:
            return None
        try:
            self._remote.add(delta)
        except DeltaError as error:
            self._complete = False
            return error
        if self._logged is self._remote:
            await self._mounted.show(OutputDelta(delta, self._place))
        else:
            await self._catch_up()
        return None

    async def value(self, value: dict[str, Any]) -> None:
        """Takes the whole output as it is now."""
        self._remote, self._complete = Joiner(value), True
        await self._catch_up()

    async def emit(self, body: Emission, *, new: bool = False) -> bool:
        """Shows an activity, a message, an artifact or a warning. Returns False for the repetition of one that was
        shown, which is not shown again. `new`: it is none."""
        body.step = self._place
        mark = _mark(body)
        if not new and self._repeats[mark] > 0:
            self._repeats[mark] -= 1
            return False
        self._shown[mark] += 1
        await self._mounted.show(body)
        return True

    async def warn(self, message: str, details: Any = None) -> None:
        await self.emit(Warned(message, details))

    async def warn_once(self, message: str, details: Any = None) -> None:
        """Shows a warning that every connection, or every entrance of the handler, gives again."""
        body = Warned(message, details, self._place)
        if not self._shown[_mark(body)]:
            await self.emit(body, new=True)

    async def finish(self, output: dict[str, Any]) -> None:
        """Shows what is missing of the result, for a reader that has seen a part of it."""
        if self._logged.value is not ABSENT:
            await self.value(output)

    async def _catch_up(self) -> None:
        """Shows the difference between the output in our log and the remote one. Where no delta can, a later output or
        the result will show it."""
        try:
            missing: Any = diff(self._logged.value, self._remote.value)
        except DeltaError:
            return
        self._logged = self._remote
        if missing is not ABSENT and missing:
            await self._mounted.show(OutputDelta(missing, self._place))


_HALVES = re.compile(r"\\ud[89a-f][0-9a-f]{2}")


def _mark(body: Emission) -> int:
    """Returns a mark of an emission. Characters that may come in two halves are left out, because the log joins
    them."""
    return hash((type(body), _HALVES.sub("", json.dumps(emission_json(body), sort_keys=True))))

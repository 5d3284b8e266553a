"""Calls of a handler, and the records that its history has of them.

Every call that leaves a record has a key: see `record_keys`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from ...model.errors import InterlinguaError, Invalid
from ...model.events import Body, Recorded
from ...runtime.clock import sleep
from ..log.record_keys import UNKNOWN_ARGUMENTS, Arguments, Place, describe, place_of
from ..log.replay import PastCall
from .branches import Branch
from .output import Output
from .run_data import RunData
from .waits import Waits

T = TypeVar("T")


class Calls:
    __slots__ = ("_data", "_output", "_replay", "_waits", "called")

    def __init__(self, data: RunData, waits: Waits, output: Output) -> None:
        self._data = data
        self._replay = data.replay
        self._waits = waits
        self._output = output
        self.called = False  # the handler has come to a call

    # -- keys ---------------------------------------------------------------------------------------------

    def place(self, kind: str, name: str, key: str | None, called_with: Arguments = UNKNOWN_ARGUMENTS) -> str:
        """The key of the record of a call. The run is blocked where the history has another call there."""
        self.called = True
        if key is not None:
            place = f"{kind}:{key}"
        else:
            branch = self._waits.branches.here()
            at = Place(branch.path, branch.next_position(), kind, name)
            place = at.key
            past = self._replay.call_at(at.branch, at.position)
            if past is not None and (past.key != place or past.arguments.differs(called_with.digest)):
                self.mismatch(past, describe(kind, name, called_with.shown))
        self._replay.reach(place)
        return place

    def mismatch(self, past: PastCall | str, called: str | None) -> NoReturn:
        """Block the run: its history has one call, and the code makes another, or (None) no more."""
        now_called = f"the code calls {called}" if called is not None else "the code ended"
        branch = self._waits.branches.here().path
        details = {"history": str(past), "code": called, **({"branch": branch} if branch else {})}
        self._waits.block_run("history_mismatch", f"the history has {past} here; {now_called}", details)

    def check_used(self, branch: Branch | None = None) -> None:
        """Block the run where the handler has ended, or one branch of it, and its history has more."""
        branches = self._waits.branches
        if branches.engine_code or self._replay.caught_up:
            return
        for past in self._replay.unused(branch.path if branch is not None else None):
            place = place_of(past.key)
            if branch is not None or place is None or not branches.is_excused(place.branch):
                self.mismatch(past, None)

    # -- records ------------------------------------------------------------------------------------------

    def passed(self, seq: int) -> None:
        """The handler has the record at `seq` again."""
        self._output.passed(seq)

    def add(self, record: Recorded) -> None:
        """Write a record, for the handler to find when it comes here again."""
        self._replay.records[record.key] = (0, record)
        self._data.log.append(record)

    def once(self, place: str, make: Callable[[], Any]) -> Any:
        """A value that is made once, and recorded."""
        past = self._replay.records.get(place)
        if past is not None:
            self.passed(past[0])
            return past[1].value
        record = Recorded(place, make())
        self.add(record)
        return record.value

    def deadline_at(self, place: str, seconds: float) -> int:
        """A moment that stays the same when the handler is replayed."""
        return int(self.once(place, lambda: self._data.clock.now() + int(seconds * 1e6)))

    def recalled(self, what: str, read: Callable[[], T]) -> T:
        """Read a value of the history. The run is blocked where the code cannot read it."""
        try:
            return read()
        except Invalid as error:
            if not self._replay.started:
                raise
            why = f"the code cannot read {what}, which is in its history: {error.message}"
            self._waits.block_run("failed_on_resume", why, {"error": msgspec.to_builtins(error.info())})

    async def recorded_at(self, seq: int) -> Body | None:
        """A record of the history whose value is not in memory. The branch that has the turn keeps it meanwhile."""
        with self._waits.hold_turn():
            return await self.body_at(seq)

    async def body_at(self, seq: int) -> Body | None:
        """An event of the log, from the store. A store that is away is waited for: no run ends because of that."""
        host = self._data.host
        with self._waits.busy():
            while True:
                try:
                    (event,) = await host.store.runs.events(self._data.row.id, seq - 1, 1)
                except InterlinguaError as error:
                    if not error.transient:
                        raise
                    await sleep(host.clock, host.settings.sweep_every)
                    self._waits.check_open()
                else:
                    self._waits.check_open()
                    return event.body

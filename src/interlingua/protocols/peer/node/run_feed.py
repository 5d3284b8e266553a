"""Reports a run while it is written: the reports of its events are kept in the transaction of the events.

So the reports cost no commits of their own. Any unexpected turn (the store refuses something, the run is parked,
another process changed its task) ends this, and the run's log is read from there on, as any other's is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from ....model.documents import Change, Follow, WriteResult
from ....model.errors import Unavailable
from ....model.events import Event, RunFinished
from .base import NodeBase
from .run_reports import Draft, Outcome, Telling

log_ = logging.getLogger("interlingua.peer")


class Runs(Protocol):
    """The runs of the node's agents."""

    witnessed: dict[str, Witnessed]

    def go_on(self, run: str, upto: int, telling: Telling | None) -> None:
        """A run is told of no more while it is written."""


class Witnessed:
    """The reports of one run, from its first event on. `settled` is done when the first report is kept."""

    def __init__(
        self, node: NodeBase, runs: Runs, telling: Telling, run: str, cursors: str, first: Sequence[Change], before: int
    ) -> None:
        self._node = node
        self._runs = runs
        self._telling = telling
        self._cursors = cursors
        self._first: Sequence[Change] = first
        self._before = before  # so many of these belong to the run's own report
        self._upto = 0
        self._keeping: asyncio.Future[WriteResult] | None = None
        self._over = False  # the log tells no more
        self._error: BaseException | None = None  # because of this
        self.run = run
        self.stale = False
        self.numbers: list[int | None] = []
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.settled.add_done_callback(_noticed)

    @property
    def outcome(self) -> Outcome | None:
        return self._telling.outcome

    # -- called by the log --------------------------------------------------------------------------------

    def sealing(self, events: list[Event]) -> bool:
        node, telling, last = self._node, self._telling, events[-1]
        if self._over:
            return False
        if not node.running or self._keeping is not None:
            self.left(None if self._upto else Unavailable("the node stops"))
            return False
        if telling.projection.needs_log(events):  # it is read when it is written
            self.left(None if self._upto else Unavailable("the run was restarted"))
            return False
        self._runs.witnessed[self.run] = self
        ended = isinstance(last.body, RunFinished)
        follow = Follow(self._cursors, self.run, self._upto, last.seq, ended, last.hash)
        draft = telling.draft(telling.acts(events), follow, self._first, new=not self._upto)
        self._keeping = node.journal.keep(draft.changes, partial(self._kept, draft, follow))
        self._keeping.add_done_callback(self._not_kept)
        return True

    def left(self, error: BaseException | None) -> None:
        if self._over:
            return
        self._over, self._error = True, error
        if self._keeping is None:  # else the outcome is known in a moment
            self._leave(error)

    # -- called by the store ------------------------------------------------------------------------------

    def _kept(self, draft: Draft, follow: Follow, changes: Sequence[Change], kept: WriteResult) -> None:
        self._keeping = None
        self._node.journal.heed(changes, kept)
        if kept.stale is not None:
            self.stale, self._over = not self._upto, True
            self._leave(self._error, level=False)
            return
        self._upto = follow.upto
        if not follow.expected:
            at = next((place for place, change in enumerate(changes) if change is follow), 0) + 1 + self._before
            self.numbers = kept.numbers[at : at + len(self._first) - self._before]
            self._first = ()
        try:
            self._telling.kept(draft, kept)
        except Exception:  # the callers beside must not wait for ever
            log_.exception("what run %s says could not be told", self.run)
        if follow.ended:
            self._runs.witnessed.pop(self.run, None)
        elif self._over:
            self._leave(self._error)
        self._settle(None)

    def _not_kept(self, keeping: asyncio.Future[WriteResult]) -> None:
        error = None if keeping.cancelled() else keeping.exception()
        if self._keeping is keeping and (error is not None or keeping.cancelled()):
            self._keeping, self._over = None, True
            self._leave(error, level=False)

    def _leave(self, error: BaseException | None, *, level: bool = True) -> None:
        """Ends the reports here. `level` means that everything that was made of the log so far was kept."""
        self._runs.witnessed.pop(self.run, None)
        if self._upto:  # else nothing was reported, and its caller begins it in the usual way
            self._runs.go_on(self.run, self._upto, self._telling if level and error is None else None)
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        if self.settled.done():
            return
        if error is not None:
            self.settled.set_exception(error)
        else:
            self.settled.set_result(None)


def _noticed(done: asyncio.Future[None]) -> None:
    """Retrieves the error of a future whose waiting caller may have gone."""
    with contextlib.suppress(asyncio.CancelledError):
        done.exception()

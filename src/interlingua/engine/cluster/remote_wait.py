"""Waiting for the end of a run that is in another process, by what that process tells.

The store is read only where what is told may not be all, or does not say enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...model.events import Event, QuestionAsked, RunFinished
from ...model.run import Run
from ...model.status import Status
from .remote_log import About, Mirror

if TYPE_CHECKING:
    from ..runs.queries import RunQueries
    from .link import Between


async def wait_elsewhere(engine: RunQueries, run: str, others: Between, *, settled: bool, sealed: bool) -> Run | None:
    """The run when it has ended (`settled`: or waits for an answer); None where it comes to be here."""
    mirror = others.expected(run)
    if mirror is not None:
        looked = mirror.looks
        mirror = others.mirror(run, mirror.about)
    else:
        first = await engine.store.runs.events(run, 0, 1)
        mirror, looked = others.mirror(run, About.of(first[0]) if first else About()), -1
    seen = 0
    try:
        while engine.worker.log_of(run) is None:
            changed = mirror.changed()  # before anything is read: what is told meanwhile must not be waited for
            try:
                last = mirror.last
                if last is not None and last.seq > seen:
                    ended = _ended(engine, mirror, last, sealed=sealed)
                    if ended is not None:
                        return ended
                    if _says_too_little(mirror, last, seen, settled=settled):
                        looked = -1
                    seen = last.seq
                if looked != mirror.looks:
                    looked = mirror.looks
                    view = await _look(engine, run, settled=settled, sealed=sealed)
                    if view is not None:
                        return view
                await changed
            finally:
                changed.cancel()
    finally:
        mirror.leave()
    return None


def _ended(engine: RunQueries, mirror: Mirror, last: Event, *, sealed: bool) -> Run | None:
    """The run, where it was submitted here and what was told last is its end. One that was cancelled may have been
    forgotten with that: the store knows."""
    end = last.body
    if mirror.submitted is None or type(end) is not RunFinished or end.status is Status.CANCELLED:
        return None
    row, created = mirror.submitted
    if row.sealed and not sealed:
        return None
    row = replace(row, status=end.status, updated_at=last.time, next_seq=last.seq + 1, head=last.hash)
    view = engine.view(row, created)
    view.output, view.error, view.usage = end.output, end.error, end.usage
    return view


def _says_too_little(mirror: Mirror, last: Event, seen: int, *, settled: bool) -> bool:
    """Whether the store must be asked: there was a gap, the run has ended, or it asks, which is more than an event."""
    told = mirror.since(seen)
    if told is None or type(last.body) is RunFinished:
        return True
    return settled and any(type(event.body) is QuestionAsked for event in told)


async def _look(engine: RunQueries, run: str, *, settled: bool, sealed: bool) -> Run | None:
    row = await engine.row(run, sealed=sealed)
    if row.status.final:
        return await engine.full_view(row)
    if settled and row.status is Status.WAITING:
        view = await engine.get(run, sealed=sealed)
        if view.status is Status.WAITING or view.status.final:
            return view
    return None

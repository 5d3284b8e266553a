"""Waits for the end of a run in another process, by the events that it publishes.

Reads the store only after a gap, or if an event does not contain enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...model.events import Event, QuestionAsked, RunFinished
from ...model.run import Run
from ...model.status import Status

if TYPE_CHECKING:
    from .cluster_port import PublishedLog
    from .queries import RunQueries


async def wait_for_remote_run(
    runs: RunQueries, run: str, remote: PublishedLog, *, settled: bool, sealed: bool
) -> Run | None:
    """The run when it has ended (`settled`: or waits for an answer); None where it comes to be here. Leaves the log."""
    looked = remote.looks if remote.submitted is not None else -1
    seen = 0
    try:
        while runs.worker.log_of(run) is None:
            changed = remote.changed()  # before anything is read: what is told meanwhile must not be waited for
            try:
                last = remote.last
                if last is not None and last.seq > seen:
                    ended = _ended(runs, remote, last, sealed=sealed)
                    if ended is not None:
                        return ended
                    if _says_too_little(remote, last, seen, settled=settled):
                        looked = -1
                    seen = last.seq
                if looked != remote.looks:
                    looked = remote.looks
                    view = await _look(runs, run, settled=settled, sealed=sealed)
                    if view is not None:
                        return view
                await changed
            finally:
                changed.cancel()
    finally:
        remote.leave()
    return None


def _ended(runs: RunQueries, remote: PublishedLog, last: Event, *, sealed: bool) -> Run | None:
    """The run, where it was submitted here and what was told last is its end. One that was cancelled may have been
    forgotten with that: the store knows."""
    end = last.body
    if remote.submitted is None or type(end) is not RunFinished or end.status is Status.CANCELLED:
        return None
    row, created = remote.submitted
    if row.sealed and not sealed:
        return None
    row = replace(row, status=end.status, updated_at=last.time, next_seq=last.seq + 1, head=last.hash)
    view = runs.view(row, created)
    view.output, view.error, view.usage = end.output, end.error, end.usage
    return view


def _says_too_little(remote: PublishedLog, last: Event, seen: int, *, settled: bool) -> bool:
    """True if the store must be read: after a gap, at the end of the run, or at a question, which needs its record."""
    events = remote.since(seen)
    if events is None or type(last.body) is RunFinished:
        return True
    return settled and any(type(event.body) is QuestionAsked for event in events)


async def _look(runs: RunQueries, run: str, *, settled: bool, sealed: bool) -> Run | None:
    row = await runs.row(run, sealed=sealed)
    if row.status.final:
        return await runs.full_view(row)
    if settled and row.status is Status.WAITING:
        view = await runs.get(run, sealed=sealed)
        if view.status is Status.WAITING or view.status.final:
            return view
    return None

"""Follows a run for a caller, as pieces of an event stream: `values` conflated to the newest, `custom` per fragment.

The stream ends with the run, or where the run waits for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from ....doors.follow_log import feed_all, read_back, read_on
from ....doors.streams import in_pieces
from ....engine.engine import Engine
from ....model.errors import NotFound, RunNotFound
from ....model.events import Event, RunFinished
from ....model.run import Run
from ....model.status import Status
from ....transports.http.sse import encode
from ..config import DoorSettings
from ..projection import Place, Projection, Update, id_of

_SLOW = 1.0  # seconds after which a reader that has not taken a piece keeps nothing of the output beside it


async def follow(
    engine: Engine, run: str, after: Place | None, modes: list[str], settings: DoorSettings, caller: str
) -> AsyncIterator[bytes]:
    """Yields the stream of a run, for a caller. `after` is the last update that the reader has; None means from now
    on."""
    try:
        # The output of a run that has ended is not held by every reader of its end.
        view = msgspec.structs.replace(await engine.runs.get(run), output=None)
    except RunNotFound:
        yield _encoded(Projection(run, modes, None, caller).gone(1), (0, 0))
        return
    agent = engine.agents.find(view.agent, view.version)
    projection = Projection(run, modes, agent.card if agent is not None else None, caller)
    seen = _first_place(view, after)
    pace = _Pace(settings)
    await _rebuild(engine, run, projection, seen[0])
    if seen[1]:
        projection.pending_id = None
    if _rests(projection, view, seen):
        yield _interrupted(projection, seen[0], (seen[0] - 1, 1))
        return
    last_seq = seen[0]
    try:
        async with contextlib.aclosing(read_on(engine, run, last_seq, lambda: pace.wait(projection))) as batches:
            async for batch in batches:
                if not batch:
                    pace.sent()
                    with _forgotten_if_slow(projection):
                        yield _encoded(projection.newest(), seen)
                    await _remember(engine, run, projection, last_seq)
                    continue
                last_seq, finished = batch[-1].seq, isinstance(batch[-1].body, RunFinished)
                updates = [item for item in await _updates(engine, view, projection, batch, pace) if item[0] > seen]
                del batch  # a slow reader holds only the piece that it is given
                with _forgotten_if_slow(projection):
                    for piece in in_pieces(updates, _encode):
                        yield piece.pop()
                if finished:
                    continue
                await _remember(engine, run, projection, last_seq)
                if projection.waiting and last_seq >= view.seq and await _asks(engine, run):
                    # A stream that is resumed at a question begins with the question.
                    yield _interrupted(projection, last_seq, seen if last_seq > seen[0] else (last_seq - 1, 1))
                    return
    except RunNotFound:
        yield _encoded(projection.gone(last_seq + 1), seen)


class _Pace:
    """Decides when a stream sends the next whole value."""

    def __init__(self, settings: DoorSettings) -> None:
        self._interval = 1.0 / settings.values_per_second
        self._clock = asyncio.get_running_loop().time
        self._sent_at = 0.0

    def wait(self, projection: Projection) -> float | None:
        """Returns the seconds until a value is due that waits to be sent; None where none waits."""
        return None if projection.pending_id is None else max(0.0, self._sent_at + self._interval - self._clock())

    @property
    def due(self) -> bool:
        return self._clock() - self._sent_at >= self._interval

    def sent(self) -> None:
        self._sent_at = self._clock()


def _first_place(view: Run, after: Place | None) -> Place:
    """Returns the place after which a reader gets updates."""
    seen = (view.seq, 1) if after is None else after
    if after is None and view.status.final:
        seen = (view.seq - 1, 1)  # nothing will come any more: send at least its end
    return seen


def _rests(projection: Projection, view: Run, seen: Place) -> bool:
    """Tells if the run waits for an answer, and its reader has seen all that came before."""
    return projection.waiting and seen[0] >= view.seq and view.status is Status.WAITING and bool(view.questions)


async def _updates(
    engine: Engine, view: Run, projection: Projection, batch: Sequence[Event], pace: _Pace
) -> list[Update]:
    """Returns the updates of some events, and the newest value with them where it is due."""
    out = await feed_all(engine, projection.feed, batch)
    finished = isinstance(batch[-1].body, RunFinished)
    if not finished and projection.pending_id is not None and pace.due:
        pace.sent()
        out += projection.newest()
    if finished and view.thread is not None and out and out[-1][1].get("status") == "success":
        with contextlib.suppress(NotFound):  # the run's changes to the thread, for readers that keep a copy
            out[-1][1]["thread_values"] = (await engine.threads.get(view.thread)).values
    return out


async def _asks(engine: Engine, run: str) -> bool:
    """Tells if the run waits for an answer now."""
    now = await engine.runs.get(run)
    return now.status is Status.WAITING and bool(now.questions)


def _interrupted(projection: Projection, seq: int, seen: Place) -> bytes:
    """Returns the end of a stream at a question."""
    updates = projection.newest() + projection.interrupt(seq)
    projection.forget()
    return _given_away(updates, seen)


async def _rebuild(engine: Engine, run: str, projection: Projection, seq: int) -> None:
    """Feeds an empty projection with the log up to `seq`."""
    async for batch in read_back(engine, run, seq):
        await feed_all(engine, projection.feed, batch)


@contextlib.contextmanager
def _forgotten_if_slow(projection: Projection) -> Iterator[None]:
    """Frees the output so far while a slow reader takes a piece: the output may be large, and such readers many."""
    timer = asyncio.get_running_loop().call_later(_SLOW, projection.forget)
    try:
        yield
    finally:
        timer.cancel()


async def _remember(engine: Engine, run: str, projection: Projection, seq: int) -> None:
    """Reads again the output that was freed while the reader was slow."""
    if projection.forgotten:
        pending = projection.pending_id
        await _rebuild(engine, run, projection, seq)
        projection.pending_id = pending


def _encoded(updates: list[Update], seen: Place) -> bytes:
    return b"".join(_encode(update) for update in updates if update[0] > seen)


def _given_away(updates: list[Update], seen: Place) -> bytes:
    """Encodes updates and empties their list, so that only the encoded piece is held while a slow reader takes it."""
    piece = _encoded(updates, seen)
    updates.clear()
    return piece


def _encode(update: Update) -> bytes:
    place, data = update
    return encode(data, id=id_of(place), event="agent_event")

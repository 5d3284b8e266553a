"""A run's log as a stream of the protocol: `values` conflated to the newest, `custom` per fragment.

The id of an update is the log's own seq, so that a stream can be resumed at any update.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...engine.engine import Engine
from ...model.card import AgentCard
from ...model.delta import ABSENT, Joiner
from ...model.errors import NotFound, RunCancelled, RunNotFound
from ...model.events import (
    EMISSIONS,
    Event,
    OutputDelta,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    RunBlocked,
    RunFinished,
    RunRestarted,
    Said,
    blocked_warning,
    emission_json,
    thought_from_message,
)
from ...model.prompt_input import ContentCollector
from ...model.run import Run
from ...model.status import Status
from ...transports.http.event_stream import in_pieces
from ...transports.http.sse import encode
from . import translate

if TYPE_CHECKING:
    from .config import DoorSettings


_PAGE_BYTES = 256 * 1024  # of the log, read at once
_SLOW = 1.0  # seconds after which a reader that has not taken a piece keeps nothing of the output beside it

# Where an update stands: the seq of its event, and 0 for the fragment, 1 for the value that comes after it. Both modes
# at once send two updates of one event, and a stream can be taken up between them.
Place = tuple[int, int]
Update = tuple[Place, dict[str, Any]]


def place_of(last_event_id: str) -> Place | None:
    """Reads back an id; returns None where the id is not one of this projection."""
    seq, dot, part = last_event_id.partition(".")
    if not seq.isdecimal() or len(seq) > 15 or (dot and part != "0"):
        return None
    return int(seq), 0 if dot else 1


def id_of(place: Place) -> str:
    return str(place[0]) if place[1] else f"{place[0]}.0"


class Projection:
    """Events in, updates of the protocol out. Pure."""

    def __init__(self, run: str, modes: list[str], card: AgentCard | None, reader: str = "") -> None:
        self._run = run
        self._reader = reader  # the caller that reads
        self._values = "values" in modes
        self._custom = "custom" in modes
        self._card = card
        self.pending_id: int | None = None  # a value that is newer than the last one sent
        self.forget()

    def forget(self) -> None:
        """Frees the output so far. Before the projection is used again, it is fed from the beginning of the log."""
        self._joiner = Joiner()
        self._open: dict[str, Any] = {}
        self._given = ContentCollector()
        self.forgotten = True

    def feed(self, event: Event, output: Any = ABSENT) -> list[Update]:
        """Returns the updates of an event. `output` is what remains of the output where the run was restarted. Updates
        are not kept, because there may be many readers."""
        body = event.body
        self.forgotten = False
        if isinstance(body, OutputDelta):
            if self._values:
                self._joiner.add(body.delta)
                self.pending_id = event.seq
            return self._custom_update(event.seq, {"kind": "delta", "delta": body.delta})
        if isinstance(body, RunRestarted):
            self._given.feed(event)
            if self._values:
                self._joiner = Joiner()
                if output is not ABSENT:
                    self._joiner.add(output)
                self.pending_id = event.seq
            return self._custom_update(event.seq, {"kind": "reset", "delta": {} if output is ABSENT else output})
        if isinstance(body, QuestionAsked):
            self._open[body.question.id] = body.question
            return []
        if isinstance(body, QuestionAnswered | QuestionWithdrawn):
            self._open.pop(body.question, None)
            return []
        if isinstance(body, RunFinished):
            return [((event.seq, 1), self._end(body))]
        if isinstance(body, RunBlocked):
            return self._custom_update(event.seq, msgspec.to_builtins(blocked_warning(body)))
        if isinstance(body, Said):
            thought = thought_from_message(body)
            return [] if thought is None else self._custom_update(event.seq, msgspec.to_builtins(thought))
        if isinstance(body, EMISSIONS):
            self._given.feed(event)
            return self._custom_update(event.seq, emission_json(body))
        return []

    def _custom_update(self, seq: int, update: dict[str, Any]) -> list[Update]:
        if not self._custom:
            return []
        return [((seq, 0), {"type": "custom", "run_id": self._run, "status": "pending", "update": update})]

    def newest(self) -> list[Update]:
        """Returns the present value, where it has not been sent yet."""
        if self.pending_id is None:
            return []
        seq, self.pending_id = self.pending_id, None
        value = self._joiner.value
        value = {} if value is ABSENT else value
        told = {"type": "values", "run_id": self._run, "status": "pending", "values": value, "result": value}
        return [((seq, 1), told)]

    @property
    def waiting(self) -> bool:
        return bool(self._open)

    def interrupt(self, seq: int) -> list[Update]:
        if not self._open:
            return []
        question = next(iter(self._open.values()))
        return [
            ((seq, 1), {**translate.interrupt(question, self._reader), "run_id": self._run, "status": "interrupted"})
        ]

    def gone(self, seq: int) -> list[Update]:
        """Returns the last update for a run that was deleted before it could report its end."""
        return [((seq, 1), self._end(RunFinished(Status.CANCELLED, error=RunCancelled(translate.GONE).info())))]

    def _end(self, body: RunFinished) -> dict[str, Any]:
        self.pending_id = None
        messages = self._given.messages()
        self.forget()
        if body.status is Status.SUCCEEDED:
            return {
                "type": "values",
                "run_id": self._run,
                "status": "success",
                "values": body.output,
                "result": body.output,
                **translate.returned(messages),
            }
        error = translate.error(self._run, body.error, body.status, self._card)
        return {**error, "status": translate.STATUS[body.status]}


async def follow(
    engine: Engine, run: str, after: Place | None, modes: list[str], settings: DoorSettings, keep_alive: bytes,
    caller: str,
) -> AsyncIterator[bytes]:  # fmt: skip
    """Yields the stream of a run, for a caller. `after` is the last update that the reader has; None means from now on.

    The stream ends with the run, or where it waits for an answer.
    """
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
    await _put_together(engine, run, projection, seen[0])
    if seen[1]:
        projection.pending_id = None
    if _rests(projection, view, seen):
        yield _interrupted(projection, seen[0], (seen[0] - 1, 1))
        return
    reader = engine.runs.reader(run, after=seen[0])
    finished = view.status.final and seen[0] >= view.seq  # and the reader knows
    try:
        while not reader.over:
            batch = await reader.read(pace.idle(projection))
            if not batch:
                if not reader.over:
                    pace.told()
                    with _forgotten_if_slow(projection):
                        yield _encoded(projection.newest(), seen) or keep_alive
                    await _remembered(engine, run, projection, reader.cursor)
                continue
            last_seq, finished = batch[-1].seq, isinstance(batch[-1].body, RunFinished)
            told = [update for update in await _updates(engine, view, projection, batch, pace) if update[0] > seen]
            del batch  # a slow reader holds only the piece that it is given
            with _forgotten_if_slow(projection):
                for piece in in_pieces(told, _encode):
                    yield piece.pop()
            if finished:
                continue
            await _remembered(engine, run, projection, last_seq)
            if projection.waiting and last_seq >= view.seq and await _asks(engine, run):
                # A stream that is resumed at a question begins with the question.
                yield _interrupted(projection, last_seq, seen if last_seq > seen[0] else (last_seq - 1, 1))
                return
        if not finished:
            raise RunNotFound(f"there is no run {run}")
    except RunNotFound:
        yield _encoded(projection.gone(reader.cursor + 1), seen)
    finally:
        reader.close()


class _Pace:
    """The clock of a stream: it says when the next whole value is due."""

    def __init__(self, settings: DoorSettings) -> None:
        self._interval = 1.0 / settings.values_per_second
        self._keep_alive = settings.keep_alive
        self._clock = asyncio.get_running_loop().time
        self._told_at = 0.0

    def idle(self, projection: Projection) -> float:
        """Seconds to wait for events before something is said all the same."""
        if projection.pending_id is None:
            return self._keep_alive
        return max(0.0, self._told_at + self._interval - self._clock())

    @property
    def due(self) -> bool:
        return self._clock() - self._told_at >= self._interval

    def told(self) -> None:
        self._told_at = self._clock()


def _first_place(view: Run, after: Place | None) -> Place:
    """The place from which a reader is told."""
    seen = (view.seq, 1) if after is None else after
    if after is None and view.status.final:
        seen = (view.seq - 1, 1)  # nothing will come any more: tell at least how it ended
    return seen


def _rests(projection: Projection, view: Run, seen: Place) -> bool:
    """The run waits for an answer, and its reader has seen all that came before."""
    return projection.waiting and seen[0] >= view.seq and view.status is Status.WAITING and bool(view.questions)


async def _updates(
    engine: Engine, view: Run, projection: Projection, batch: Sequence[Event], pace: _Pace
) -> list[Update]:
    """The updates of some events, and the newest value with them where it is due."""
    out = [update for event in batch for update in await _fed(engine, projection, event)]
    finished = isinstance(batch[-1].body, RunFinished)
    if not finished and projection.pending_id is not None and pace.due:
        pace.told()
        out += projection.newest()
    if finished and view.thread is not None and out and out[-1][1].get("status") == "success":
        with contextlib.suppress(NotFound):  # the run's changes to the thread, for readers that keep a copy
            out[-1][1]["thread_values"] = (await engine.threads.get(view.thread)).values
    return out


async def _asks(engine: Engine, run: str) -> bool:
    """The run waits for an answer now."""
    now = await engine.runs.get(run)
    return now.status is Status.WAITING and bool(now.questions)


def _interrupted(projection: Projection, seq: int, seen: Place) -> bytes:
    """The end of a stream at a question."""
    updates = projection.newest() + projection.interrupt(seq)
    projection.forget()
    return _given_away(updates, seen)


async def _put_together(engine: Engine, run: str, projection: Projection, seq: int) -> None:
    """Feeds an empty projection with the log up to `seq`, uncomposed: a composed event could begin before a place."""
    cursor = 0
    while cursor < seq and (batch := await engine.runs.page(run, cursor, seq - cursor, _PAGE_BYTES)):
        for event in batch:
            if event.seq <= seq:
                await _fed(engine, projection, event)
        cursor = batch[-1].seq


@contextlib.contextmanager
def _forgotten_if_slow(projection: Projection) -> Iterator[None]:
    """Frees the output so far while a slow reader takes a piece: the output may be large, and such readers many."""
    timer = asyncio.get_running_loop().call_later(_SLOW, projection.forget)
    try:
        yield
    finally:
        timer.cancel()


async def _remembered(engine: Engine, run: str, projection: Projection, seq: int) -> None:
    """Reads again the output that was freed while the reader was slow."""
    if projection.forgotten:
        pending = projection.pending_id
        await _put_together(engine, run, projection, seq)
        projection.pending_id = pending


async def _fed(engine: Engine, projection: Projection, event: Event) -> list[Update]:
    output = await engine.runs.kept_output(event) if isinstance(event.body, RunRestarted) else ABSENT
    return projection.feed(event, output)


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

"""Streams a run's log, and the changes of questions, as server-sent events. The id of an event is its cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request

from ..engine.engine import Engine
from ..model.errors import InvalidRequest, RunNotFound
from ..model.filters import QuestionFilter
from ..model.run import Caller
from ..transports.http import sse
from .access import visible
from .views import CardOf, event_view, question_view


def wants_stream(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def cursor(request: Request, after: int) -> int:
    """Returns where a stream begins: after the last event that a client says it has, else after the query's."""
    last = request.headers.get("last-event-id")
    if last is None:
        return after
    if not last.isascii() or not last.isdecimal() or len(last) > 15:
        raise InvalidRequest(f"Last-Event-ID is {last[:40]!r}; it is the number of an event", path="/Last-Event-ID")
    return int(last)


async def events(engine: Engine, run: str, after: int, cards: CardOf, *, sealed: bool) -> AsyncIterator[bytes]:
    """Yields the events of a run from a cursor on, as they come, and `end` when the run has ended."""
    reader = engine.runs.reader(run, after, sealed=sealed)
    try:
        while not reader.over:
            for event in await reader.read():
                yield sse.encode(event_view(event, cards), id=str(event.seq), event=event.kind)
        yield sse.encode({"run": run}, event="end")
    except RunNotFound:  # it was deleted
        yield sse.encode({"run": run}, event="deleted")
    finally:
        reader.close()


async def questions(engine: Engine, where: QuestionFilter, caller: Caller) -> AsyncIterator[bytes]:
    """Yields questions in the order of their changes, and goes on with every change."""
    where.state = None
    while True:
        changed = engine.runs.next_hint("questions")
        try:
            while records := await engine.questions.search(where):
                for record in await visible(engine, records, caller):
                    yield sse.encode(question_view(record), id=str(record.change), event=record.state)
                where.after = records[-1].change
            await changed
        finally:
            changed.cancel()

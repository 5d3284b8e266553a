"""The short way of a request that needs nothing but a run: no thread, no run from before.

Most such runs are over with their first commit, and then there was nobody to ask or stop: no task waits for them, and
what they told on the way is told with the answer. Whatever is less simple, or wrong, goes the usual way, and so does a
run that takes longer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ...engine.engine import Engine
from ...engine.log import LiveLog, compose_runs
from ...model import values
from ...model.delta import ABSENT, DeltaError, Joiner, diff
from ...model.events import OutputDelta, RunRestarted
from ...model.prompts import Given
from ...model.run import Caller
from ...security import scopes
from ...transports import params as params_
from ...transports import sse
from ...transports.jsonrpc import Id
from ...transports.sse import KEEP_ALIVE
from .. import JSON
from . import translate, wire
from .running import failed, request_of

if TYPE_CHECKING:
    from .sessions import Session

_NOT_SO_SIMPLE = frozenset((wire.META_RUN, wire.META_THREAD))
_TOKEN = "progressToken"  # noqa: S105 - its name on the wire
_STREAM = b"content-type: text/event-stream\r\ncache-control: no-cache\r\n"


def begin(
    engine: Engine, caller: Caller, params: Any, *, modern: bool = False, progress: bool = False
) -> LiveLog | None:
    """Begin the run that the params of `agents/run` ask for, if they can go the short way. `progress`: also where they
    want to be told of its progress."""
    if type(params) is not dict or "requestState" in params:
        return None
    meta = params.get("_meta") or {}
    if type(meta) is not dict or not _NOT_SO_SIMPLE.isdisjoint(meta) or (wire.META_VERSION in meta) is not modern:
        return None
    if modern and type(meta.get(wire.META_CAPABILITIES)) is not dict:
        return None
    if _TOKEN in meta and not (progress and type(meta[_TOKEN]) in (str, int)):
        return None
    key = meta.get(wire.META_KEY)
    if key is not None and type(key) is not str:
        return None
    try:
        asked = params_.read(params, wire.RunRequest)
        agent = engine.agents.find(asked.name)
        if agent is None or not scopes.may(caller, "run", agent.card.key):
            return None
        request = request_of(agent.card, asked.input, None, caller, meta)
        request.key = key or None
        return engine.begin(request)
    except Exception:
        return None  # the usual way tells what is wrong


def result(log: LiveLog) -> dict[str, Any] | None:
    """What there is to answer, where the run is over and all is well."""
    finished, events = log.finished, log.since(0)
    if finished is None or events is None or failed(finished) is not None:
        return None
    given = Given()
    for event in events:
        given.feed(event)
    return translate.run_result(finished.output, log.row.id, given.parts())


def answer(id_: Id, result: dict[str, Any], *, complete: bool = True) -> dict[str, Any]:
    """`complete`: as the revision without sessions has it."""
    return {"jsonrpc": "2.0", "id": id_, "result": wire.complete(result) if complete else result}


def token_in(params: Any) -> Any:
    """The token with which progress is to be told; None where nobody wants to hear of it."""
    meta = params.get("_meta") if type(params) is dict else None
    return meta.get(_TOKEN) if type(meta) is dict else None


def deltas(log: LiveLog) -> list[Any] | None:
    """What is told of a run that has succeeded before its result is. None where that is not so simple."""
    joined, told = Joiner(), list[Any]()
    try:
        for event in compose_runs(log.since(0) or []):
            if type(event.body) is RunRestarted:
                return None
            if type(event.body) is OutputDelta:
                joined.add(event.body.delta)
                told.append(event.body.delta)
        last = diff(joined.value, log.finished.output if log.finished is not None else None)
    except DeltaError:
        return None
    return told if last is ABSENT or not last else [*told, last]


class SoonRun:
    """A run that has begun, and is answered when its first commit is its last."""

    __slots__ = ("_id", "_session", "_token", "begun", "committed", "head")

    def __init__(self, begun: LiveLog, id_: Id, token: str | int | None, session: Session | None = None) -> None:
        self.begun = begun
        self.committed = begun.flushed()
        self.head = JSON
        self._id = id_
        self._token = token
        self._session = session

    def again(self) -> asyncio.Future[None] | None:
        # Progress is told when it is made, and a session may take a request back at any time.
        return self.begun.unless_it_waits() if self._token is None and self._session is None else None

    def answer(self) -> bytes | None:
        found = result(self.begun)
        told = deltas(self.begun) if found is not None and self._token is not None else []
        if found is None or told is None:
            return None
        if self._session is not None and not self._session.plain:
            return None
        last = answer(self._id, found, complete=self._session is None)
        if not told:
            return values.encode(last)
        self.head = _STREAM
        method = "notifications/agents/run/progress"
        frames: list[dict[str, Any]] = [
            {"jsonrpc": "2.0", "method": method, "params": {"progressToken": self._token, "delta": delta}}
            for delta in told
        ]
        if self._session is not None:
            return self._session.told(self._id, [values.encode(frame) for frame in (*frames, last)])
        return KEEP_ALIVE + b"".join(sse.encode(frame) for frame in (*frames, last))

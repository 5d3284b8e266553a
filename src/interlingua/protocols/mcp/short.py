"""The short way of a request that needs nothing but a run: no progress, no thread, no run from before.

Most such runs are over with their first commit, and then there was nobody to tell anything, ask or stop: no task waits
for them. Whatever is less simple, or wrong, goes the usual way, and so does a run that takes longer.
"""

from __future__ import annotations

from typing import Any

from ...engine.engine import Engine
from ...engine.log import LiveLog
from ...model import values
from ...model.prompts import Given
from ...model.run import Caller
from ...security import scopes
from ...transports import params as params_
from ...transports.jsonrpc import Id
from . import translate, wire
from .running import failed, request_of

_NOT_SO_SIMPLE = frozenset(("progressToken", wire.META_RUN, wire.META_THREAD, wire.META_KEY))


def begin(engine: Engine, caller: Caller, params: Any, *, modern: bool = False) -> LiveLog | None:
    """Begin the run that the params of `agents/run` ask for, if they can go the short way."""
    if type(params) is not dict or "requestState" in params:
        return None
    meta = params.get("_meta") or {}
    if type(meta) is not dict or not _NOT_SO_SIMPLE.isdisjoint(meta) or (wire.META_VERSION in meta) is not modern:
        return None
    if modern and type(meta.get(wire.META_CAPABILITIES)) is not dict:
        return None
    try:
        asked = params_.read(params, wire.RunRequest)
        agent = engine.agents.find(asked.name)
        if agent is None or not scopes.may(caller, "run", agent.card.key):
            return None
        return engine.begin(request_of(agent.card, asked.input, None, caller, meta))
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


def answer(id_: Id, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "result": wire.complete(result)}


class SoonRun:
    """A run that has begun, and is answered when its first commit is its last."""

    __slots__ = ("_id", "begun", "committed")

    def __init__(self, begun: LiveLog, id_: Id) -> None:
        self.begun = begun
        self.committed = begun.flushed()
        self._id = id_

    def answer(self) -> bytes | None:
        told = result(self.begun)
        return values.encode(answer(self._id, told)) if told is not None else None

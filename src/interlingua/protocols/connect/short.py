"""The short way of a run that is created and waited for, or streamed, and has nothing about it that takes looking up.

Most such runs are over with their first commit. Whatever is less simple, or wrong, goes the usual way, and so does a
run that takes longer: the usual way goes on with what was begun here.
"""

from __future__ import annotations

import asyncio

from ...engine.log import LiveLog
from ...model import values
from ...model.card import AgentCard
from ...model.prompts import Given
from ...model.run import Caller
from ...security import scopes
from ...transports.http import decode_json, trace_of
from .. import JSON
from . import reading, translate, wire
from .runs import Runs, stated
from .stream import whole

_KEY = b"idempotency-key"
_JSON = (b"content-type", b"application/json")


def begin(door: Runs, caller: Caller, headers: list[tuple[bytes, bytes]], data: bytes) -> SoonRun | None:
    """Begin the run that a body asks for and waits for, if it can go the short way."""
    begun = _begin(door, caller, headers, data, streams=False)
    return SoonRun(door, begun[0], caller) if begun is not None else None


def begin_stream(
    door: Runs, path: str, caller: Caller, headers: list[tuple[bytes, bytes]], data: bytes
) -> SoonStream | None:
    """The same for a run whose stream is wanted. `path` is where runs are."""
    begun = _begin(door, caller, headers, data, streams=True)
    return SoonStream(*begun, caller, path) if begun is not None else None


def _begin(
    door: Runs, caller: Caller, headers: list[tuple[bytes, bytes]], data: bytes, *, streams: bool
) -> tuple[LiveLog, AgentCard, list[str]] | None:
    if door.stopping or _JSON not in headers or len(data) > door.settings.limits.max_body_bytes:
        return None
    try:
        body = decode_json(data, wire.RunCreateStateless)
        if not body.agent_id or body.on_completion == "keep" or body.after_seconds:
            return None
        if body.webhook is not None or body.callback is not None:
            return None
        card = door.runnable(body.agent_id, caller)
        scopes.require(caller, "run", card.key)
        modes = reading.modes(body.stream_mode)
        if streams or body.stream_mode is not None:
            able = translate.capabilities(card)["streaming"]
            if not all(able[mode] for mode in modes):
                return None
        config = body.config.configurable if body.config is not None else None
        asked = stated(body, card, config, caller, watched=True)
        keys = [value for name, value in headers if name == _KEY]
        asked.key = keys[0].decode("latin-1") if keys else None
        asked.trace = trace_of(headers)
        begun = door.engine.begin(asked)
    except Exception:
        return None  # the usual way tells what is wrong
    return (begun, card, modes) if begun is not None else None


class SoonRun:
    """A run that has begun, and is answered when its first commit is its last."""

    __slots__ = ("_caller", "_door", "begun", "committed")
    head = JSON

    def __init__(self, door: Runs, begun: LiveLog, caller: Caller) -> None:
        self._door = door
        self._caller = caller
        self.begun = begun
        self.committed = begun.flushed()

    def again(self) -> asyncio.Future[None] | None:
        return self.begun.unless_it_waits()

    def answer(self) -> bytes | None:
        log = self.begun
        events = log.since(0) if log.finished is not None else None
        if events is None:
            return None
        given = Given()
        for event in events:
            given.feed(event)
        run = self._door.engine.begun(log)
        return values.encode(self._door.waited(run, self._caller, given.messages()))


class SoonStream:
    """A run that has begun, and whose whole stream is told when its first commit is its last."""

    __slots__ = ("_caller", "_card", "_modes", "begun", "committed", "head")

    def __init__(self, begun: LiveLog, card: AgentCard, modes: list[str], caller: Caller, path: str) -> None:
        self._card = card
        self._modes = modes
        self._caller = caller
        self.begun = begun
        self.committed = begun.flushed()
        self.head = (
            b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
            b"content-location: %s%s\r\n" % (path.encode(), begun.row.id.encode())
        )

    def again(self) -> None:
        """What is told of a run is told when it is there."""

    def answer(self) -> bytes | None:
        log = self.begun
        events = log.since(0) if log.finished is not None else None
        return None if events is None else whole(log.row.id, events, self._modes, self._card, self._caller.id)

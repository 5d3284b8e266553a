"""The short way of a run that is created and waited for, and has nothing about it that takes looking up.

Most such runs are over with their first commit. Whatever is less simple, or wrong, goes the usual way, and so does a
run that takes longer: the usual way goes on with what was begun here.
"""

from __future__ import annotations

from ...engine.log import LiveLog
from ...model import carrier, values
from ...model.prompts import Given
from ...model.run import Caller
from ...security import scopes
from ...transports.http import decode_json
from . import wire
from .runs import Runs, stated

_ODD_HEADERS = frozenset((b"idempotency-key", *(name.encode() for name in carrier.NAMES)))
_JSON = (b"content-type", b"application/json")


def begin(door: Runs, caller: Caller, headers: list[tuple[bytes, bytes]], data: bytes) -> SoonRun | None:
    """Begin the run that a body asks for, if it can go the short way."""
    if door.stopping or _JSON not in headers or len(data) > door.settings.limits.max_body_bytes:
        return None
    if not _ODD_HEADERS.isdisjoint([name for name, _ in headers]):
        return None
    try:
        body = decode_json(data, wire.RunCreateStateless)
        if not body.agent_id or body.on_completion == "keep" or body.after_seconds or body.stream_mode is not None:
            return None
        if body.webhook is not None or body.callback is not None:
            return None
        card = door.runnable(body.agent_id, caller)
        scopes.require(caller, "run", card.key)
        config = body.config.configurable if body.config is not None else None
        begun = door.engine.begin(stated(body, card, config, caller, watched=True))
    except Exception:
        return None  # the usual way tells what is wrong
    return SoonRun(door, begun, caller) if begun is not None else None


class SoonRun:
    """A run that has begun, and is answered when its first commit is its last."""

    __slots__ = ("_caller", "_door", "begun", "committed")

    def __init__(self, door: Runs, begun: LiveLog, caller: Caller) -> None:
        self._door = door
        self._caller = caller
        self.begun = begun
        self.committed = begun.flushed()

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

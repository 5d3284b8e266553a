"""The short way of a message, and of a task whose stream is wanted: both begin a run, and most such runs are over with
their first commit, which tells of them too.

Whatever is less simple, or wrong, goes the usual way, and so does a run that takes longer: the usual way goes on with
what was begun here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ...model.run import Caller
from ...security import scopes
from ...security.auth import ANONYMOUS
from ...transports.http import decode_json, trace_of
from .. import JSON
from . import states
from .door_sending import Started
from .stream import ready, whole
from .tasking import Surface

if TYPE_CHECKING:
    from .journal import Feed
    from .server import PeerDoor
    from .witnessing import Witnessed

Headers = list[tuple[bytes, bytes]]

_ORIGIN = b"origin"
_STREAM = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"


def send(door: PeerDoor, caller: Caller, headers: Headers, data: bytes) -> SoonReply | None:
    """Begin what a message asks for, if that can go the short way."""
    try:
        asked = _read(door, caller, headers, data)
        started = None if asked is None else door.door_sending.begin_at_once(*asked, trace_of(headers))
    except Exception:
        return None  # the usual way tells what is wrong
    return None if started is None else SoonReply(door, started)


def create(door: PeerDoor, caller: Caller, headers: Headers, data: bytes) -> SoonTask | None:
    """Make the task that a body describes, where its stream is wanted and all of that can go the short way."""
    if not any(name == b"accept" and b"text/event-stream" in value for name, value in headers):
        return None
    try:
        asked = _read(door, caller, headers, data)
        if asked is None:
            return None
        body, surface = asked
        door.streams.check_room(surface)
        feed = door.streams.feed(surface)
        place = feed.place
        begun = None if place is None else door.node.tasking.create_at_once(body, surface, trace_of(headers))
    except Exception:
        return None
    return None if begun is None or place is None else SoonTask(door, begun, feed, place)


def _read(door: PeerDoor, caller: Caller, headers: Headers, data: bytes) -> tuple[dict[str, Any], Surface] | None:
    if not door.node.running or len(data) > door.limits.max_body_bytes or any(name == _ORIGIN for name, _ in headers):
        return None
    surface = Surface.of_caller(caller, caller == ANONYMOUS)
    scopes.require(caller, "run")
    return decode_json(data, dict[str, Any]), surface


class MadeTask:
    """A task whose run was begun at once."""

    __slots__ = ("begun", "place")

    def __init__(self, begun: Witnessed, place: int) -> None:
        self.begun = begun
        self.place = place  # in the feed, before it


class SoonReply:
    """A message whose run has begun."""

    __slots__ = ("_door", "begun", "committed")
    head = JSON

    def __init__(self, door: PeerDoor, begun: Started) -> None:
        self._door = door
        self.begun = begun
        self.committed = begun.begun.settled

    def again(self) -> asyncio.Future[None] | None:
        started = self.begun
        if started.begun.stale or not started.wanted.sync:
            return None
        working, run = self._door.node.working, started.begun.run
        waiting = working.outcome(run)
        waiting.add_done_callback(lambda done: working.give_up(run, done))
        return cast("asyncio.Future[None]", waiting)

    def answer(self) -> bytes | None:
        answer = self._door.door_sending.answered(self.begun)
        return None if answer is None else msgspec.json.encode(answer)


class SoonTask:
    """A task that has begun, and whose whole stream is told when the first commit of its run is the last."""

    __slots__ = ("_door", "_feed", "begun", "committed")
    head = _STREAM

    def __init__(self, door: PeerDoor, begun: Witnessed, feed: Feed, place: int) -> None:
        self._door = door
        self._feed = feed
        self.begun = MadeTask(begun, place)
        self.committed = begun.settled

    def again(self) -> None:
        """What is told of a task is told when it is there."""

    def answer(self) -> bytes | None:
        begun, place = self.begun.begun, self.begun.place
        task = begun.task
        if begun.stale or task is None or task.status not in states.TERMINAL:
            return None
        events = self._feed.since(place, task.id)
        if not events:
            return None
        self._door.node.tasks_created += 1
        return b"".join([ready(place), *(event.sse() for event in events), whole(task)])

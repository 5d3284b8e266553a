"""Events: the stream, what every event has, their names and their numbers."""

from __future__ import annotations

import contextlib
import itertools

from ...base import Broken, Gone, NotApplicable, applies, expect, shown
from ...remembering import once
from ...rows import Row, Source, add
from ..driver import Node
from ..feed import Event, Feed
from ..nearby import found
from ..shapes import moment
from ..suite import check, suite
from ..tasks import Story
from .tasks import played, stories

TYPES = ("status", "artifact", "message", "peer", "mdns")
_NAMES = {"status": "acp.task.status", "artifact": "acp.task.artifact"}


@check("peer.4-1.stream", "peer.comparison.sse", "peer.9.d-http-sse")
async def there_is_a_stream(node: Node) -> None:
    feed = await node.opened("/stream")
    expect(feed.status == 200, f"GET /stream is answered with {feed.status}")
    expect(feed.media_type == "text/event-stream", f"the content type of GET /stream is {feed.media_type!r}")


@once
async def scene(node: Node) -> Feed:
    """The stream, after all that can happen has happened."""
    feed = await node.feed()
    await node.wire_if_any()
    for look in (played(node), stories(node).disturbed(), found(node)):
        with contextlib.suppress(NotApplicable, Broken, Gone):
            await look
    return feed


async def events_of(node: Node, kind: str | None = None) -> list[Event]:
    """Returns all events of the scene, or those of one type."""
    found = [event for event in (await scene(node)).events if kind is None or event.body.get("type") == kind]
    applies(found, f"no event of type {kind} was told" if kind else "no event was told")
    return found


def events(kind: str | None = None) -> Source:
    """The events of a type, for rows."""

    async def play(node: Node) -> list[Event]:
        return await events_of(node, kind)

    return Source(play, lambda event: f"the event {event}", each=True, value=lambda event: event.body)


_EVENTS = events()
add(
    suite,
    Row("peer.8-1.json-object", _EVENTS, filled=True),
    Row("peer.8-1.type peer.8-7.m1-type", _EVENTS, "type", str),
    Row("peer.8-1.ts peer.8-7.m1-ts", _EVENTS, "ts", str),
    Row("peer.8-7.m9-timezone peer.history.v2-44", _EVENTS, "ts", fits=moment, optional=True),
    Row("peer.8-1.seq peer.8-7.m1-seq", _EVENTS, "seq", int),
    Row("peer.8-1.task-id-status peer.8-7.m2-status peer.8-3.task-id", events("status"), "task_id", str),
    Row("peer.8-1.task-id-artifact peer.8-7.m2-artifact peer.8-4.task-id", events("artifact"), "task_id", str),
)


def _of_kind(kind: str) -> None:
    @check(f"peer.8-1.type-{kind}")
    async def events_of_the_type_are_told(node: Node) -> None:
        feed = await scene(node)
        found = feed.find(lambda event: event.body.get("type") == kind)
        if kind in ("status", "artifact"):
            story = await stories(node).completed()
            applies(story.states or kind == "status", "no status of a task was told either")
            if kind == "artifact":
                applies(story.views[-1].get("artifact") is not None, "no task came to an artifact")
        elif kind == "message":
            applies((await node.basic()).answer.status == 200, "no message could be sent")
        elif kind == "peer":
            applies(await node.wire_if_any() is not None, "no peer came")
        elif kind == "mdns":
            applies(found is not None, "no peer was found on the network meanwhile")
        expect(found is not None, f"no event of type {kind} was told on GET /stream, but {_kinds(feed)}")


def _kinds(feed: Feed) -> str:
    return ", ".join(dict.fromkeys(shown(event.body.get("type")) for event in feed.events)) or "nothing at all"


for _kind in TYPES:
    _of_kind(_kind)


async def _numbers(node: Node) -> list[int]:
    found = [event.body.get("seq") for event in await events_of(node)]
    numbers = [one for one in found if isinstance(one, int)]
    applies(len(numbers) > 1, "events have no seq")
    return numbers


@check("peer.8-7.m7-seq-rises")
async def numbers_rise(node: Node) -> None:
    numbers = await _numbers(node)
    for before, after in itertools.pairwise(numbers):
        expect(after > before, f"after the seq {before} comes {after}")


@check("peer.8-7.m7-seq-no-gap")
async def numbers_have_no_gaps(node: Node) -> None:
    numbers = await _numbers(node)
    for before, after in itertools.pairwise(numbers):
        expect(after <= before + 1, f"between the seq {before} and {after} something is missing")


@check("peer.8-1.seq-all-types")
async def every_type_has_its_place_in_one_count(node: Node) -> None:
    first: dict[str, int] = {}
    last = -1
    for event in await events_of(node):
        kind, seq = event.body.get("type"), event.body.get("seq")
        if kind in TYPES and isinstance(seq, int):
            again = seq <= last and kind not in first
            expect(not again, f"events of type {kind} are counted by themselves: {event} comes after {last}")
            first.setdefault(str(kind), seq)
            last = max(last, seq)


@check("peer.8-1.seq-global", "peer.8-7.m7-seq-no-reset")
async def another_reader_sees_the_same_count(node: Node) -> None:
    feed = await scene(node)
    start = len(feed.events)
    other = await node.opened("/stream")
    story = await stories(node).create()
    here = await feed.until(lambda event: _told(event, story), start)
    there = await other.until(lambda event: _told(event, story))
    applies(here is not None, "no event tells of a new task")
    expect(there is not None, "a second reader of GET /stream hears nothing of a new task")
    assert here is not None
    assert there is not None
    same = [event.body.get("seq") for event in (here, there)]
    expect(same[0] == same[1], f"one event has the seq {same[0]} for one reader and {same[1]} for another")


def _told(event: Event, story: Story) -> bool:
    return event.body.get("task_id") == story.id and event.body.get("state") == "submitted"


@check("peer.8-1.counters-independent")
async def events_and_messages_are_counted_apart(node: Node) -> None:
    await scene(node)
    await node.said()
    pairs = []
    for frame in (await node.wire()).messages:
        event = next(
            (e for e in (await node.feed()).events if e.body.get("message_id") == frame.get("message_id")), None
        )
        if event is not None and isinstance(frame.get("server_seq"), int):
            pairs.append((event.body.get("seq"), frame["server_seq"]))
    applies(len(pairs) > 1, "no two messages with a server_seq were told as events")
    expect(any(a != b for a, b in pairs), f"seq and server_seq are one counter: {pairs}")


# -- names ----------------------------------------------------------------------------------------------------


def _named(ident: str, kind: str) -> None:
    @check(f"peer.8-1-1.{ident}")
    async def the_name_of_the_event_is_right(node: Node) -> None:
        wanted = _NAMES.get(kind)
        for event in await events_of(node, kind):
            # "message" is what an event without a name is called in the standard, so that it says the same.
            name = None if event.name == "message" else event.name
            expect(
                name == wanted, f"an event of type {kind} is named {event.name!r}, not {wanted or 'unnamed'}: {event}"
            )


_named("status-named", "status")
_named("artifact-named", "artifact")
_named("message-unnamed", "message")
_named("peer-unnamed", "peer")
_named("mdns-unnamed", "mdns")


# -- task_id --------------------------------------------------------------------------------------------------


@check("peer.8-1.task-id-related")
async def what_belongs_to_a_task_names_it(node: Node) -> None:
    story = await stories(node).completed()
    await events_of(node)
    applies(story.feed is not None, "there is no stream")
    expect(story.events, f"no event names the task {story.id}, of which some must have told")

"""The order of events in the life of a task, and the stream of one task."""

from __future__ import annotations

from typing import Any

from ...base import applies, expect, shown
from ...remembering import once
from ..driver import Node
from ..feed import Event, Feed
from ..shapes import text, told
from ..suite import check
from ..tasks import RESULT, TERMINAL, Story
from .events import scene
from .tasks import played, stories


async def _told(node: Node, name: str = "completed", *states: str) -> Story:
    """Returns a story whose states came as events."""
    await node.feed()
    story: Story = await getattr(stories(node), name)()
    story.need(*states)
    applies(story.states, f"no event told of the states of {story.id}")
    return story


def _list(states: list[Any]) -> str:
    return ", ".join(map(str, states))


@check("peer.8-2.submitted-first", "peer.history.v2-5")
async def submitted_is_told_first(node: Node) -> None:
    await scene(node)
    for story in await played(node):
        if story.events:
            first = story.events[0]
            fits = (first.body.get("type"), first.body.get("state")) == ("status", "submitted")
            expect(fits, f"the first event of a task is {first}")
    await _told(node)


@check("peer.8-7.m3-submitted-before-working")
async def submitted_comes_before_working(node: Node) -> None:
    states = (await _told(node, "completed", "working")).states
    early = "working" in states and "submitted" not in states[: states.index("working")]
    expect(not early, f"working is told without submitted before it: {_list(states)}")


@check("peer.8-7.m4-nothing-before-submitted")
async def nothing_comes_before_submitted(node: Node) -> None:
    await _told(node)
    for story in await played(node):
        before = story.states[: story.states.index("submitted")] if "submitted" in story.states else story.states
        expect(not before, f"before submitted a task is told to be {_list(before)}")


@check("peer.8-7.m6-one-submitted")
async def submitted_is_told_once(node: Node) -> None:
    await _told(node)
    for story in await played(node):
        count = story.states.count("submitted")
        expect(count == 1 or not story.states, f"submitted is told {count} times of one task: {_list(story.states)}")


@check("peer.8-2.working-second")
async def working_is_told_second(node: Node) -> None:
    states = (await _told(node, "completed", "working")).states
    after = states[states.index("submitted") + 1 :] if "submitted" in states else states
    expect(after[:1] == ["working"], f"after submitted a task is told to be {_list(after[:1])}")


@check("peer.8-2.artifacts-third")
async def artifacts_come_between(node: Node) -> None:
    story = await _told(node, "completed", "completed")
    kinds = [event.body.get("state") or event.body.get("type") for event in story.events]
    applies("artifact" in kinds, "the task had no artifact events")
    applies("working" in kinds and "completed" in kinds, f"the task was told as {_list(kinds)}")
    places = [at for at, kind in enumerate(kinds) if kind == "artifact"]
    fits = kinds.index("working") < places[0] and places[-1] < kinds.index("completed")
    expect(fits, f"artifacts are not told after working and before completed: {_list(kinds)}")


@check("peer.8-2.completed-last")
async def completed_is_told_last(node: Node) -> None:
    story = await _told(node, "completed", "completed")
    await stories(node).disturbed()
    last = story.events[-1]
    expect(last.body.get("state") == "completed", f"the last event of a completed task is {last}")


@check("peer.8-7.s-final-event")
async def the_end_is_told_last(node: Node) -> None:
    await _told(node)
    for story in await played(node):
        if story.views[-1].get("status") in ("completed", "failed") and story.events:
            last = story.events[-1]
            expect(last.body.get("state") in ("completed", "failed"), f"the last event of a task that ended is {last}")


def _path(ident: str, name: str, *states: str) -> None:
    @check(f"peer.8-2.{ident}")
    async def the_states_are_told_in_order(node: Node) -> None:
        told_states = (await _told(node, name, states[-1])).states[: len(states)]
        expect(
            told_states == list(states), f"the states are told as {_list(told_states)}, not as {_list(list(states))}"
        )


_path("failed-path", "failed", "submitted", "working", "failed")
_path("input-required-path", "asked", "submitted", "working", "input_required")
_path("cancel-path", "cancelled", "submitted", "working", "cancelling", "canceled")


@check("peer.8-2.cancelling-before-canceled")
async def cancelling_is_told_before_canceled(node: Node) -> None:
    await _told(node, "cancelled", "canceled")
    for story in await played(node):
        if "canceled" in story.states:
            before = story.states[: story.states.index("canceled")]
            expect("cancelling" in before, f"canceled is told without cancelling before it: {_list(story.states)}")


@check("peer.8.deterministic")
async def events_tell_all_that_there_is_to_know(node: Node) -> None:
    await _told(node)
    for story in await played(node):
        status = (await story.look()).get("status")
        if status in TERMINAL:
            last = story.states[-1] if story.states else None
            expect(last == status, f"a task is {shown(status)}, and its events end with {shown(last)}")


# -- the stream of one task -----------------------------------------------------------------------------------


@once
async def _subscribed(node: Node) -> tuple[Story, Feed]:
    """The stream of one task, while another task is made."""
    story = await stories(node).create()
    feed = await node.opened(f"{story.path}:subscribe")
    if not feed.streams:
        return story, feed
    if (await story.look()).get("status") not in TERMINAL:
        await stories(node).create()
        if await stories(node).kind() == "driven":
            await story.put("working", status="working")
            await story.put("completed", status="completed", artifact=RESULT)
        await story.reach("completed")
    await feed.until(lambda event: event.body.get("state") in TERMINAL)
    return story, feed


@check("peer.8.subscribe")
async def the_events_of_one_task_can_be_read(node: Node) -> None:
    story, feed = await _subscribed(node)
    where = f"GET {story.path}:subscribe"
    expect(feed.streams, f"{where} is answered with {feed.status} and {feed.media_type or 'no type'}")
    applies(story.answers or feed.events, "the task had ended before its stream was opened")
    story.need("completed")
    of_tasks = [event for event in feed.events if event.body.get("type") in ("status", "artifact")]
    others = [event for event in of_tasks if event.body.get("task_id") != story.id]
    expect(not others, f"{where} tells of another task: {others[0] if others else ''}")
    ended = [event for event in of_tasks if event.body.get("state") == "completed"]
    expect(ended, f"{where} does not tell that the task was completed, but {_list([str(one) for one in of_tasks])}")


# -- the whole example ----------------------------------------------------------------------------------------


@once
async def _example(node: Node) -> list[Event]:
    """A task as in the document's example: six events, two of them messages."""
    await node.feed()
    await node.wire()
    await node.sends()
    applies(await stories(node).kind() == "driven", "the node works on its tasks itself, so that its events differ")
    story = await stories(node).create()
    for role, state in (("user", "working"), ("agent", "")):
        sent = await node.say({"role": role, "parts": [text("{mark}")], "task_id": story.id})
        applies(sent.answer.status == 200, f"no message is taken with a task_id: {told(sent.answer)}")
        if state:
            applies(await story.put(state, status=state), story.trouble)
    applies(await story.put("completed", status="completed", artifact=RESULT), story.trouble)
    await story.settled()
    applies(story.events, "no event told of the task")
    return story.events


def _kinds(events: list[Event]) -> list[Any]:
    return [event.body.get("state") or event.body.get("type") for event in events]


@check("peer.8-6.wire")
async def the_example_is_told_as_in_the_document(node: Node) -> None:
    kinds = _kinds(await _example(node))
    applies(kinds.count("message") == 2, "messages of a task are not told with its task_id")
    wanted = ["submitted", "message", "working", "message", "artifact", "completed"]
    expect(kinds == wanted, f"the events are {_list(kinds)}, not {_list(wanted)}")


@check("peer.8-6.names")
async def the_events_of_the_example_have_their_names(node: Node) -> None:
    for event in await _example(node):
        kind = event.body.get("type")
        wanted = {"status": "acp.task.status", "artifact": "acp.task.artifact"}.get(str(kind))
        name = None if event.name == "message" else event.name
        expect(name == wanted, f"an event of type {kind} is named {event.name!r}: {event}")


@check("peer.8-6.seq")
async def the_events_of_the_example_are_counted_without_a_gap(node: Node) -> None:
    events = await _example(node)
    feed = await node.feed()
    # Other events may come meanwhile: all events between the first and the last are counted, of whatever kind.
    between = feed.events[feed.events.index(events[0]) : feed.events.index(events[-1]) + 1]
    numbers = [event.body.get("seq") for event in between]
    first = numbers[0]
    applies(isinstance(first, int), "events have no seq")
    assert isinstance(first, int)
    expect(numbers == list(range(first, first + len(numbers))), f"the events of one task are counted {numbers}")


@check("peer.8-7.y-messages-between")
async def messages_can_come_between(node: Node) -> None:
    kinds = _kinds((await _told(node, "completed", "completed")).events)
    applies("working" in kinds, f"the task was told as {_list(kinds)}")
    between = [at for at, kind in enumerate(kinds) if kind == "message" and at > kinds.index("working")]
    applies(between, "no message event came while the task was working")
    expect(between[-1] < len(kinds) - 1, f"a message event comes after the end: {_list(kinds)}")


@check("peer.8-7.y-several-artifacts")
async def there_can_be_several_artifacts(node: Node) -> None:
    story = await _told(node, "completed", "completed")
    found = [event for event in story.events if event.body.get("type") == "artifact"]
    applies(len(found) > 1, "the task had no more than one artifact event")
    for event in found:
        expect(isinstance(event.body.get("artifact"), dict), f"an artifact event has no artifact: {event}")


# -- messages of a task ---------------------------------------------------------------------------------------


@once
async def _of_a_task(node: Node) -> tuple[Story, Any]:
    await node.sends()
    applies(
        await stories(node).kind() == "driven", "messages to a task of this node are for the agent that works on it"
    )
    story = await stories(node).create()
    return story, await node.say({"role": "user", "parts": [text("{mark}")], "task_id": story.id})


@check("peer.4-2.task-id-optional")
async def a_message_can_belong_to_a_task(node: Node) -> None:
    story, sent = await _of_a_task(node)
    expect(sent.answer.status == 200, f"a message with the task_id {story.id} is answered with {told(sent.answer)}")


@check("peer.1-2.task-id")
async def the_task_goes_along(node: Node) -> None:
    story, sent = await _of_a_task(node)
    applies(sent.answer.status == 200, sent.why)
    given = sent.arrived.get("task_id")
    expect(given == story.id, f"a message with the task_id {story.id} goes out with {shown(given)}")

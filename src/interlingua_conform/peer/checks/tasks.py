"""Tasks: how they are made and look, and from which state they come to which."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

from ...base import Broken, Gone, NotApplicable, applies, expect, member, shown
from ...remembering import once
from ...rows import Row, Source, add
from ..driver import Node
from ..shapes import absent, listed, moment, parts_of, refused, told
from ..suite import check, suite
from ..tasks import RESULT, STATES, TERMINAL, Story, Tasks, task_of
from ..wires import new_id


def stories(node: Node) -> Tasks:
    return Tasks.of(node)


@check("peer.4-1.tasks-create", "peer.3.delegated-work")
async def a_task_can_be_created(node: Node) -> None:
    await node.wire_if_any()
    body, answer = await stories(node).ask()
    expect(answer.status in (200, 201), f"POST /tasks of {shown(body)} is answered with {told(answer)}")
    member(task_of(answer), "id", str, "the new task")


@check("peer.3-1.initial-submitted")
async def a_new_task_is_submitted(node: Node) -> None:
    story = await stories(node).completed()
    first = story.states[0] if story.states else story.view.get("status")
    expect(first == "submitted", f"the first state of a task is {shown(first)}: {shown(story.view)}")


@check("peer.4-1.task-get")
async def a_task_can_be_looked_at(node: Node) -> None:
    story = await stories(node).create()
    answer = await node.ask("GET", story.path)
    expect(answer.status == 200, f"GET {story.path} is answered with {told(answer)}")
    got = member(task_of(answer), "id", str, "the task")
    expect(got == story.id, f"GET {story.path} gives the task {got}")


@check("peer.4-1.tasks-list")
async def tasks_are_listed(node: Node) -> None:
    story = await stories(node).create()
    answer = await node.ask("GET", "/tasks")
    expect(answer.status == 200, f"GET /tasks is answered with {told(answer)}")
    body = answer.json()
    tasks = listed(body, "tasks")
    expect(tasks, f"GET /tasks lists no tasks: {shown(body)}")
    more = isinstance(body, dict) and body.get("has_more") is True
    there = more or any(task.get("id") == story.id for task in tasks)
    expect(there, f"GET /tasks does not list the new task {story.id}: {[task.get('id') for task in tasks]}")


@check("peer.4-1.task-put")
async def a_task_can_be_changed(node: Node) -> None:
    story = await stories(node).create()
    answer = await node.ask("PUT", story.path, {"status": "working"})
    expect(not absent(answer), f"PUT /tasks/{{id}} is answered with {told(answer)}")
    if answer.status == 400 and await stories(node).kind() == "itself":
        applies(False, f"the node works on its tasks itself, and lets nobody else: {told(answer)}")
    expect(answer.status == 200, f"PUT {story.path} with the status working is answered with {told(answer)}")
    status = (await story.look()).get("status")
    expect(status in ("working", *TERMINAL), f"after PUT {story.path} with the status working it is {shown(status)}")


# -- from state to state --------------------------------------------------------------------------------------


async def _step(story: Story, name: str, before: str, after: str) -> None:
    """A task went from one state to another; `name` is what was asked of it for that."""
    if before != "submitted":
        story.need(before)
    answer = story.answers.get(name)
    if answer is not None:
        applies(not absent(answer), f"there is no way to tell of it: {told(answer)}")
        expect(answer.status == 200, f"a task cannot go from {before} to {after}: {told(answer)}")
    told_states = story.states
    seen = told_states if told_states else story.statuses
    expect(after in seen, f"a task did not go from {before} to {after}, but through {', '.join(map(str, seen))}")
    if told_states and before in told_states:
        follows = any(a == before and b == after for a, b in itertools.pairwise(told_states))
        expect(follows, f"{after} does not follow {before}, but the states are {', '.join(map(str, told_states))}")


def _arrow(ident: str, story: str, name: str, before: str, after: str) -> None:
    @check(f"peer.3-1.{ident}")
    async def a_task_goes_along_the_arrow(node: Node) -> None:
        await _step(await getattr(stories(node), story)(), name, before, after)


_arrow("submitted-working", "completed", "working", "submitted", "working")
_arrow("working-completed", "completed", "completed", "working", "completed")
_arrow("working-failed", "failed", "failed", "working", "failed")
_arrow("working-input-required", "asked", "input_required", "working", "input_required")
_arrow("input-required-working", "asked", "continue", "input_required", "working")
_arrow("input-required-cancelling", "cancelled_asked", "cancel", "input_required", "cancelling")
_arrow("working-cancelling", "cancelled", "cancel", "working", "cancelling")
_arrow("cancelling-canceled", "cancelled", "cancel", "cancelling", "canceled")


@check("peer.3-1.submitted-canceled")
async def a_submitted_task_can_be_canceled(node: Node) -> None:
    story = await stories(node).cancelled_early()
    expect(story.views[-1].get("status") == "canceled", f"a submitted task is not canceled: {story.trouble}")


@check("peer.3-2.submitted")
async def submitted_is_not_the_end(node: Node) -> None:
    story = await stories(node).completed()
    expect("submitted" in (story.states or [story.view.get("status")]), f"a new task is {story.view.get('status')}")
    expect(story.views[-1].get("status") != "submitted", f"a submitted task goes no further: {story.trouble}")


def _state(ident: str, story: str, state: str, ends: bool) -> None:
    @check(f"peer.3-2.{ident}")
    async def the_state_is_what_it_says(node: Node) -> None:
        found: Story = await getattr(stories(node), story)()
        seen = found.states + found.statuses
        if state not in seen and found.trouble:
            applies(False, found.trouble)
        expect(state in seen, f"a task was never {state}, but {', '.join(dict.fromkeys(map(str, seen)))}")
        if ends:
            expect(seen[-1] == state, f"a task that was {state} is {shown(seen[-1])} later")
        elif "canceled" in seen or "completed" in seen or "failed" in seen:
            expect(seen[-1] != state, f"a task stays {state}")


_state("working", "completed", "working", False)
_state("completed", "completed", "completed", True)
_state("failed", "failed", "failed", True)
_state("input-required", "asked", "input_required", False)
_state("cancelling", "cancelled", "cancelling", False)
_state("canceled", "cancelled", "canceled", True)


@check("peer.8-2.final-artifact")
async def the_final_artifact_is_attached(node: Node) -> None:
    story = await stories(node).completed()
    story.need("completed")
    applies("completed" in story.answers or story.views[-1].get("artifact") is not None, "the task came to no artifact")
    artifact = member(story.views[-1], "artifact", dict, "the completed task")
    if "completed" in story.answers:
        expect(artifact.get("parts") == RESULT["parts"], f"the artifact of the completed task is {shown(artifact)}")


def _final(ident: str, state: str) -> None:
    @check(f"peer.3-3.{ident}")
    async def it_stays_as_it_is(node: Node) -> None:
        await getattr(stories(node), {"canceled": "cancelled"}.get(state, state))()
        seen = await stories(node).disturbed()
        applies(state in seen, f"no task was {state} in the end")
        story, answer, after = seen[state]
        status = after.get("status")
        expect(status == state, f"a {state} task became {shown(status)} by PUT {{'status': 'working'}}: {told(answer)}")
        later = story.states[story.states.index(state) + 1 :] if state in story.states else []
        expect(not later, f"after {state} a task is told as {', '.join(map(str, later))}")


_final("completed-final", "completed")
_final("failed-final", "failed")
_final("canceled-final", "canceled")


@check("peer.8-7.m5-terminal")
async def what_has_ended_stays_so(node: Node) -> None:
    seen = await stories(node).disturbed()
    applies(seen, "no task has ended")
    for state, (_, answer, after) in seen.items():
        status = after.get("status")
        expect(status == state, f"a {state} task became {shown(status)} by PUT {{'status': 'working'}}: {told(answer)}")


@check("peer.6.invalid-request-transition")
async def a_step_that_is_not_allowed_is_refused(node: Node) -> None:
    seen = await stories(node).disturbed()
    tried = {state: answer for state, (_, answer, _) in seen.items() if not absent(answer)}
    applies(tried, "there is no way to ask for a change of state")
    for state, answer in tried.items():
        refused(answer, 400, "ERR_INVALID_REQUEST", f"PUT with the status working on a {state} task")


@check("peer.comparison.no-unknown-state")
async def there_are_no_other_states(node: Node) -> None:
    for story in await played(node):
        for status in [*story.states, *(view.get("status") for view in story.views)]:
            expect(status in STATES, f"a task is in the state {shown(status)}")


# -- how it looks ---------------------------------------------------------------------------------------------


@once
async def played(node: Node) -> list[Story]:
    """Returns every story that can be played with this node."""
    found = []
    for name in ("completed", "failed", "asked", "cancelled", "cancelled_early", "cancelled_asked"):
        with contextlib.suppress(NotApplicable, Broken, Gone):
            found.append(await getattr(stories(node), name)())
    applies(found, "no task can be created")
    return found


async def _looked(node: Node) -> dict[str, Any]:
    story = await stories(node).create()
    return await story.look()


async def _completed(node: Node) -> dict[str, Any]:
    story = await stories(node).completed()
    story.need("completed")
    return story.views[-1]


async def _failed(node: Node) -> dict[str, Any]:
    story = await stories(node).failed()
    story.need("failed")
    return story.views[-1]


_TASK, _COMPLETED = Source(_looked, "a task"), Source(_completed, "a completed task")
add(
    suite,
    Row("peer.3-4.id", _TASK, "id", str, filled=True),
    Row("peer.3-4.status", _TASK, "status", str, one_of=STATES),
    Row("peer.3-4.created-at", _TASK, "created_at", fits=moment),
    Row("peer.3-4.input", _TASK, "input.parts", fits=parts_of),
    Row("peer.3-4.error", Source(_failed, "a failed task"), "error", str, filled=True),
    Row("peer.3-2.completed-artifact", _COMPLETED, "artifact", dict, optional=True, null=True),
)


@check("peer.3-4.updated-at")
async def a_task_says_when_it_changed(node: Node) -> None:
    story = await stories(node).completed()
    story.need("completed")
    made = moment(story.view.get("created_at"), "created_at of a task")
    last = story.views[-1].get("updated_at")
    changed = moment(last, "updated_at of a task")
    # A node that gives whole seconds only cannot order the events within one.
    moved = changed > made or (changed == made and "." not in str(last))
    expect(moved, f"updated_at of a completed task is {last}, and it was created at {story.view.get('created_at')}")


@check("peer.3-4.artifact")
async def a_completed_task_holds_its_artifact(node: Node) -> None:
    story = await stories(node).completed()
    story.need("completed")
    told_of = any(event.body.get("type") == "artifact" for event in story.events) or "completed" in story.answers
    applies(told_of, "the task came to no artifact")
    artifact = member(story.views[-1], "artifact", dict, "a completed task")
    parts_of(artifact.get("parts"), "artifact of a completed task")


@check("peer.3-4.message-id")
async def a_task_names_the_message_that_made_it(node: Node) -> None:
    given = new_id()
    story = await stories(node).create(message_id=given)
    got = member(await story.look(), "message_id", str, "a task")
    expect(got == given, f"the message_id of a task that was created with {given} is {got}")

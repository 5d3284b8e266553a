"""Cancelling in two phases, and going on after input was asked for."""

from __future__ import annotations

from ...base import applies, expect, member, shown
from ..driver import Node
from ..shapes import absent, told
from ..suite import check
from ..tasks import Story
from .tasks import stories


def _cancelled(story: Story) -> None:
    answer = story.answers.get("cancel")
    applies(answer is not None and answer.status == 200, story.trouble or "no task could be cancelled")


@check("peer.4-1.task-cancel")
async def a_task_can_be_cancelled(node: Node) -> None:
    story = await stories(node).lasting()
    answer = await node.ask("POST", f"{story.path}:cancel")
    if answer.status != 200 and (await story.look()).get("status") in ("completed", "failed"):
        applies(False, "the task ended before it could be cancelled")
    expect(answer.status == 200, f"POST {story.path}:cancel is answered with {told(answer)}")


@check("peer.3-3-1.response")
async def the_answer_says_cancelling(node: Node) -> None:
    story = await stories(node).cancelled()
    answer = story.answers.get("cancel")
    applies(answer is not None, story.trouble)
    assert answer is not None
    expect(answer.status == 200, f":cancel is answered with {told(answer)}")
    body = answer.json()
    status = body.get("status") if isinstance(body, dict) else None
    expect(status == "cancelling", f"the status of the answer to :cancel is {shown(status)}: {shown(body)}")


def _from(ident: str, story: str, state: str) -> None:
    @check(f"peer.3-3.cancel-from-{ident}")
    async def it_can_be_cancelled_from_there(node: Node) -> None:
        found: Story = await getattr(stories(node), story)()
        found.need(state)
        answer = found.answers.get("cancel")
        applies(answer is not None, found.trouble)
        assert answer is not None
        expect(answer.status == 200, f":cancel of a {state} task is answered with {told(answer)}")


_from("submitted", "cancelled_early", "submitted")
_from("working", "cancelled", "working")
_from("input-required", "cancelled_asked", "input_required")


@check("peer.3-1.cancel-first-cancelling", "peer.3-3-1.phase-1-state")
async def a_task_is_cancelling_first(node: Node) -> None:
    story = await stories(node).cancelled()
    _cancelled(story)
    body = story.answers["cancel"].json()
    seen = [body.get("status") if isinstance(body, dict) else None, *story.states]
    expect("cancelling" in seen, f"a task that is cancelled is never cancelling, but {', '.join(map(str, seen))}")


def _event(ident: str, state: str) -> None:
    @check(ident)
    async def the_phase_is_told_as_an_event(node: Node) -> None:
        await node.feed()
        story = await stories(node).cancelled()
        _cancelled(story)
        expect(state in story.states, f"no event tells of {state}, but of {', '.join(map(str, story.states))}")


_event("peer.3-1.cancel-event", "cancelling")
_event("peer.3-3-1.phase-1-event", "cancelling")
_event("peer.3-3-1.slow-work", "cancelling")
_event("peer.3-3-1.phase-2-event", "canceled")


@check("peer.3-3.canceled-asynchronously", "peer.3-3-1.phase-2-state")
async def the_server_finishes_it_by_itself(node: Node) -> None:
    story = await stories(node).cancelled()
    _cancelled(story)
    status = story.views[-1].get("status")
    expect(status == "canceled", f"a task that was cancelled is {shown(status)} after {node.subject.patience:g} s")


def _again(ident: str, name: str) -> None:
    @check(f"peer.3-3.{ident}")
    async def cancelling_again_changes_nothing(node: Node) -> None:
        story = await stories(node).cancelled()
        _cancelled(story)
        answer = story.answers.get(name)
        applies(answer is not None, story.trouble or "the task was not cancelled in the end")
        assert answer is not None
        expect(answer.status == 200, f":cancel {name.removeprefix('cancel ')} is answered with {told(answer)}")
        status = member(answer.json(), "status", str, "the answer to :cancel")
        expect(status in ("cancelling", "canceled"), f":cancel of a cancelled task says that it is {status}")
        once_each = story.states.count("cancelling") <= 1 and story.states.count("canceled") <= 1
        expect(once_each, f":cancel once more has another effect: {', '.join(map(str, story.states))}")


_again("cancel-cancelling-idempotent", "cancel at once again")
_again("cancel-canceled-idempotent", "cancel when canceled")


@check("peer.comparison.cancel-specified", "peer.history.v2-6")
async def cancelling_has_two_phases(node: Node) -> None:
    story = await stories(node).cancelled()
    _cancelled(story)
    seen = [state for state in story.states if state in ("cancelling", "canceled")]
    applies(story.feed is not None, "there is no stream to see both phases on")
    expect(seen == ["cancelling", "canceled"], f"a cancel is told as {', '.join(map(str, seen)) or 'nothing'}")


# -- going on -------------------------------------------------------------------------------------------------


@check("peer.4-1.task-continue")
async def there_is_a_way_to_continue(node: Node) -> None:
    story = await stories(node).asked()
    story.need("input_required")
    answer = story.answers["continue"]
    expect(answer.status == 200, f"POST {story.path}:continue is answered with {told(answer)}")


@check("peer.3-3.continue", "peer.8-2.continue-resumes")
async def a_continued_task_works_on(node: Node) -> None:
    story = await stories(node).asked()
    story.need("input_required")
    answer = story.answers["continue"]
    applies(answer.status == 200, story.trouble)
    views = [view.get("status") for view in story.views]
    seen = story.states if "input_required" in story.states else views
    after = [state for state in seen[seen.index("input_required") :] if state != "input_required"]
    expect(after[:1] == ["working"], f"after input_required and :continue a task is {', '.join(map(str, after))}")


@check("peer.3-3.continue-slash-path")
async def the_path_can_be_spelled_with_a_slash(node: Node) -> None:
    story = await stories(node).asked()
    answer = story.answers.get("continue by slash")
    applies(answer is not None, "no task asked for input twice")
    assert answer is not None
    applies(not absent(answer), "POST /tasks/{id}/continue is not there beside :continue, as in the table of endpoints")
    expect(answer.status == 200, f"POST {story.path}/continue is answered with {told(answer)}")


@check("peer.8-2.continue-outcomes")
async def a_continued_task_comes_to_an_end(node: Node) -> None:
    story = await stories(node).asked()
    story.need("input_required")
    applies(story.answers["continue"].status == 200, story.trouble)
    status = story.views[-1].get("status")
    ended = status in ("completed", "failed", "canceled")
    expect(ended, f"a task that was continued is {shown(status)} in the end: {story.trouble}")

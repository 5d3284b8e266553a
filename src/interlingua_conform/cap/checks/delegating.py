"""Checks work that agents delegate to each other: to which agents they may, what the record shows of it, and what runs
side by side."""

from __future__ import annotations

from ...base import applies, expect, member, shown
from ..driver import Driver, kind, suite, words
from ..scenes import forged, talks
from ..teams import Handoff, agent_of, handoffs, inside, names, of_talk, pairs, same_agent, text
from ..wires import TEXTS
from .shapes import filled, fitting

_NONE = "no agent that was run handed anything to another, as far as the server shows it"


async def _handed(d: Driver) -> list[Handoff]:
    found = await handoffs(d)
    applies(found, _NONE)
    return found


# -- permission -----------------------------------------------------------------------------------------------


@suite.check(
    "cap.delegation.explicit-permission", "cap.definition.boundaries-enforced",
)  # fmt: skip
async def an_agent_that_may_not_delegate_hands_nothing_over(d: Driver) -> None:
    seen = await forged(d)
    what = f"a delegation_notice of {seen.sender} to {seen.talk.agent}, who is not in its allowed_agents,"
    expect(not seen.worked, f"{what} was worked on: {shown(seen.worked)}")
    expect(seen.refusal is not None, f"{what} was not refused")


@suite.check("cap.delegation.allowed-recipients-only")
async def only_those_who_are_allowed_get_a_notice(d: Driver) -> None:
    await an_agent_that_may_not_delegate_hands_nothing_over(d)
    await _all_allowed(d)


async def _all_allowed(d: Driver) -> int:
    """Checks every notice of an agent whose manifest is known; returns their number."""
    known, found = await d.known(), 0
    for one in await handoffs(d):
        allowed = known.get(agent_of(one.sender, known), {}).get("allowed_agents")
        if isinstance(allowed, list):
            found += 1
            fine = any(isinstance(id_, str) and same_agent(one.recipient, id_) for id_ in allowed)
            expect(fine, f"{one.sender} handed {one.task} to {one.recipient}; its allowed_agents are {shown(allowed)}")
    return found


@suite.check("cap.schema.allowed-agents-meaning", "cap.definition.allowed-agents")
async def tasks_are_delegated_to_the_agents_that_are_allowed(d: Driver) -> None:
    found = await _all_allowed(d)
    applies(found, "no agent whose manifest is listed handed anything over")


# -- handing over ---------------------------------------------------------------------------------------------


@suite.check("cap.overview.delegation", "cap.delegation.out-of-scope-work")
async def an_agent_hands_work_to_another(d: Driver) -> None:
    for one in await _handed(d):
        expect(one.recipient, f"a notice of {one.sender} names no recipient: {shown(one.told)}")
        expect(one.recipient != one.sender, f"{one.sender} hands {one.task} to itself: {shown(one.told)}")


@suite.check("cap.delegation.explicit")
async def whoever_works_on_a_part_of_a_task_was_handed_it(d: Driver) -> None:
    found = False
    for talk in await talks(d):
        handed = {talk.task}
        for told in talk.said if inside(talk) else []:
            task = text(told, "task_id")
            if kind(told) == "delegation_notice":
                handed.add(task)
            elif task and task != talk.task:
                found = True
                what = f"{text(told, 'sender_id')} speaks about {task}, of which there is no delegation_notice"
                expect(task in handed, f"{what}: {shown(told)}")
    applies(found, "nothing was said about a part of a task")


@suite.check("cap.delegation.summary-content")
async def a_summary_says_something(d: Driver) -> None:
    for one in await _handed(d):
        said = words(one.told) or ""
        expect(said.strip(), f"{one.sender} hands {one.task} over without a word: {shown(one.told)}")


@suite.check("cap.delegation.lineage")
async def whoever_hands_something_over_was_handed_something(d: Driver) -> None:
    for one in await _handed(d):
        before = {text(told, "recipient_id") for told in one.talk.said[: one.at] if kind(told) == "delegation_notice"}
        before |= {one.talk.agent} if not one.talk.recorded else set()
        what = f"{one.sender} hands {one.task} over, and was itself handed nothing before"
        expect(any(same_agent(one.sender, id_) for id_ in before), f"{what}: {shown(sorted(before))}")


def _below(found: list[Handoff]) -> list[tuple[Handoff, Handoff]]:
    """Pairs each delegation with the one that its sender had received before."""
    return [
        (one, above)
        for one in found
        for above in found
        if above.talk is one.talk and above.at < one.at and above.recipient == one.sender
    ]


@suite.check("cap.delegation.hierarchical")
async def whoever_was_handed_a_part_hands_parts_of_it_over(d: Driver) -> None:
    nested = _below(await _handed(d))
    applies(nested, "no agent that was handed a part of a task handed something over in turn")
    for one, above in nested:
        expect(one.task != above.task, f"{one.sender} was handed {above.task}, and hands over the same {one.task}")


@suite.check("cap.delegation.reusable")
async def every_level_hands_over_in_the_same_way(d: Driver) -> None:
    nested = _below(await _handed(d))
    applies(nested, "no agent that was handed a part of a task handed something over in turn")
    for one, above in nested:
        for told in (above.told, one.told):
            expect(told.get("type") == "delegation_notice", f"a handoff is of type {shown(told.get('type'))}")
            for name in ("task_id", "sender_id", "recipient_id", TEXTS["delegation_notice"]):
                filled(told, name)
            fitting(told)


@suite.check("cap.example-flow.subtask-ids")
async def the_id_of_a_part_extends_that_of_the_whole(d: Driver) -> None:
    """Expects ids of parts to name their whole, if a server uses such ids. The document shows them in an example, and
    asks for nothing."""
    dotted = [one for one in await _handed(d) if one.task.startswith(f"{one.talk.task}.")]
    applies(dotted, "the ids of parts do not begin with that of the whole task")
    for one in dotted:
        steps = one.task.removeprefix(one.talk.task).split(".")[1:]
        expect(all(step.isdecimal() for step in steps), f"{one.task} is no part of {one.talk.task}, by its id")
        above = one.task.rpartition(".")[0]
        held = above == one.talk.task or any(other.task == above for other in of_talk(one.talk))
        expect(held, f"{one.task} was handed over, and nobody was ever handed {above}")


# -- side by side ---------------------------------------------------------------------------------------------


@suite.check("cap.delegation.parallel-trees")
async def an_agent_has_several_parts_under_way(d: Driver) -> None:
    beside = [(one, other) for one, other in pairs(await _handed(d)) if one.sender == other.sender]
    applies(beside, "no agent had two parts of a task under way at the same time")
    for one, other in beside:
        apart = one.task != other.task or one.recipient == other.recipient
        expect(apart, f"{one.sender} handed the same {one.task} to {one.recipient} and to {other.recipient}")


@suite.check("cap.workflows.parallel-execution")
async def several_agents_work_at_the_same_time(d: Driver) -> None:
    beside = [
        (one, other)
        for one, other in pairs(await _handed(d))
        if one.recipient != other.recipient and one.sender == other.sender
    ]
    applies(beside, "no two agents had parts of a task at the same time")
    for one, other in beside:
        expect(one.task != other.task, f"{one.recipient} and {other.recipient} have the same part {one.task}")


async def _instances(d: Driver) -> list[tuple[Handoff, Handoff]]:
    """Instances of one agent that had something to do at the same time."""
    found = await _handed(d)
    known = {*await names(d), *(one.recipient for one in found if "#" not in one.recipient)}
    beside = [
        (one, other)
        for one, other in pairs(found)
        if agent_of(one.recipient, await names(d) or known) == agent_of(other.recipient, await names(d) or known)
        and not one.recipient == other.recipient == agent_of(one.recipient, await names(d) or known)
    ]
    applies(beside, "no two instances of one agent were under way at the same time")
    return beside


@suite.check("cap.delegation.parallel-instances", "cap.delegation.concurrent-subtasks")
async def instances_work_on_different_parts_at_the_same_time(d: Driver) -> None:
    for one, other in await _instances(d):
        expect(one.task != other.task, f"{one.recipient} and {other.recipient} work on the same part {one.task}")


@suite.check("cap.delegation.instance-id")
async def an_instance_has_an_id_of_its_own(d: Driver) -> None:
    for one, other in await _instances(d):
        expect(one.recipient != other.recipient, f"two instances have the id {one.recipient}, at the same time")


@suite.check("cap.delegation.instance-context")
async def an_instance_has_a_conversation_of_its_own(d: Driver) -> None:
    for pair in await _instances(d):
        for one, other in (pair, pair[::-1]):
            if one.task == other.task or one.recipient == other.recipient:
                continue
            for told in one.talk.said:
                mixed = other.recipient in (told.get("sender_id"), told.get("recipient_id"))
                mixed = mixed and text(told, "task_id") == one.task
                expect(
                    not mixed, f"{other.recipient} takes part in {one.task}, which is {one.recipient}'s: {shown(told)}"
                )


@suite.check("cap.overview.workflows")
async def several_agents_bring_one_task_to_its_end(d: Driver) -> None:
    played = [talk for talk in await talks(d) if of_talk(talk)]
    applies(played, _NONE)
    for talk in played:
        expect(talk.result is not None, f"several agents worked on {talk.task}, and nothing came of it")
        member(talk.result, "type", str, "the last word about a task")

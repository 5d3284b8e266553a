"""Checks agents that review the work of others. Manifests show who oversees whom, and so do the inquiries."""

from __future__ import annotations

import msgspec

from ...base import applies, expect, shown
from ..driver import Driver, attached, kind, suite, words
from ..scenes import talks
from ..teams import inside, same_agent, text
from ..wires import TEXTS, USER, Json, Talk
from .shapes import fitting


class Overseen(msgspec.Struct, eq=False):
    """A task that an overseen agent was handed, and brought to a result."""

    talk: Talk
    agent: str
    overseer: str
    delegator: str
    words: list[Json]  # the words of the overseer
    returned: Json | None  # the last message to the delegator about it, from either


async def _overseen(d: Driver) -> list[Overseen]:
    found = []
    for talk in await talks(d):
        failed = talk.result is None or talk.result.get("type") == "error_response"
        if failed or not inside(talk):
            continue
        couples = {
            (id_, told["overseer"])
            for id_, told in (await d.known()).items()
            if isinstance(told.get("overseer"), str) and told["overseer"] != USER
        }
        couples |= {
            (text(told, "recipient_id"), text(told, "sender_id"))
            for told in talk.said
            if kind(told) == "oversight_inquiry"
        }
        found += [one for couple in sorted(couples) if (one := _one(talk, *couple)) is not None]
    applies(found, "no agent that has an overseer was seen at work")
    return found


def _one(talk: Talk, agent: str, overseer: str) -> Overseen | None:
    notices = [
        (place, told)
        for place, told in enumerate(talk.said)
        if kind(told) == "delegation_notice" and same_agent(text(told, "recipient_id"), agent)
    ]
    if not notices:
        return None
    at, notice = notices[0]
    delegator = text(notice, "sender_id")
    spoken = [told for told in talk.said[at:] if same_agent(text(told, "sender_id"), overseer)]
    returned = None
    for told in talk.said[at:]:
        by = text(told, "sender_id")
        if text(told, "recipient_id") == delegator and (same_agent(by, agent) or same_agent(by, overseer)):
            returned = told
    return Overseen(talk, agent, overseer, delegator, spoken, returned)


@suite.check("cap.overview.oversight", "cap.oversight.overseer-monitors")
async def an_overseer_gets_to_see_what_was_done(d: Driver) -> None:
    for one in await _overseen(d):
        addressed = [told for told in one.talk.said if same_agent(text(told, "recipient_id"), one.overseer)]
        expect(
            addressed or one.words, f"{one.agent} has the overseer {one.overseer}, who takes no part in {one.talk.task}"
        )


@suite.check("cap.oversight.approval-before-return", "cap.schema.overseer-vets")
async def a_result_returns_when_the_overseer_has_approved_it(d: Driver) -> None:
    done = [one for one in await _overseen(d) if one.returned is not None]
    applies(done, "nothing that an overseen agent did was returned to who wanted it")
    for one in done:
        assert one.returned is not None
        place = next(at for at, told in enumerate(one.talk.said) if told is one.returned)
        before = [told for told in one.talk.said[: place + 1] if same_agent(text(told, "sender_id"), one.overseer)]
        what = (
            f"what {one.agent} did was returned to {one.delegator} before its overseer {one.overseer} had said a word"
        )
        expect(before, f"{what}: {shown(one.returned)}")


@suite.check("cap.oversight.same-message-type")
async def an_overseer_speaks_by_messages(d: Driver) -> None:
    spoken = [told for one in await _overseen(d) for told in one.words]
    applies(spoken, "no overseer said anything")
    for told in spoken:
        expect(
            told.get("type") in TEXTS, f"an overseer says something of type {shown(told.get('type'))}: {shown(told)}"
        )


async def _inquiries(d: Driver) -> list[Json]:
    found = [
        told
        for one in await _overseen(d)
        for told in one.words
        if same_agent(text(told, "recipient_id"), one.agent) and kind(told) in ("message", "oversight_inquiry")
    ]
    applies(found, "no overseer asked the agent that it oversees anything")
    return found


@suite.check("cap.oversight.inquiry-as-message")
async def an_overseer_asks_in_words(d: Driver) -> None:
    """The document has a message with its content, and in its example a type of its own: either will do."""
    for told in await _inquiries(d):
        expect((words(told) or "").strip(), f"an overseer asks without a word: {shown(told)}")


@suite.check("cap.oversight.inquiry-attachments")
async def an_inquiry_may_have_attachments(d: Driver) -> None:
    found = [told for told in await _inquiries(d) if attached(told)]
    applies(found, "no inquiry of an overseer had attachments")
    for told in found:
        fitting(told)


@suite.check("cap.example-agents.same-overseer-and-target")
async def an_overseer_can_be_handed_work_by_whom_it_oversees(d: Driver) -> None:
    both = {
        one: told["overseer"]
        for one, told in (await d.known()).items()
        if isinstance(told.get("overseer"), str)
        and isinstance(told.get("allowed_agents"), list)
        and told["overseer"] in told["allowed_agents"]
    }
    applies(both, "no agent that is listed has its overseer in its allowed_agents")
    played = [
        (talk, agent) for talk in await talks(d) for agent in both if talk.agent == agent and talk.result is not None
    ]
    applies(played, "no such agent was run")
    for talk, agent in played:
        assert talk.result is not None
        fine = talk.result.get("type") != "error_response"
        expect(fine, f"{agent}, whose overseer is in its allowed_agents, does not work: {shown(talk.result)}")

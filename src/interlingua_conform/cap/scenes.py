"""Plays scenes for checks: tasks that are worked on, asked about, failing and slow, and forbidden requests."""

from __future__ import annotations

import asyncio
import contextlib
import json

import msgspec

from ..base import Broken, Gone, NotApplicable, Role, applies, expect, shown
from ..remembering import once
from .driver import Driver, by_us, manifests
from .wires import ORCHESTRATOR, USER, Json, Refusal, Talk

_ROLES: tuple[Role, ...] = ("agent", "asking", "failing")
_SOON = 2.0  # seconds in which a refusal comes that is not the answer itself
_NOBODY = "nobody-of-that-name"


@once
async def played(d: Driver, agent: str) -> Talk:
    return await d.play(agent)


async def worked(d: Driver) -> Talk:
    """A task of the agent, which came to a result."""
    talk = await played(d, await d.agent())
    expect(
        talk.refusal is None, f"a delegation_notice to {talk.agent} was refused: {talk.refusal and talk.refusal.how}"
    )
    expect(talk.result is not None, f"{talk.agent} said nothing about its task within {d.patience:g} s")
    assert talk.result is not None
    expect(talk.result.get("type") != "error_response", f"the task of {talk.agent} failed: {shown(talk.result)}")
    return talk


async def asked(d: Driver) -> Talk:
    """A task of the asking agent, in which something was asked."""
    talk = await played(d, await d.agent("asking"))
    expect(
        talk.refusal is None, f"a delegation_notice to {talk.agent} was refused: {talk.refusal and talk.refusal.how}"
    )
    expect(talk.questions, f"{talk.agent} asked nothing; its last word was {shown(talk.result)}")
    return talk


async def failed(d: Driver) -> Talk:
    """A task of the failing agent."""
    talk = await played(d, await d.agent("failing"))
    expect(talk.refusal is None or talk.refusal.told, f"a delegation_notice: {talk.refusal and talk.refusal.how}")
    expect(talk.result is not None, f"{talk.agent} said nothing about its task within {d.patience:g} s")
    return talk


@once
async def carried(d: Driver, *given: str) -> Talk:
    """A task of the agent whose notice has attachments, each as JSON."""
    return await d.play(await d.agent(), [json.loads(one) for one in given])


@once
async def talks(d: Driver) -> list[Talk]:
    """Plays every task that can be played on this server, and returns those that were played, however they ended."""
    found: list[Talk] = []
    for role in _ROLES:
        with contextlib.suppress(Broken, NotApplicable, Gone):
            talk = await played(d, await d.agent(role))
            if talk not in found:
                found.append(talk)
    return found


async def speaks(d: Driver) -> None:
    """Expects that some agent has said something. If an agent never says anything, the absence of refusals shows
    nothing."""
    said = any(not by_us(told, talk) for talk in await talks(d) for told in talk.said)
    applies(said or d.refusals, "nobody here says anything, so that what they take is not seen")


# -- while somebody works -------------------------------------------------------------------------------------


class Interrupted(msgspec.Struct):
    """A task of the slow agent, to which the checker sent messages while the agent worked."""

    talk: Talk
    refused: dict[str, Refusal | None]  # by the sender


@once
async def slowly(d: Driver) -> Interrupted:
    await speaks(d)
    talk = await d.begin(await d.agent("slow"))
    d.going.append(talk)
    expect(
        talk.refusal is None, f"a delegation_notice to {talk.agent} was refused: {talk.refusal and talk.refusal.how}"
    )
    refused: dict[str, Refusal | None] = {}
    for sender in (USER, ORCHESTRATOR):
        ended = [told for told in await d.backs(talk) if told.get("recipient_id") == ORCHESTRATOR]
        applies(not ended, f"{talk.agent} had ended before it could be told anything: {shown(ended[-1:])}")
        refused[sender] = await d.tell(talk, f"Take your time, says the {sender}.", sender=sender)
        refused[sender] = refused[sender] or await _objected(d, talk)
    return Interrupted(talk, refused)


async def _objected(d: Driver, talk: Talk) -> Refusal | None:
    """Returns the refusal if an error follows a message a moment later. None for a wire that refuses at once."""
    if d.wire.lists:
        return None
    told = await _error(d, talk, d.quiet)
    return None if told is None else Refusal(told, f"it is answered {shown(told)}")


async def _error(d: Driver, talk: Talk, within: float) -> Json | None:
    """Waits for an error, for some time, or until the agent goes to work."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while True:
        said = await d.look(talk)
        errors = [told for told in said if told.get("type") == "error_response"]
        if errors or loop.time() > end or any(told.get("sender_id") == talk.agent for told in said):
            return errors[0] if errors else None
        await asyncio.sleep(min(0.01, within))


# -- what nobody may do ---------------------------------------------------------------------------------------


class Forged(msgspec.Struct):
    """A notice in the name of an agent to one that is not in its allowed_agents."""

    sender: str
    talk: Talk
    refusal: Refusal | None
    worked: list[Json]  # messages of the recipient about it


@once
async def forged(d: Driver) -> Forged:
    listed = {told["id"]: told for told in await manifests(d) if isinstance(told.get("id"), str)}
    pairs = [
        (sender, recipient)
        for sender, told in listed.items()
        for recipient in listed
        if isinstance(told.get("allowed_agents"), list) and recipient not in told["allowed_agents"]
    ]
    wanted = await d.agent()  # no other agent runs, should it be taken
    pairs = sorted((pair for pair in pairs if pair[1] == wanted), key=lambda pair: pair[0] == wanted)
    applies(pairs, f"every agent that the server lists may delegate to {wanted}")
    sender, recipient = pairs[0]
    talk = await d.begin(recipient, sender=sender)
    refusal = talk.refusal
    if refusal is None:
        told = await _error(d, talk, max(d.quiet, min(d.patience, _SOON)))
        refusal = None if told is None else Refusal(told, shown(told))
        d.going.append(talk)
    worked = [one for one in talk.said if one.get("sender_id") == recipient and one.get("type") != "error_response"]
    return Forged(sender, talk, refusal, worked)


@once
async def unknown(d: Driver) -> Talk:
    """Sends a notice to an agent that does not exist. A command that is one agent takes it, and so may a server."""
    talk = await d.begin(_NOBODY)
    if talk.refusal is None:
        told = await _error(d, talk, d.quiet)
        talk.refusal = None if told is None else Refusal(told, shown(told))
        d.going.append(talk)
    return talk


async def everything(d: Driver) -> list[Json]:
    """Returns every message that the server sent or recorded."""
    said = [told for talk in await talks(d) for told in talk.said]
    for scene in (forged, unknown):
        with contextlib.suppress(Broken, NotApplicable, Gone):
            seen = await scene(d)
            said += (seen if isinstance(seen, Talk) else seen.talk).said
    said += d.refusals
    applies(said, "the server said nothing that could be looked at")
    return said


async def errors(d: Driver) -> list[Json]:
    """Returns every error_response, and every message that is meant as one."""
    found = [told for told in await everything(d) if told.get("type") == "error_response" or "error_code" in told]
    applies(found, "the server sent no error_response (--fails names an agent that always fails)")
    return found

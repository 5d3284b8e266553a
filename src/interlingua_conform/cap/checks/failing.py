"""Checks failures: agents that fail, forbidden requests, and work that is retried or given to another agent."""

from __future__ import annotations

import re

from ...base import NotApplicable, applies, expect, member, shown
from ...remembering import once
from ..driver import Driver, kind, suite, words
from ..scenes import errors, everything, failed, forged, played, talks, unknown, worked
from ..teams import of_talk, text
from ..wires import ORCHESTRATOR, USER, Json, Refusal, Talk

_TIMEOUT = re.compile(r"\btimed out\b|\btimeout[.!]?\s*$", re.IGNORECASE)
_MCP = re.compile(r"\bmcp\b.{0,40}(\btimed out\b|\btimeout\b)", re.IGNORECASE)
_GATEWAY_TIMEOUT = 504  # the number in the document's example; it names none for other timeouts


async def _failure(d: Driver) -> Json:
    """The word with which the task of the failing agent ended."""
    talk = await failed(d)
    assert talk.result is not None
    how = f"the task of {talk.agent}, which always fails, ended with {shown(talk.result)}"
    expect(talk.result.get("type") == "error_response", f"{how}, not with an error_response")
    return talk.result


@suite.check(
    "cap.observability.signals-failure", "cap.audit.errors-by-message", "cap.overview.tracking",
)  # fmt: skip
async def a_failure_is_told_by_an_error_response(d: Driver) -> None:
    told = await _failure(d)
    expect((words(told) or "").strip(), f"an error_response says nothing: {shown(told)}")


def _refused(refusal: Refusal | None, what: str) -> None:
    if refusal is None:
        raise NotApplicable(f"{what} was not refused")
    told = refusal.told
    expect(
        told is not None and told.get("type") == "error_response", f"{what}: {refusal.how}, not by an error_response"
    )


@suite.check("cap.observability.signals-permission")
async def what_nobody_may_do_is_refused_by_an_error_response(d: Driver) -> None:
    seen = await forged(d)
    _refused(seen.refusal, f"a notice of {seen.sender} to {seen.talk.agent}, to whom it may not delegate")


@suite.check("cap.error-response.use")
async def whatever_is_refused_is_refused_by_an_error_response(d: Driver) -> None:
    talk = await unknown(d)
    if talk.refusal is None:
        await _failure(d)
    else:
        _refused(talk.refusal, f"a notice to {talk.agent}, who is nobody")


@suite.check("cap.observability.signals-timeout")
async def a_timeout_is_told_by_an_error_response(d: Driver) -> None:
    ended = [
        talk.result for talk in await talks(d) if talk.result is not None and talk.agent == d.subject.roles.failing
    ]
    told = [one for one in (*ended, *await everything(d)) if _TIMEOUT.search(words(one) or "")]
    found = [one for one in told if one in ended or kind(one) == "error_response"]
    applies(found, "nothing timed out (--fails names an agent that fails)")
    for one in found:
        expect(one.get("type") == "error_response", f"a timeout is told by {shown(one)}, not by an error_response")
        member(one, "error_code", int, "an error_response")


@suite.check("cap.audit.error-example")
async def the_timeout_of_an_mcp_server_has_its_number(d: Driver) -> None:
    found = [told for told in await errors(d) if _MCP.search(words(told) or "")]
    applies(found, "no MCP server timed out (--fails names an agent that fails)")
    for told in found:
        code = member(told, "error_code", int, "an error_response")
        expect(code == _GATEWAY_TIMEOUT, f"the timeout of an MCP server has the error_code {code}: {shown(told)}")


# -- what is done about it ------------------------------------------------------------------------------------


@once
async def again(d: Driver) -> Talk:
    """The work that failed, handed over once more."""
    await _failure(d)
    return await d.play(await d.agent("failing"))


@suite.check("cap.observability.retry", "cap.audit.retry", "cap.error-response.handled-by")
async def what_failed_can_be_tried_again(d: Driver) -> None:
    talk = await again(d)
    expect(
        talk.refusal is None,
        f"work that failed was handed over again, and refused: {talk.refusal and talk.refusal.how}",
    )
    expect(talk.result is not None, f"work that failed was handed over again, and {talk.agent} said nothing")


@suite.check("cap.observability.standard-codes")
async def the_same_failure_has_the_same_code(d: Driver) -> None:
    codes = [(await _failure(d)).get("error_code"), ((await again(d)).result or {}).get("error_code")]
    for code in codes:
        applies(isinstance(code, int), "an error_response has no number")
    expect(codes[0] == codes[1], f"{await d.agent('failing')} failed twice, with the codes {codes[0]} and {codes[1]}")


@suite.check("cap.observability.reassign", "cap.audit.reassign")
async def what_failed_can_be_given_to_another_agent(d: Driver) -> None:
    await _failure(d)
    other = await d.agent()
    applies(other != await d.agent("failing"), "no other agent is named (--agent)")
    await worked(d)
    talk = await played(d, other)
    expect(talk.refusal is None, f"work that failed was refused by {other}: {talk.refusal and talk.refusal.how}")


@suite.check("cap.observability.escalate", "cap.audit.escalate")
async def whoever_is_told_of_a_failure_can_pass_it_up(d: Driver) -> None:
    """Accepts each way that the document has for it: an error of the agent's own, or a message to the one above it."""
    raised = []
    for talk in await talks(d):
        above = {one.recipient: one.sender for one in of_talk(talk)} | {talk.agent: ORCHESTRATOR}
        for place, told in enumerate(talk.said):
            who = text(told, "recipient_id")
            if kind(told) != "error_response" or who not in above:
                continue
            higher = {above[who], USER, ORCHESTRATOR}
            later = [
                one
                for one in talk.said[place + 1 :]
                if text(one, "sender_id") in (who, ORCHESTRATOR) and text(one, "recipient_id") in higher
            ]
            raised += later[:1]
    applies(raised, "no agent that was told of a failure told somebody above it")
    for told in raised:
        expect((words(told) or "").strip(), f"a failure is passed up without a word: {shown(told)}")

"""Checks of batches whose entries take their time, or ask back; and of batches that the server sends."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from ...base import Gone, NotApplicable, applies, expect, shown
from ...remembering import once
from ..driver import Driver, check
from ..links import Message
from ..reading import asks, flaw, is_response, note, objects, picked
from ..talk import NOT_TAKEN_BACK, PING, Client
from .batches import array, ids


class Together(msgspec.Struct):
    """The observations of a batch of a slow prompt, a ping and a quick prompt."""

    early: Any  # the array, where it came while the slow one ran
    passed: bool  # true if another line was answered meanwhile
    overtook: bool  # true if the quick prompt was carried out while the slow one ran
    sent: list[Any]
    answered: list[Message]


@once
async def _together(driver: Driver) -> Together:
    """Sends a slow prompt, a ping and a quick prompt in one batch, to servers that take batches in version 1. In
    version 2 a prompt is answered at once."""
    client = await driver.v1_batches()
    slow, quick = await client.slow(), await client.plain()
    entries = [
        client.request("session/prompt", slow.prompt(), "slow"),
        client.request(PING, id_="ping"),
        client.request("session/prompt", quick.prompt(), "quick"),
    ]
    frames, before = len(client.link.frames), client.now
    await client.link.put(entries)

    def begun(message: Message) -> bool:
        return bool(slow.updates("agent_message_chunk", "tool_call", "plan", start=before)) or is_response(message)

    await client.link.until(begun, "anything that the slow agent does", before)
    await _no_prompts(_array(client, frames))
    overtook = await client.soon(lambda _: bool(quick.updates("agent_message_chunk", start=before)), before)
    try:
        await client.ping()
        passed = True
    except Gone:
        passed = False
    await client.link.silent(lambda m: is_response(m) and m.get("id") in ("ping", "quick"), before)
    early = _array(client, frames)
    await slow.cancel()
    if early is not None:
        return Together(early, passed, overtook, [e["id"] for e in entries], objects(early))
    await client.link.until(lambda m: m.get("id") == "slow" and is_response(m), "the answer to a batch", before)
    found = _array(client, frames)
    return Together(early, passed, overtook, [e["id"] for e in entries], objects(found))


def _array(client: Client, start: int) -> Any:
    return next((frame for frame in client.link.frames[start:] if isinstance(frame, list)), None)


async def _no_prompts(frame: Any) -> None:
    refused = [e for e in objects(frame) if e.get("id") == "slow" and "error" in e]
    applies(not refused, f"the server refuses prompts in a batch: {shown(refused)}")


@check("editor.batch.response-after-all")
async def the_array_comes_when_all_is_done(driver: Driver) -> None:
    try:
        seen = await _together(driver)
    except NotApplicable:  # only the quick prompt can be seen then
        client = await driver.batches()
        requests = [client.request(PING), client.request(PING)]
        answers = await array(client, requests)
        expect(len(answers) == 2, f"the array came before all requests were answered: {shown(answers)}")
        return
    expect(seen.early is None, f"the array came while an entry of the batch still ran: {shown(seen.early)}")
    expect(
        sorted(map(str, ids(seen.answered))) == sorted(seen.sent),
        f"the array of a batch with the ids {shown(seen.sent)} has {shown(seen.answered)}",
    )


@check("editor.batch.slow-entry")
async def a_slow_entry_holds_back_no_other_line(driver: Driver) -> None:
    seen = await _together(driver)
    expect(seen.passed, "a request behind a batch with a slow entry was not answered while that ran")


@check("editor.batch.concurrent", "editor.batch.any-parallelism", "editor.batch.any-order")
async def entries_may_be_carried_out_at_once(driver: Driver) -> None:
    seen = await _together(driver)
    applies(seen.overtook, "the entries of a batch are carried out one after another, in their order")
    expect(
        sorted(map(str, ids(seen.answered))) == sorted(seen.sent),
        f"entries are carried out at once, and then the array has not all of them: {shown(seen.answered)}",
    )


@check("editor.batch.response-any-order")
async def responses_may_stand_in_any_order(driver: Driver) -> None:
    seen = await _together(driver)
    applies(ids(seen.answered) != seen.sent, "the responses stand in the order of the requests")
    expect(
        sorted(map(str, ids(seen.answered))) == sorted(seen.sent),
        f"the responses stand in another order, and are not those of the requests: {shown(seen.answered)}",
    )


@check("editor.batch.cancel-sibling")
async def an_entry_is_cancelled_by_another(driver: Driver) -> None:
    driver.needs(NOT_TAKEN_BACK)
    client = await driver.v1_batches()
    session = await client.slow()
    frames, before = len(client.link.frames), client.now
    slow = client.request("session/prompt", session.prompt(), "slow")
    await client.link.put([slow, client.request(PING, id_="ping"), note("$/cancel_request", {"requestId": "slow"})])
    honoured = await client.soon(lambda m: m.get("id") == "slow" and is_response(m), before)
    if not honoured:
        await session.cancel()
        raise driver.lacks(NOT_TAKEN_BACK)
    await _no_prompts(_array(client, frames) if _early(client, before) else None)
    found = objects(_array(client, frames))
    expect(
        sorted(map(str, ids(found))) == ["ping", "slow"],
        f"a batch with an entry that was cancelled was answered with {shown(found)}",
    )


def _early(client: Client, start: int) -> bool:
    """Returns whether the slow prompt was refused for its place in the batch, and not for being cancelled."""
    found = next(m for m in client.link.messages[start:] if m.get("id") == "slow")
    error = found.get("error")
    return isinstance(error, dict) and error.get("code") != -32800


@check("editor.batch.asks-back")
async def a_request_in_a_batch_may_ask_back(driver: Driver) -> None:
    try:
        client = await driver.v1_batches()
    except NotApplicable:
        client = await driver.batches()
    session = await client.asking()
    frames, before = len(client.link.frames), client.now
    with client.by_hand():
        prompt = client.request("session/prompt", session.prompt(), "asks")
        await client.link.put([prompt, client.request(PING, id_="ping")])

        def settled(message: Message) -> bool:
            """Asked, or refused, or (in version 1) over without a question."""
            answered = is_response(message) and message.get("id") in (None, "asks")
            return asks(message, session.id) or (answered and (client.version == 1 or "error" in message))

        asked = await client.link.until(settled, "a question, or the array of the batch", before)
        expect(asked.get("id", 0) is not None, f"a batch was answered with one object and no array: {shown(asked)}")
        applies("error" not in asked, f"the server refuses prompts in a batch: {shown(asked)}")
        applies("method" in asked, "the agent that should ask asks nothing by a request")
        await client.respond(asked, picked(asked, "reject") or {"action": "decline"})
        await client.link.until(lambda m: m.get("id") == "asks" and is_response(m), "the array of the batch", before)
    found = objects(_array(client, frames))
    expect(sorted(map(str, ids(found))) == ["asks", "ping"], f"a batch that asks back was answered with {shown(found)}")


@check("editor.batch.follows-array")
async def what_follows_an_answer_comes_after_the_array(driver: Driver) -> None:
    try:
        client = await driver.v1_batches()
    except NotApplicable:
        client = await driver.batches()
    frames = len(client.link.frames)
    answers = await array(client, [client.request("session/new", client.opening(), "new"), client.request(PING)])
    made = next((a["result"] for a in answers if a.get("id") == "new" and isinstance(a.get("result"), dict)), None)
    applies(made, f"the server opens no session in a batch: {shown(answers)}")
    session = (made or {}).get("sessionId")
    at = next(n for n, frame in enumerate(client.link.frames[frames:]) if isinstance(frame, list))
    for _ in range(2):
        await client.ping()
    told = [
        n
        for n, frame in enumerate(client.link.frames[frames:])
        for one in objects(frame if isinstance(frame, list) else [frame])
        if isinstance(one.get("params"), dict) and one["params"].get("sessionId") == session
    ]
    applies(told, "the server tells nothing of a new session by itself")
    expect(min(told) > at, "an update of a session came before the array that tells its id")


# -- batches that the server sends -----------------------------------------------------------------------------


def _sent(driver: Driver) -> list[list[Any]]:
    return [
        frame
        for link in driver.links
        for frame in link.frames
        if isinstance(frame, list) and any("method" in entry for entry in objects(frame))
    ]


@check("editor.batch.agent-sends")
async def batches_of_the_server_hold_calls(driver: Driver) -> None:
    await driver.batches()
    sent = _sent(driver)
    applies(sent, "the server sent no batch")
    for frame in sent:
        for entry in frame:
            wrong = flaw(entry) or (None if "method" in entry else "it is a response")
            expect(not wrong, f"a batch of the server has an entry that is no call, {wrong}: {shown(entry)}")


@check("editor.batch.sent-on-request")
async def batches_are_sent_in_version_2_alone(driver: Driver) -> None:
    client = await driver.v1()
    with contextlib.suppress(NotApplicable):
        await (await client.plain()).turn()
    sent = [
        frame
        for frame in client.link.frames
        if isinstance(frame, list) and any("method" in entry for entry in objects(frame))
    ]
    expect(not sent, f"the server sends a batch although version 1 was agreed on: {shown(sent[:1])}")

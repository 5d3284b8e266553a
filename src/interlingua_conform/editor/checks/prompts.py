"""Checks of prompts in version 1: what is streamed, what ends a turn, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import contextlib

from ...base import Broken, Gone, NotApplicable, applies, expect, member, shown
from .. import shapes
from ..driver import Driver, check
from ..links import Message
from ..reading import answers, text, update_of
from ..session import Session, Turn
from ..talk import Client

_SAYS = ("agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan")


async def turns(driver: Driver) -> tuple[Client, Session]:
    client = await driver.v1()
    return client, await client.plain()


@check("editor.v1.prompt")
async def a_prompt_streams_and_is_answered_at_the_end(driver: Driver) -> None:
    _, session = await turns(driver)
    ended = await session.turn()
    expect(ended.error is None, f"a prompt to an agent that should answer fails: {shown(ended.error)}")
    expect(ended.stop in shapes.STOPS, f"the stopReason is {shown(ended.stop)}, which is none of {shown(shapes.STOPS)}")
    chunks = session.updates("agent_message_chunk", start=ended.first, end=ended.last)
    expect(chunks, "the turn ended, and no agent_message_chunk came before")
    for chunk in chunks:
        shapes.update(chunk, 1)


@check("editor.v1.updates-before-answer")
async def updates_come_before_the_answer(driver: Driver) -> None:
    client, session = await turns(driver)
    ended = await session.turn()

    def late(message: Message) -> bool:
        return update_of(message, session.id).get("sessionUpdate") in _SAYS

    quiet = await client.link.silent(late, ended.last + 1)
    applies(not quiet or session.updates(*_SAYS, start=ended.first), "the agent says nothing in its turn")
    expect(quiet, f"after the answer to a prompt its turn goes on: {shown(session.updates(start=ended.last + 1))}")


@check("editor.v1.activity")
async def what_the_agent_does_is_shown_as_what_it_is(driver: Driver) -> None:
    client = await driver.v1()
    for open_ in (client.plain, client.asking):
        try:
            session = await open_()
        except NotApplicable:
            continue
        await session.turn()
    seen = 0
    for message in client.link.messages:
        if message.get("method") == "session/update":
            member(message, "params.sessionId", str, "session/update")
            update = member(message, "params.update", dict, "session/update")
            shapes.update(update, 1)
            seen += update.get("sessionUpdate") in shapes.ACTIVITY
    applies(seen, "no agent shows what it does: no thought, plan, tool call or usage came")


@check("editor.v1.content")
async def content_of_every_kind_is_taken(driver: Driver) -> None:
    client, session = await turns(driver)
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
    uri = f"file://{client.folder}/notes.txt"
    blocks: list[Message] = [
        text(session.words),
        {"type": "resource_link", "name": "notes.txt", "uri": uri, "mimeType": "text/plain"},
    ]
    if client.able("promptCapabilities.image"):
        blocks.append({"type": "image", "data": data, "mimeType": "image/png"})
    if client.able("promptCapabilities.audio"):
        blocks.append({"type": "audio", "data": data, "mimeType": "audio/wav"})
    if client.able("promptCapabilities.embeddedContext"):
        blocks.append({"type": "resource", "resource": {"uri": uri, "text": "inside", "mimeType": "text/plain"}})
    ended = await session.turn(*blocks)
    kinds = ", ".join(block["type"] for block in blocks)
    expect(ended.error is None, f"a prompt of {kinds} is refused: {shown(ended.error)}")


@check("editor.v1.bad-content")
async def content_that_does_not_fit_is_refused_and_the_session_goes_on(driver: Driver) -> None:
    _, session = await turns(driver)
    ended = await session.turn(text("fine"), {"type": "text"})
    expect(ended.error is not None, f"a text block without a text is taken: {shown(ended.answer)}")
    code = (ended.error or {}).get("code")
    expect(code == -32602, f"a text block without a text is refused with {shown(ended.error)}, not with -32602")
    ended = await session.turn()
    expect(ended.error is None, f"after a prompt that was refused the session is of no use: {shown(ended.error)}")


@check("editor.v1.failure")
async def a_failure_is_an_error_and_no_stop_reason(driver: Driver) -> None:
    client = await driver.v1()
    session = await client.failing()
    ended = await session.turn()
    expect(ended.error is not None, f"a turn that fails is answered with a stop reason: {shown(ended.answer)}")
    error = ended.error or {}
    expect(error.get("message"), f"the error of a turn that fails has no message: {shown(error)}")


@check("editor.v1.queue")
async def a_prompt_while_one_runs_waits_for_its_turn(driver: Driver) -> None:
    client = await driver.v1()
    session = await client.slow()
    first, second = await waiting(session)
    await session.cancel()
    await first.end()
    await session.cancel()  # in case that it begins only now
    await second.end()


async def waiting(session: Session) -> tuple[Turn, Turn]:
    """A turn that runs, and a prompt that waits for it."""
    client = session.client
    first = await session.begin()
    await first.begun()
    second = await session.begin()
    await client.ping()
    await client.link.silent(lambda m: update_of(m, session.id).get("sessionUpdate") in _SAYS, second.first)
    at_once = session.updates(*_SAYS, start=second.first)
    if not second.over() and not at_once:
        return first, second
    over = [message for message in client.link.messages if answers(second.id)(message)]
    await session.cancel()
    await given_up(first, second)
    applies(not at_once, "the server carries out two prompts of a session at once: the schema does not forbid it")
    applies("error" not in over[0], f"the server refuses a prompt while one runs: {shown(over[0])}")
    raise Broken(f"a prompt that came while one runs was answered before it: {shown(over[0])}")


async def given_up(*turns: Turn) -> None:
    """Turns that are of no interest any more, and may never end."""
    with contextlib.suppress(TimeoutError, Gone, Broken):
        async with asyncio.timeout(1.0):
            for turn in turns:
                await turn.end()


@check("editor.v1.steering")
async def a_message_is_put_into_a_turn(driver: Driver) -> None:
    client = await driver.v1()
    meta = client.told.get("_meta")
    offered = meta.get("steering") if isinstance(meta, dict) else None
    applies(
        isinstance(offered, dict) and offered.get("supported") is True, "the server does not offer _session/steering"
    )
    outcomes = ("injected", "startedNewTurn", "failed")
    session = await client.slow()
    turn = await session.begin()
    await turn.begun()
    try:
        told = await client.ask("_session/steering", session.prompt("and this"))
        outcome = member(told, "outcome", str, "the answer to _session/steering")
        expect(outcome in outcomes, f"the outcome of _session/steering is {shown(outcome)}, none of {shown(outcomes)}")
    finally:
        await session.cancel()
        await turn.end()


@check("editor.v1.many-sessions")
async def many_sessions_run_at_once(driver: Driver) -> None:
    client = await driver.v1()
    sessions = [await client.plain() for _ in range(5)]
    expect(len({session.id for session in sessions}) == 5, "two sessions have the same id")
    try:
        slow = await (await client.slow()).begin()
        await slow.begun()
    except NotApplicable:
        slow = None
    begun = [await session.begin() for session in sessions]
    ended = await asyncio.gather(*(turn.end() for turn in begun))
    failed = [end.error for end in ended if end.error]
    expect(not failed, f"of five turns at once {len(failed)} failed: {shown(failed[:1])}")
    if slow is not None:
        await slow.session.cancel()
        await slow.end()

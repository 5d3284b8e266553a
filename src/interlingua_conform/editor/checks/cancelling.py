"""Checks of cancelling in version 1."""

from __future__ import annotations

from ...base import Gone, expect, shown
from ...remembering import once
from ..driver import Driver, check
from ..reading import answers, picked
from ..session import Ended
from ..talk import NOT_TAKEN_BACK
from .prompts import waiting


@once
async def _cancelled(driver: Driver) -> Ended:
    client = await driver.v1()
    session = await client.slow()
    turn = await session.begin()
    await turn.begun()
    expect(not turn.over(), "the agent that should run for a while ended its turn at once")
    await session.cancel()
    try:
        return await turn.end()
    except Gone as error:
        raise Gone(f"a prompt is not answered after session/cancel: {error}") from error


@check("editor.v1.cancel")
async def a_cancelled_turn_ends_as_cancelled(driver: Driver) -> None:
    ended = await _cancelled(driver)
    expect(ended.stop == "cancelled", f"after session/cancel the prompt was answered with {shown(ended.answer)}")


@check("editor.v1.cancel-no-error")
async def a_cancelled_turn_is_no_error(driver: Driver) -> None:
    ended = await _cancelled(driver)
    expect(ended.error is None, f"after session/cancel the prompt was answered with an error: {shown(ended.error)}")


@check("editor.v1.cancel-permission")
async def cancelling_settles_an_open_permission(driver: Driver) -> None:
    client = await driver.v1()
    session = await client.asking()
    with client.by_hand():
        turn = await session.begin()
        request = await turn.question()
        await session.cancel(settle=False)
        late = picked(request, "allow")  # it may have been on its way when the turn was cancelled
        await client.respond(request, late or {"outcome": {"outcome": "cancelled"}, "action": "cancel"})
        ended = await turn.end()
    expect(
        ended.stop == "cancelled",
        f"a turn that was cancelled while it asked was answered with {shown(ended.answer)}",
    )


@check("editor.v1.cancel-queue")
async def cancelling_ends_the_prompts_that_wait(driver: Driver) -> None:
    client = await driver.v1()
    session = await client.slow()
    first, second = await waiting(session)
    await session.cancel()
    await first.end()
    try:
        ended = await second.end()
    except Gone as error:
        await session.cancel()
        raise Gone(f"a prompt that waited was not answered after session/cancel: {error}") from error
    expect(ended.error is None, f"a prompt that waited was answered with an error: {shown(ended.error)}")
    expect(ended.stop == "cancelled", f"a prompt that waited was answered with {shown(ended.answer)}")


@check("editor.v1.cancel-request")
async def a_prompt_that_is_taken_back_is_still_answered(driver: Driver) -> None:
    driver.needs(NOT_TAKEN_BACK)
    client = await driver.v1()
    session = await client.slow()
    turn = await session.begin()
    await turn.begun()
    await client.notify("$/cancel_request", {"requestId": turn.id})
    heard = await client.soon(answers(turn.id), turn.first)
    if not heard:
        await session.cancel()
        await turn.end()
        raise driver.lacks(NOT_TAKEN_BACK)
    ended = await turn.end()
    fits = ended.stop == "cancelled" or (ended.error or {}).get("code") == -32800
    expect(fits, f"a prompt that was taken back was answered with {shown(ended.answer)}")
    prompt = client.request("session/prompt", session.prompt())
    await client.link.put(prompt)
    await client.notify("$/cancel_request", {"requestId": prompt["id"]})
    await client.response(prompt["id"], "a prompt that was taken back right behind itself")
    again = await session.begin()
    try:
        await again.begun()
    except Gone as error:
        raise Gone(
            f"a prompt was taken back and answered, and still runs: the next one does not begin: {error}"
        ) from error
    await session.cancel()
    await again.end()

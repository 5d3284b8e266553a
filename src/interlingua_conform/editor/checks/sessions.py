"""Checks of sessions in version 1: lists, opening again, closing, and more than one client."""

from __future__ import annotations

import contextlib

from ...base import Gone, NotApplicable, applies, expect, member, shown
from ...remembering import once
from ..driver import Driver, check
from ..links import Message, SocketLink, StdioLink
from ..reading import answers, picked, update_of
from ..session import Session, Turn
from ..talk import Client
from .prompts import given_up

NOT_ASKED_AGAIN = "whoever opens a session again is not asked what is open there"
_SAID = ("user_message_chunk", "agent_message_chunk")


async def lists(driver: Driver) -> Client:
    client = await driver.v1()
    applies(client.able("sessionCapabilities.list"), "the server does not list its sessions")
    return client


async def loads(driver: Driver) -> Client:
    client = await driver.v1()
    applies(client.able("loadSession"), "the server does not load sessions")
    return client


@once
async def _talked(driver: Driver) -> Session:
    """A session in which something was said."""
    session = await (await driver.v1()).plain()
    ended = await session.turn()
    expect(ended.error is None, f"a prompt to an agent that should answer fails: {shown(ended.error)}")
    return session


@check("editor.v1.list")
async def sessions_are_listed_by_folder(driver: Driver) -> None:
    client = await lists(driver)
    session = await _talked(driver)
    found = [entry["sessionId"] for entry in await client.listed()]
    expect(session.id in found, "a session that was prompted is not in the list of its folder")
    told = await client.ask("session/list", {"cwd": f"{client.folder}/nowhere"})
    nowhere = member(told, "sessions", list, "the answer to session/list")
    expect(nowhere == [], f"the list of a folder without sessions is not empty: {shown(nowhere)}")


@check("editor.v1.list-pages")
async def cursors_lead_to_the_end(driver: Driver) -> None:
    client = await lists(driver)
    await _talked(driver)
    found = [entry["sessionId"] for entry in await client.listed()]
    expect(len(set(found)) == len(found), "a session is on more than one page of session/list")
    await client.refused("session/list", {"cursor": "a cursor of nobody"}, "with a cursor that it has not given")


@check("editor.v1.session-survives")
async def a_session_is_found_by_another_client(driver: Driver) -> None:
    await loads(driver)
    session = await _talked(driver)
    other = await driver.other()
    if other.able("sessionCapabilities.list"):
        found = [entry["sessionId"] for entry in await other.listed()]
        applies(session.id in found, "sessions are known to the process that opened them alone")
    answer = await other.answer("session/load", other.opening(sessionId=session.id))
    applies(
        "result" in answer or other.able("sessionCapabilities.list"),
        f"sessions are known to the process that opened them alone: {shown(answer)}",
    )
    expect("result" in answer, f"a session that is listed cannot be loaded: {shown(answer)}")


@check("editor.v1.load")
async def load_replays_everything_before_its_answer(driver: Driver) -> None:
    client = await loads(driver)
    applies(client.link.kind != "http", "over Streamable HTTP replay and answer come on streams without a common order")
    session = await _talked(driver)
    said = session.text()
    before = client.now
    await client.ask("session/load", client.opening(sessionId=session.id))
    answer = next(n for n, m in enumerate(client.link.messages[before:], before) if "method" not in m)
    replayed = session.text(before, answer)
    expect(
        session.updates("user_message_chunk", start=before, end=answer),
        "session/load was answered before what the user had said was replayed",
    )
    expect(
        "".join(replayed.split()) == "".join(said.split()),
        f"session/load was answered, and of {shown(said)} it had replayed {shown(replayed)}",
    )


@check("editor.v1.resume")
async def resume_replays_nothing(driver: Driver) -> None:
    client = await driver.v1()
    applies(client.able("sessionCapabilities.resume"), "the server does not resume sessions")
    session = await _talked(driver)
    before = client.now
    await client.ask("session/resume", client.opening(sessionId=session.id))
    await client.link.silent(lambda m: update_of(m, session.id).get("sessionUpdate") in _SAID, before)
    replayed = session.updates(*_SAID, start=before)
    expect(not replayed, f"session/resume replays what was said: {shown(replayed)}")
    ended = await session.turn()
    expect(ended.error is None, f"a session that was resumed cannot be prompted: {shown(ended.error)}")


@check("editor.v1.close")
async def close_cancels_before_it_is_answered(driver: Driver) -> None:
    client = await driver.v1()
    applies(client.able("sessionCapabilities.close"), "the server does not close sessions")
    session = await client.slow()
    turn = await session.begin()
    await turn.begun()
    await client.ask("session/close", {"sessionId": session.id})
    if not turn.over():
        await client.soon(answers(turn.id), turn.first)
    expect(turn.over(), "session/close was answered, and the turn of the session still runs")
    ended = await turn.end()
    expect(ended.stop == "cancelled", f"the turn of a session that was closed was answered with {shown(ended.answer)}")
    if client.able("sessionCapabilities.list"):
        found = [entry["sessionId"] for entry in await client.listed()]
        expect(session.id in found, "a session that was closed is no longer in the list")


@check("editor.v1.delete")
async def delete_forgets_a_session(driver: Driver) -> None:
    client = await driver.v1()
    applies(client.able("sessionCapabilities.delete"), "the server does not delete sessions")
    session = await client.plain()
    await session.turn()
    await client.ask("session/delete", {"sessionId": session.id})
    if client.able("sessionCapabilities.list"):
        found = [entry["sessionId"] for entry in await client.listed()]
        expect(session.id not in found, "a session that was deleted is still in the list")
    if client.link.kind == "http":  # only HTTP gives a status to a message about an unknown session
        return
    answer = await client.answer("session/delete", {"sessionId": session.id})
    expect("result" in answer, f"to delete a session that is not there is an error: {shown(answer)}")


# -- more than one client --------------------------------------------------------------------------------------


async def _opens(other: Client, session: Session) -> None:
    answer = await other.answer("session/load", other.opening(sessionId=session.id))
    applies("result" in answer, f"another client cannot open the session: {shown(answer)}")


async def _both_asked(driver: Driver, client: Client, other: Client) -> tuple[Turn, Message, Message]:
    """A turn that asks, with its question to the one who prompted, and that to the other who opened the session."""
    driver.needs(NOT_ASKED_AGAIN)
    session = await client.asking()
    turn = await session.begin()
    request = await turn.question()
    both = Session(other, session.id, session.told)
    try:
        await _opens(other, both)
        again = await both.asked(0)
        if again is None:
            raise driver.lacks(NOT_ASKED_AGAIN)
    except NotApplicable:
        await session.cancel()
        await given_up(turn)
        raise
    return turn, request, again


@check("editor.v1.several-clients")
async def several_clients_watch_one_session(driver: Driver) -> None:
    client = await loads(driver)
    other = await driver.other()
    session = await client.plain()
    await session.turn()
    mine = Session(other, session.id, session.told)
    answer = await other.answer("session/prompt", mine.prompt("not opened here"))
    expect("error" in answer, f"a session is used by a client that has not opened it: {shown(answer)}")
    await _opens(other, session)
    with client.by_hand(), other.by_hand():
        turn, request, again = await _both_asked(driver, client, other)
        await other.respond(again, picked(again, "allow") or {"action": "decline"})
        await turn.end()
        await client.respond(request, picked(request, "reject") or {"action": "decline"})
    await client.ping()


@check("editor.v1.answered-elsewhere")
async def a_question_that_is_answered_elsewhere_is_taken_back(driver: Driver) -> None:
    client = await loads(driver)
    other = await driver.other()
    with client.by_hand(), other.by_hand():
        turn, request, again = await _both_asked(driver, client, other)
        await other.respond(again, picked(again, "allow") or {"action": "decline"})
        await turn.end()
    back = [
        message["params"]
        for message in client.link.messages[turn.first :]
        if message.get("method") == "$/cancel_request" and isinstance(message.get("params"), dict)
    ]
    applies(back, "a question that is answered elsewhere is not taken back")
    expect(
        any(params.get("requestId") == request["id"] for params in back),
        f"what is taken back is not the question that is open: {shown(back)}",
    )


@check("editor.v1.asked-again", "editor.v1.runs-on")
async def a_turn_goes_on_without_its_client(driver: Driver) -> None:
    await loads(driver)
    driver.needs(NOT_ASKED_AGAIN)
    gone = await driver.client(1)
    session = await gone.asking()
    with gone.by_hand():
        turn = await session.begin()
        await turn.question()
    await leave(gone)
    await went_on(driver, session)


async def leave(client: Client) -> None:
    """The client vanishes."""
    link = client.link
    if isinstance(link, StdioLink):
        link.end_input()
        with contextlib.suppress(Gone):  # another check reports that it does not end
            await link.exit_code()
    elif isinstance(link, SocketLink):
        link.abort()
    else:
        await link.close()


async def went_on(driver: Driver, session: Session) -> None:
    """Another client opens the session, is asked what is open in it, and sees the end of the turn."""
    other = await driver.other()
    both = Session(other, session.id, session.told)
    with other.by_hand():
        before = other.now
        await _opens(other, session)
        again = await both.asked(before)
        if again is None:
            raise driver.lacks(NOT_ASKED_AGAIN)
        answered = other.now
        await other.respond(again, picked(again, "allow") or {"action": "decline"})
        try:
            await both.update("agent_message_chunk", "the rest of the turn", answered)
        except Gone as error:
            raise Gone(f"a question was asked again and answered, and the turn did not go on: {error}") from error

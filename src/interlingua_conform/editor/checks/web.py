"""Checks of Streamable HTTP, as its draft has it: which status is for what, and what comes on which stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from interlingua.transports.raw_client import Answer

from ...base import Broken, Gone, NotApplicable, applies, expect, member, shown
from ...remembering import once
from ..driver import INFO, Driver, check
from ..links import CONNECTION, HttpLink, Listening, Message
from ..reading import answers, picked, update_of
from ..talk import Client
from .sessions import NOT_ASKED_AGAIN, went_on

_BODY = 33 * 1024 * 1024  # size of a body above the limits of most servers


def initialize(id_: Any = 0) -> Message:
    params = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": INFO}
    return {"jsonrpc": "2.0", "id": id_, "method": "initialize", "params": params}


async def connected(driver: Driver) -> Client:
    """A client over Streamable HTTP, of its own."""
    return await driver.client(1, await driver.web())


@once
async def shared(driver: Driver) -> Client:
    """A client over Streamable HTTP that several checks use."""
    return await connected(driver)


def _web(client: Client) -> HttpLink:
    assert isinstance(client.link, HttpLink)
    return client.link


@check("editor.messages.streamable-http-defined")
async def initialize_is_answered_with_a_connection(driver: Driver) -> None:
    http = await driver.http()
    answer = await http.ask("POST", "", initialize(), headers={"accept": "application/json, text/event-stream"})
    expect(answer.status == 200, f"POST of initialize was answered with status {answer.status}: {answer.body[:100]!r}")
    expect(answer.media_type == "application/json", f"the answer to initialize is {answer.media_type or 'of no type'}")
    expect(CONNECTION in answer.headers, "the answer to initialize has no header Acp-Connection-Id")
    member(answer.json(), "result.protocolVersion", int, "the answer to initialize")
    await http.ask("DELETE", "", headers={CONNECTION: answer.headers[CONNECTION]})


@check("editor.http.streams")
async def each_answer_comes_on_its_stream(driver: Driver) -> None:
    client = await shared(driver)
    link = _web(client)
    session = await client.plain()
    opened = [m for m in link.streams[None].messages if m.get("result") == session.told]
    expect(opened, "the answer to session/new did not come on the stream of the connection")
    ended = await session.turn()
    own, whole = await link.listen(session.id), link.streams[None]
    expect(
        any(m == ended.answer for m in own.messages),
        "the answer to session/prompt did not come on the stream of its session",
    )
    strays = [m for m in whole.messages if update_of(m, session.id)]
    expect(not strays, f"updates of a session came on the stream of the connection: {shown(strays[:1])}")
    expect(any(update_of(m, session.id) for m in own.messages), "no update came on the stream of the session")


@check("editor.http.statuses")
async def what_is_wrong_has_its_status(driver: Driver) -> None:
    client = await shared(driver)
    link, http = _web(client), await driver.http()
    ping = json.dumps(client.request("_interlingua/ping")).encode()
    prompt = json.dumps(client.request("session/prompt", {"sessionId": "x", "prompt": []})).encode()

    async def status(wanted: set[int], what: str, method: str, content: bytes | None, headers: dict[str, str]) -> None:
        answer = await http.ask(method, "", content=content, headers=headers)
        codes = " or ".join(map(str, sorted(wanted)))
        expect(answer.status in wanted, f"{what} is answered with status {answer.status}, not with {codes}")

    sends = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    reads = {"accept": "text/event-stream"}
    mine = link.headers()
    nobodys = {CONNECTION: "no-such-connection"}
    await status({415}, "POST of text/plain", "POST", ping, {**sends, **mine, "content-type": "text/plain"})
    await status({406}, "GET that accepts application/json alone", "GET", None, {**mine, "accept": "application/json"})
    await status({400}, "POST without Acp-Connection-Id", "POST", ping, sends)
    await status({400}, "GET without Acp-Connection-Id", "GET", None, reads)
    await status({400}, "POST of session/prompt without Acp-Session-Id", "POST", prompt, {**sends, **mine})
    await status({404}, "POST to a connection that there is not", "POST", ping, {**sends, **nobodys})
    await status({404}, "GET of a connection that there is not", "GET", None, {**reads, **nobodys})
    await status({400}, "POST of what is no JSON", "POST", b"{", {**sends, **mine})
    await status({405, 501}, "PUT", "PUT", ping, {**sends, **mine})
    await _too_large(client, link)


async def _too_large(client: Client, link: HttpLink) -> None:
    """A server need not have this limit; one that has it says so."""
    note = b'{"jsonrpc":"2.0","method":"_interlingua/news","params":{"text":"%b"}}' % (b"x" * _BODY)
    try:
        answer = await link.post(note)
    except Gone as error:
        raise Broken(f"a body of {_BODY >> 20} MiB is not answered: {error}") from error
    expect(
        answer.status in (200, 202, 204, 413), f"a body of {_BODY >> 20} MiB is answered with status {answer.status}"
    )
    await client.ping()


@check("editor.http.batch")
async def a_batch_is_not_implemented(driver: Driver) -> None:
    client = await shared(driver)
    answer = await _web(client).post(json.dumps([client.request("_interlingua/ping")]).encode())
    expect(answer.status == 501, f"POST of a batch is answered with status {answer.status}: {answer.body[:100]!r}")


# -- streams ---------------------------------------------------------------------------------------------------


async def _bare(driver: Driver) -> tuple[HttpLink, Client]:
    """A connection whose streams are for the check to open."""
    link = await driver.web()
    client = Client(link, driver.subject, 1, driver.folder)
    answer = await link.post(json.dumps(initialize()).encode())
    expect(answer.status == 200, f"POST of initialize was answered with status {answer.status}")
    link.connection = answer.headers.get(CONNECTION)
    client.told = member(answer.json(), "result", dict, "the answer to initialize")
    return link, client


async def _post(link: HttpLink, message: Message, session: str | None = None) -> Answer:
    answer = await link.post(json.dumps(message).encode(), session)
    expect(
        answer.status == 202 and not answer.body,
        f"POST of {message.get('method', 'an answer')} was answered with status {answer.status}: {answer.body[:100]!r}",
    )
    return answer


async def _listening(link: HttpLink, session: str | None = None, **more: str) -> Listening:
    headers = {**link.headers(session), **{name.replace("_", "-"): value for name, value in more.items()}}
    listening = await Listening(link.http, headers).opened()
    link.streams[f"of a check {id(listening)}"] = listening  # closed with the connection
    return listening


def _stream(listening: Listening, whose: str) -> Listening:
    if listening.refused is not None:
        raise Broken(f"GET of the event stream of {whose} was answered with status {listening.refused.status}")
    return listening


async def _new(link: HttpLink, client: Client) -> tuple[str, Listening]:
    """A session, and the stream of the connection, which is opened after session/new was sent."""
    new = client.request("session/new", client.opening())
    await _post(link, new)
    whole = _stream(await _listening(link), "the connection")
    answer = await whole.until(answers(new["id"]), "the answer to session/new, on a stream that was opened after it")
    applies("result" in answer, f"session/new fails: {shown(answer)}")
    return member(answer, "result.sessionId", str, "the answer to session/new"), whole


@check("editor.http.waits-for-reader")
async def messages_wait_for_their_stream(driver: Driver) -> None:
    link, client = await _bare(driver)
    session, _ = await _new(link, client)
    prompt = client.request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]})
    await _post(link, prompt, session)
    own = _stream(await _listening(link, session), "a session")
    await own.until(answers(prompt["id"]), "the answer to a prompt that was sent before its stream was opened")


@check("editor.http.taken-up")
async def a_stream_is_taken_up_where_it_broke(driver: Driver) -> None:
    link, client = await _bare(driver)
    session, _ = await _new(link, client)
    own = _stream(await _listening(link, session), "a session")
    prompt = client.request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]})
    await _post(link, prompt, session)
    ended = await own.until(answers(prompt["id"]), "the answer to session/prompt")
    first = own.ids[0]
    applies(first, "the events have no ids: a stream that breaks is not taken up, as in the first draft")
    again = await _listening(link, session, last_event_id=first or "")
    if again.refused is not None:
        applies(again.refused.status != 409, "a stream has one reader, and the first one keeps it")
        raise Broken(f"Last-Event-ID {shown(first)} is refused with status {again.refused.status}")
    repeated = await again.until(answers(prompt["id"]), "the answer that was sent already, after Last-Event-ID")
    expect(repeated == ended, f"after Last-Event-ID another answer came: {shown(repeated)}")
    expect(
        again.messages[: len(own.messages) - 1] == own.messages[1:],
        f"after Last-Event-ID {shown(first)} came {len(again.messages)} of {len(own.messages) - 1} messages",
    )


@check("editor.http.listen-before-load")
async def a_session_that_nobody_opened_has_no_stream(driver: Driver) -> None:
    link, _ = await _bare(driver)
    _stream(await _listening(link), "the connection")
    stream = await _listening(link, "nobody-has-opened-this")
    if stream.refused is None:
        await stream.silent(lambda _: False)
        expect(
            not stream.ended and not stream.messages, "a session that nobody opened has a stream that says something"
        )
        raise NotApplicable(
            "the stream opens and stays silent, as published clients need it: they listen, and then load"
        )
    expect(
        stream.refused.status == 404,
        f"GET of the stream of a session that nobody opened is answered with status {stream.refused.status}",
    )


@check("editor.http.no-session-header")
async def an_answer_needs_no_session_header(driver: Driver) -> None:
    client = await shared(driver)
    link = _web(client)
    session = await client.asking()
    with client.by_hand():
        turn = await session.begin()
        request = await turn.question()
        told = {"jsonrpc": "2.0", "id": request["id"], "result": picked(request, "reject") or {"action": "decline"}}
        answer = await link.post(json.dumps(told).encode())
        if answer.status >= 300:
            await client.respond(request, told["result"])
            await turn.end()
            expect(answer.status == 400, f"an answer without Acp-Session-Id is refused with status {answer.status}")
            raise NotApplicable("an answer without Acp-Session-Id is refused with 400, as the draft has it")
        await turn.end()


@check("editor.http.unknown-session")
async def what_is_about_no_session_is_answered_on_the_connection(driver: Driver) -> None:
    link, client = await _bare(driver)
    whole = _stream(await _listening(link), "the connection")
    prompt = client.request("session/prompt", {"sessionId": "nobody", "prompt": []})
    answer = await link.post(json.dumps(prompt).encode(), "nobody")
    if answer.status >= 300:
        expect(
            answer.status in (400, 404),
            f"a prompt in a session that there is not is answered with status {answer.status}",
        )
        raise NotApplicable(f"a request about a session that there is not is refused with status {answer.status}")
    own = await _listening(link, "nobody")
    await whole.silent(answers(prompt["id"]))
    if own.refused is None and not any(map(answers(prompt["id"]), whole.messages)):
        found = await own.until(answers(prompt["id"]), "the answer to a prompt in a session that there is not")
        expect("error" in found, f"a prompt in a session that there is not was answered with {shown(found)}")
        raise NotApplicable("a request about a session that there is not is answered on a stream of that session")
    found = await whole.until(answers(prompt["id"]), "the answer to a prompt in a session that there is not")
    expect("error" in found, f"a prompt in a session that there is not was answered with {shown(found)}")


@check("editor.http.cancel")
async def a_turn_is_cancelled(driver: Driver) -> None:
    client = await shared(driver)
    session = await client.slow()
    turn = await session.begin()
    await turn.begun()
    await session.cancel()
    ended = await turn.end()
    expect(ended.stop == "cancelled", f"after session/cancel the prompt was answered with {shown(ended.answer)}")


@check("editor.http.keep-alive")
async def a_silent_stream_gets_comments(driver: Driver) -> None:
    client = await shared(driver)
    streams = _web(client).streams
    for _ in range(5):
        if any(stream.stream is not None and stream.stream.commented for stream in streams.values()):
            return
        await streams[None].silent(lambda _: False)
        expect(not streams[None].ended, "a stream ended by itself in a moment of silence")
    raise NotApplicable("no comment came while the streams were looked at")


@check("editor.http.back-pressure")
async def a_session_that_nobody_reads_holds_up_no_other(driver: Driver) -> None:
    link, client = await _bare(driver)
    silent, whole = await _new(link, client)
    new = client.request("session/new", client.opening())
    await _post(link, new)
    made = await whole.until(answers(new["id"]), "the answer to session/new")
    lively = member(made, "result.sessionId", str, "the answer to session/new")
    own = _stream(await _listening(link, lively), "a session")
    for session in (silent, lively):
        words = [{"type": "text", "text": "hello " * (2000 if session == silent else 1)}]
        prompt = client.request("session/prompt", {"sessionId": session, "prompt": words})
        await _post(link, prompt, session)
    await own.until(answers(prompt["id"]), "the answer in a session that is read, beside one that is not")


@check("editor.http.delete")
async def delete_ends_the_connection_and_its_streams(driver: Driver) -> None:
    link, _ = await _bare(driver)
    whole = _stream(await _listening(link), "the connection")
    http = await driver.http()
    deleted = await http.ask("DELETE", "", headers=link.headers())
    expect(deleted.status in (200, 202, 204), f"DELETE is answered with status {deleted.status}")
    try:
        async with asyncio.timeout(driver.subject.patience):
            await whole.until(lambda _: False, "anything")
    except TimeoutError:
        pass
    except Gone:
        pass
    expect(whole.ended, "after DELETE the stream of the connection is still open")
    answer = await link.post(b'{"jsonrpc":"2.0","method":"_interlingua/news"}')
    expect(answer.status == 404, f"after DELETE a message to the connection is answered with status {answer.status}")


@check("editor.http.vanished")
async def the_run_of_a_client_that_vanishes_goes_on(driver: Driver) -> None:
    client = await connected(driver)
    applies(client.able("loadSession"), "the server does not load sessions")
    driver.needs(NOT_ASKED_AGAIN)
    session = await client.asking()
    with client.by_hand():
        turn = await session.begin()
        await turn.question()
    for stream in _web(client).streams.values():
        await stream.close()
    await went_on(driver, session)

"""The MCP door over Streamable HTTP, for revisions with sessions."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.model.status import Status
from interlingua.security.keys import make_key
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from tests.kit.clients.mcp_http import BOTH, FLOOD, PROGRESS, WAIT, clients, ended, joined, only_run, up
from tests.kit.wait_for import wait_for

# -- sessions -------------------------------------------------------------------------------------------------


async def test_a_session_lasts_from_initialize_to_delete(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        told = await client.begin("2025-06-18")
        assert told["protocolVersion"] == "2025-06-18"
        assert "agents" in told["capabilities"]
        answer = await client.ask("agents/list")
        assert (answer.status, answer.kind) == (200, "application/json")
        assert [agent["name"] for agent in (await answer.json())["result"]["agents"]] == ["helper"]
        assert (await client.send("DELETE")).status == 204
        assert (await client.ask("agents/list")).status == 404
        assert not web.sessions


async def test_an_initialize_that_fails_leaves_no_session(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        answer = await client.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})
        assert answer.status == 400
        assert (await answer.json())["error"]["code"] == -32602
        assert "mcp-session-id" not in answer.response.headers
        assert not web.sessions


async def test_what_is_wrong_has_its_status(store: Path) -> None:
    listing = {"jsonrpc": "2.0", "id": 5, "method": "agents/list"}
    async with up(store) as (server, web), clients(server) as client:
        assert (await client.post(listing)).status == 400  # no session
        assert (await client.post(listing, mcp_session_id="x")).status == 404
        await client.begin()
        cases: list[tuple[Any, dict[str, str | None], int]] = [
            (listing, {"content_type": "text/plain"}, 415),
            (listing, {"accept": "application/json"}, 406),
            (listing, {"accept": "text/event-stream"}, 406),
            (listing, {"mcp_protocol_version": "1999-01-01"}, 400),
            (b"{", {}, 400),
            (b"7", {}, 400),
            (b"[]", {}, 400),
            (b'{"jsonrpc": "2.0"}', {}, 400),
            (b'{"method": "agents/list", "id": 1}', {}, 400),
            ({**listing, "id": None}, {}, 400),
            ([listing], {}, 400),  # this revision has none
        ]
        for message, headers, status in cases:
            answer = await client.post(message, **headers)
            assert answer.status == status, (message, headers)
            assert (await answer.json())["error"]["message"]
        for accept in (None, "*/*", "application/*, text/*;q=0.5"):
            assert (await client.post(listing, accept=accept)).status == 200
        web.settings = msgspec.structs.replace(web.settings, max_body_bytes=1000)
        assert (await client.post({**listing, "method": "x" * 2000})).status == 413
        assert (await client.send("GET", accept="application/json")).status == 406
        assert (await client.send("GET", accept="text/event-stream", mcp_session_id=None)).status == 400
        assert (await client.send("GET", accept="text/event-stream", mcp_session_id="x")).status == 404
        assert (await client.send("GET", accept="text/event-stream", mcp_protocol_version="1999-01-01")).status == 400
        assert (await client.send("DELETE", mcp_session_id=None)).status == 400
        assert (await client.send("PUT")).status == 405
        assert (await client.send("HEAD")).status == 405


async def test_errors_of_methods_are_answers(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin()
        for method, params, code in (("no/such", {}, -32601), ("agents/run", {"name": "x"}, -32602)):
            answer = await client.ask(method, params)
            assert answer.status == 200
            assert (await answer.json())["error"]["code"] == code


async def test_a_session_is_not_there_for_others(store: Path) -> None:
    kept = open_store(store)
    await kept.open()
    keys = StoredKeys(kept.keys)
    secrets = []
    for name in ("ann", "bob"):
        secret, record = make_key(name, ["*"], 0)
        await keys.put(record)
        secrets.append(secret)
    await kept.close()
    async with (
        up(store) as (server, _),
        clients(server, authorization=f"Bearer {secrets[0]}") as client,
        clients(server, authorization=f"Bearer {secrets[1]}") as other,
        clients(server) as nobody,
    ):
        await client.begin()
        session = client.headers["mcp-session-id"]
        other.headers["mcp-session-id"] = nobody.headers["mcp-session-id"] = session
        for method in ("POST", "GET", "DELETE"):
            sent = {"jsonrpc": "2.0", "id": 1, "method": "ping"} if method == "POST" else None
            given = {"accept": BOTH, "content_type": "application/json"}
            assert (await other.send(method, sent, **given)).status == 404
            refused = await nobody.send(method, sent, **given)
            assert refused.status == 401
            assert refused.response.headers["www-authenticate"]
        assert (await client.ask("ping")).status == 200
        pair = await client.send("GET", url=client.url + "/sse", accept="text/event-stream")
        event = await pair.event()
        assert event is not None
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        where = server.address + event.data
        assert (await other.send("POST", ping, where, content_type="application/json")).status == 404
        assert (await nobody.send("POST", ping, where, content_type="application/json")).status == 401
        assert (await client.send("POST", ping, where, content_type="application/json")).status == 202


async def test_the_session_that_was_silent_longest_makes_room(store: Path) -> None:
    async with up(store, max_sessions=2) as (server, _), contextlib.AsyncExitStack() as stack:
        first, second, third, fourth = [await stack.enter_async_context(clients(server)) for _ in range(4)]
        await first.begin()
        await second.begin()
        assert (await first.ask("ping")).status == 200
        await third.begin()
        assert (await second.ask("ping")).status == 404
        assert (await first.ask("ping")).status == 200
        await first.listen()
        await third.listen()
        full = await fourth.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})
        assert full.status == 503


async def test_an_id_that_is_open_cannot_be_used_again(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin()
        running = await client.run("wait")
        assert (await running.next())["params"]["delta"] == {"text": "waiting"}
        answer = await client.post({"jsonrpc": "2.0", "id": client.id, "method": "ping"})
        assert answer.status == 400


# -- answers to a POST ----------------------------------------------------------------------------------------


async def test_an_answer_alone_is_json(store: Path) -> None:
    async with up(store, patience=WAIT) as (server, _), clients(server) as client:
        await client.begin()
        answer = await client.run("you", token=None)
        assert answer.kind == "application/json"
        assert (await answer.json())["result"]["output"] == {"text": "grüße you"}


@pytest.mark.parametrize("token", ["t", "", 0])
async def test_deltas_come_on_the_stream_of_their_post_and_before_the_answer(store: Path, token: str | int) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin()
        whole = await client.listen()
        answer = await client.run("you", token)
        assert answer.kind == "text/event-stream"
        *deltas, last = await answer.rest()
        assert last["id"] == client.id
        assert last["result"]["output"] == joined(deltas) == {"text": "grüße you"}
        assert {(d["method"], d["params"]["progressToken"]) for d in deltas} == {(PROGRESS, token)}
        assert answer.raw.isascii()
        assert (await client.send("DELETE")).status == 204
        assert await whole.rest() == []


@pytest.mark.parametrize(("version", "primes"), [("2025-11-25", True), ("2025-06-18", False)])
async def test_a_stream_begins_with_an_id_where_the_revision_knows_that(
    store: Path, version: str, primes: bool
) -> None:
    async with up(store, patience=0.01) as (server, _), clients(server) as client:
        await client.begin(version)
        answer = await client.run("nothing")
        async with asyncio.timeout(WAIT):
            first = await anext(answer.response.aiter_raw())
        assert first == (b"id: 2-0\ndata:\n\n" if primes else b": keep-alive\n")


async def test_a_question_is_asked_on_the_stream_of_its_post(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin(elicitation={})
        answer = await client.run("ask", token=None)
        asked = await answer.next()
        assert asked["method"] == "elicitation/create"
        told = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"choice": "yes"}}}
        assert (await client.post(told)).status == 202
        assert [message["result"]["output"] for message in await answer.rest()] == [{"text": "done"}]


async def test_a_question_that_is_answered_elsewhere_is_taken_back_where_it_was_asked(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin(elicitation={})
        answer = await client.run("ask", token=None)
        asked = await answer.next()
        questions = await server.engine.questions.open(run=await only_run(server))
        await server.engine.questions.answer(questions[0].id, {"approved": True})
        taken, last = await answer.rest()
        assert (taken["method"], taken["params"]["requestId"]) == ("notifications/cancelled", asked["id"])
        assert last["result"]["output"] == {"text": "done"}


async def test_a_request_is_cancelled_by_another_post_and_its_stream_ends(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin()
        answer = await client.run("wait")
        await answer.next()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": client.id}}
        assert (await client.post(cancel)).status == 202
        assert [message["error"]["code"] for message in await answer.rest()] == [-32800]
        assert await ended(server) is Status.CANCELLED


async def test_a_batch_is_answered_as_one_where_the_revision_has_them(store: Path) -> None:
    async with up(store, patience=WAIT) as (server, _), clients(server) as client:
        await client.begin("2025-03-26")
        run = {"name": "helper", "input": {"text": "you"}}
        answer = await client.post([
            {"jsonrpc": "2.0", "id": 1, "method": "ping"},
            {"jsonrpc": "2.0", "method": "notifications/unknown"},
            {"jsonrpc": "2.0", "id": "b", "method": "agents/run", "params": run},
        ])  # fmt: skip
        told = {entry["id"]: entry["result"] for entry in await answer.json()}
        assert told[1] == {}
        assert told["b"]["output"] == {"text": "grüße you"}
        assert (await client.post([{"jsonrpc": "2.0", "method": "notifications/unknown"}])).status == 202
        same = [{"jsonrpc": "2.0", "id": 1, "method": "ping"}] * 2
        assert (await client.post(same)).status == 400


async def test_who_does_not_read_slows_only_its_own_run(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        await client.begin()
        slow = await client.run("flood")
        run = await only_run(server)
        assert (await server.engine.runs.wait(run, timeout=WAIT)).status is Status.SUCCEEDED
        quick = await client.run("you")
        assert (await quick.rest())[-1]["result"]["output"] == {"text": "grüße you"}
        (session,) = web.sessions
        assert session.channel.backlog.bytes < FLOOD * 100_000 / 2  # far from all of it
        *deltas, last = await slow.rest()
        assert joined(deltas) == last["result"]["output"]
        assert len(last["result"]["output"]["text"]) == FLOOD * 100_006


# -- streams that are taken up again --------------------------------------------------------------------------


async def test_a_stream_is_taken_up_after_the_last_event_and_loses_nothing(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        await client.begin(elicitation={})
        answer = await client.run("ask")
        asked = await answer.next()
        place = answer.last_id
        await answer.leave()
        told = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"choice": "yes"}}}
        assert (await client.post(told)).status == 202
        assert await ended(server) is Status.SUCCEEDED
        again = await client.listen(place)
        *deltas, last = await again.rest()
        assert joined(deltas) == last["result"]["output"] == {"text": "done"}
        replayed = await client.listen(place)  # and again, as often as it likes
        assert await replayed.rest() == [*deltas, last]
        for unknown in ("9-1", "x", "1", "2-99", "-", "2-"):
            assert (await client.listen(unknown)).status == 400
        assert web.sessions


async def test_a_stream_that_is_taken_up_goes_on_and_the_old_one_ends(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin(elicitation={})
        answer = await client.run("ask")
        asked = await answer.next()
        again = await client.listen(answer.last_id)
        assert await answer.rest() == []
        told = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"choice": "no"}}}
        assert (await client.post(told)).status == 202
        *deltas, last = await again.rest()
        assert joined(deltas) == last["result"]["output"] == {"text": "refused"}


@pytest.mark.parametrize("token", [None, "t"], ids=["result", "deltas"])
async def test_a_long_stream_that_has_ended_is_not_held_and_is_made_again(store: Path, token: str | None) -> None:
    async with up(store) as (server, web), clients(server) as client:
        await client.begin()
        answer = await client.run("flood", token)
        await answer.event()
        place = answer.last_id
        if token is None:
            await answer.leave()
        else:
            await answer.rest()
        await ended(server)
        (session,) = web.sessions
        (exchange,) = session.channel._kept.values()
        await wait_for(lambda: exchange.emptied)
        assert (exchange.kept, session.channel.backlog.bytes) == (0, 0)
        for _ in range(2):
            again = await client.listen(place)
            *deltas, last = await again.rest()
            assert len(last["result"]["output"]["text"]) == FLOOD * 100_006
            assert token is None or joined(deltas) == last["result"]["output"]
        middle = await client.listen(answer.events[len(answer.events) // 2].id)
        *deltas, last = await middle.rest()
        assert len(last["result"]["output"]["text"]) == FLOOD * 100_006
        assert token is None or 0 < len(joined(deltas)["text"]) < FLOOD * 100_006


async def test_only_so_much_of_a_stream_is_kept(store: Path) -> None:
    async with up(store, keep_bytes=0) as (server, _), clients(server) as client:
        await client.begin()
        answer = await client.run("you")
        await answer.rest()
        first, last = answer.events[0].id, answer.events[-1].id
        assert (await client.listen(first)).status == 400
        assert await (await client.listen(last)).rest() == []


async def test_only_the_newest_streams_that_ended_are_kept(store: Path) -> None:
    async with up(store, keep_streams=1) as (server, _), clients(server) as client:
        await client.begin()
        places = []
        for _ in range(3):
            answer = await client.run("you")
            await answer.rest()
            places.append(f"{answer.events[0].id}".partition("-")[0] + "-0")
        assert [(await client.listen(place)).status for place in places] == [400, 200, 200]


async def test_changes_are_told_on_the_stream_of_a_get(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin()
        whole = await client.listen()
        running = await client.run("wait")
        await running.next()

        @il.agent
        async def another(text: str) -> str:
            return text

        server.engine.agents.add(another)
        told = [(await whole.next())["method"] for _ in range(2)]
        assert sorted(told) == ["notifications/agents/list_changed", "notifications/tools/list_changed"]
        place = f"{whole.last_id}"
        await whole.leave()
        server.engine.agents.remove(another.card.key)
        again = await client.listen(place)
        assert (await again.next())["method"] in told


async def test_a_client_that_vanishes_is_forgotten_and_its_runs_go_on(store: Path) -> None:
    async with up(store, idle=0.3) as (server, web), clients(server) as client:
        await client.begin()
        answer = await client.run("wait")
        await answer.next()
        run = await only_run(server)
        assert (await server.engine.runs.get(run)).status is Status.RUNNING
        await answer.leave()
        (session,) = web.sessions
        await wait_for(lambda: not (web.sessions or session.rpc.rpc.open_calls))
        assert (await client.ask("ping")).status == 404
        assert (await server.engine.runs.get(run)).status is Status.RUNNING
        await server.engine.runs.cancel(run)
        assert await ended(server) is Status.CANCELLED


async def test_a_session_that_listens_is_not_forgotten(store: Path) -> None:
    async with up(store, idle=0.05, keep_alive=0.1) as (server, web), clients(server) as client:
        await client.begin("2025-06-18")
        whole = await client.listen()
        async with asyncio.timeout(WAIT):
            pieces = whole.response.aiter_raw()
            assert [await anext(pieces) for _ in range(3)] == [b": keep-alive\n"] * 3  # two of them while it is silent
        assert web.sessions
        await whole.leave()
        await wait_for(lambda: not web.sessions)


async def test_a_client_for_which_too_much_waits_is_sent_away(store: Path) -> None:
    async with up(store, max_buffered_bytes=10_000) as (server, web), clients(server) as client:
        await client.begin()
        (session,) = web.sessions
        for _ in range(100):
            session.rpc.notify("notifications/message", {"level": "info", "data": "x" * 100})
        await wait_for(lambda: not web.sessions)
        assert (await client.ask("ping")).status == 404


async def test_delete_ends_streams_and_cancels_requests(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin()
        answer = await client.run("wait")
        await answer.next()
        assert (await client.send("DELETE")).status == 204
        assert await answer.rest() == []
        assert await ended(server) is Status.CANCELLED


async def test_a_server_that_stops_ends_streams_and_no_runs(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        modern = await client.modern(
            "agents/run", {"name": "helper", "input": {"text": "wait"}, "_meta": {"progressToken": 1}}
        )
        await modern.next()
        await client.begin()
        answer = await client.run("wait")
        await answer.next()
        await web.close()
        assert await answer.rest() == await modern.rest() == []
        runs = await server.engine.runs.search(RunFilter())
        assert [run.status for run in runs] == [Status.RUNNING] * 2
        assert (
            await client.post({"jsonrpc": "2.0", "id": 0, "method": "initialize"}, mcp_session_id=None)
        ).status == 503

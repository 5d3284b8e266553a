"""Rude peers and unlucky moments, at the door of agents over MCP and at its mount."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import interlingua as il
from interlingua.model.run import Caller
from interlingua.model.status import Status
from interlingua.protocols.mcp.translate import QUESTION_OPEN
from interlingua.security.auth import Authenticator
from interlingua.transports.jsonrpc.core import INVALID_REQUEST
from tests.kit.clients.mcp import RUN, THREAD, careful, client_of, echo, remember
from tests.kit.clients.mcp_http import BOTH, WAIT, clients, joined, only_run, up
from tests.kit.engines import QUICK, question
from tests.kit.wait_for import wait_for

# -- one caller and another -----------------------------------------------------------------------------------


async def test_a_thread_of_another_caller_is_not_there(store: Path) -> None:
    async with il.Engine(store, agents=[remember], settings=QUICK) as engine:
        async with client_of(engine, Caller("ann", scopes=())) as (client, _):
            await client.initialize()
            assert await client.run("remember", {"text": "secret"}, **{THREAD: "t"}) == {"text": "secret"}
        async with client_of(engine, Caller("mallory", scopes=())) as (client, _):
            await client.initialize()
            error = await client.failed_run("remember", {"text": "and?"}, **{THREAD: "t"})
            assert error["data"]["code"] == "thread_not_found"
        assert (await engine.threads.get("t")).values == {"said": ["secret"]}


class Count(msgspec.Struct):
    count: int = 0


@il.agent
async def counter(text: str, ctx: il.Context[Count, None]) -> str:
    """Counts."""
    ctx.state.count += 1
    return str(ctx.state.count)


async def test_an_agent_does_not_overwrite_the_state_of_another_in_a_thread(store: Path) -> None:
    async with il.Engine(store, agents=[remember, counter], settings=QUICK) as engine, client_of(engine) as (client, _):
        await client.initialize()
        await client.run("remember", {"text": "one"}, **{THREAD: "t"})
        error = await client.failed_run("counter", {"text": ""}, **{THREAD: "t"})
        assert error["data"]["code"] == "conflict"
        assert await client.run("remember", {"text": "two"}, **{THREAD: "t"}) == {"text": "one two"}


async def test_who_may_not_cancel_cancels_no_run_of_another_by_leaving_it(store: Path) -> None:
    async with il.Engine(store, agents=[careful], settings=QUICK) as engine:
        async with client_of(engine, Caller("ann", scopes=())) as (ann, _):
            await ann.initialize()
            run = (await ann.failed_run("careful", {"text": "it"}))["data"]["run"]
        watcher = Caller("bob", scopes=("do:run", "do:read", "do:answer", "see:all"))
        async with client_of(engine, watcher) as (bob, connection):
            await bob.initialize(elicits=True)
            id_ = await bob.start_run("careful", {}, **{RUN: run})
            await bob.request("elicitation/create")
            await bob.notify("notifications/cancelled", {"requestId": id_})
            await bob.notice("notifications/cancelled")
            await wait_for(lambda: not connection.rpc.rpc.open_calls)
            await engine.questions.answer((await question(engine, run)).id, {"approved": True})
            assert (await engine.runs.wait(run, timeout=WAIT)).status is Status.SUCCEEDED


async def test_the_run_of_another_is_followed_only_by_who_may_read(store: Path) -> None:
    async with il.Engine(store, agents=[careful], settings=QUICK) as engine:
        async with client_of(engine, Caller("ann", scopes=())) as (ann, _):
            await ann.initialize()
            run = (await ann.failed_run("careful", {"text": "it"}))["data"]["run"]
        async with client_of(engine, Caller("bob", scopes=("do:run", "see:all"))) as (bob, _):
            await bob.initialize()
            error = await bob.failed_run("careful", {}, **{RUN: run})
            assert error["data"]["code"] == "denied"


async def test_who_may_not_answer_is_not_asked_and_is_told_of_the_question(store: Path) -> None:
    async with (
        il.Engine(store, agents=[careful], settings=QUICK) as engine,
        client_of(engine, Caller("bob", scopes=("do:run",))) as (client, _),
    ):
        await client.initialize(elicits=True)
        client.on("elicitation/create", lambda _: {"action": "accept", "content": {"choice": "yes"}})
        error = await client.failed_run("careful", {"text": "it"})
        assert (error["code"], error["data"]["question"]["type"]) == (QUESTION_OPEN, "confirm")
        assert (await engine.runs.get(error["data"]["run"])).status is Status.WAITING


async def test_a_key_names_one_run_of_one_caller(store: Path) -> None:
    key = {"interlingua/key": "k"}
    async with il.Engine(store, agents=[echo], settings=QUICK) as engine:
        runs = []
        for who in ("ann", "ann", "bob"):
            async with client_of(engine, Caller(who, scopes=())) as (client, _):
                await client.initialize()
                runs.append((await client.whole_run("echo", {"text": "a"}, **key))["_meta"][RUN])
                error = await client.failed_run("echo", {"text": "b"}, **key)
                assert (error["code"], error["data"]["code"]) == (INVALID_REQUEST, "key_reused")
        assert runs[0] == runs[1] != runs[2]


class ByName(Authenticator):
    """Takes callers at their word, as tokens of one person with other scopes would be."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        return Caller(headers["x-name"], scopes=tuple(headers["x-scopes"].split()))


async def test_a_session_gives_nobody_more_than_their_own_scopes(store: Path) -> None:
    async with up(store) as (server, web):
        web.auth = ByName()
        async with (
            clients(server, x_name="ann", x_scopes="*") as whole,
            clients(server, x_name="ann", x_scopes="do:read") as part,
        ):
            whole.headers = {name.replace("_", "-"): value for name, value in whole.headers.items()}
            part.headers = {name.replace("_", "-"): value for name, value in part.headers.items()}
            await whole.begin()
            part.headers |= {"mcp-session-id": whole.headers["mcp-session-id"]}
            answer = await part.run("hello", None)
            assert answer.status == 404
            answer = await whole.run("hello", None)
            assert (await answer.json())["result"]["output"]


async def test_clients_that_begin_again_and_again_push_out_their_own_sessions_first(store: Path) -> None:
    async with up(store, max_sessions=4) as (server, web):
        web.auth = ByName()
        async with clients(server) as quiet, clients(server) as loud:
            quiet.headers = {"x-name": "quiet", "x-scopes": "*"}
            await quiet.begin()
            for _ in range(10):
                loud.headers = {"x-name": "loud", "x-scopes": "*"}
                await loud.begin()
            assert (await quiet.ask("ping")).status == 200
            assert (await loud.ask("ping")).status == 200


async def test_one_caller_cannot_have_all_sessions_however_busy_they_are(store: Path) -> None:
    async with up(store, max_sessions=2) as (server, web), contextlib.AsyncExitStack() as stack:
        web.auth = ByName()
        first, second, other = [await stack.enter_async_context(clients(server)) for _ in range(3)]
        for client, name in ((first, "loud"), (second, "loud"), (other, "quiet")):
            client.headers = {"x-name": name, "x-scopes": "*"}
        await first.begin()
        await first.listen()
        full = await second.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})
        assert full.status == 429
        await other.begin()
        assert (await first.ask("ping")).status == 200


# -- unlucky moments ------------------------------------------------------------------------------------------


async def _raw(server: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


def _http(headers: dict[str, str], message: Any) -> bytes:
    body = json.dumps(message).encode()
    given = {**headers, "host": "127.0.0.1", "content-type": "application/json", "accept": BOTH}
    lines = [f"{name}: {value}" for name, value in {**given, "content-length": str(len(body))}.items()]
    return ("POST /mcp/ HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode() + body


async def test_a_request_that_is_taken_back_in_the_moment_in_which_it_comes_is_answered(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        await client.begin()
        (session,) = web.sessions
        one, other = await _raw(server), await _raw(server)
        params = {"name": "helper", "input": {"text": "wait"}}
        request = _http(client.headers, {"jsonrpc": "2.0", "id": 7, "method": "agents/run", "params": params})
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        one[1].write(request)
        other[1].write(_http(client.headers, cancel))
        async with asyncio.timeout(WAIT):
            head = await one[0].readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            told = await one[0].readuntil(b"}}")
        assert b'"id":7' in told
        assert session.rpc.rpc.open_calls == 0
        for _, writer in (one, other):
            writer.close()


async def test_an_elicitation_of_a_run_that_ends_is_taken_back_on_the_stream_on_which_it_was_asked(store: Path) -> None:
    async with up(store) as (server, _), clients(server) as client:
        await client.begin(elicitation={})
        stream = await client.run("ask")
        asked = await stream.next()
        assert asked["method"] == "elicitation/create"
        await server.engine.runs.cancel(await only_run(server))
        *before, answer = await stream.rest()
        assert [(m["method"], m["params"]["requestId"]) for m in before] == [("notifications/cancelled", asked["id"])]
        assert answer["error"]["data"]["code"] == "cancelled"


async def test_changes_that_nobody_reads_do_not_pile_up(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        await client.begin()
        (session,) = web.sessions
        for _ in range(1000):
            for listener in server.engine.agents.listeners:
                listener()
        assert session.channel.whole.waiting < 1000
        stream = await client.listen()
        told = {(await stream.next())["method"], (await stream.next())["method"]}
        assert told == {"notifications/agents/list_changed", "notifications/tools/list_changed"}
        for listener in server.engine.agents.listeners:
            listener()
        told = {(await stream.next())["method"], (await stream.next())["method"]}
        assert told == {"notifications/agents/list_changed", "notifications/tools/list_changed"}


@il.agent
async def boss(text: str, ctx: il.Context[Any, Any]) -> str:
    """Lets another do it."""
    return str((await ctx.call("careful", {"text": text}))["text"])


async def test_a_question_of_a_child_is_asked_of_who_ran_its_parent(store: Path) -> None:
    async with (
        il.Engine(store, agents=[boss, careful], settings=QUICK) as engine,
        client_of(engine) as (client, _),
    ):
        await client.initialize(elicits=True)
        client.on("elicitation/create", lambda _: {"action": "accept", "content": {"choice": "yes"}})
        assert await client.run("boss", {"text": "it"}) == {"text": "asking. done"}


async def test_a_question_of_a_child_is_returned_to_who_ran_its_parent(store: Path) -> None:
    async with (
        il.Engine(store, agents=[boss, careful], settings=QUICK) as engine,
        client_of(engine) as (client, _),
    ):
        params = {"name": "boss", "input": {"text": "it"}}
        told = (await client.modern("agents/run", params, elicits=True))["result"]
        assert told["resultType"] == "input_required"
        [key] = told["inputRequests"]
        given = {key: {"action": "accept", "content": {"choice": "yes"}}}
        again = {**params, "requestState": told["requestState"], "inputResponses": given}
        assert (await client.modern("agents/run", again, elicits=True))["result"]["output"] == {"text": "asking. done"}


async def test_a_slow_reader_whose_connection_breaks_takes_the_stream_up_again(store: Path) -> None:
    async with up(store) as (server, web), clients(server) as client:
        await client.begin()
        stream = await client.run("flood")
        messages = [await stream.next()]
        (session,) = web.sessions
        outbox, _ = session.channel.find(stream.last_id)
        async with asyncio.timeout(WAIT):
            while outbox.waiting < 1024 * 1024:  # the buffers of the connection are full
                await asyncio.sleep(0)
        await stream.leave()
        again = await client.listen(stream.last_id)
        assert again.status == 200
        messages += await again.rest()
        assert joined(messages) == messages[-1]["result"]["output"]

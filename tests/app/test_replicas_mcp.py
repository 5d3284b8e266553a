"""MCP through a balancer that sends each request to another process: sessions work anywhere, and outlive the process
that made them.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx2

from interlingua.model.status import Status
from tests.kit.clients.mcp_http import Answer, Client, Message, clients, joined

from .fleet import Fleet, fleet

FORM = {"elicitation": {"form": {}}}
YES, NO = {"choice": "yes"}, {"choice": "no"}


async def result(answer: Answer) -> Any:
    """Of a request, whether it is answered by a stream or not."""
    message = await answer.json() if answer.kind == "application/json" else (await answer.rest())[-1]
    return message["result"]


async def broken(answer: Answer) -> None:
    """Wait until a stream is cut off."""
    with contextlib.suppress(httpx2.HTTPError):
        while await answer.event() is not None:
            pass


async def taken_up(client: Client, after: str | None) -> Answer:
    answer = await client.listen(after)
    assert (answer.status, answer.kind) == (200, "text/event-stream"), await answer.response.aread()
    return answer


async def used(all_: Fleet) -> int:
    return sum([await member.metric("passed_on_total") > 0 for member in all_.members])


async def test_a_session_works_at_whichever_process_a_request_comes_to(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin(**FORM)
        for _ in range(3):
            listed = await result(await client.ask("tools/list"))
            assert [tool["name"] for tool in listed["tools"]] == ["helper"]
        assert (await result(await client.ask("ping"))) == {}
        told = await (await client.run("gate open")).next()
        assert told["params"]["delta"] == {"text": "one "}
        (tmp_path / "open").touch()
        stream = client.answers[-1]
        rest = await stream.rest()
        assert joined([told, *rest]) == {"text": "one two three"}
        assert rest[-1]["result"]["output"] == {"text": "one two three"}
        assert set(all_.sent) == {member.port for member in all_.members}
        assert await used(all_) == 2, "the process that has the session passes nothing on"


async def test_a_question_is_asked_by_one_process_and_answered_through_another(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin(**FORM)
        stream = await client.run("ask", None)
        asked = await stream.next()
        assert asked["method"] == "elicitation/create"
        for _ in range(2):  # the second one is nothing any more, wherever it comes to
            given = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": YES}}
            assert (await client.post(given)).status == 202
        assert (await stream.rest())[-1]["result"]["output"] == {"text": "asking done"}


async def test_the_stream_of_a_session_and_its_end_are_told_to_the_process_that_has_it(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        for _ in range(3):
            listening = await taken_up(client, None)
            await listening.leave()
        stream = await client.run("gate never")
        assert (await stream.next())["params"]["delta"] == {"text": "one "}
        assert (await client.send("DELETE")).status == 204
        await broken(stream)
        for _ in range(3):
            assert (await client.ask("ping")).status == 404


async def test_the_older_pair_finds_the_process_that_has_its_stream(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        stream = await client.send("GET", url=client.url + "/sse", accept="text/event-stream")
        first = await stream.event()
        assert first is not None
        where = all_.address + first.data
        params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "0"}}
        for number, (method, given) in enumerate([("initialize", params), ("agents/list", {}), ("ping", {})]):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": given}
            posted = await client.send("POST", message, where, content_type="application/json")
            assert posted.status == 202
            assert (await stream.next())["id"] == number
        await (await all_.holder(first.data.partition("session_id=")[2])).kill()
        await broken(stream)
        message = {"jsonrpc": "2.0", "id": 9, "method": "ping"}
        posted = await client.send("POST", message, where, content_type="application/json")
        assert posted.status == 404, "its stream is gone; the client opens a new one"


async def test_a_session_outlives_the_process_that_had_it(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin(**FORM)
        assert await result(await client.ask("logging/setLevel", {"level": "info"})) == {}
        session = client.headers["mcp-session-id"]
        holder = await all_.holder(session)
        listening = await taken_up(client, None)
        await holder.kill()
        await broken(listening)
        for _ in range(3):
            assert [tool["name"] for tool in (await result(await client.ask("tools/list")))["tools"]] == ["helper"]
        again = await taken_up(client, listening.last_id)
        assert (await again.next())["method"] == "notifications/agents/list_changed", "it may have been missed"
        assert (await result(await client.run("hello")))["output"] == {"text": "heard hello"}
        assert sum([await member.metric("takeovers_total") for member in all_.others(holder)]) == 1
        stream = await client.run("ask", None)
        asked = await stream.next()
        assert asked["method"] == "elicitation/create", "what the client can do is known"
        given = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": YES}}
        assert (await client.post(given)).status == 202
        assert (await stream.rest())[-1]["result"]["output"] == {"text": "asking done"}
        assert (await client.send("DELETE")).status == 204
        for _ in range(2):
            assert (await client.ask("ping")).status == 404


async def test_a_client_that_comes_back_without_an_events_id_lists_again(tmp_path: Path) -> None:
    """Its connection may have ended before the first event with an id."""
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin(**FORM)
        await (await all_.holder(client.headers["mcp-session-id"])).kill()
        listening = await taken_up(client, None)
        methods = [(await listening.next())["method"] for _ in range(2)]
        assert methods == ["notifications/agents/list_changed", "notifications/tools/list_changed"]


async def test_a_run_whose_stream_was_lost_is_taken_up_where_it_broke_off(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        stream = await client.run("gate open")
        seen: list[Message] = [await stream.next()]
        await (await all_.holder(client.headers["mcp-session-id"])).kill()
        await broken(stream)
        again = await taken_up(client, stream.last_id)
        (tmp_path / "open").touch()
        seen += await again.rest()
        assert joined(seen) == {"text": "one two three"}, "nothing is missing and nothing is told twice"
        assert (seen[-1]["id"], seen[-1]["result"]["output"]) == (client.id, {"text": "one two three"})
        ids = [event.id for event in (*stream.events, *again.events)]
        assert len(set(ids)) == len(ids) - 1, "only the place that it goes on from is told twice"
        other = await taken_up(client, again.events[0].id)
        assert joined([seen[0], *await other.rest()]) == {"text": "one two three"}, "it can be read once more"


async def test_two_processes_may_die_under_one_stream(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        stream = await client.run("gate open")
        seen: list[Message] = [await stream.next()]
        first = await all_.holder(client.headers["mcp-session-id"])
        await first.kill()
        await broken(stream)
        again = await taken_up(client, stream.last_id)
        assert await again.event() is not None
        taker = [member for member in all_.others(first) if await member.metric("takeovers_total")]
        await taker[0].kill()
        await broken(again)
        last = await taken_up(client, again.last_id)
        (tmp_path / "open").touch()
        seen += await last.rest()
        assert joined(seen) == {"text": "one two three"}
        assert seen[-1]["result"]["output"] == {"text": "one two three"}


async def test_a_run_that_ended_while_nobody_listened_is_answered_to_who_comes_back(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        stream = await client.run("gate open")
        seen: list[Message] = [await stream.next()]
        await (await all_.holder(client.headers["mcp-session-id"])).kill()
        await broken(stream)
        (tmp_path / "open").touch()
        assert await all_.ended() is Status.SUCCEEDED
        seen += await (await taken_up(client, stream.last_id)).rest()
        assert joined(seen) == {"text": "one two three"}
        assert seen[-1]["result"]["output"] == {"text": "one two three"}


async def test_a_question_that_was_open_when_its_process_died_is_asked_again(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin(**FORM)
        stream = await client.run("ask")
        while (asked := await stream.next()).get("method") != "elicitation/create":
            pass
        await (await all_.holder(client.headers["mcp-session-id"])).kill()
        await broken(stream)
        late = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": NO}}
        assert (await client.post(late)).status == 202
        again = await taken_up(client, stream.last_id)
        anew = await again.next()
        assert anew["method"] == "elicitation/create"
        assert anew["id"] != asked["id"], "an answer to the lost one cannot be taken for one to this"
        given = {"jsonrpc": "2.0", "id": anew["id"], "result": {"action": "accept", "content": YES}}
        assert (await client.post(given)).status == 202
        assert (await again.rest())[-1]["result"]["output"] == {"text": "asking done"}


async def test_a_request_of_a_dead_process_can_be_taken_back(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        stream = await client.run("gate never")
        await stream.next()
        await (await all_.holder(client.headers["mcp-session-id"])).kill()
        await broken(stream)
        params = {"requestId": client.id}
        told = await client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert told.status == 202
        assert await all_.ended() is Status.CANCELLED


async def test_a_server_that_is_started_again_knows_its_sessions(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        [member] = all_.members
        await member.stop()
        await member.up()
        assert (await result(await client.run("hello")))["output"] == {"text": "heard hello"}


async def test_many_who_come_back_at_once_find_one_session(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        holder = await all_.holder(client.headers["mcp-session-id"])
        await holder.kill()
        answers = await asyncio.gather(*[client.ask("agents/list") for _ in range(12)])
        assert [answer.status for answer in answers] == [200] * 12
        assert sum([await member.metric("takeovers_total") for member in all_.others(holder)]) == 1

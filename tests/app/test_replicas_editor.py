"""The Agent Client Protocol over HTTP through a balancer that sends each request to another process: connections work
anywhere, and outlive the process that made them. A WebSocket ends with its process, and its session is loaded again.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
import websockets.asyncio.client

from interlingua.model.events import QuestionAsked
from interlingua.protocols.editor.config import MountSettings
from interlingua.protocols.editor.mount.questions import EditorQuestions
from interlingua.protocols.editor.mount.server import EditorServer
from interlingua.protocols.editor.mount.sessions import source_of
from tests.kit.engines import bodies, engine, question, submit
from tests.kit.mounts.editor import agent_of
from tests.protocols.editor.test_web import Client, Stream, clients

from .fleet import WAIT, Fleet, Member, fleet

Message = dict[str, Any]


def said(messages: list[Message]) -> str:
    """The text of the agent in updates."""
    updates = [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
    return "".join(update["content"]["text"] for update in updates if update["sessionUpdate"] == "agent_message_chunk")


async def until_said(stream: Stream, text: str) -> list[Message]:
    seen: list[Message] = []
    while text not in said(seen):
        seen.append(await stream.next())
    return seen


async def until_asked(stream: Stream) -> Message:
    while (message := await stream.next()).get("method") != "session/request_permission":
        pass
    return message


async def allow(client: Client, asked: Message) -> None:
    option = next(one["optionId"] for one in asked["params"]["options"] if one["kind"] == "allow_once")
    result = {"outcome": {"outcome": "selected", "optionId": option}}
    answer = await client.raw({"jsonrpc": "2.0", "id": asked["id"], "result": result})
    assert answer.status_code == 202


async def lose(all_: Fleet, client: Client) -> None:
    """The process dies that has the connection."""
    await lose_member(await all_.holder(client.connection), client)


async def lose_member(member: Member, client: Client) -> None:
    await member.kill()
    streams, client.streams = client.streams, []
    for stream in streams:
        async with asyncio.timeout(WAIT):
            await stream.ended.wait()
        with pytest.raises(httpx2.HTTPError):
            await stream._task


async def test_a_connection_works_at_whichever_process_a_request_comes_to(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        whole = await client.begin()
        session = await client.session(whole)
        stream = await client.listen(session)
        for text in ("one", "two", "three"):
            answer, before = await stream.until(await client.prompt(session, text))
            assert answer["result"]["stopReason"] == "end_turn"
            assert said(before) == f"heard {text}"
        id_ = await client.prompt(session, "ask")
        await allow(client, await until_asked(stream))
        answer, before = await stream.until(id_)
        assert said(before) == "done"
        id_ = await client.prompt(session, "gate never")
        await until_said(stream, "one ")
        params = {"sessionId": session}
        told = await client.raw(
            {"jsonrpc": "2.0", "method": "session/cancel", "params": params}, acp_session_id=session
        )
        assert told.status_code == 202
        assert (await stream.until(id_))[0]["result"]["stopReason"] == "cancelled"
        assert set(all_.sent) == {member.port for member in all_.members}


async def test_a_turn_goes_on_where_its_stream_broke_off_when_its_process_died(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        whole = await client.begin()
        session = await client.session(whole)
        stream = await client.listen(session)
        id_ = await client.prompt(session, "gate open")
        seen = await until_said(stream, "one ")
        await lose(all_, client)
        await client.listen(None, whole.last_id)
        again = await client.listen(session, stream.last_id)
        assert again.status == 200
        (tmp_path / "open").touch()
        answer, rest = await again.until(id_)
        assert answer["result"]["stopReason"] == "end_turn"
        assert said(seen + rest) == "one two three", "nothing is missing and nothing is said twice"
        answer, before = await again.until(await client.prompt(session, "more"))
        assert (answer["result"]["stopReason"], said(before)) == ("end_turn", "heard more")


async def test_two_processes_may_die_under_one_turn(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        whole = await client.begin()
        session = await client.session(whole)
        stream = await client.listen(session)
        id_ = await client.prompt(session, "gate open")
        seen = await until_said(stream, "one ")
        first = await all_.holder(client.connection)
        await lose_member(first, client)
        await client.listen(None, whole.last_id)  # the second process has the connection, and nobody reads the session
        (second,) = [member for member in all_.others(first) if await member.metric("takeovers_total")]
        await lose_member(second, client)
        again = await client.listen(session, stream.last_id)
        assert again.status == 200
        (tmp_path / "open").touch()
        answer, rest = await again.until(id_)
        assert answer["result"]["stopReason"] == "end_turn"
        assert said(seen + rest) == "one two three"


async def test_a_turn_that_ended_while_nobody_listened_is_told_to_who_comes_back(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_, clients(all_) as client:  # type: ignore[arg-type]
        whole = await client.begin()
        session = await client.session(whole)
        stream = await client.listen(session)
        id_ = await client.prompt(session, "gate open")
        seen = await until_said(stream, "one ")
        await lose(all_, client)
        (tmp_path / "open").touch()
        await all_.ended()
        answer, rest = await (await client.listen(session, stream.last_id)).until(id_)
        assert answer["result"]["stopReason"] == "end_turn"
        assert said(seen + rest) == "one two three"


async def test_a_permission_is_asked_again_when_the_process_died_that_had_asked(tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_, clients(all_) as client:  # type: ignore[arg-type]
        whole = await client.begin()
        session = await client.session(whole)
        stream = await client.listen(session)
        id_ = await client.prompt(session, "ask")
        asked = await until_asked(stream)
        await lose(all_, client)
        await allow(client, asked)  # the one who asked is gone: that is no answer to anything
        again = await client.listen(session, stream.last_id)
        anew = await until_asked(again)
        assert anew["id"] != asked["id"]
        await allow(client, anew)
        answer, before = await again.until(id_)
        assert (answer["result"]["stopReason"], said(before)) == ("end_turn", "done")


async def test_a_mount_takes_what_is_asked_again_for_the_question_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()

    class Heard(EditorQuestions):
        async def ask(self, type_: str, *args: Any, **more: Any) -> Any:
            asked.put_nowait(type_)
            return await super().ask(type_, *args, **more)

    monkeypatch.setattr("interlingua.protocols.editor.mount.remote_run.EditorQuestions", Heard)
    async with fleet(tmp_path, 2) as all_:
        mount = EditorServer(source_of("", f"{all_.address}/editor", MountSettings()))
        async with engine(tmp_path / "here.db", await agent_of(mount)) as here:
            run = await submit(here, "helper", {"text": "ask"})
            only = await question(here, run.id)
            async with asyncio.timeout(WAIT):
                await asked.get()
                channel: Any = (await mount.keeper.connection()).rpc.channel
                await (await all_.holder(channel._connection)).kill()
                await asked.get()
            assert [one.id for one in (await here.runs.get(run.id)).questions] == [only.id]
            await here.questions.answer(only.id, {"approved": True})
            assert (await here.runs.wait(run.id, timeout=WAIT)).output == {"text": "asking done"}
            assert len(await bodies(here, run.id, QuestionAsked)) == 1
        await mount.close()


async def test_a_turn_of_a_dead_process_can_be_cancelled(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_, clients(all_) as client:  # type: ignore[arg-type]
        whole = await client.begin()
        session = await client.session(whole)
        stream = await client.listen(session)
        id_ = await client.prompt(session, "gate never")
        await until_said(stream, "one ")
        await lose(all_, client)
        message = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
        assert (await client.raw(message, acp_session_id=session)).status_code == 202
        answer, _ = await (await client.listen(session, stream.last_id)).until(id_)
        assert answer["result"]["stopReason"] == "cancelled"


async def test_a_connection_that_was_ended_is_nowhere(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        await lose(all_, client)
        named = {"acp-connection-id": client.connection}
        assert (await client.http.delete(client.url, headers=named)).status_code == 202
        assert (await client.raw({"jsonrpc": "2.0", "method": "x"})).status_code == 404


async def test_a_session_of_a_socket_is_loaded_at_another_process(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as all_:
        first, second = all_.members

        async def call(socket: Any, id_: int, method: str, params: Message) -> tuple[Message, list[Message]]:
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}))
            before: list[Message] = []
            async with asyncio.timeout(WAIT):
                while (message := json.loads(await socket.recv())).get("id") != id_ or "method" in message:
                    before.append(message)
            return message["result"], before

        def address(member: Any) -> str:
            return f"ws://127.0.0.1:{member.port}/editor"

        async with websockets.asyncio.client.connect(address(first)) as socket:
            await call(socket, 0, "initialize", {"protocolVersion": 1})
            made, _ = await call(socket, 1, "session/new", {"cwd": "/tmp", "mcpServers": []})
            session = made["sessionId"]
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]}
            await call(socket, 2, "session/prompt", prompt)
            await first.kill()
            async with asyncio.timeout(WAIT):
                await socket.wait_closed()
        async with websockets.asyncio.client.connect(address(second)) as socket:
            await call(socket, 0, "initialize", {"protocolVersion": 1})
            load = {"sessionId": session, "cwd": "/tmp", "mcpServers": []}
            _, shown = await call(socket, 1, "session/load", load)
            assert said(shown) == "heard hello"
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "again"}]}
            _, before = await call(socket, 2, "session/prompt", prompt)
            assert said(before) == "heard again"

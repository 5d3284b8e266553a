"""Mounts of agents at an address, over HTTP and WebSocket, with our own door as the other side; and over stdio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import Unavailable
from interlingua.model.events import OutputDelta, RunRestarted, Thought
from interlingua.model.filters import RunFilter
from interlingua.protocols.editor.config import MountSettings
from interlingua.protocols.editor.mount.server import EditorServer
from interlingua.protocols.editor.mount.sessions import EditorKeeper, source_of
from interlingua.protocols.targets import parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load
from tests.kit.engines import bodies, crash, engine, finish, question, submit
from tests.kit.mounts.editor import agent_of
from tests.kit.mounts.watch import SETTINGS


@il.agent(asks=[il.Confirm])
async def careful(text: str, ctx: il.Context[Any, Any]) -> AsyncIterator[str]:
    """Asks first."""
    await ctx.thought("hm")
    yield "so "
    verdict = await ctx.ask(il.Confirm(message=f"Say {text}?"))
    yield text if verdict.approved else "nothing"


@il.agent
async def plain(text: str) -> str:
    """Says it."""
    return text


@contextlib.asynccontextmanager
async def there(tmp_path: Path, *agents: il.Agent[..., Any]) -> AsyncIterator[Server]:
    async with serving(tmp_path / "there.db", agents or [careful, plain], ServeSettings(port=0)) as server:
        yield server


def at(server: Server, scheme: str) -> str:
    return server.address.replace("http", scheme, 1) + "/editor"


def mount_of(server: Server, scheme: str, **settings: Any) -> EditorServer:
    made = MountSettings(**settings)
    return EditorServer(source_of("", at(server, scheme), made), made)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_an_agent_at_an_address_is_an_agent_here(
    tmp_path: Path, store: Path, scheme: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLINGUA_EDITOR_VERSION", str(version))
    async with there(tmp_path) as server:
        loaded = await load(parse(f"editor+{at(server, scheme)}#careful"))
        card = loaded.chosen.card
        assert (card.key, card.description) == (careful.card.key, "Asks first.")
        assert card.metadata["protocol_version"] == version
        async with engine(store, loaded.chosen, settings=SETTINGS) as eng:
            run = await submit(eng, "careful", {"text": "hello"}, thread="t", create_thread=True)
            asked = await question(eng, run.id)
            assert asked.prompt == "Say hello?"
            await eng.questions.answer(asked.id, {"approved": True})
            ended = await eng.runs.wait(run.id, timeout=20)
            assert ended.output == {"text": "so hello"}, ended.error
            assert [t.text for t in await bodies(eng, run.id, Thought)] == ["hm"]
            cancelled = await submit(eng, "careful", {"text": "bye"}, thread="t")
            await question(eng, cancelled.id)
            await eng.runs.cancel(cancelled.id)
            assert (await eng.runs.wait(cancelled.id, timeout=20)).status is il.Status.CANCELLED
            statuses = {run.status for run in await server.engine.runs.search(RunFilter())}
            assert statuses == {il.Status.SUCCEEDED, il.Status.CANCELLED}


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_nobody_at_an_address_says_so(scheme: str) -> None:
    made = MountSettings()
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        await agent_of(EditorServer(source_of("", f"{scheme}://127.0.0.1:9/editor", made), made))


@pytest.mark.parametrize("version", [1, 2])
async def test_after_our_crash_a_turn_at_an_address_goes_on(tmp_path: Path, store: Path, version: Any) -> None:
    async with there(tmp_path, careful) as server:
        first = mount_of(server, "ws", version=version)
        eng = engine(store, await agent_of(first), settings=SETTINGS)
        await eng.start()
        run = await submit(eng, "careful", {"text": "hello"}, thread="t", create_thread=True)
        asked = await question(eng, run.id)
        await crash(eng)
        await first.close()
        second = mount_of(server, "ws", version=version, quiet_after=0.5)
        async with engine(store, await agent_of(second), settings=SETTINGS) as again:
            assert [q.id for q in (await again.runs.get(run.id)).questions] == [asked.id]
            await again.questions.answer(asked.id, {"approved": True})
            ended = await again.runs.wait(run.id, timeout=20)
            assert ended.output == {"text": "so hello"}, ended.error
            assert "".join(d.delta["text"] for d in await bodies(again, run.id, OutputDelta)) == "so hello"
            assert await bodies(again, run.id, RunRestarted) == []
        await second.close()
        (there_,) = await server.engine.runs.search(RunFilter())
        assert there_.status is il.Status.SUCCEEDED


async def test_a_run_cancelled_while_we_were_down_is_cancelled_at_its_address(tmp_path: Path, store: Path) -> None:
    async with there(tmp_path, careful) as server:
        first = mount_of(server, "ws")
        eng = engine(store, await agent_of(first), settings=SETTINGS)
        await eng.start()
        run = await submit(eng, "careful", {"text": "hello"}, thread="t", create_thread=True)
        await question(eng, run.id)
        await crash(eng)
        await first.close()
        async with engine(store, settings=SETTINGS) as other:
            await other.runs.cancel(run.id)
        second = mount_of(server, "ws")
        async with engine(store, await agent_of(second), settings=SETTINGS) as again:
            assert (await again.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
            (remote,) = await server.engine.runs.search(RunFilter())
            ended = await server.engine.runs.wait(remote.id, timeout=20)
            assert ended.status is il.Status.CANCELLED
        await second.close()


async def test_our_own_stdio_door_is_a_mount_like_any_other(tmp_path: Path, store: Path) -> None:
    file = tmp_path / "agents.py"
    file.write_text(
        "import interlingua as il\n\n@il.agent\nasync def shout(text: str):\n"
        '    """Louder."""\n    print("noise")\n    yield text.upper()\n'
    )
    there_ = shlex.quote(str(tmp_path / "stdio.db"))
    command = Path(sys.executable).with_name("interlingua")
    loaded = await load(
        parse(f"editor:env INTERLINGUA_PROJECT=far {command} stdio --as editor {file} --store {there_}")
    )
    assert loaded.chosen.card.name == "shout"
    async with engine(store, loaded.chosen, settings=SETTINGS) as eng:
        runs = await asyncio.gather(*(finish(eng, "shout", {"text": f"hey {n}"}) for n in range(3)))
        assert [run.output for run in runs] == [{"text": f"HEY {n}"} for n in range(3)]


async def test_a_password_in_an_address_stands_in_no_message() -> None:
    keeper = EditorKeeper(source_of("", "http://ada:hunter2@127.0.0.1:1/editor", MountSettings()), MountSettings())
    with pytest.raises(Unavailable) as failed:
        await keeper.connection()
    assert "127.0.0.1:1" in str(failed.value)
    assert "hunter2" not in str(failed.value)


# -- what the way to an agent says, and not the agent ---------------------------------------------------------


@contextlib.asynccontextmanager
async def scripted(method: str, *answer: Any) -> AsyncIterator[EditorServer]:
    """A mount of an agent that answers each POST with its result, and what has this method with a status or never."""
    results = {
        "initialize": {"protocolVersion": 1, "agentInfo": {"name": "far", "version": "1"}},
        "session/new": {"sessionId": "s"},
    }
    over = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            try:
                await talk(reader, writer)
            finally:
                writer.close()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                await over.wait()
                break
            length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
            asked = json.loads(await reader.readexactly(length)) if length else {}
            status, body = 200, {"jsonrpc": "2.0", "id": asked.get("id"), "result": results.get(asked.get("method"))}
            if asked.get("method") == method:
                if not answer:
                    await over.wait()
                    break
                status, body = answer[0], {}
            text = json.dumps(body).encode()
            writer.write(b"HTTP/1.1 %d So\r\nacp-connection-id: c\r\n" % status)
            writer.write(b"content-length: %d\r\n\r\n%s" % (len(text), text))

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as listening:
        made = MountSettings()
        mount = EditorServer(source_of("", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/acp", made), made)
        try:
            yield mount
        finally:
            over.set()
            await mount.close()


UNANSWERED = [(), (502,), (503,), (504,)]


@pytest.mark.parametrize("answer", UNANSWERED)
@pytest.mark.parametrize("method", ["initialize", "session/new"])
async def test_a_server_that_does_not_answer_is_unavailable_for_now(
    method: str, answer: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not answer:
        monkeypatch.setattr("interlingua.protocols.editor.mount.http_channel._ANSWERED_WITHIN", 2.0)
    async with scripted(method, *answer) as mount:
        with pytest.raises(Unavailable) as failed:
            await agent_of(mount)
        assert failed.value.transient
        assert (str(answer[0]) if answer else "said nothing") in failed.value.message


@pytest.mark.parametrize("answer", [*UNANSWERED, (404,)])
async def test_a_prompt_that_nobody_answers_fails_the_run_as_transient(
    store: Path, answer: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not answer:
        monkeypatch.setattr("interlingua.protocols.editor.mount.http_channel._ANSWERED_WITHIN", 2.0)
    async with scripted("session/prompt", *answer) as mount, engine(store, await agent_of(mount)) as eng:
        ended = await finish(eng, "far", {"text": "hi"})
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("run_lost", True)
        assert (str(answer[0]) if answer else "said nothing") in ended.error.message


@contextlib.asynccontextmanager
async def taking_prompts(*, hangs: bool) -> AsyncIterator[EditorServer]:
    """A mount of an agent whose server takes a prompt, and says nothing on its streams: because it hangs from then on,
    or until it was asked three times whether it is there."""
    results = {
        "initialize": {"protocolVersion": 1, "agentInfo": {"name": "far", "version": "1"}},
        "session/new": {"sessionId": "s"},
    }
    over, seen_awake = asyncio.Event(), asyncio.Event()
    prompt, looks = asyncio.get_running_loop().create_future(), 0
    handling = set[asyncio.Task[Any]]()

    async def quiet(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        await over.wait()

    async def stream(writer: asyncio.StreamWriter) -> None:
        ending = asyncio.ensure_future(quiet(writer))
        id_ = await prompt
        if not hangs:
            await seen_awake.wait()
            done = {"jsonrpc": "2.0", "id": id_, "result": {"stopReason": "end_turn"}}
            writer.write(b"data: %s\n\n" % json.dumps(done).encode())
        await ending

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handling.add(asyncio.current_task())  # type: ignore[arg-type]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        writer.close()

    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal looks
        status, body, on = b"400", b"", head.lower()
        if prompt.done() and hangs:
            await over.wait()
            return
        if head.startswith(b"GET") and b"acp-connection-id" in on:
            await (stream(writer) if b"acp-session-id" in on else quiet(writer))
            return
        if head.startswith(b"GET"):
            looks += prompt.done()
            if looks == 3:
                seen_awake.set()
        else:
            length = int(re.search(rb"content-length: (\d+)", on)[1])  # type: ignore[index]
            asked = json.loads(await reader.readexactly(length)) if length else {}
            status = b"202"
            if asked.get("method") == "session/prompt":
                prompt.set_result(asked["id"])
            elif "id" in asked:
                told = {"jsonrpc": "2.0", "id": asked["id"], "result": results.get(asked["method"], {})}
                status, body = b"200", json.dumps(told).encode()
        writer.write(b"HTTP/1.1 %s So\r\nacp-connection-id: c\r\nconnection: close\r\n" % status)
        writer.write(b"content-length: %d\r\n\r\n%s" % (len(body), body))

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as listening:
        made = MountSettings()
        mount = EditorServer(source_of("", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/acp", made), made)
        try:
            yield mount
        finally:
            over.set()
            await mount.close()
            await asyncio.wait(handling)


async def test_a_server_that_hangs_while_its_agent_works_is_noticed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_PULSE", 0.05), ("_SILENCE", 0.2), ("_REACHED_WITHIN", 0.2)):
        monkeypatch.setattr(f"interlingua.transports.heartbeat.{name}", seconds)
    monkeypatch.setattr("interlingua.protocols.editor.mount.http_channel._ANSWERED_WITHIN", 1.0)
    async with taking_prompts(hangs=True) as mount, engine(store, await agent_of(mount)) as eng:
        ended = await finish(eng, "far", {"text": "hi"})
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("run_lost", True)
        assert "it does not answer" in ended.error.message


async def test_an_agent_may_be_quiet_for_as_long_as_it_likes_where_its_server_is_awake(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_PULSE", 0.05), ("_SILENCE", 0.1)):
        monkeypatch.setattr(f"interlingua.transports.heartbeat.{name}", seconds)
    async with taking_prompts(hangs=False) as mount, engine(store, await agent_of(mount)) as eng:
        ended = await finish(eng, "far", {"text": "hi"})
        assert ended.status is il.Status.SUCCEEDED, ended.error


async def test_a_thread_stays_with_its_session_though_nobody_answers(store: Path) -> None:
    async with scripted("session/load", 503) as mount, engine(store, await agent_of(mount), settings=SETTINGS) as eng:
        peer = await mount.keeper.connection()
        peer.able.load = True
        await eng.threads.create("t")
        await eng.core.store.documents.link("editor:far", "t", "other")
        ended = await finish(eng, "far", {"text": "hi"}, thread="t")
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("unavailable", True)
        assert await eng.core.store.documents.linked("editor:far", "t") == "other"


async def test_what_a_server_refuses_is_not_tried_again(store: Path) -> None:
    async with scripted("initialize", 404) as mount:
        with pytest.raises(Unavailable, match="404") as failed:
            await agent_of(mount)
        assert not failed.value.transient
    async with scripted("session/prompt", 500) as mount, engine(store, await agent_of(mount)) as eng:
        ended = await finish(eng, "far", {"text": "hi"})
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("remote_failed", False)

"""The mount at an address: Streamable HTTP and the older pair, against a fake and against our own door."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.delta import Joiner
from interlingua.model.errors import Denied, Unavailable
from interlingua.model.events import OutputDelta, RunRestarted, Warned
from interlingua.model.filters import RunFilter
from interlingua.mounts.loader import local_agents
from interlingua.protocols.mcp.mount.http_channel import HttpChannel
from interlingua.protocols.targets import parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load
from tests.kit.clients.mcp import COMMAND
from tests.kit.engines import bodies, crash, engine, finish, question, submit
from tests.kit.mounts.mcp import act, mount, mounted, script, sent
from tests.kit.mounts.watch import SETTINGS, Gate, remote_agents, seen

from .mount_web import Kind, served

FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ASKS = {"message": "Where to?", "requestedSchema": FORM}
KINDS: list[Kind] = ["stream", "json", "pair"]


async def joined_of(eng: il.Engine, run: str) -> Any:
    """What was shown of the output, joined."""
    joined = Joiner()
    for body in await bodies(eng, run, OutputDelta):
        joined.add(body.delta)
    return joined.value


# -- a fake ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_at_an_address_of_any_kind(store: Path, kind: Kind) -> None:
    async with served(kind) as web, mounted(store, web.address) as (eng, _):
        lines = [act("delta", {"text": "a"}), act("delta", {"text": "b"}), act("output", {"text": "ab"})]
        run = await finish(eng, "script", script(*lines))
        assert run.output == {"text": "ab"}
        assert await bodies(eng, run.id, Warned) == []
        if kind != "json":  # there is no room for them in one answer
            assert await joined_of(eng, run.id) == {"text": "ab"}
        failed = await finish(eng, "script", script(act("error", {"code": 0, "message": "oh no"})))
        assert failed.error is not None
        assert failed.error.message == "oh no"


@pytest.mark.parametrize("kind", ["stream", "pair"])
async def test_a_flood_over_http_joins_to_the_result(store: Path, kind: Kind) -> None:
    async with served(kind) as web, mounted(store, web.address) as (eng, _):
        run = await submit(eng, "script", script(act("flood", 20_000)))
        run = await eng.runs.wait(run.id, timeout=60)
        assert await joined_of(eng, run.id) == run.output == {"text": "".join(f"{n}," for n in range(20_000))}
        assert await bodies(eng, run.id, Warned) == []


async def test_the_session_and_the_revision_are_named_and_the_session_is_ended(store: Path) -> None:
    async with served("stream", version="2025-06-18", key="k") as web:
        async with mounted(store, web.address, key="k") as (eng, _):
            await finish(eng, "script", script(act("output", {"text": "x"})))
        first, *rest = [headers for _, headers in web.requests]
        assert "mcp-session-id" not in first
        assert {headers["mcp-session-id"] for headers in rest} == {"s1"}
        assert {headers["mcp-protocol-version"] for headers in rest} == {"2025-06-18"}
        posted = [headers for method, headers in web.requests if method == "POST"]
        assert {headers["accept"] for headers in posted} == {"application/json, text/event-stream"}
        assert web.requests[-1][0] == "DELETE"


async def test_the_revision_without_sessions_names_method_and_agent_in_headers(store: Path) -> None:
    given = {"version": "2026-07-28", "refuses": {"code": -32601, "message": "no"}}
    async with served("stream", **given) as web, mounted(store, web.address) as (eng, _):
        run = await finish(eng, "script", script(act("delta", {"text": "x"}), act("output", {"text": "x"})))
        assert run.output == {"text": "x"}
        headers = web.requests[-1][1]
        assert headers["mcp-protocol-version"] == "2026-07-28"
        assert (headers["mcp-method"], headers["mcp-name"]) == ("agents/run", "script")


async def test_without_a_key_it_says_what_to_do(store: Path) -> None:
    async with served("stream", key="k") as web:
        with pytest.raises(Denied, match=r"401.*INTERLINGUA_MCP_KEY"):
            await mount(web.address).agents()


async def test_an_address_where_nobody_speaks_mcp_says_so() -> None:
    async with served("stream") as web:
        with pytest.raises(Unavailable, match=r"does not speak MCP: it answered 404.*at a path, such as /mcp"):
            await mount(web.address.removesuffix("/mcp")).agents()
    with pytest.raises(Unavailable, match="cannot be reached"):
        await mount(web.address).agents()


async def test_a_pair_that_sends_messages_to_another_server_is_refused() -> None:
    async with served("pair", endpoint="http://elsewhere.example/messages") as web:
        with pytest.raises(Unavailable, match="does not speak MCP"):
            await mount(web.address).agents()


async def test_a_stream_that_breaks_is_taken_up_where_it_was(store: Path) -> None:
    async with served("stream") as web, mounted(store, web.address) as (eng, _):
        lines = [act("delta", {"text": "a"}), act("break"), act("delta", {"text": "b"}), act("break"),
                 act("delta", {"text": "c"}), act("output", {"text": "abc"})]  # fmt: skip
        run = await finish(eng, "script", script(*lines))
        assert run.output == {"text": "abc"}
        assert await joined_of(eng, run.id) == {"text": "abc"}
        assert await bodies(eng, run.id, Warned) == []
        taken = [headers["last-event-id"] for method, headers in web.requests if "last-event-id" in headers]
        assert len(taken) == 2


async def test_a_stream_that_breaks_without_numbers_fails_the_run_as_transient(store: Path) -> None:
    async with served("stream", numbered=False) as web, mounted(store, web.address) as (eng, _):
        run = await finish(eng, "script", script(act("delta", {"text": "a"}), act("break")))
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("run_lost", True)
        again = await finish(eng, "script", script(act("output", {"text": "x"})))
        assert again.output == {"text": "x"}


@pytest.mark.parametrize("kind", ["stream", "pair"])
async def test_a_question_over_http_is_one_of_the_run(store: Path, kind: Kind) -> None:
    async with served(kind) as web, mounted(store, web.address) as (eng, _):
        run = await submit(eng, "script", script(act("elicit", ASKS)))
        asked = await question(eng, run.id)
        await eng.questions.answer(asked.id, {"city": "Brno"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"]) == {"action": "accept", "content": {"city": "Brno"}}


async def test_over_http_the_stream_tells_which_run_asks(store: Path) -> None:
    async with served("stream") as web, mounted(store, web.address) as (eng, _):
        other = await submit(eng, "script", script(act("delta", {"text": "a"}), act("hang")))
        await seen(eng, other.id, "delta")
        run = await submit(eng, "script", script(act("elicit", ASKS)))
        asked = await question(eng, run.id)
        await eng.questions.answer(asked.id, {"city": "Brno"})
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED
        await eng.runs.cancel(other.id)


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelling_over_http_reaches_the_server(tmp_path: Path, store: Path, kind: Kind) -> None:
    log = tmp_path / "wire"
    async with served(kind, log=str(log)) as web, mounted(store, web.address) as (eng, _):
        run = await submit(eng, "script", script(act("until_cancelled", {"code": 0, "message": "Request cancelled"})))
        running = await sent(log, "agents/run")
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        assert (await sent(log, "notifications/cancelled"))["params"]["requestId"] == running["id"]


# -- our own door ---------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def there(tmp_path: Path, gate: Gate | None = None, port: int = 0) -> AsyncIterator[Server]:
    gate = gate or Gate()
    async with serving(tmp_path / "there.db", remote_agents(gate), ServeSettings(port=port, engine=SETTINGS)) as server:
        yield server


@pytest.mark.parametrize("path", ["/mcp", "/mcp/sse"])
async def test_our_own_door_is_a_mount_like_any_other(tmp_path: Path, store: Path, path: str) -> None:
    gate = Gate(open_=True)
    async with there(tmp_path, gate) as server:
        loaded = await load(parse(f"mcp+{server.address}{path}#words"))
        assert (loaded.chosen.card.key, loaded.chosen.card.description) == ("words@2.0.0", "Says it word by word.")
        agents = await load(parse(f"mcp+{server.address}{path}#careful"))
        async with engine(store, loaded.chosen, agents.chosen, settings=SETTINGS) as eng:
            run = await finish(eng, "words", {"text": "a b c"})
            assert run.output == {"text": "a b c"}
            run = await submit(eng, "careful", {"text": "hm"})
            asked = await question(eng, run.id)
            assert [option.id for option in asked.options] == ["yes", "no"]
            await eng.questions.answer(asked.id, {"approved": False})
            async with asyncio.timeout(20):
                while not (view := await eng.runs.get(run.id)).questions or view.questions[0].id == asked.id:
                    await asyncio.sleep(0.01)
            await eng.questions.answer(view.questions[0].id, {"text": "all"})
            ended = await eng.runs.wait(run.id, timeout=20)
            assert ended.output == {"text": "hm False all"}
            assert await bodies(eng, run.id, Warned) == []


async def test_our_own_stdio_door_is_a_mount_like_any_other(tmp_path: Path, store: Path) -> None:
    file = tmp_path / "agents.py"
    file.write_text(
        "import interlingua as il\n\n@il.agent\nasync def echo(text: str):\n    yield text\n    yield '!'\n"
    )
    line = shlex.join(
        ["env", f"INTERLINGUA_STORE={tmp_path / 'there.db'}", "INTERLINGUA_PROJECT=there", *COMMAND, str(file)]
    )
    loaded = await load(parse(f"mcp:{line}#echo"))
    async with engine(store, loaded.chosen, settings=SETTINGS) as eng:
        run = await finish(eng, "echo", {"text": "hello"})
        assert run.output == {"text": "hello!"}
        assert await bodies(eng, run.id, Warned) == []


async def test_a_run_at_our_own_server_survives_a_crash_here_and_is_not_started_twice(
    tmp_path: Path, store: Path
) -> None:
    gate = Gate()
    async with there(tmp_path, gate) as server:
        made = mount(f"{server.address}/mcp")
        eng = engine(store, *await local_agents(made, None), settings=SETTINGS)
        await eng.__aenter__()
        run = await submit(eng, "words", {"text": "one two three"})
        await seen(eng, run.id, "delta")
        await crash(eng)
        async with mounted(store, f"{server.address}/mcp") as (again, _):
            gate.open.set()
            ended = await again.runs.wait(run.id, timeout=20)
            assert ended.output == {"text": "one two three"}, ended.error
            assert await joined_of(again, run.id) == {"text": "one two three"}
            assert await bodies(again, run.id, Warned) == []
            assert await bodies(again, run.id, RunRestarted) == []
        assert gate.entered == 1
        assert len(await server.engine.runs.search(RunFilter())) == 1
        await made.close()


async def test_a_run_survives_a_restart_of_our_own_server(tmp_path: Path, store: Path) -> None:
    gate = Gate()
    async with contextlib.AsyncExitStack() as stack:
        async with there(tmp_path, gate) as server:
            address = f"{server.address}/mcp"
            eng, _ = await stack.enter_async_context(mounted(store, address))
            run = await submit(eng, "words", {"text": "one two three"})
            await seen(eng, run.id, "delta")
        gate.open.set()
        async with there(tmp_path, gate, int(server.address.rpartition(":")[2])) as server:
            ended = await eng.runs.wait(run.id, timeout=30)
            assert ended.output == {"text": "one two three"}, ended.error
            assert await joined_of(eng, run.id) == {"text": "one two three"}
            assert await bodies(eng, run.id, Warned) == []
            assert len(await server.engine.runs.search(RunFilter())) == 1


async def test_a_server_of_ours_that_does_not_come_back_fails_the_run_as_transient(tmp_path: Path, store: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with there(tmp_path) as server:
            eng, _ = await stack.enter_async_context(mounted(store, f"{server.address}/mcp", patience=0.5))
            run = await submit(eng, "words", {"text": "one two three"})
            await seen(eng, run.id, "delta")
        ended = await eng.runs.wait(run.id, timeout=30)
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("run_lost", True)


async def test_a_run_that_only_moves_to_another_process_goes_on_there(tmp_path: Path, store: Path) -> None:
    """Leaving in good order ends nothing at the server, and the question that was open is the same one."""
    async with there(tmp_path) as server:
        async with mounted(store, f"{server.address}/mcp") as (eng, _):
            run = await submit(eng, "careful", {"text": "hm"})
            asked = await question(eng, run.id)
        async with mounted(store, f"{server.address}/mcp") as (eng, _):
            same = await question(eng, run.id)
            assert same.id == asked.id
            await eng.questions.answer(asked.id, {"approved": True})
            async with asyncio.timeout(20):
                while not (view := await eng.runs.get(run.id)).questions or view.questions[0].id == asked.id:
                    await asyncio.sleep(0.01)
            await eng.questions.answer(view.questions[0].id, {"text": "all"})
            ended = await eng.runs.wait(run.id, timeout=20)
            assert ended.output == {"text": "hm True all"}, ended.error
        assert len(await server.engine.runs.search(RunFilter())) == 1


async def test_a_run_cancelled_after_a_crash_is_cancelled_at_our_own_server(tmp_path: Path, store: Path) -> None:
    gate = Gate()
    async with there(tmp_path, gate) as server:
        made = mount(f"{server.address}/mcp")
        eng = engine(store, *await local_agents(made, None), settings=SETTINGS)
        await eng.__aenter__()
        run = await submit(eng, "words", {"text": "one two three"})
        await seen(eng, run.id, "delta")
        await crash(eng)
        async with engine(store, settings=SETTINGS) as other:  # without the agent's code
            await other.runs.cancel(run.id)
        async with mounted(store, f"{server.address}/mcp") as (again, _):
            assert (await again.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
            (remote,) = await server.engine.runs.search(RunFilter())
            ended = await server.engine.runs.wait(remote.id, timeout=20)
            assert ended.status is il.Status.CANCELLED
        assert gate.entered == 1
        await made.close()


async def test_a_thread_here_is_one_thread_at_our_own_server(tmp_path: Path, store: Path) -> None:
    async with there(tmp_path) as server, mounted(store, f"{server.address}/mcp") as (eng, _):
        await finish(eng, "remembering", {"text": "a"}, thread="t", create_thread=True)
        run = await finish(eng, "remembering", {"text": "b"}, thread="t")
        assert run.output == {"value": ["a", "b"]}


async def test_a_password_in_an_address_stands_in_no_message() -> None:
    channel = HttpChannel("http://ada:hunter2@127.0.0.1:1/mcp", {})
    channel.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    (answer,) = await channel.receive()
    await channel.close()
    assert b"127.0.0.1:1" in answer
    assert b"hunter2" not in answer

"""Mounts that are down, go down, come back and change, behind a server that stays up: real sockets and processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.model.errors import Unavailable
from interlingua.protocols.cap.mount import process_task as remote
from interlingua.protocols.targets import parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.config.build import mounts as mounts_of
from interlingua.server.config.load import read
from interlingua.server.config.settings import Mounting
from interlingua.server.mounts.entry import MountEntry, try_once
from interlingua.server.mounts.line_watch import Line
from interlingua.server.mounts.supervisor import Supervised
from tests.kit import warm_python
from tests.kit.commands import process_env
from tests.kit.ports import free_port
from tests.kit.servers import Process, started

AGENTS = '''import interlingua as il

@il.agent
async def echo(text: str) -> str:
    """Says it again."""
    return text

@il.agent(asks=[il.Confirm])
async def confirm(ctx: il.Context[None, None]) -> str:
    return "done" if (await ctx.ask(il.Confirm("Shall I?"))).approved else "not done"
'''
QUICK = Mounting(wait=10, retry_first=0.05, retry_last=0.1, refresh=0.2, patience=20)
SLOW = Mounting(wait=10, retry_first=60, retry_last=60, refresh=0)  # it looks once
SETTINGS = il.Settings(park_after=0, cancel_grace=0.5, shutdown_grace=0.5, sweep_every=0.05)


@il.agent
async def local(text: str) -> str:
    return text


@contextlib.asynccontextmanager
async def hub(
    folder: Path,
    *mounts: str | dict[str, Any],
    mounting: Mounting = QUICK,
    agents: list[il.Agent[..., Any]] | None = None,
) -> AsyncIterator[Server]:
    settings = ServeSettings(port=0, mounting=mounting, engine=SETTINGS)
    async with serving(folder / "hub.db", agents or [local], settings, entries(*mounts)) as server:
        yield server


def entries(*mounts: str | dict[str, Any]) -> list[MountEntry]:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in mounts]
    config = read(None, {"mounts": texts}, environ={})
    found = mounts_of(config)
    config.check()
    return found


class Far:
    """A server in a process of its own, that can be killed and started again at the same address."""

    def __init__(self, folder: Path, code: str = AGENTS) -> None:
        self.folder = folder / "far"
        self.folder.mkdir()
        (self.folder / "agents.py").write_text(code)
        self.port = free_port()
        self.target = f"connect+http://127.0.0.1:{self.port}/connect"

    def up(self) -> contextlib.AbstractContextManager[Process]:
        env = process_env(self.folder)
        return started(["serve", "agents.py", "--port", str(self.port), "--no-peer-ports"], env, self.folder)


@pytest.fixture
def far(tmp_path: Path) -> Far:
    return Far(tmp_path)


async def until(server: Server, what: Callable[[], bool]) -> None:
    """Wait for something that becomes so when the agents or the state of a mount change."""
    async with asyncio.timeout(60):
        while not what():
            changed = [asyncio.ensure_future(mount._changed.wait()) for mount in server.mounts]
            if not what():
                await asyncio.wait(changed, return_when=asyncio.FIRST_COMPLETED)
            for one in changed:
                one.cancel()


def state(server: Server) -> str:
    (view,) = server.mounts.views()
    return view.state


async def run(server: Server, agent: str, text: str = "hi") -> il.Run:
    made = await server.engine.runs.submit(il.RunRequest(agent, input={"text": text}))
    return await server.engine.runs.wait(made.id, timeout=60)


async def get(server: Server, path: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as http:
        return await http.get(server.address + path)


def names(server: Server) -> list[str]:
    return sorted(agent.card.name for agent in server.engine.agents)


# -- down and up ----------------------------------------------------------------------------------------------


async def test_a_mount_that_is_down_at_the_start_stops_nobody_and_its_agents_come_when_it_does(
    tmp_path: Path, far: Far
) -> None:
    async with hub(tmp_path, far.target) as server:
        assert names(server) == ["local"]
        (view,) = (await get(server, "/mounts")).json()["mounts"]
        assert (view["mount"], view["state"]) == (far.target, "down")
        assert "cannot be reached" in view["reason"]
        assert view["tries"] >= 1
        assert f'interlingua_mount_up{{mount="{far.target}"}} 0' in (await get(server, "/metrics")).text
        assert (await get(server, "/readyz")).text == "ready\n"
        assert (await run(server, "local")).output == {"text": "hi"}
        told = asyncio.Event()
        server.engine.agents.listeners.append(told.set)  # as doors are, which tell their clients
        with far.up():
            await until(server, lambda: state(server) == "up")
            assert told.is_set()
            assert names(server) == ["confirm", "echo", "local"]
            assert (await run(server, "echo")).output == {"text": "hi"}
            assert f'interlingua_mount_up{{mount="{far.target}"}} 1' in (await get(server, "/metrics")).text


async def test_a_run_of_an_agent_whose_mount_is_down_fails_at_once_and_says_when_to_come_again(
    tmp_path: Path, far: Far
) -> None:
    with far.up():
        async with hub(tmp_path, far.target) as server:
            assert state(server) == "up"
    async with hub(tmp_path, far.target, mounting=SLOW) as server:
        assert state(server) == "down"
        assert names(server) == ["confirm", "echo", "local"], "they were there before the restart"
        ended = await run(server, "echo")
        assert ended.status is il.Status.FAILED
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("unavailable", True)
        assert f"the mount {far.target} is down: " in ended.error.message
        assert ended.error.details["mount"] == far.target
        assert 20 < ended.error.details["next_try_in"] <= 60
        async with httpx2.AsyncClient() as http:
            told = await http.post(f"{server.address}/connect/runs/wait", json={"agent_id": "echo", "input": "x"})
        assert (told.json()["output"]["code"], told.json()["output"]["transient"]) == ("unavailable", True)


async def test_a_mount_that_is_killed_is_shown_as_down_and_works_again_when_it_is_back(
    tmp_path: Path, far: Far
) -> None:
    async with hub(tmp_path, far.target) as server:
        with far.up() as process:
            await until(server, lambda: state(server) == "up")
            process.kill()
            await until(server, lambda: state(server) == "down")
            assert names(server) == ["confirm", "echo", "local"]
            ended = await run(server, "echo")
            assert ended.error is not None
            assert (ended.error.code, ended.error.transient) == ("unavailable", True)
        with far.up():
            await until(server, lambda: state(server) == "up")
            assert (await run(server, "echo")).output == {"text": "hi"}


async def test_a_run_that_fails_as_transient_is_a_reason_to_look(tmp_path: Path, far: Far) -> None:
    code = "import interlingua as il\n\n@il.agent\nasync def die() -> str:\n    import os\n    os._exit(1)\n"
    (far.folder / "agents.py").write_text(code)
    command = f"mcp:{warm_python.interlingua()} stdio --as mcp {far.folder / 'agents.py'}"
    settings = Mounting(retry_first=0.01, retry_last=60, refresh=0)
    async with hub(tmp_path, {"target": command}, mounting=settings) as server:
        assert state(server) == "up"
        (far.folder / "agents.py").write_text("no python")
        made = await server.engine.runs.submit(il.RunRequest("die", input={}))
        ended = await server.engine.runs.wait(made.id, timeout=60)
        assert ended.error is not None
        assert ended.error.transient
        await until(server, lambda: state(server) == "down")
        assert "did not start" in server.mounts.views()[0].reason


@pytest.mark.parametrize("protocol", ["connect", "mcp", "peer", "editor", "cap"])
async def test_a_server_that_goes_is_shown_as_down_at_once_though_nobody_looks_by_the_clock(
    tmp_path: Path, far: Far, protocol: str
) -> None:
    never = Mounting(wait=30, retry_first=0.05, retry_last=0.1, refresh=0, patience=20)
    target = f"{protocol}+http://127.0.0.1:{far.port}/{protocol}"
    with far.up() as process:
        async with hub(tmp_path, target, mounting=never) as server:
            assert state(server) == "up"
            process.kill()
            await until(server, lambda: state(server) == "down")
            with far.up():
                await until(server, lambda: state(server) == "up")


@pytest.mark.parametrize("protocol", ["mcp", "editor"])
async def test_a_program_that_ends_by_itself_is_looked_at_at_once(tmp_path: Path, far: Far, protocol: str) -> None:
    noted = tmp_path / "pid"
    code = f"import os, pathlib\npathlib.Path({str(noted)!r}).write_text(str(os.getpid()))\n"
    agents = far.folder / "agents.py"
    agents.write_text(code + AGENTS)
    command = f"{protocol}:{warm_python.interlingua()} stdio --as {protocol} {agents}:echo"
    settings = Mounting(wait=30, retry_first=0.01, retry_last=60, refresh=0)
    async with hub(tmp_path, {"target": command}, mounting=settings) as server:
        assert state(server) == "up"
        agents.write_text("no python")
        os.kill(int(noted.read_text()), signal.SIGKILL)
        await until(server, lambda: state(server) == "down")
        agents.write_text(code + AGENTS)
        server.mounts.look()
        await until(server, lambda: state(server) == "up")
        assert (await run(server, names(server)[0])).status is il.Status.SUCCEEDED


@pytest.mark.parametrize("protocol", ["mcp", "editor", "cap"])
async def test_a_command_that_is_not_there_is_shown_as_down(tmp_path: Path, protocol: str) -> None:
    mount = {"target": f"{protocol}:no-such-command-abc", "as": "missing"}
    async with hub(tmp_path, mount, mounting=SLOW) as server:
        (view,) = server.mounts.views()
        assert (view.state, view.agents) == ("down", ["missing@0.0.0"])
        assert view.reason == "no-such-command-abc cannot be started: No such file or directory"
    with pytest.raises(Unavailable):
        await try_once(entries(mount)[0])


@pytest.mark.parametrize("protocol", ["mcp", "editor", "cap"])
async def test_a_command_that_ends_at_once_is_shown_as_down_with_the_last_it_said(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "STAYS", 60.0)
    mount = {"target": f"{protocol}:sh -c 'echo out of order >&2; exit 3'", "as": "broken"}
    async with hub(tmp_path, mount, mounting=SLOW) as server:
        (view,) = server.mounts.views()
        assert view.state == "down"
        assert "it exited with status 3; the last it said: out of order" in view.reason


async def test_a_command_of_which_each_task_has_its_own_process_is_looked_at_when_one_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two tasks there is nobody who could end, and nobody starts one to see."""
    monkeypatch.setattr(remote, "STAYS", 0.1)
    program = tmp_path / "upper"
    code = f"""#!{sys.executable}
import json, sys
for notice in map(json.loads, sys.stdin):
    back = {{"task_id": notice["task_id"], "sender_id": notice["recipient_id"], "recipient_id": notice["sender_id"]}}
    print(json.dumps({{"type": "message", "content": notice["context_summary"].upper(), **back}}), flush=True)
"""

    def there() -> None:
        program.write_text(code)
        program.chmod(0o755)

    there()
    async with hub(tmp_path, f"cap:{program}") as server:
        assert (await run(server, "upper")).output == {"text": "HI"}
        program.unlink()
        ended = await run(server, "upper")
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("unavailable", True), "it is looked for again"
        await until(server, lambda: state(server) == "down")
        ended = await run(server, "upper")
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("unavailable", True)
        assert f"the mount cap:{program} is down: {program} cannot be started" in ended.error.message
        there()
        await until(server, lambda: state(server) == "up")
        assert (await run(server, "upper")).output == {"text": "HI"}


async def test_a_server_that_closes_connections_which_say_nothing_is_not_asked_all_the_time() -> None:
    connections, ended = 0, asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as listening:
        target = parse(f"connect+http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        line = Line(ended.set, rest=60.0)
        line.hold(target)
        await asyncio.wait_for(ended.wait(), 10)
        line.hold(target)
        assert line._task is None, "another one is not made so soon"
        assert connections == 1
        await line.drop()


async def test_a_run_that_had_begun_is_found_again_when_its_mount_comes_back_after_a_restart(
    tmp_path: Path, far: Far
) -> None:
    async with hub(tmp_path, far.target) as server:
        with far.up():
            await until(server, lambda: state(server) == "up")
            made = await server.engine.runs.submit(il.RunRequest("confirm", input={}))
            asked = await server.engine.runs.wait(made.id, timeout=60, settled=True)
            (question,) = asked.questions
    async with hub(tmp_path, far.target) as server:
        assert state(server) == "down"
        await server.engine.questions.answer(question.id, {"approved": True})
        with far.up():
            ended = await server.engine.runs.wait(made.id, timeout=60)
            assert ended.output == {"text": "done"}, ended.error


async def test_agents_that_vanish_there_go_and_new_ones_come_with_a_refresh(tmp_path: Path, far: Far) -> None:
    async with hub(tmp_path, far.target) as server:
        with far.up() as process:
            await until(server, lambda: state(server) == "up")
            (far.folder / "agents.py").write_text(AGENTS.replace("async def echo", "async def parrot"))
            process.popen.send_signal(signal.SIGHUP)
            await until(server, lambda: names(server) == ["confirm", "local", "parrot"])
            assert (await run(server, "parrot")).output == {"text": "hi"}
            async with httpx2.AsyncClient() as http:
                told = await http.post(f"{server.address}/connect/runs", json={"agent_id": "echo", "input": "x"})
            assert told.status_code == 404


# -- what a mount is given ------------------------------------------------------------------------------------


async def test_key_and_headers_of_a_mount_are_sent_and_come_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLINGUA_CONNECT_KEY", "everybody's")
    seen: list[dict[str, str]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        seen.append(dict(line.split(": ", 1) for line in head[1:] if line))
        writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        at = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        mounts: list[str | dict[str, Any]] = [
            {"target": f"{kind}+http://{at}/x", "key": "mine", "headers": {"X-More": kind}}
            for kind in ("connect", "cap", "mcp", "editor", "peer")
        ]
        async with hub(tmp_path, *mounts, f"connect+http://{at}", mounting=SLOW) as server:
            assert [view.state for view in server.mounts.views()] == ["down"] * 6
    by = {one.get("x-more", ""): one for one in seen}
    assert set(by) == {"connect", "cap", "mcp", "editor", "peer", ""}
    for kind, headers in by.items():
        mine = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        assert mine == ("mine" if kind else "everybody's"), kind


@pytest.mark.parametrize("protocol", ["mcp", "editor", "cap"])
async def test_a_command_has_its_own_variables_and_folder(tmp_path: Path, protocol: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "agents.py").write_text(
        "import os\nimport interlingua as il\n\n@il.agent\nasync def place(text: str) -> str:\n"
        "    return f\"{os.environ['TOLD']} {os.getcwd()}\"\n"
    )
    words = f"{warm_python.interlingua()} stdio --as {protocol} {tmp_path / 'agents.py'}"
    python = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    mount = {
        "target": f"{protocol}:{words}#place", "as": "place", "env": {"TOLD": "this", **python}, "directory": str(work),
    }  # fmt: skip
    async with hub(tmp_path, mount) as server:
        ended = await run(server, "place")
        assert ended.output == {"text": f"this {work}"}, (ended.error, server.mounts.views())


async def test_settings_of_a_mount_are_those_of_its_protocol_and_a_wrong_one_is_told(tmp_path: Path, far: Far) -> None:
    mounts = (
        {"target": "mcp:true", "settings": {"patiense": 1}},
        {"target": "editor:true", "settings": {"write": "perhaps"}},
        {"target": far.target, "settings": {"x": 1}},
    )
    async with hub(tmp_path, *mounts, mounting=SLOW) as server:
        reasons = [view.reason for view in server.mounts.views()]
    assert "such a mount has no setting 'patiense'; did you mean patience?" in reasons[0]
    assert "a setting of the mount" in reasons[1]
    assert "$.write" in reasons[1]
    assert "such a mount has no setting 'x'; there is none" in reasons[2]


# -- while it runs --------------------------------------------------------------------------------------------


async def test_mounts_that_are_changed_while_the_server_is_up_keep_their_agents_all_the_time(
    tmp_path: Path, far: Far
) -> None:
    seen: list[list[str]] = []
    with far.up():
        async with hub(tmp_path, far.target) as server:
            server.engine.agents.listeners.append(lambda: seen.append(names(server)))
            again = entries({"target": far.target, "key": "another"})
            assert await server.mounts.change(again) == ([far.target], [far.target])
            assert seen, "they are others now"
            assert all(found == ["confirm", "echo", "local"] for found in seen)
            assert await server.mounts.change(again) == ([], [])
            await server.mounts.change([])
            assert names(server) == ["local"]
            assert (await get(server, "/mounts")).json() == {"mounts": []}


async def test_a_run_at_a_mount_that_is_taken_away_goes_on(tmp_path: Path, far: Far) -> None:
    with far.up():
        async with hub(tmp_path, far.target) as server:
            made = await server.engine.runs.submit(il.RunRequest("confirm", input={}))
            asked = await server.engine.runs.wait(made.id, timeout=60, settled=True)
            await server.mounts.change([])
            await server.engine.questions.answer(asked.questions[0].id, {"approved": True})
            ended = await server.engine.runs.wait(made.id, timeout=60)
            assert ended.output == {"text": "done"}, ended.error


async def test_cancelling_a_run_whose_mount_is_down_ends_it_here(tmp_path: Path, far: Far) -> None:
    async with hub(tmp_path, far.target) as server:
        with far.up():
            await until(server, lambda: state(server) == "up")
            made = await server.engine.runs.submit(il.RunRequest("confirm", input={}))
            await server.engine.runs.wait(made.id, timeout=60, settled=True)
    async with hub(tmp_path, far.target, mounting=SLOW) as server:
        await server.engine.runs.cancel(made.id)
        assert (await server.engine.runs.wait(made.id, timeout=60)).status is il.Status.CANCELLED


async def test_waits_for_a_mount_that_is_down_grow_to_a_limit_and_are_never_the_same(tmp_path: Path) -> None:
    async with il.Engine(tmp_path / "x.db") as engine:
        (entry,) = entries("connect+http://127.0.0.1:1")
        mount = Supervised(engine, entry, Mounting(retry_first=1, retry_last=60))
        for tries, longest in ((1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (5000, 60)):
            mount.state, mount.tries = "down", tries
            waits = {mount._wait() for _ in range(50)}
            assert len(waits) > 40
            assert all(wait is not None and longest / 2 <= wait <= longest for wait in waits)
        mount.state = "up"
        assert mount._wait() != mount._wait()
        (command,) = entries("cap:true")
        assert Supervised(engine, command, Mounting())._wait() is None, "nobody starts a process to see whether it can"


@pytest.mark.parametrize("scheme", ["acp", "tcp"])
@pytest.mark.parametrize("idle", [False, True])
async def test_a_node_that_is_gone_is_down_at_once_or_at_the_first_run(tmp_path: Path, scheme: str, idle: bool) -> None:
    """Nobody looks at it before the refresh. One to which nothing is open is seen to be gone by a run that begins."""
    far, ports = Far(tmp_path), ["--peer-port", "0", "--peer-http-port", "0", "--peer-tcp-port", "0"]
    settings = Mounting(wait=10, retry_first=0.05, retry_last=0.1, refresh=600.0)
    with started(["serve", "agents.py", "--port", "0", *ports], process_env(far.folder), far.folder) as process:
        link = process.find(rf"({scheme}://\S+)")
        mount = {"target": link, "settings": {"idle_timeout": 0.01 if idle else 600.0}}
        async with hub(tmp_path, mount, mounting=settings) as server:
            await until(server, lambda: state(server) == "up")
            assert (await run(server, "echo")).output == {"text": "hi"}
            if idle:
                (node,) = [agent.let_go.__self__ for agent in mounted(server, "echo") if agent.let_go is not None]  # type: ignore[attr-defined]
                await asyncio.wait([remote._reading for remote in node._here.own.values()])
            process.kill()
            async with asyncio.timeout(15):  # one that had begun there would wait for it for a minute
                if not idle:
                    await until(server, lambda: state(server) == "down")
                failed = await run(server, "echo")
                assert failed.error is not None
                assert (failed.error.code, failed.error.transient) == ("unavailable", True)
                await until(server, lambda: state(server) == "down")


def mounted(server: Server, name: str) -> list[il.Agent[..., Any]]:
    """What is behind the agents of mounts that are called so."""
    return [agent for one in server.mounts for agent in one._found.values() if agent.card.name == name]

"""Short runs of mounted agents: what fails, asks, is cancelled or crashes before anything came of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import interlingua as il
from interlingua.engine.execution.execution import Execution
from interlingua.model.events import Recorded
from interlingua.model.filters import RunFilter
from interlingua.protocols.mcp.mount.rpc_client import Peer
from interlingua.protocols.targets import parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load_all
from interlingua.transports.http import plain_client
from tests.kit.engines import QUICK, crash, engine, finish, question, submit

T = TypeVar("T")

MOUNTED = ["connect", "mcp", "peer"]


class Busy(il.AgentError):
    code = "busy"
    transient = True


class There:
    """The agents of the remote server, and what they did."""

    def __init__(self) -> None:
        self.entered = 0
        self.waiting = ""  # the run that waits, which need not be written down yet
        self.inside = asyncio.Event()
        self.open = asyncio.Event()

    def agents(self) -> list[il.Agent[..., Any]]:
        @il.agent
        async def quick(text: str) -> str:
            self.entered += 1
            return text

        @il.agent
        async def waits(ctx: il.Context[Any, Any], text: str) -> AsyncIterator[str]:
            self.entered += 1
            self.waiting = ctx.run_id
            self.inside.set()
            await self.open.wait()
            yield text

        @il.agent(errors=[Busy])
        async def busy() -> str:
            raise Busy("come back later")

        @il.agent(asks=[il.AskText])
        async def asks(ctx: il.Context[Any, Any]) -> str:
            return (await ctx.ask(il.AskText("What?"))).text

        return [quick, waits, busy, asks]


@contextlib.asynccontextmanager
async def remote(tmp_path: Path) -> AsyncIterator[tuple[Server, There]]:
    there = There()
    async with serving(tmp_path / "there.db", there.agents(), ServeSettings(port=0, engine=QUICK)) as server:
        try:
            yield server, there
        finally:
            there.open.set()


async def mounted(server: Server, protocol: str) -> list[il.Agent[..., Any]]:
    return await load_all(parse(f"{protocol}+{server.address}/{protocol}"))


@contextlib.asynccontextmanager
async def here(store: Path, server: Server, protocol: str) -> AsyncIterator[il.Engine]:
    agents = await mounted(server, protocol)
    async with engine(store, *agents) as eng:
        await finish(eng, "quick", {"text": "first"})  # there is a connection that is free now
        try:
            yield eng
        finally:
            for let_go in {agent.let_go for agent in agents if agent.let_go is not None}:
                await let_go()


def alive(kind: type[T]) -> list[T]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is kind]  # what is gone, and still referred to, has no class


async def runs_there(server: Server) -> list[il.Run]:
    return await server.engine.runs.search(RunFilter(agent="waits"))


@pytest.mark.parametrize("protocol", MOUNTED)
async def test_a_failure_and_a_question_that_come_at_once_are_what_they_are(
    tmp_path: Path, store: Path, protocol: str
) -> None:
    async with remote(tmp_path) as (server, _), here(store, server, protocol) as eng:
        failed = await finish(eng, "busy")
        assert failed.error is not None
        assert (failed.error.code, failed.error.message, failed.error.transient) == ("busy", "come back later", True)
        run = await submit(eng, "asks")
        await eng.questions.answer((await question(eng, run.id)).id, {"text": "this"})
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "this"}


@pytest.mark.parametrize("protocol", MOUNTED)
async def test_what_is_cancelled_before_anything_came_of_it_is_cancelled_there(
    tmp_path: Path, store: Path, protocol: str
) -> None:
    async with remote(tmp_path) as (server, there), here(store, server, protocol) as eng:
        run = await submit(eng, "waits", {"text": "x"})
        await there.inside.wait()
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        assert (await server.engine.runs.wait(there.waiting, timeout=20)).status is il.Status.CANCELLED


@pytest.mark.parametrize("protocol", MOUNTED)
async def test_what_a_crash_leaves_before_anything_came_of_it_is_found_again(
    tmp_path: Path, store: Path, protocol: str
) -> None:
    async with remote(tmp_path) as (server, there):
        eng = engine(store, *await mounted(server, protocol))
        await eng.start()
        await finish(eng, "quick", {"text": "first"})
        run = await submit(eng, "waits", {"text": "x"})
        await there.inside.wait()
        await crash(eng)
        async with here(store, server, protocol) as again:
            there.open.set()
            assert (await again.runs.wait(run.id, timeout=20)).output == {"text": "x"}
        assert len(await runs_there(server)) == 1


@pytest.mark.parametrize("protocol", MOUNTED)
async def test_a_run_that_takes_longer_is_told_as_it_goes(tmp_path: Path, store: Path, protocol: str) -> None:
    async with remote(tmp_path) as (server, there), here(store, server, protocol) as eng:
        run = await submit(eng, "waits", {"text": "x"})
        await there.inside.wait()
        async with asyncio.timeout(20):  # what it is called there is written down, or that it has begun
            async for event in eng.runs.events(run.id):
                if isinstance(event.body, Recorded):
                    break
        there.open.set()
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "x"}
        assert len(await runs_there(server)) == 1


async def test_a_connection_that_breaks_when_it_is_asked_leaves_nobody_listening(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[bytes] = []
    ask = plain_client._Line.ask

    def breaks(self: plain_client._Line, request: bytes) -> None:
        ask(self, request)
        if b"agents/run" in request and not broken and self._transport is not None:
            broken.append(request)
            self._transport.abort()

    async with remote(tmp_path) as (server, _), here(store, server, "mcp") as eng:
        monkeypatch.setattr(plain_client._Line, "ask", breaks)
        assert (await finish(eng, "quick", {"text": "short"})).output == {"text": "short"}
        assert broken
        assert [peer for peer in alive(Peer) if peer.listeners] == []


@pytest.mark.parametrize("protocol", MOUNTED)
async def test_of_runs_that_fail_nothing_stays(tmp_path: Path, store: Path, protocol: str) -> None:
    async with remote(tmp_path) as (server, _), here(store, server, protocol) as eng:
        before = len(alive(Execution))
        for _ in range(20):
            await finish(eng, "busy")
        assert len(alive(Execution)) < before + 10


async def test_a_server_that_is_let_go_while_it_is_asked_is_hung_up_on(tmp_path: Path, store: Path) -> None:
    async with remote(tmp_path) as (server, there):
        agents = await mounted(server, "mcp")
        async with engine(store, *agents) as eng:
            await finish(eng, "quick", {"text": "first"})
            (mount,) = {agent.let_go.__self__ for agent in agents if agent.let_go is not None}  # type: ignore[attr-defined]
            peer = mount.keeper.current
            run = await submit(eng, "waits", {"text": "x"})
            await there.inside.wait()
            await mount.close()
            assert peer is not None
            assert peer.rpc.lost
            await eng.runs.cancel(run.id)
            await eng.runs.wait(run.id, timeout=20)
            assert peer.channel._tasks == set()
            assert peer.channel._exchanges == {}

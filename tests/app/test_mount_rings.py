"""Servers that mount each other, in twos and threes: what they list settles, whatever is spoken between them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

import interlingua as il
from interlingua.server.app import Server, ServeSettings, serving
from tests.kit.ports import free_port

from .test_mounts import QUICK, SETTINGS, entries, names, run

KINDS = ["connect", "mcp", "peer", "cap", "editor"]
ROUNDS = 4  # of which each would make the lists deeper


def local(name: str) -> il.Agent[..., Any]:
    @il.agent(name=name, version="1.2.3")
    async def says(text: str) -> str:
        return f"{name}: {text}"

    return says


@contextlib.asynccontextmanager
async def ring(
    folder: Path, kind: str, *members: str, settings: il.Settings = SETTINGS, prefixed: bool = True
) -> AsyncIterator[list[Server]]:
    """Each of these has an agent of its own name, and mounts the next one; the last one mounts the first."""
    ports = [free_port() for _ in members]
    async with contextlib.AsyncExitStack() as stack:
        servers = []
        for at, name in enumerate(members):
            there = (at + 1) % len(members)
            target = f"{kind}+http://127.0.0.1:{ports[there]}/{kind}"
            mount = {"target": target, "prefix": f"{members[there]}." if prefixed else ""}
            made = ServeSettings(port=ports[at], mounting=msgspec.structs.replace(QUICK, wait=0), engine=settings)
            opening = serving(folder / f"{name}.db", [local(name)], made, entries(mount))
            servers.append(await stack.enter_async_context(opening))
        yield servers


async def look(servers: list[Server]) -> None:
    """Each looks at its mount, one after the other, and again, as it would with time."""
    for _ in range(ROUNDS):
        for server in servers:
            await looked(server)


async def looked(server: Server) -> None:
    (mount,) = server.mounts
    async with asyncio.timeout(60):
        while True:
            changed = mount._changed
            mount.look()
            await changed.wait()
            if mount.state == "up":
                return


@pytest.mark.parametrize("kind", KINDS)
async def test_two_servers_that_mount_each_other_list_what_each_has_once(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "interlingua.mounts")
    async with ring(tmp_path, kind, "a", "b") as (a, b):
        await look([a, b])
        assert names(a) == ["a", "b.b"]
        assert names(b) == ["a.a", "b"]
        (view,) = a.mounts.views()
        assert view.left_out == ["left out, coming from this server: b.a.a"]
        assert caplog.text.count("left out, coming from this server: b.a.a") == 1, "and not with every look"
        assert (await run(a, "b.b")).output == {"text": "b: hi"}
        assert (await run(b, "a.a")).output == {"text": "a: hi"}


@pytest.mark.parametrize("kind", KINDS)
async def test_three_servers_in_a_ring_list_what_each_has_once(tmp_path: Path, kind: str) -> None:
    async with ring(tmp_path, kind, "a", "b", "c") as servers:
        await look(servers)
        assert [names(server) for server in servers] == [
            ["a", "b.b", "b.c.c"], ["b", "c.a.a", "c.c"], ["a.a", "a.b.b", "c"],
        ]  # fmt: skip
        assert (await run(servers[0], "b.c.c")).output == {"text": "c: hi"}


async def test_without_prefixes_what_comes_back_is_no_quarrel_about_a_name(tmp_path: Path) -> None:
    async with ring(tmp_path, "connect", "a", "b", prefixed=False) as (a, b):
        await look([a, b])
        assert names(a) == names(b) == ["a", "b"]
        (view,) = a.mounts.views()
        assert view.left_out == ["left out, coming from this server: a"]


async def test_an_agent_that_no_call_would_reach_is_not_listed(tmp_path: Path) -> None:
    """As many mounts as a call may go through."""
    few = msgspec.structs.replace(SETTINGS, max_hops=1)
    async with ring(tmp_path, "mcp", "a", "b", "c", settings=few) as servers:
        await look(servers)
        assert [names(server) for server in servers] == [["a", "b.b"], ["b", "c.c"], ["a.a", "c"]]
        (view,) = servers[0].mounts.views()
        assert view.left_out == ["left out, more than 1 mounts away (limits.max_hops): b.c.c"]
        assert (await run(servers[0], "b.b")).output == {"text": "b: hi"}


async def test_a_server_is_the_same_after_a_restart_and_for_all_processes_of_its_store(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        async with il.Engine(tmp_path / "x.db") as one, il.Engine(tmp_path / "x.db") as two:
            assert one.server_id == two.server_id
            ids.append(one.server_id)
    assert ids[0] == ids[1]
    async with il.Engine(tmp_path / "y.db") as other:
        assert other.server_id not in ids


async def test_a_process_on_the_same_store_can_be_mounted_and_comes_no_further(tmp_path: Path) -> None:
    settings = ServeSettings(port=0, mounting=QUICK, engine=SETTINGS)
    async with serving(tmp_path / "one.db", [local("a")], settings) as first:
        mount = {"target": f"connect+{first.address}/connect", "prefix": "there."}
        async with serving(tmp_path / "one.db", [], settings, entries(mount)) as second:
            await look([second])
            assert names(second) == ["a", "there.a"]
            assert (await run(second, "there.a")).output == {"text": "a: hi"}


async def test_a_server_that_tells_no_way_is_mounted_as_ever(tmp_path: Path) -> None:
    """And one that tells nonsense, too."""
    from interlingua.engine.agents import mount_path

    for told in (None, "x", [1], [""], ["x" * 65], ["x"] * 1001, {}):
        assert mount_path.metadata(told) == {}
    settings = ServeSettings(port=0, engine=SETTINGS)
    async with serving(tmp_path / "one.db", [local("a")], settings) as server, httpx2.AsyncClient() as http:
        (told,) = (await http.post(f"{server.address}/connect/agents/search", json={})).json()
        assert told["interlingua"] == {"via": [server.engine.server_id]}

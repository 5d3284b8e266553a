"""Servers at an address that hang while an agent works, and agents that only say nothing for long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlingua.transports import heartbeat
from tests.kit.engines import finish
from tests.kit.mounts.mcp import act, mounted, script

from .mount_web import Kind, served

MODERN = {"version": "2026-07-28", "refuses": {"code": -32601, "message": "no"}}
SERVERS = pytest.mark.parametrize(
    ("kind", "given", "asks"),
    [
        ("stream", {}, "ping"), ("json", {}, "ping"), ("pair", {}, "ping"),
        ("stream", MODERN, "server/discover"), ("json", MODERN, "server/discover"),
    ],
)  # fmt: skip


def quick(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    for name, value in seconds.items():
        monkeypatch.setattr(heartbeat, f"_{name.upper()}", value)


@SERVERS
async def test_a_server_that_hangs_while_its_agent_works_is_noticed(
    store: Path, kind: Kind, given: dict[str, Any], asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, pulse=0.05, silence=0.5, reached_within=0.5)
    async with served(kind, hangs=True, **given) as web, mounted(store, web.address) as (eng, mount):
        lost = asyncio.Event()
        mount.watch(lost.set)
        ended = await finish(eng, "script", script(act("hang")))
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("run_lost", True)
        assert "it does not answer" in ended.error.message
        async with asyncio.timeout(20):
            await lost.wait()


@SERVERS
async def test_an_agent_may_be_quiet_for_as_long_as_it_likes_where_its_server_is_awake(
    store: Path, kind: Kind, given: dict[str, Any], asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, pulse=0.05, silence=0.1)
    async with served(kind, **given) as web, mounted(store, web.address) as (eng, mount):
        told = {"times": 4, "output": {"text": "at last"}}
        ended = await finish(eng, "script", script(act("until_looked_at", told)))
        assert ended.output == {"text": "at last"}, ended.error
        assert web.server.looks[-1] == asks
        assert mount.keeper.starts == 1

"""A server without agents, and workers that have them, as real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from interlingua.server.dev.local_servers import LocalPostgres
from tests.kit.commands import process_env
from tests.kit.nats import nats_url, shared_nats
from tests.kit.postgres import own_server
from tests.kit.servers import started

from .test_cluster import Cli, ask

__all__ = ["nats_url", "shared_nats"]

AGENTS = """
import os

import interlingua as il


@il.agent
async def who(text: str = "") -> str:
    return str(os.getpid())


@il.agent(asks=[il.Confirm])
async def asker(ctx: il.Context[None, None]) -> str:
    return str((await ctx.ask(il.Confirm("Shall I?"))).approved)
"""
NEWER = AGENTS.replace("@il.agent\n", '@il.agent(version="2.0")\n')


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    old, new = tmp_path / "agents.py", tmp_path / "newer.py"
    old.write_text(AGENTS)
    new.write_text(NEWER)
    return str(old), str(new)


def names(address: str) -> set[str]:
    answer = httpx2.post(f"{address}/connect/agents/search", json={})
    return {one["metadata"]["ref"]["name"] for one in answer.json()}


def identity(address: str, name: str, version: str) -> str:
    (found,) = httpx2.post(f"{address}/connect/agents/search", json={"name": name, "version": version}).json()
    return str(found["agent_id"])


def mounts(address: str) -> dict[str, Any]:
    return {one["mount"]: one for one in httpx2.get(f"{address}/mounts").json()["mounts"]}


def test_a_server_without_agents_serves_those_of_its_workers_for_as_long_as_they_are_there(
    tmp_path: Path, files: tuple[str, str], cli: Cli
) -> None:
    env, old = process_env(tmp_path), files[0]
    serve = ["serve", "--store", env["INTERLINGUA_STORE"], "--port", "0", "--no-peer-ports"]
    with started(serve, env, tmp_path) as server:
        address = server.address
        assert names(address) == set()
        with started(["worker", old], env, tmp_path) as worker:
            server.hear("agent who@0.1.0 is there, elsewhere")
            assert names(address) == {"who", "asker"}
            assert ask(address, "who") == str(worker.pid)
            assert mounts(address)["who@0.1.0 (elsewhere)"]["state"] == "up"
            wrong = httpx2.post(f"{address}/connect/runs", json={"agent_id": "who", "input": {"text": 5}})
            assert wrong.status_code == 422
            asked = httpx2.post(f"{address}/connect/runs/wait", json={"agent_id": "asker", "input": {}}, timeout=60)
            output = asked.json()["output"]
            assert output["type"] == "interrupt"
            resumed = httpx2.post(
                f"{address}/connect/runs/{asked.json()['run']['run_id']}", json={"approved": True}, timeout=60
            )
            assert resumed.status_code == 200
            done = httpx2.get(f"{address}/connect/runs/{asked.json()['run']['run_id']}/wait", timeout=60).json()
            assert done["output"]["values"]["text"] == "True"
            worker.kill()
        server.hear("agent who@0.1.0 is not available")
        assert mounts(address)["who@0.1.0 (elsewhere)"]["state"] == "down"
        assert names(address) == {"who", "asker"}
        refused = httpx2.post(f"{address}/connect/runs/wait", json={"agent_id": "who", "input": {}})
        assert refused.status_code == 503
        assert "who 0.1.0 is not available" in refused.text
        shown = cli("mounts", address)
        assert shown.code == 1
        assert "no process that has it is there" in shown.out


@pytest.fixture
def database() -> Iterator[LocalPostgres]:
    with own_server() as server:
        yield server


@pytest.mark.cluster
def test_workers_with_different_agents_stand_behind_one_server_on_postgres_and_nats(
    tmp_path: Path, files: tuple[str, str], database: LocalPostgres, nats_url: str, cli: Cli
) -> None:
    old, new = files
    env = {**process_env(tmp_path), "INTERLINGUA_STORE": database.url, "INTERLINGUA_BUS": nats_url}
    serve = ["serve", "--elsewhere", "--port", "0", "--no-peer-ports"]
    with started(serve, env, tmp_path) as server, started(["worker", old], env, tmp_path) as first:
        address = server.address
        server.hear("agent who@0.1.0 is there, elsewhere")
        assert names(address) == {"who", "asker"}
        for door in ("mcp", "connect", "cap", "editor", "peer"):
            told = cli("run", f"{door}+{address}/{door}#who", "x")
            assert told.code == 0, (door, told.err)
            assert told.out.strip() == str(first.pid), door
        with started(["worker", new], env, tmp_path) as second:
            server.hear("agent who@2.0 is there, elsewhere")
            assert ask(address, "who") == str(second.pid)  # the newest, where nobody says which
            assert ask(address, identity(address, "who", "0.1.0")) == str(first.pid)
            listed = json.loads(cli("workers", "--json", "--store", database.url, "--bus", nats_url).out)
            assert {one["pid"] for one in listed} == {server.pid, first.pid, second.pid}
            second.kill()
            server.hear("agent who@2.0 is not available")
        assert ask(address, "who") == str(first.pid)  # the newest that is there
        assert first.end() == 0
        server.hear("agent who@0.1.0 is not available")
        refused = httpx2.post(f"{address}/connect/runs/wait", json={"agent_id": "who", "input": {}})
        assert refused.status_code == 503
        assert "not available" in refused.text
        with started(["worker", old], env, tmp_path) as third:
            server.hear("(?s)who@0.1.0 is not available.*who@0.1.0 is there, elsewhere")
            assert ask(address, "who") == str(third.pid)

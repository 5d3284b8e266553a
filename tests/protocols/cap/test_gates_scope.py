"""A scope and the limits of a task hold through mounts: they travel with the call, and nothing wins them back."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.errors import ChildFailed
from interlingua.model.filters import RunFilter
from interlingua.model.run import RunRequest
from interlingua.model.team import carried_scope
from interlingua.model.team.authority import Limits
from interlingua.model.team.carried_scope import CarriedScope
from interlingua.protocols.targets import parse
from interlingua.server.app import Server
from interlingua.server.loading.target import load
from tests.kit.teams import member, shout, team

from .gates_common import MOUNTS, WAIT, elsewhere, mounted, serve


@il.agent
async def tells(ctx: il.Context[None, None], text: str) -> str:
    """Says what it may, and what came of delegating."""
    authority = ctx.authority
    assert authority is not None
    try:
        found = (await ctx.delegate("helper", text))["text"]
    except il.InterlinguaError as error:
        found = error.code
    told = {"delegates": authority.delegates, "tools": authority.tools, "depth": authority.depth,
            "runs": authority.budget, "ends": authority.deadline is not None, "found": found}  # fmt: skip
    return json.dumps(told)


def far_team(name: str = "far") -> TeamAgent:
    """first → helper."""
    members = (member("first", "helper"), member("helper"))
    return TeamAgent(team(*members, entry="first", name=name), {"first": tells, "helper": shout})


def near_team(remote: il.Agent[..., Any], scope: il.Scope | None, limits: Limits | None = None) -> TeamAgent:
    """lead → far, where far is a mounted agent."""

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        try:
            return str((await ctx.delegate("far", text, scope=scope))["text"])
        except ChildFailed as error:
            return f"{error.error.code}: {error.error.message}"

    members = (member("lead", "far"), member("far"))
    return TeamAgent(team(*members, limits=limits), {"lead": lead, "far": remote})


@asynccontextmanager
async def near(folder: Path, remote: il.Agent[..., Any], scope: il.Scope | None, **more: Any) -> AsyncIterator[Server]:
    async with serve(folder / "s.db", near_team(remote, scope, **more)) as server:
        yield server


async def output(server: Server) -> str:
    run = await server.engine.runs.submit(RunRequest("crew", input={"text": "x"}))
    ended = await server.engine.runs.wait(run.id, timeout=WAIT)
    assert ended.output is not None, ended.error
    return str(ended.output["text"])


@pytest.mark.parametrize("kind", MOUNTS)
async def test_a_scope_holds_in_a_team_at_the_far_end_of_a_mount(tmp_path: Path, kind: str) -> None:
    async with elsewhere(tmp_path, far_team()) as far:
        remote = await mounted(far, kind)
        async with near(tmp_path, remote, il.Scope(delegates=())) as server:
            told = json.loads(await output(server))
            assert (told["delegates"], told["found"]) == ([], "denied")


@pytest.mark.parametrize("kind", MOUNTS)
async def test_limits_of_a_task_hold_in_a_team_at_the_far_end_of_a_mount(tmp_path: Path, kind: str) -> None:
    async with elsewhere(tmp_path, far_team()) as far:
        remote = await mounted(far, kind)
        # The one level and the first two runs are those of lead and far; what is left is one run, and no level.
        async with near(tmp_path, remote, None, limits=Limits(depth=2, runs=3, seconds=600)) as server:
            told = json.loads(await output(server))
            assert (told["depth"], told["runs"], told["ends"]) == (0, 1, True)
            assert told["found"] == "over_budget"


async def test_without_a_team_nothing_is_narrowed(tmp_path: Path) -> None:
    async with (
        elsewhere(tmp_path, far_team()) as far,
        serve(tmp_path / "s.db", await mounted(far, "cap+http")) as server,
    ):
        (agent,) = server.engine.agents
        run = await server.engine.runs.submit(RunRequest(agent.card.name, input={"text": "x"}))
        ended = await server.engine.runs.wait(run.id, timeout=WAIT)
        told = json.loads(ended.output["text"])
        assert (told["depth"], told["runs"], told["ends"], told["found"]) == (7, 99, False, "X")


@pytest.mark.parametrize("first", MOUNTS)
async def test_a_scope_goes_on_through_a_second_mount(tmp_path: Path, first: str) -> None:
    async with (
        elsewhere(tmp_path, far_team()) as far,
        serve(tmp_path / "between.db", await mounted(far, "connect+http")) as between,
        near(tmp_path, await mounted(between, first), il.Scope(delegates=())) as server,
    ):
        told = json.loads(await output(server))
        assert (told["delegates"], told["found"]) == ([], "denied")


PROGRAM = """
import json, sys
for line in sys.stdin:
    told = json.loads(line)
    print(json.dumps({"type": "message", "task_id": told["task_id"], "sender_id": told["recipient_id"],
                      "recipient_id": told["sender_id"], "content": "done"}), flush=True)
"""


async def program(folder: Path) -> il.Agent[..., Any]:
    file = folder / "program.py"
    file.write_text(PROGRAM)
    return (await load(parse(f"cap:{sys.executable} {file}"))).chosen


async def test_a_narrowed_call_does_not_go_where_the_scope_may_not_hold(tmp_path: Path) -> None:
    async with near(tmp_path, await program(tmp_path), il.Scope(delegates=())) as server:
        told = await output(server)
        assert told.startswith("denied: ")
        assert "does not promise to keep to the scope" in told


async def test_what_was_not_narrowed_goes_there(tmp_path: Path) -> None:
    async with near(tmp_path, await program(tmp_path), None) as server:
        assert await output(server) == "done"


@pytest.mark.parametrize("kind", MOUNTS)
async def test_a_server_between_two_does_not_send_it_there_either(tmp_path: Path, kind: str) -> None:
    async with serve(tmp_path / "between.db", await program(tmp_path)) as between:
        remote = await mounted(between, kind)
        async with near(tmp_path, remote, il.Scope(limits=Limits(runs=0))) as server:
            told = await output(server)
            assert told.startswith("denied: ")
            assert "does not promise to keep to the scope" in told


async def test_a_scope_that_is_too_long_to_travel_is_refused(tmp_path: Path) -> None:
    async with elsewhere(tmp_path, far_team()) as far:
        remote = await mounted(far, "connect+http")
        many = tuple(f"agent-{number}" for number in range(1000))
        async with near(tmp_path, remote, il.Scope(delegates=many)) as server:
            assert "too long to travel" in await output(server)


async def test_a_caller_narrows_only_its_own_call_and_what_nobody_can_read_begins_nothing(tmp_path: Path) -> None:
    async with elsewhere(tmp_path, far_team()) as far, httpx2.AsyncClient(base_url=far.address, timeout=WAIT) as http:

        async def run(scope: bytes) -> httpx2.Response:
            written = base64.urlsafe_b64encode(scope).decode().rstrip("=")
            headers = {"baggage": f"interlingua-scope={written}"}
            (agent,) = (await http.post("/connect/agents/search", json={"name": "far"})).json()
            body = {"agent_id": agent["agent_id"], "input": {"text": "x"}}
            return await http.post("/connect/runs/wait", json=body, headers=headers)

        more = json.loads((await run(b'{"limits": {"depth": 1000, "runs": 1000}}')).json()["output"]["values"]["text"])
        assert (more["depth"], more["runs"], more["found"]) == (7, 99, "X")
        less = json.loads((await run(b'{"limits": {"runs": 0}}')).json()["output"]["values"]["text"])
        assert (less["runs"], less["found"]) == (0, "over_budget")
        for wrong in (b"{", b'{"later": true}', b"\xff"):
            assert (await run(wrong)).status_code == 422
        assert len(await far.engine.runs.search(RunFilter(agent="far"))) == 2


# -- agents in between that are of no team ---------------------------------------------------------------------


@il.agent
async def hands_on(ctx: il.Context[None, None], text: str) -> str:
    return str((await ctx.call("far", text))["text"])


@pytest.mark.parametrize("kind", MOUNTS)
async def test_a_scope_goes_on_through_an_agent_that_is_of_no_team(tmp_path: Path, kind: str) -> None:
    async with elsewhere(tmp_path, far_team(), hands_on) as far:
        remote = await mounted(far, kind, "hands_on")
        async with near(tmp_path, remote, il.Scope(delegates=())) as server:
            told = json.loads(await output(server))
            assert (told["delegates"], told["found"]) == ([], "denied")


async def test_the_time_that_an_agent_of_no_team_takes_is_taken_from_what_is_left(tmp_path: Path) -> None:
    ends: list[int] = []

    @il.agent
    async def last(ctx: il.Context[None, None], text: str) -> str:
        assert ctx.authority is not None
        assert ctx.authority.deadline is not None
        ends.append(ctx.authority.deadline)
        return text

    @il.agent
    async def slow(ctx: il.Context[None, None], text: str) -> str:
        await ctx.sleep(0.5)
        return str((await ctx.call("far", text))["text"])

    far = TeamAgent(team(member("first"), entry="first", name="far"), {"first": last})
    async with serve(tmp_path / "s.db", far, slow) as server:
        scope = carried_scope.write(CarriedScope(limits=Limits(seconds=100)))
        trace = {"baggage": f"interlingua-scope={scope},user=eve"}
        run = await server.engine.runs.submit(RunRequest("slow", input={"text": "x"}, trace=trace))
        await server.engine.runs.wait(run.id, timeout=WAIT)
        assert ends[0] - run.run.created_at <= 100_100_000

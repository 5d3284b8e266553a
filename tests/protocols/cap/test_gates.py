"""Attempts to get around the gates of teams, through real doors, mounts and processes: each is refused and on record.

What the gates decide is tested with the engine; here is whether anything gets past them from elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.events import ChildCalled, DelegationRefused, RunCreated, ToolRefused
from interlingua.model.filters import RunFilter
from interlingua.model.team.authority import Limits, begin
from interlingua.model.team.manifest import Binding, cap_id
from interlingua.model.team.oversight import Assignment
from interlingua.tools.servers import McpServers
from tests.kit.clients.editor import client_of
from tests.kit.clients.mcp_http import clients
from tests.kit.clients.rpc import INTERLINGUA, Refused
from tests.kit.engines import bodies
from tests.kit.teams import first_of, member, of_agent, passes_on, team

from .door_common import notice
from .gates_common import (
    MOUNTS,
    SECRET,
    WAIT,
    Judge,
    Seen,
    agent_id,
    crew,
    elsewhere,
    mounted,
    oracle,
    over_connect,
    sealed,
    serve,
    web,
)  # fmt: skip
from .tool_common import HERE, polite, words

pytestmark = pytest.mark.usefixtures("quick_tools")

MEMBERS = ["crew/expert", "expert", "crew/analyst", "crew/analyst/work", "crew/qa/review", "crew/lead"]


# -- reading what is sealed -----------------------------------------------------------------------------------


async def refused(answer: Any) -> httpx2.Response:
    response: httpx2.Response = await answer
    assert response.status_code in (403, 404), (response.request.method, response.url, response.text)
    assert SECRET not in response.text
    return response


async def test_a_sealed_run_is_at_no_door_for_whoever_knows_its_id(tmp_path: Path) -> None:
    judge = Judge(approves=False, waits=True)
    async with serve(tmp_path / "s.db", crew(oracle, judge)) as server:
        watching = asyncio.create_task(over_connect(server, "analyst x", Seen()))
        await judge.has_seen(1)
        (root,) = await server.engine.runs.search(RunFilter(agent="crew"))
        await first_of(server.engine, root.id, "crew/qa/review")  # it may have begun before it was written down
        runs = await sealed(server.engine)
        assert {run.agent for run in runs} == {"crew/analyst/work", "crew/qa/review"}
        for run in runs:
            await read_over_http(server, run.id)
            await read_over_rpc(server, run.id)
        assert [run.status for run in await sealed(server.engine)] == [run.status for run in runs]
        judge.go_on.set()
        await watching
    async with serve(tmp_path / "s.db", crew(oracle, judge)) as server:  # nothing of it is in memory
        for run in runs:
            await read_over_http(server, run.id)
            await read_over_rpc(server, run.id)
        assert len(await sealed(server.engine)) == 2


async def read_over_http(server: Any, run: str) -> None:
    async with web(server, "connect") as http:
        base = f"/runs/{run}"
        for method, path in (
            ("GET", base), ("GET", f"{base}/wait"), ("GET", f"{base}/stream"), ("POST", f"{base}/cancel"),
            ("DELETE", base),
        ):  # fmt: skip
            await refused(http.request(method, path))
        await refused(http.post(base, json={"approved": True}))
        for where in ({}, {"agent_id": await agent_id(http)}, {"status": "pending"}):
            found = await http.post("/runs/search", json={"limit": 1000, **where})
            assert run not in found.text
            assert SECRET not in found.text
    async with web(server, "peer") as http:
        for method, path in (
            ("GET", ""), ("GET", ":wait"), ("GET", ":subscribe"), ("POST", ":cancel"), ("POST", ":continue"),
            ("DELETE", ""), ("PUT", ""),
        ):  # fmt: skip
            body = {"text": "x"} if method in ("POST", "PUT") else None
            await refused(http.request(method, f"/tasks/{run}{path}", json=body))
        for path in ("/tasks", "/messages", "/history", "/status", f"/context/{run}/messages"):
            assert SECRET not in (await http.get(path)).text
    async with web(server, "cap") as http:
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
            await refused(http.request(method, f"/tasks/{run}{path}"))
        for path in ("/tasks", "/tasks/T1", "/tasks/T1.1", "/tasks/T1.1.1"):
            found = await http.get(path)
            assert found.status_code == 200
            assert SECRET not in found.text


async def read_over_rpc(server: Any, run: str) -> None:
    async with clients(server) as client:
        await client.begin()
        params = {"name": "crew", "input": {"text": "x"}, "_meta": {"interlingua/run": run}}
        answer = await (await client.ask("agents/run", params)).json()
        assert answer["error"]
        assert SECRET not in json.dumps(answer)
    async with client_of(server.engine) as (editor, _):
        await editor.initialize()
        for method in ("session/load", "session/resume"):
            with pytest.raises(Refused):
                await editor.ask(method, {"sessionId": run, "cwd": "/", "mcpServers": []})
        assert SECRET not in json.dumps(editor.messages)


# -- members from outside -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEMBERS)
async def test_a_member_is_found_at_no_door(tmp_path: Path, name: str) -> None:
    async with serve(tmp_path / "s.db", crew(oracle, Judge())) as server:
        async with web(server, "connect") as http:
            assert (await http.post("/agents/search", json={"name": name})).json() == []
            assert [one["metadata"]["ref"]["name"] for one in (await http.post("/agents/search", json={})).json()] == [
                "crew"
            ]
            for id_ in (name, f"{name}@0.1.0"):
                for path in ("/runs", "/runs/wait", "/runs/stream"):
                    await refused(http.post(path, json={"agent_id": id_, "input": {"text": "x"}}))
        async with web(server, "peer") as http:
            await refused(http.post("/tasks", json={"role": "user", "text": "x", "skill_id": name}))
            assert [one["id"] for one in (await http.get("/skills")).json()["skills"]] == ["crew"]
        async with web(server, "cap") as http:
            if "lead" not in name:  # the entry's id is what the team is called there
                told = await http.post("/messages", json=notice("a", name.replace("/", "-"), "x"))
                assert told.status_code == 404, told.text
            assert [one["id"] for one in (await http.get("/agents")).json()["agents"]] == ["lead"]
        async with clients(server) as client:
            await client.begin()
            for method, params in (
                ("agents/run", {"name": name, "input": {"text": "x"}}),
                ("tools/call", {"name": name, "arguments": {"text": "x"}}),
            ):
                answer = await (await client.ask(method, params)).json()
                assert "error" in answer, answer
            listed = await (await client.ask("agents/list")).json()
            assert [one["name"] for one in listed["result"]["agents"]] == ["crew"]
        assert await server.engine.runs.search(RunFilter(sealed=True)) == []


async def test_an_authority_that_a_request_brings_along_is_only_data(tmp_path: Path) -> None:
    forged = msgspec.to_builtins(begin("crew", "expert", Limits(runs=10**6), now=0))
    brought = {"authority": forged, "assignment": msgspec.to_builtins(Assignment(sealed=True)), "parent": "x"}
    async with serve(tmp_path / "s.db", passes_on, crew(oracle, Judge())) as server:
        async with web(server, "connect") as http:
            body = {"agent_id": await agent_id(http, "passes_on"), "input": {"text": "expert x", **brought}}
            more = {"metadata": brought, "on_completion": "keep", **brought}
            told = await http.post("/runs/wait", json={**body, **more})
            assert told.status_code in (200, 422), told.text
            if told.status_code == 422:  # an input that the agent does not take
                body["input"] = {"text": "expert x"}
                told = await http.post("/runs/wait", json={**body, **more})
            assert told.json()["output"]["type"] == "error", told.text
        async with web(server, "peer") as http:
            task = {"role": "user", "text": "expert x", "skill_id": "passes_on", "metadata": brought, **brought}
            made = (await http.post("/tasks", json=task)).json()
            assert (await http.get(f"/tasks/{made['id']}:wait")).json()["task"]["status"] == "failed"
        async with web(server, "cap") as http:
            begins = {**notice("a", cap_id("passes_on"), "expert x", metadata=brought), **brought}
            assert (await http.post("/messages", json=begins)).status_code == 202
        async with clients(server) as client:
            await client.begin()
            params = {"name": "passes_on", "input": {"text": "expert x"}, "_meta": brought, **brought}
            assert "error" in await (await client.ask("agents/run", params)).json()
        runs = await server.engine.runs.search(RunFilter(limit=100, sealed=True))
        assert len(runs) == 4
        for run in runs:
            await server.engine.runs.wait(run.id, timeout=WAIT)
            (created,) = await bodies(server.engine, run.id, RunCreated)
            assert created.request.authority is None
            assert created.request.assignment is None
            assert created.parent is None
            (no,) = await bodies(server.engine, run.id, DelegationRefused)
            assert no.code == "denied"


# -- delegating past the gate ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MOUNTS)
async def test_a_mounted_member_reaches_nobody_by_name(tmp_path: Path, kind: str) -> None:
    """Neither in its own engine, nor by coming back through a door of ours."""
    address, tried = "", list[Any]()

    @il.agent(name="oracle")
    async def burglar(ctx: il.Context[None, None], text: str) -> str:
        for name in MEMBERS:
            try:
                tried.append(await ctx.call(name, "x"))
            except il.InterlinguaError as error:
                tried.append(error.code)
            async with httpx2.AsyncClient(base_url=f"{address}/connect", timeout=WAIT) as http:
                body = {"agent_id": f"{name}@0.1.0", "input": {"text": "x"}}
                tried.append((await http.post("/runs/wait", json=body)).status_code)
        return "nothing"

    async with (
        elsewhere(tmp_path, burglar) as far,
        serve(tmp_path / "s.db", crew(await mounted(far, kind), Judge())) as server,
    ):
        address = server.address
        seen = Seen()
        await over_connect(server, "analyst x", seen)
        assert b"nothing" in seen
        assert tried == ["agent_not_found", 404] * len(MEMBERS)
        agents = {run.agent for run in await server.engine.runs.search(RunFilter(limit=100, sealed=True))}
        assert agents == {"crew", "crew/lead", "crew/analyst", "crew/analyst/work", "crew/qa/review"}


@pytest.mark.parametrize(
    ("agent", "text", "sender"),
    [
        ("passes_on", "expert x", "passes_on"),
        ("passes_on", "crew/analyst/work x", "passes_on"),
        ("crew", "expert x", "crew/lead"),
        ("crew", "middle expert x", "crew/middle"),
        ("crew", "middle analyst expert x", "crew/analyst/work"),
        ("crew", "middle passes_on expert x", "crew/middle"),
    ],
    ids=["from outside", "from outside, its work", "the entry", "nested", "sealed", "by way of somebody outside"],
)
async def test_delegating_to_a_stranger_is_refused_and_on_record(
    tmp_path: Path, agent: str, text: str, sender: str
) -> None:
    async with serve(tmp_path / "s.db", passes_on, crew(passes_on, Judge())) as server:
        async with web(server, "connect") as http:
            body = {"agent_id": await agent_id(http, agent), "input": {"text": text}, "on_completion": "keep"}
            told = (await http.post("/runs/wait", json=body)).json()
            assert told["output"]["type"] == "error", told
        (run,) = [
            run for run in await server.engine.runs.search(RunFilter(limit=100, sealed=True)) if run.agent == sender
        ]
        events = [event.body async for event in server.engine.runs.events(run.id, follow=False, sealed=True)]
        (no,) = [body for body in events if isinstance(body, DelegationRefused)]
        assert no.code == "denied"
        assert f"{sender.split('/')[1] if '/' in sender else sender} may not" in no.reason
        assert not [body for body in events if isinstance(body, ChildCalled)]
        assert await server.engine.runs.search(RunFilter(parent=run.id, sealed=True)) == []


# -- tools ----------------------------------------------------------------------------------------------------


@il.agent
async def uses(ctx: il.Context[None, None], text: str) -> str:
    """Calls `server tool`."""
    server, tool = text.split()
    return json.dumps(await ctx.tool(server, tool))


def tooled(name: str, log: Path, server: str) -> TeamAgent:
    """A team of one, with a server of its own of which it may call `about`."""
    lead = msgspec.structs.replace(member("lead"), mcp_bindings=(Binding(server, (), ("about",)),))
    made = team(lead, name=name)
    here = polite(log, cwd=str(HERE))
    made.servers = {server: here, "Unbound": here}
    return TeamAgent(made, {"lead": uses}, McpServers())


async def test_no_tool_is_called_that_the_binding_does_not_name(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    async with serve(tmp_path / "s.db", tooled("one", mine, "Mine"), tooled("two", theirs, "Theirs")) as server:

        async def call(agent: str, text: str) -> tuple[il.Run, list[Any]]:
            run = await server.engine.runs.submit(il.RunRequest(agent, input={"text": text}))
            done = await server.engine.runs.wait(run.id, timeout=30)
            (lead,) = await of_agent(server.engine, run.id, f"{agent}/lead")
            return done, await bodies(server.engine, lead.id, ToolRefused)

        done, no = await call("one", "Mine about")
        assert done.status is il.Status.SUCCEEDED, done.error
        assert no == []
        for text in (
            "Mine die",
            "Theirs about",
            "Unbound about",
            "Mine about/../die",
            "mine about",
            "two/Theirs about",
        ):
            done, (no,) = await call("one", text)
            assert done.error is not None
            assert done.error.code == "denied"
            assert (f"{no.server} {no.tool}", no.code) == (text, "denied")
        assert words(mine).count("about") == 1
        assert "die" not in words(mine)
        assert words(theirs) == []


async def test_two_teams_that_call_different_servers_the_same_reach_each_its_own(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with serve(tmp_path / "s.db", tooled("one", one, "Data"), tooled("two", two, "Data")) as server:
        for agent, log in (("one", one), ("two", two)):
            run = await server.engine.runs.submit(il.RunRequest(agent, input={"text": "Data about"}))
            done = await server.engine.runs.wait(run.id, timeout=30)
            assert done.output is not None, done.error
            assert json.loads(done.output["text"])["env"]["CALLS_LOG"] == str(log)


# -- the owner ------------------------------------------------------------------------------------------------


async def test_the_owner_reads_what_is_sealed_and_is_told_so(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    async with serve(store, crew(oracle, Judge(approves=False))) as server:
        await over_connect(server, "analyst x", Seen())
        (work,) = [run for run in await sealed(server.engine) if run.agent == "crew/analyst/work"]
    for more in ([], ["--json"]):
        process = await asyncio.create_subprocess_exec(
            INTERLINGUA, "runs", "show", work.id, "--store", str(store), *more, stdout=asyncio.subprocess.PIPE
        )
        told, _ = await process.communicate()
        assert process.returncode == 0
        assert SECRET.encode() in told
        assert b"sealed" in told

"""Tools of a team: who may call which, that each call is made once, and what is done when one fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model.content import ToolResultPart
from interlingua.model.errors import ErrorInfo, InterlinguaError, InvalidRequest, RunTimedOut, ToolFailed, Unavailable
from interlingua.model.events import ErrorHandled, Said, ToolCall, ToolRefused
from interlingua.model.team.authority import Policy, Scope, Step
from interlingua.model.team.manifest import Binding, Manifest, Server, Team
from interlingua.model.team.tools import ToolOutcome, ToolSpec
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, finish, submit
from tests.kit.teams import member, of_agent, team

both = pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])


class Bench:
    """Tool servers that remember what they were asked, and do as they are told."""

    def __init__(self, *failures: Exception) -> None:
        self.calls: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = []
        self.failures = list(failures)
        self.hold: asyncio.Event | None = None
        self.called = asyncio.Event()

    async def list(self, server_id: str, server: Server) -> list[ToolSpec]:
        return [ToolSpec(server_id, name, f"it can {name}") for name in ("query", "process", "drop")]

    async def call(
        self, server_id: str, server: Server, tool: str, arguments: dict[str, Any], *, scopes: tuple[str, ...] = (),
        timeout: float | None = None,
    ) -> ToolOutcome:  # fmt: skip
        self.calls.append((server_id, tool, arguments, scopes))
        self.called.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.failures:
            raise self.failures.pop(0)
        return ToolOutcome({"rows": len(self.calls)})

    async def close(self) -> None:
        pass


def bound(manifest: Manifest, *tools: str, scopes: tuple[str, ...] = ("read",)) -> Manifest:
    return msgspec.structs.replace(manifest, mcp_bindings=(Binding("Data", scopes, tools),))


def crew(lead: Manifest, *others: Manifest, policy: Policy | None = None) -> Team:
    made = team(lead, *others)
    made.servers = {"Data": Server(command="data", needs={"drop": ("write",)}), "Secret": Server(command="secret")}
    if policy is not None:
        made.policy = policy
    return made


def calls(server: str, tool: str, **arguments: Any) -> il.Agent[..., Any]:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> Any:
        return {"text": str(await ctx.tool(server, tool, arguments))}

    return lead


async def test_a_call_that_the_binding_allows_is_made_and_recorded(store: Path) -> None:
    bench = Bench()
    async with engine(store) as eng:
        eng.teams.add_team(crew(bound(member("lead"), "query")), {"lead": calls("Data", "query", table="sales")}, bench)
        run = await finish(eng, "crew", {"text": "go"})
        assert run.output == {"text": "{'rows': 1}"}
        assert bench.calls == [("Data", "query", {"table": "sales"}, ("read",))]
        (lead,) = await of_agent(eng, run.id, "crew/lead")
        begun, done = await bodies(eng, lead.id, ToolCall)
        assert (begun.tool, begun.input, begun.status) == ("Data.query", {"table": "sales"}, "in_progress")
        assert (done.id, done.output, done.status) == (begun.id, {"rows": 1}, "completed")


@pytest.mark.parametrize(
    ("server", "tool", "why"),
    [
        ("Data", "process", "its tools there are query, drop"),
        ("Data", "drop", "needs the scope write"),
        ("Secret", "query", "no binding for that server"),
        ("Nowhere", "query", "no binding for that server"),
    ],
)
@both
async def test_a_call_outside_the_binding_is_refused_and_recorded(
    store: Path, server: str, tool: str, why: str, settings: il.Settings
) -> None:
    bench = Bench()
    async with engine(store, settings=settings) as eng:
        eng.teams.add_team(crew(bound(member("lead"), "query", "drop")), {"lead": calls(server, tool)}, bench)
        run = await finish(eng, "crew", {"text": "go"})
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert run.error.code == "denied"
        assert why in run.error.message
        assert bench.calls == []
        (lead,) = await of_agent(eng, run.id, "crew/lead")
        (refused,) = await bodies(eng, lead.id, ToolRefused)
        assert (refused.server, refused.tool, refused.code) == (server, tool, "denied")
        assert why in refused.reason


async def test_what_a_delegation_leaves_out_is_not_there_for_anybody_below(store: Path) -> None:
    bench = Bench()

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> Any:
        return await ctx.delegate("helper", "go", scope=Scope(tools={"Data": ("process",)}))

    manifests = bound(member("lead", "helper"), "query", "process"), bound(member("helper"), "query", "process")
    async with engine(store) as eng:
        eng.teams.add_team(crew(*manifests), {"lead": lead, "helper": calls("Data", "query")}, bench)
        run = await finish(eng, "crew", {"text": "go"})
        assert run.error is not None
        assert "its tools there are process" in run.error.message
        assert bench.calls == []


async def test_the_tools_that_an_agent_is_shown_are_those_that_it_may_call(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        return ", ".join(f"{spec.server}.{spec.name}: {spec.description}" for spec in await ctx.tools())

    async with engine(store) as eng:
        made = crew(bound(member("lead"), "query", "drop", "missing"))
        eng.teams.add_team(made, {"lead": lead}, Bench())
        run = await finish(eng, "crew", {"text": "go"})
        assert run.output == {"text": "Data.query: it can query"}


async def test_an_agent_outside_of_teams_has_no_tools(store: Path) -> None:
    @il.agent
    async def loner(ctx: il.Context[None, None], text: str) -> str:
        with pytest.raises(InvalidRequest, match="only members of a team"):
            await ctx.tool("Data", "query")
        return "none"

    async with engine(store, loner) as eng:
        eng.teams.add_team(crew(bound(member("lead"), "query")), {"lead": calls("Data", "query")}, Bench())
        assert (await finish(eng, "loner", {"text": "go"})).output == {"text": "none"}


async def test_a_recorded_call_is_not_made_again_after_a_crash(store: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        first = await asyncio.gather(*(ctx.tool("Data", "query", {"n": n}, key=str(n)) for n in range(3)))
        await ctx.ask(il.Confirm("go on?"))
        return str([*first, await ctx.tool("Data", "query", {"n": 9})])

    bench = Bench()
    manifest = bound(member("lead"), "query")
    async with engine(store) as eng:
        eng.teams.add_team(crew(manifest), {"lead": lead}, bench)
        run = await submit(eng, "crew", {"text": "go"})
        asked = (await eng.runs.wait(run.id, timeout=20, settled=True)).questions[0]
        await crash(eng)
    assert len(bench.calls) == 3
    async with engine(store) as eng:
        eng.teams.add_team(crew(manifest), {"lead": lead}, bench)
        await eng.questions.answer(asked.id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.status is il.Status.SUCCEEDED, done.error
        assert sorted(call[2]["n"] for call in bench.calls) == [0, 1, 2, 9]
        (worker,) = await of_agent(eng, run.id, "crew/lead")
        assert len(await bodies(eng, worker.id, ToolCall)) == 8


async def test_a_result_that_was_really_got_is_not_marked(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        rows = await ctx.tool("Data", "query")
        await ctx.send("user", "real", attachments=[ToolResultPart("query", rows, "Data", meta={"unverified": True})])
        await ctx.send("user", "forged", attachments=[ToolResultPart("query", {"rows": 1000}, "Data")])
        return "done"

    async with engine(store) as eng:
        eng.teams.add_team(crew(bound(member("lead"), "query")), {"lead": lead}, Bench())
        run = await finish(eng, "crew", {"text": "go"})
        told = {said.text: said.attachments[0] for said in await bodies(eng, run.id, Said) if said.attachments}
        assert isinstance(told["real"], ToolResultPart)
        assert told["real"].meta is None
        assert told["forged"].meta == {"unverified": True}


@pytest.mark.parametrize(
    ("error", "code", "number"),
    [(RunTimedOut("MCP timeout."), "timed_out", 504), (ToolFailed("no such table"), "tool_failed", 502)],
)
async def test_a_call_that_fails_is_the_agents_to_handle_and_else_its_failure(
    store: Path, error: Exception, code: str, number: int
) -> None:
    from interlingua.model.error_numbers import number_of

    async with engine(store) as eng:
        eng.teams.add_team(crew(bound(member("lead"), "query")), {"lead": calls("Data", "query")}, Bench(error))
        run = await finish(eng, "crew", {"text": "go"})
        assert run.error is not None
        assert (run.error.code, number_of(run.error)) == (code, number)
        told = [said for said in await bodies(eng, run.id, Said) if said.form == "error"]
        assert (told[0].sender, told[0].recipient, told[0].code) == ("lead", "orchestrator", code)
        assert told[0].text == str(error)


@pytest.mark.parametrize("transient", [True, False])
@pytest.mark.parametrize("kind", [RunTimedOut, ToolFailed])
async def test_a_call_that_fails_says_still_whether_it_may_work_later(
    store: Path, kind: type[InterlinguaError], transient: bool
) -> None:
    async with engine(store) as eng:
        error = kind("not now", transient=transient, details={"after": 3})
        eng.teams.add_team(crew(bound(member("lead"), "query")), {"lead": calls("Data", "query")}, Bench(error))
        run = await finish(eng, "crew", {"text": "go"})
        assert run.error == ErrorInfo(kind.code, "not now", transient, {"after": 3})


async def test_a_server_that_is_down_is_tried_again_as_the_policy_says(store: Path) -> None:
    bench = Bench(Unavailable("it died"), Unavailable("it died again"))
    policy = Policy({503: (Step("retry", times=2, seconds=0.01),)})
    async with engine(store) as eng:
        made = crew(bound(member("lead"), "query"), policy=policy)
        eng.teams.add_team(made, {"lead": calls("Data", "query")}, bench)
        run = await finish(eng, "crew", {"text": "go"})
        assert run.output == {"text": "{'rows': 3}"}
        (lead,) = await of_agent(eng, run.id, "crew/lead")
        handled = await bodies(eng, lead.id, ErrorHandled)
        assert [(one.agent, one.number, one.do, one.delay) for one in handled] == [
            ("Data.query", 503, "retry", 0.01), ("Data.query", 503, "retry", 0.02),
        ]  # fmt: skip


@pytest.mark.parametrize("arguments", [["a"], "a", [], {"a": object()}, {1: "a"}])
async def test_arguments_that_are_no_json_object_reach_no_server(store: Path, arguments: Any) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        with pytest.raises(InvalidRequest, match="arguments"):
            await ctx.tool("Data", "query", arguments)
        return "refused"

    bench = Bench()
    async with engine(store) as eng:
        eng.teams.add_team(crew(bound(member("lead"), "query")), {"lead": lead}, bench)
        run = await finish(eng, "crew", {"text": "go"})
        assert run.output == {"text": "refused"}, run.error
        assert bench.calls == []


async def test_a_tool_that_fails_is_handed_to_nobody_and_nothing_else_is_recorded(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        with pytest.raises(Unavailable):
            await ctx.tool("Data", "query")
        return "done without"

    policy = Policy({503: (Step("retry", seconds=0), Step("escalate", to="user"), Step("reassign"))})
    async with engine(store) as eng:
        made = crew(bound(member("lead"), "query"), policy=policy)
        eng.teams.add_team(made, {"lead": lead}, Bench(Unavailable("it died"), Unavailable("it died again")))
        run = await finish(eng, "crew", {"text": "go"})
        assert run.output == {"text": "done without"}
        (mine,) = await of_agent(eng, run.id, "crew/lead")
        assert [one.do for one in await bodies(eng, mine.id, ErrorHandled)] == ["retry", "fail"]


async def test_a_team_whose_servers_cannot_be_reached_says_what_to_do(store: Path) -> None:
    async with engine(store) as eng:
        policy = Policy({503: (Step("fail"),)})
        eng.teams.add_team(crew(bound(member("lead"), "query"), policy=policy), {"lead": calls("Data", "query")})
        run = await finish(eng, "crew", {"text": "go"})
        assert run.error is not None
        assert "il.team" in run.error.message


async def test_a_run_that_is_cancelled_stops_waiting_for_its_tool(store: Path) -> None:
    bench = Bench()
    bench.hold = asyncio.Event()
    async with engine(store) as eng:
        eng.teams.add_team(crew(bound(member("lead"), "query")), {"lead": calls("Data", "query")}, bench)
        run = await submit(eng, "crew", {"text": "go"})
        await asyncio.wait_for(bench.called.wait(), 20)
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED

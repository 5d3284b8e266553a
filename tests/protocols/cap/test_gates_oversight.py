"""Attempts to see what an overseen agent did before it is approved, at every door, and to approve it as somebody else.

The agents are elsewhere where that matters: what comes in through a mount is judged like anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.errors import DefinitionError, Rejected
from interlingua.model.filters import RunFilter
from interlingua.model.team.authority import Limits
from interlingua.model.team.oversight import Proposal, ReviewVerdict
from tests.kit.clients.editor import Process, stdio
from tests.kit.clients.mcp_http import clients
from tests.kit.clients.rpc import Refused
from tests.kit.teams import member, passes_on, shout, team

from .door_common import Peer, key, message, notice
from .gates_common import (
    MOUNTS,
    SECRET,
    WAIT,
    WAYS,
    Judge,
    Seen,
    agent_id,
    crew,
    elsewhere,
    mounted,
    oracle,
    over_cap,
    serve,
    web,
)  # fmt: skip

# -- what an overseen agent shows -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MOUNTS)
async def test_no_door_shows_what_a_mounted_agent_gave_and_its_overseer_rejected(tmp_path: Path, kind: str) -> None:
    judge = Judge(approves=False)
    async with (
        elsewhere(tmp_path, oracle) as far,
        serve(tmp_path / "s.db", crew(await mounted(far, kind), judge)) as server,
    ):
        seen = {name: Seen() for name in WAYS}
        await asyncio.gather(*(way(server, "middle analyst x", seen[name]) for name, way in WAYS.items()))
        assert [SECRET in str(proposal.result) for proposal in judge.seen] == [True] * len(WAYS)
        for name, raw in seen.items():
            assert b"rejected" in raw, name
            assert SECRET.encode() not in raw, name


@pytest.mark.parametrize("kind", MOUNTS)
async def test_every_door_shows_what_a_mounted_agent_gave_when_it_is_approved_and_not_before(
    tmp_path: Path, kind: str
) -> None:
    judge = Judge(waits=True)
    async with (
        elsewhere(tmp_path, oracle) as far,
        serve(tmp_path / "s.db", crew(await mounted(far, kind), judge)) as server,
    ):
        seen = {name: Seen() for name in WAYS}
        watching = [asyncio.create_task(way(server, "analyst x", seen[name])) for name, way in WAYS.items()]
        await judge.has_seen(len(WAYS))
        early = [name for name, raw in seen.items() if SECRET.encode() in raw]
        judge.go_on.set()
        await asyncio.gather(*watching)
        assert early == []
        assert [name for name, raw in seen.items() if SECRET.encode() not in raw] == []


@pytest.mark.parametrize("kind", ["connect+http", "editor+ws"])
async def test_it_holds_for_a_team_whose_first_agent_is_overseen_and_elsewhere(tmp_path: Path, kind: str) -> None:
    judge = Judge(verdict=lambda proposal: "approve" if "good" in str(proposal.result.output) else "reject")
    manifests = [member("lead", overseer="qa", limits=Limits(rejections=1)), member("qa")]
    async with elsewhere(tmp_path) as far:
        made = TeamAgent(team(*manifests), {"lead": await mounted(far, kind), "qa": judge.agent})
        async with serve(tmp_path / "s.db", made) as server:
            for text, shown in (("bad", []), ("good", list(WAYS))):
                seen = {name: Seen() for name in WAYS}
                await asyncio.gather(*(way(server, text, seen[name]) for name, way in WAYS.items()))
                assert [name for name, raw in seen.items() if SECRET.encode() in raw] == shown


CREW: dict[str, dict[str, Any]] = {
    "lead": {"allowed_agents": ["analyst"], "delegate_rules": {"analyst": {"when_to_delegate": "always"}}},
    "analyst": {"overseer": "qa"},
    "qa": {},
}
HANDLERS = """
import interlingua as il

@il.agent(name="lead")
async def lead(ctx: il.Context[None, None], text: str) -> str:
    return (await ctx.delegate("analyst", text))["text"]

@il.agent(name="qa")
async def qa(ctx: il.Context[None, None], text: str) -> il.ReviewVerdict:
    good = "good" in ctx.review.result.output["text"]
    return il.ReviewVerdict("approve" if good else "reject", ctx.review.result_hash)
"""


async def test_an_editor_that_starts_the_team_as_a_process_sees_only_what_is_approved(tmp_path: Path) -> None:
    folder = tmp_path / "crew"
    folder.mkdir()
    async with elsewhere(tmp_path) as far:
        for id_, members in CREW.items():
            made: dict[str, Any] = {"id": id_, "system_prompt": "", "allowed_agents": [], "delegate_rules": {}}
            made |= {"overseer": None, "mcp_bindings": [], **members}
            if id_ == "analyst":
                target = f"connect+{far.address}/connect#oracle"
                made["interlingua"] = {"limits": {"rejections": 1}, "target": target}
            (folder / f"{id_}.json").write_text(json.dumps(made))
        (folder / "handlers.py").write_text(HANDLERS)
        async with stdio(tmp_path, Path(f"team:{folder}")) as client:
            await client.initialize()
            session = await client.new_session()
            with pytest.raises(Refused, match="rejected"):
                await client.prompt(session, "bad")
            assert SECRET not in json.dumps(client.messages)
            assert (await client.prompt(session, "good"))["stopReason"] == "end_turn"
            assert f"good: {SECRET}" in client.text(session)
            await ended(client)


async def ended(client: Process) -> None:
    await client.end_input()
    assert await client.wait() == 0


def cheats(how: str) -> il.Agent[..., Any]:
    """Proposes something harmless, and gives something else."""

    @il.agent
    async def analyst(ctx: il.Context[None, None], text: str) -> str:
        verdict = await ctx.delegate("qa", "look", output="harmless")
        assert verdict["decision"] == "approve"
        if how == "artifact":
            await ctx.artifact(SECRET, name="more")
        return SECRET if how == "output" else "harmless"

    return analyst


@pytest.mark.parametrize("how", ["output", "artifact"])
async def test_what_was_changed_after_approval_comes_through_no_door(tmp_path: Path, how: str) -> None:
    judge = Judge(verdict=lambda proposal: "reject" if SECRET in str(proposal.result) else "approve")
    async with serve(tmp_path / "s.db", crew(cheats(how), judge)) as server:
        seen = {name: Seen() for name in WAYS}
        await asyncio.gather(*(way(server, "analyst x", seen[name]) for name, way in WAYS.items()))
        assert len(judge.seen) == 2 * len(WAYS)  # what was proposed, and what was given
        for name, raw in seen.items():
            assert b"rejected" in raw, name
            assert SECRET.encode() not in raw, name


def of_another(proposal: Proposal) -> Any:
    return ReviewVerdict("approve", begin_hash(proposal))


def begin_hash(proposal: Proposal) -> str:
    """The hash of the same result without its output."""
    return msgspec.structs.replace(proposal.result, output=None).hash


@pytest.mark.parametrize(
    "verdict", [of_another, lambda _: "Approved. I approve this result."], ids=["another hash", "free text"]
)
async def test_what_is_no_approval_of_the_result_opens_no_door(tmp_path: Path, verdict: Any) -> None:
    judge = Judge(answer=verdict)
    made = crew(oracle, judge, rounds=2)
    async with serve(tmp_path / "s.db", made) as server:
        seen = {name: Seen() for name in WAYS}
        await asyncio.gather(*(way(server, "analyst x", seen[name]) for name, way in WAYS.items()))
        assert len(judge.seen) > len(WAYS)
        for name, raw in seen.items():
            assert b"did not approve" in raw, name
            assert SECRET.encode() not in raw, name


@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "all at once"])
async def test_an_agent_that_has_more_and_more_results_approved_is_stopped(tmp_path: Path, at_once: bool) -> None:
    """Reviews count for no budget."""

    @il.agent
    async def analyst(ctx: il.Context[None, None], text: str) -> str:
        proposals = [ctx.delegate("qa", f"draft {number}", key=str(number)) for number in range(50)]
        if at_once:
            await asyncio.gather(*proposals, return_exceptions=True)
        for proposal in [] if at_once else proposals:
            with contextlib.suppress(Rejected):
                await proposal
        return "draft 0"

    judge = Judge()
    async with serve(tmp_path / "s.db", crew(analyst, judge, rounds=3)) as server:
        seen = Seen()
        await over_cap(server, "analyst x", seen)
        assert sorted(proposal.summary or "" for proposal in judge.seen) == [f"draft {number}" for number in range(4)]
        assert b"draft 0" in seen  # that one was approved, and nothing else was given


def company(judge: Judge) -> TeamAgent:
    """lead → analyst, whom qa oversees, → helper → scout; and analyst → clerk, whom qa oversees as well."""

    @il.agent
    async def analyst(ctx: il.Context[None, None], text: str) -> str:
        return "; ".join([(await ctx.delegate(name, "x"))["text"] for name in ("helper", "clerk")])

    @il.agent
    async def helper(ctx: il.Context[None, None], text: str) -> str:
        return f"helped by {(await ctx.delegate('scout', 'x'))['text']}"

    @il.agent
    async def knows(ctx: il.Context[None, None], text: str) -> str:
        return f"{SECRET} of {ctx.me}"

    manifests = [
        member("lead", "analyst"),
        member("analyst", "helper", "clerk", overseer="qa", limits=Limits(rejections=1)),
        member("helper", "scout"), member("scout"), member("clerk", overseer="qa"), member("qa"),
    ]  # fmt: skip
    handlers = {"analyst": analyst, "helper": helper, "scout": knows, "clerk": knows, "qa": judge.agent}
    return TeamAgent(team(*manifests), {"lead": passes_on, **handlers})


async def test_what_an_overseen_agent_had_others_do_is_told_with_its_result(tmp_path: Path) -> None:
    judge = Judge()
    async with serve(tmp_path / "s.db", company(judge)) as server:
        seen = Seen()
        await over_cap(server, "analyst x", seen)
        (root,) = await server.engine.runs.search(RunFilter(agent="crew"))
        told = sorted(await server.engine.teams.conversation(root.id), key=lambda both: both[1].time or both[0].time)
        results = [(one.task, one.sender, one.recipient) for _, one in told if one.message.metadata.get("final")]
        assert results == [
            ("T1.1.1.1", "scout", "helper"), ("T1.1.1", "helper", "analyst"), ("T1.1.2.1", "qa", "analyst"),
            ("T1.1.3", "qa", "lead"), ("T1", "lead", "orchestrator"),
        ]  # fmt: skip
        approvals = [one for _, one in told if one.message.metadata.get("verdict") == "approve"]
        assert [part.text for one in approvals for part in one.attachments if isinstance(part, il.TextPart)] == [
            f"{SECRET} of clerk", f"helped by {SECRET} of scout; {SECRET} of clerk",
        ]  # fmt: skip


async def test_what_an_overseen_agent_had_others_do_is_not_told_when_its_result_is_rejected(tmp_path: Path) -> None:
    judge = Judge(verdict=lambda proposal: "approve" if proposal.agent == "clerk" else "reject")
    async with serve(tmp_path / "s.db", company(judge)) as server:
        seen = {name: Seen() for name in WAYS}
        await asyncio.gather(*(way(server, "analyst x", seen[name]) for name, way in WAYS.items()))
        assert len(judge.seen) == 2 * len(WAYS)
        for name, raw in seen.items():
            assert b"rejected" in raw, name
            assert SECRET.encode() not in raw, name
        for root in await server.engine.runs.search(RunFilter(agent="crew")):
            assert SECRET not in str(await server.engine.teams.conversation(root.id))


@pytest.mark.parametrize(
    "manifests",
    [
        [member("lead", overseer="lead")],
        [member("lead", overseer="a"), member("a", overseer="lead")],
        [member("lead", overseer="a"), member("a", overseer="b"), member("b", overseer="a")],
        [member("lead", overseer="lead#2")],
    ],
    ids=["itself", "each other", "a ring", "another instance of itself"],
)
def test_nobody_is_in_the_end_judged_by_itself(manifests: list[Any]) -> None:
    with pytest.raises(DefinitionError, match="overse"):
        TeamAgent(team(*manifests), {manifest.id: shout for manifest in manifests})


# -- verdicts of somebody else --------------------------------------------------------------------------------


def overseen_by_the_user() -> TeamAgent:
    @il.agent
    async def writer(text: str) -> str:
        return SECRET

    manifests = [member("lead", "writer"), member("writer", overseer="user", limits=Limits(rejections=1))]
    return TeamAgent(team(*manifests), {"lead": passes_on, "writer": writer})


async def test_only_the_one_whose_task_it_is_gives_the_verdict(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    alice, bob = await key(store, "alice"), await key(store, "bob", "see:all")
    async with serve(store, overseen_by_the_user()) as server:
        async with web(server, "connect", alice) as http:
            body = {"agent_id": await agent_id(http), "input": {"text": "writer x"}, "on_completion": "keep"}
            made = (await http.post("/runs", json=body)).json()["run_id"]
            asked = (await server.engine.runs.wait(made, timeout=WAIT, settled=True)).questions[0]
        yes = {"decision": "approve", "result_hash": asked.payload["result_hash"]}
        async with web(server, "connect", bob) as http:
            assert (await http.post(f"/runs/{made}", json=yes)).status_code == 403
        async with Peer(server, bob) as peer:
            about = {"question": asked.id, "verdict": yes}
            told = await peer.http.post("/messages", json=message("T1", "writer", "Approved.", metadata=about))
            assert told.status_code in (403, 404), told.text
        async with clients(server, **{"x-api-key": bob}) as client:
            await client.begin(elicitation={})
            params = {"name": "crew", "input": {"text": "x"}, "_meta": {"interlingua/run": made}}
            answer = await client.ask("agents/run", params)
            await answer.leave()
        assert (await server.engine.runs.get(made)).status is il.Status.WAITING
        async with web(server, "connect", alice) as http:
            assert (await http.post(f"/runs/{made}", json={**yes, "result_hash": "0" * 64})).status_code == 422
            assert (await http.post(f"/runs/{made}", json=yes)).status_code < 300
        assert (await server.engine.runs.wait(made, timeout=WAIT)).output == {"text": SECRET}


async def test_a_result_that_waits_for_the_verdict_of_one_user_is_shown_to_no_other(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    alice, bob = await key(store, "alice"), await key(store, "bob", "see:all")
    async with serve(store, overseen_by_the_user()) as server:
        async with web(server, "cap", alice) as http:
            made = (await http.post("/messages", json=notice("a", "lead", "writer x"))).json()["run_id"]
            asked = (await server.engine.runs.wait(made, timeout=WAIT, settled=True)).questions[0]
            assert SECRET in (await http.get(f"/tasks/{made}")).text
        for caller, shown in ((alice, True), (bob, False)):
            async with web(server, "connect", caller) as http:
                for path in ("wait", "stream"):
                    found = await http.get(f"/runs/{made}/{path}")
                    assert found.status_code == 200
                    assert "interrupt" in found.text
                    assert (SECRET in found.text) is shown, path
        async with web(server, "cap", bob) as http:
            found = await http.get(f"/tasks/{made}")
            assert found.status_code == 200
            assert SECRET not in found.text
        async with clients(server, **{"x-api-key": bob}) as client:
            await client.begin(elicitation={})
            params = {"name": "crew", "input": {"text": "x"}, "_meta": {"interlingua/run": made}}
            joined = await client.ask("agents/run", params)  # it waits: what is asked is not for this caller
            async with web(server, "connect", alice) as http:
                no = {"decision": "reject", "result_hash": asked.payload["result_hash"]}
                assert (await http.post(f"/runs/{made}", json=no)).status_code < 300
            said = "".join([chunk.decode() async for chunk in joined.response.aiter_bytes()])
            assert "rejected" in said
            assert SECRET not in said

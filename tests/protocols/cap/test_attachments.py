"""Files and messages that agents of a team give: they reach whoever delegated, the conversation, and clients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.content import FilePart, ToolResultPart
from interlingua.model.team.oversight import ReviewVerdict
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load
from tests.kit.teams import member, team

from .door_common import Json, Peer, door, message, notice
from .gates_common import MOUNTS, elsewhere, mounted

REPORT = FilePart(text="region,total", name="report.csv", media_type="text/csv")
SENT = {"type": "file", "name": "report.csv", "path": "data:text/csv;charset=utf-8;base64,cmVnaW9uLHRvdGFs"}
TOOL_RESULT = {"type": "tool_call_result", "server_id": "DataServer", "tool": "query_data", "result": 3}


@il.agent
async def gives(ctx: il.Context[None, None], text: str) -> str:
    await ctx.artifact(REPORT, name="report.csv")
    await ctx.message(["here it is", REPORT])
    return f"done: {text}"


def crew(**handlers: Any) -> TeamAgent:
    """lead delegates to helper."""
    return TeamAgent(team(member("lead", "helper"), member("helper"), entry="lead"), handlers)


@il.agent
async def lead(ctx: il.Context[None, None], text: str) -> str:
    """Says what came along with the output of its helper."""
    found = await ctx.delegate("helper", text)
    return f"{found['text']} with {[part.name for part in found.attachments]}"


async def conversation(peer: Peer, task: str) -> list[Json]:
    return [data for _, kind, data in await peer.all(task) if kind == "message"]


async def test_artifacts_and_messages_of_the_first_agent_of_a_team_reach_a_client(tmp_path: Path) -> None:
    first = TeamAgent(team(member("lead"), entry="lead"), {"lead": gives})
    async with door(tmp_path / "s.db", first) as server, Peer(server) as peer:
        await peer.post(notice("Q1", "lead", "x"))
        said = await conversation(peer, "Q1")
        assert [(one["sender_id"], one["recipient_id"]) for one in said] == [
            ("orchestrator", "lead"),
            ("lead", "user"),
            ("lead", "orchestrator"),
        ]
        assert (said[1]["content"], said[1]["attachments"]) == ("here it is", [SENT])
        assert (said[2]["content"], said[2]["attachments"]) == ("done: x", [SENT])
        assert (said[2]["metadata"]["final"], said[1]["metadata"]["reply_expected"]) == (True, False)
        assert (await peer.get("/tasks/Q1"))["conversation"] == said


async def test_files_of_an_agent_that_nobody_oversees_reach_its_delegator_and_the_conversation(tmp_path: Path) -> None:
    async with door(tmp_path / "s.db", crew(lead=lead, helper=gives)) as server, Peer(server) as peer:
        await peer.post(notice("Q1", "lead", "x"))
        said = await conversation(peer, "Q1")
        (result,) = [one for one in said if (one["sender_id"], one["recipient_id"]) == ("helper", "lead")]
        assert result["attachments"] == [SENT]
        assert said[-1]["content"] == "done: x with ['report.csv']"


async def test_files_of_an_overseen_agent_reach_its_delegator(tmp_path: Path) -> None:
    @il.agent
    async def qa(ctx: il.Context[None, None], text: str) -> ReviewVerdict:
        assert ctx.review is not None
        return ReviewVerdict("approve", ctx.review.result_hash)

    members = (member("lead", "helper"), member("helper", overseer="qa"), member("qa"))
    made = TeamAgent(team(*members, entry="lead"), {"lead": lead, "helper": gives, "qa": qa})
    async with door(tmp_path / "s.db", made) as server, Peer(server) as peer:
        await peer.post(notice("Q1", "lead", "x"))
        assert (await conversation(peer, "Q1"))[-1]["content"] == "done: x with ['report.csv']"


async def test_what_was_given_along_is_the_same_when_the_delegator_is_entered_again(tmp_path: Path) -> None:
    @il.agent(asks=[il.AskText])
    async def asking(ctx: il.Context[None, None], text: str) -> str:
        found = await ctx.delegate("helper", text)
        answer = await ctx.ask(il.AskText("Good?"))
        return f"{[part.name for part in found.attachments]} {answer.text}"

    for again in (False, True):  # the second server goes on where the first one ended
        async with door(tmp_path / "s.db", crew(lead=asking, helper=gives)) as server, Peer(server) as peer:
            if not again:
                await peer.post(notice("Q1", "lead", "x"))
                await peer.until("Q1", "status", status="waiting")
                continue
            await peer.post(message("Q1", "lead", "yes"))
            assert (await conversation(peer, "Q1"))[-1]["content"] == "['report.csv'] yes"


PROGRAM = """
import json, sys
for line in sys.stdin:
    told = json.loads(line)
    if told["type"] == "delegation_notice":
        back = {"type": "message", "task_id": told["task_id"], "sender_id": told["recipient_id"],
                "recipient_id": told["sender_id"], "content": "done: " + told["context_summary"],
                "attachments": [ATTACHED]}
        print(json.dumps(back), flush=True)
"""


async def program(folder: Path, attached: Json) -> il.Agent[..., Any]:
    file = folder / "program.py"
    file.write_text(PROGRAM.replace("ATTACHED", repr(attached)))
    return (await load(parse(f"cap:{sys.executable} {file}#helper"))).chosen


async def test_files_of_a_mounted_program_arrive(tmp_path: Path) -> None:
    remote = await program(tmp_path, SENT)
    made = crew(lead=lead, helper=remote)
    async with door(tmp_path / "s.db", remote, made) as server, Peer(server) as peer:
        await peer.post(notice("Q1", "lead", "x"))
        said = await conversation(peer, "Q1")
        (result,) = [one for one in said if (one["sender_id"], one["recipient_id"]) == ("helper", "lead")]
        assert result["attachments"] == [SENT]
        assert said[-1]["content"] == "done: x with ['report.csv']"
        await peer.post(notice("Q2", "helper", "x"))
        alone = await conversation(peer, "Q2")
        assert (alone[-1]["content"], alone[-1]["attachments"]) == ("done: x", [SENT])


@il.agent
async def tells(ctx: il.Context[None, None], text: str) -> str:
    await ctx.message([REPORT])
    await ctx.message([REPORT, "twice"])
    return text


async def test_files_in_messages_of_a_member_reach_its_delegator_once(tmp_path: Path) -> None:
    async with door(tmp_path / "s.db", crew(lead=lead, helper=tells)) as server, Peer(server) as peer:
        await peer.post(notice("Q1", "lead", "x"))
        said = await conversation(peer, "Q1")
        (result,) = [one for one in said if (one["sender_id"], one["recipient_id"]) == ("helper", "lead")]
        assert result["attachments"] == [SENT]
        assert said[-1]["content"] == "x with ['report.csv']"


@il.agent
async def attaches(ctx: il.Context[None, None], text: str) -> str:
    await ctx.artifact(REPORT, name="report.csv")
    return f"done: {text}"


@pytest.mark.parametrize("kind", MOUNTS)
async def test_files_of_a_member_that_is_mounted_arrive(tmp_path: Path, kind: str) -> None:
    async with elsewhere(tmp_path, attaches) as far:
        made = crew(lead=lead, helper=await mounted(far, kind))
        async with door(tmp_path / "s.db", made) as server, Peer(server) as peer:
            await peer.post(notice("Q1", "lead", "x"))
            said = await conversation(peer, "Q1")
            (result,) = [one for one in said if (one["sender_id"], one["recipient_id"]) == ("helper", "lead")]
            assert [one["name"] for one in result["attachments"]] == ["report.csv"]
            assert said[-1]["content"] == "done: x with ['report.csv']"


# -- inquiries of overseers -----------------------------------------------------------------------------------


@il.agent
async def careful(ctx: il.Context[None, None], text: str) -> str:
    """Says what its overseer attached to what it asked."""
    told = [(one.text, [getattr(part, "name", "") or type(part).__name__ for part in one.attachments])
            for one in ctx.inquiries]  # fmt: skip
    return f"{text} {told}"


def judged(*judges: il.Agent[..., Any], helper: il.Agent[..., Any] = careful) -> TeamAgent:
    overseer = "qa" if judges else "user"
    members = (member("helper", overseer=overseer), *([member("qa")] if judges else []))
    return TeamAgent(team(*members, entry="helper"), {"helper": helper, **({"qa": judges[0]} if judges else {})})


@il.agent
async def doubts(ctx: il.Context[None, None], text: str) -> ReviewVerdict:
    """Asks once, with a file and with a tool's result that it never got."""
    assert ctx.review is not None
    if ctx.review.earlier:
        return ReviewVerdict("approve", ctx.review.result_hash)
    attached = [REPORT, ToolResultPart("query_data", 3, "DataServer")]
    return ReviewVerdict("inquire", ctx.review.result_hash, inquiry="Why so low?", attachments=attached)


async def test_an_inquiry_of_an_overseer_has_its_attachments(tmp_path: Path) -> None:
    async with door(tmp_path / "s.db", judged(doubts)) as server, Peer(server) as peer:
        await peer.post(notice("Q1", "helper", "x"))
        said = await conversation(peer, "Q1")
        # What was said about a result that was not approved stays with its owner: the agent has it.
        assert said[-1]["content"].startswith("x [('Why so low?', ['report.csv', 'ToolResultPart'])]") or (
            said[-1]["attachments"][0]["text"] == "x [('Why so low?', ['report.csv', 'ToolResultPart'])]"
        )


async def test_an_inquiry_about_what_is_approved_then_appears_with_its_attachments(tmp_path: Path) -> None:
    @il.agent
    async def explains(ctx: il.Context[None, None], text: str) -> str:
        seen: list[Any] = []

        async def reply(verdict: ReviewVerdict) -> str:
            seen.extend(verdict.attachments)
            return f"I looked at {len(seen)}"

        await ctx.delegate("qa", "Please look.", output="result", on_inquiry=reply)
        return "result"

    members = (member("helper", "qa", overseer="qa"), member("qa"))
    made = TeamAgent(team(*members, entry="helper"), {"helper": explains, "qa": doubts})
    async with door(tmp_path / "s.db", made) as server, Peer(server) as peer:
        await peer.post(notice("Q1", "helper", "x"))
        said = await conversation(peer, "Q1")
        (inquiry,) = [one for one in said if one["type"] == "oversight_inquiry"]
        assert (inquiry["inquiry"], inquiry["sender_id"], inquiry["recipient_id"]) == ("Why so low?", "qa", "helper")
        # The overseer never called that tool: its result is marked.
        assert inquiry["attachments"] == [SENT, {**TOOL_RESULT, "unverified": True}]
        replies = [one for one in said if one["sender_id"] == "helper" and one["recipient_id"] == "qa"]
        assert replies[-1]["content"] == "I looked at 2"


def inquiry(task: str, recipient: str, text: str, *attachments: Json) -> Json:
    told = {"type": "oversight_inquiry", "task_id": task, "sender_id": "user", "recipient_id": recipient}
    return {**told, "inquiry": text, "attachments": list(attachments)}


async def test_an_inquiry_of_the_user_keeps_its_attachments_and_appears_as_one(tmp_path: Path) -> None:
    async with door(tmp_path / "s.db", judged()) as server, Peer(server) as peer:
        await peer.post(notice("Q1", "helper", "x"))
        first = await peer.asked("Q1", "helper")
        await peer.post(inquiry("Q1", "helper", "Why so low?", SENT, TOOL_RESULT))
        again = await peer.asked("Q1", "helper", but=first)
        assert again["payload"]["result"]["output"] == {"text": "x [('Why so low?', ['report.csv', 'ToolResultPart'])]"}
        verdict = {"decision": "approve", "result_hash": again["payload"]["result_hash"]}
        await peer.post(message("Q1", "helper", "Fine.", metadata={"verdict": verdict}))
        said = await conversation(peer, "Q1")
        (told,) = [one for one in said if one["type"] == "oversight_inquiry"]
        assert (told["inquiry"], told["sender_id"], told["recipient_id"]) == ("Why so low?", "user", "helper")
        assert told["attachments"] == [SENT, {**TOOL_RESULT, "unverified": True}]


OVERSEER = """
import json, sys
for line in sys.stdin:
    told = json.loads(line)
    if told["type"] == "delegation_notice":
        earlier = any(one.get("name") == "proposal" and one["object"].get("earlier") for one in told["attachments"])
        back = {"task_id": told["task_id"], "sender_id": told["recipient_id"], "recipient_id": told["sender_id"]}
        if earlier:
            verdict = {"decision": "approve", "result_hash": told["metadata"]["review"]["result_hash"]}
            back |= {"type": "message", "content": "Verified.", "metadata": {"verdict": verdict}}
        else:
            back |= {"type": "oversight_inquiry", "inquiry": "Why so low?", "attachments": [ATTACHED]}
        print(json.dumps(back), flush=True)
"""


async def test_an_inquiry_of_a_mounted_overseer_has_its_attachments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", OVERSEER)
    overseer = await program(tmp_path, SENT)
    async with door(tmp_path / "s.db", judged(overseer)) as server, Peer(server) as peer:
        await peer.post(notice("Q1", "helper", "x"))
        task = [data for _, kind, data in await peer.all("Q1") if kind == "status"][-1]
        assert task["output"] == {"text": "x [('Why so low?', ['report.csv'])]"}

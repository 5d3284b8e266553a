"""The door over HTTP: tasks begun, followed, answered and cancelled by messages, and who may say what as whom."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.events import DelegationRefused
from interlingua.model.filters import RunFilter
from interlingua.model.run import OWNER
from interlingua.protocols.cap import wire
from interlingua.server.app import Server
from tests.kit.teams import member, team

from .door_common import PLAIN, Peer, door, key, message, notice, overseen, said, sales, words

# -- agents without a team ------------------------------------------------------------------------------------


async def test_a_notice_begins_a_task_that_can_be_followed_to_its_end(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        taken = await peer.post(notice("T1", "words", "hello there"))
        assert taken["task_id"] == "T1"
        assert taken["agent"] == "words"
        run = await server.engine.runs.wait(taken["run_id"], timeout=20)
        assert run.output == {"text": "hello there"}
        events = await peer.all("T1")
        assert said(events) == [
            ("T1", "user", "words", "delegation_notice", "hello there"),
            ("T1", "words", "user", "message", "hello there"),
        ]
        assert "".join(data["delta"]["text"] for _, kind, data in events if kind == "delta") == "hello there"
        assert [data["status"] for _, kind, data in events if kind == "status"] == ["pending", "running", "succeeded"]
        assert events[-1][2]["output"] == {"text": "hello there"}
        assert events[-1][2]["final"] is True


async def test_what_is_answered_to_a_notice_says_where_the_task_is(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        response = await peer.http.post("/messages", json=notice("order 7/a", "words", "x"))
        assert response.status_code == 202
        assert response.headers["location"] == "/cap/tasks/order%207%2Fa"
        task = await peer.get(f"/tasks/{response.json()['run_id']}")
        assert task["run_id"] == response.json()["run_id"]


async def test_the_same_notice_again_is_the_same_task_and_another_is_refused(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        first = await peer.post(notice("T1", "words", "hello", timestamp="2025-06-01T12:00:00Z"))
        again = await peer.post(notice("T1", "words", "hello", timestamp="2025-06-01T12:00:05Z"))
        assert again["run_id"] == first["run_id"]
        refused = await peer.post(notice("T1", "words", "other"), 409)
        assert refused["error_code"] == 409
        assert len(await server.engine.runs.search(RunFilter())) == 1


async def test_notices_at_the_same_time_begin_one_task(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        taken = await asyncio.gather(*(peer.post(notice("T1", "words", "hello")) for _ in range(8)))
        assert len({one["run_id"] for one in taken}) == 1
        assert len(await server.engine.runs.search(RunFilter())) == 1


async def test_a_task_of_a_run_that_was_deleted_can_be_begun_anew(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        first = await peer.post(notice("T1", "words", "hello"))
        await server.engine.runs.wait(first["run_id"], timeout=20)
        await server.engine.runs.delete(first["run_id"])
        await peer.get("/tasks/T1", 404)
        second = await peer.post(notice("T1", "words", "hello"))
        assert second["run_id"] != first["run_id"]
        assert (await peer.get("/tasks/T1"))["run_id"] == second["run_id"]


async def test_attachments_and_metadata_reach_the_agent_and_unknown_members_are_given_back(store: Path) -> None:
    seen: dict[str, Any] = {}

    @il.agent
    async def looks(ctx: il.Context[Any, Any], text: str) -> str:
        seen["parts"] = ctx.messages[0].parts
        seen["metadata"] = ctx.metadata
        return text

    attachments = [
        {"type": "tool_call_result", "server_id": "Docs", "tool": "read", "result": {"a": 1}, "cost": 3},
        {"type": "file", "path": "/srv/report.csv"},
        {"type": "python_object", "object": {"insights": []}},
        {"type": "text_snippet", "text": "churn"},
    ]
    told = notice("T1", "looks", "x", attachments=attachments, metadata={"ticket": 7}, priority="high")
    async with door(store, looks) as server, Peer(server) as peer:
        taken = await peer.post(told)
        await server.engine.runs.wait(taken["run_id"], timeout=20)
        kinds = [type(part).__name__ for part in seen["parts"]]
        assert kinds == ["TextPart", "ToolResultPart", "FilePart", "DataPart", "TextPart"]
        assert seen["metadata"] == {"ticket": 7}
        first = (await peer.get("/tasks/T1"))["conversation"][0]
        assert first["attachments"] == attachments
        assert first["metadata"] == {"ticket": 7}
        run = await server.engine.runs.get(taken["run_id"])
        assert run.request is not None
        assert run.request.messages[0].metadata["cap"] == {"priority": "high"}


async def test_an_agent_that_takes_an_object_gets_the_one_that_is_attached(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        attachments = [{"type": "python_object", "object": {"a": 2, "b": 3}}]
        await peer.post(notice("T1", "add", "Add these.", attachments=attachments))
        await peer.post(notice("T2", "add", "Add these.", metadata={"input": {"a": 1, "b": 1}}))
        for task, value in (("T1", 5), ("T2", 2)):
            last = (await peer.all(task))[-1][2]
            assert last["output"] == {"value": value}
        wrong = await peer.post(notice("T3", "add", "Add these.", metadata={"input": {"a": "x", "b": 1}}), 400)
        assert wrong["metadata"]["code"] == "invalid_input"


async def test_questions_are_messages_to_the_user_and_messages_of_the_user_answer_them(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        await peer.post(notice("T1", "careful", "hello"))
        asked = await peer.until("T1", "message", recipient_id="user")
        assert asked["content"] == "Say hello?"
        assert asked["metadata"]["question_type"] == "confirm"
        await peer.post(message("T1", "careful", "yes"))
        second = await peer.until("T1", "message", content="What else?")
        taken = await peer.post(
            message("T1", "careful", "nothing", metadata={"question": second["metadata"]["question"]})
        )
        assert taken["question"] == second["metadata"]["question"]
        events = await peer.all("T1")
        assert said(events)[1:] == [
            ("T1", "careful", "user", "message", "Say hello?"),
            ("T1", "user", "careful", "message", '{"approved":true}'),
            ("T1", "careful", "user", "message", "What else?"),
            ("T1", "user", "careful", "message", "nothing"),
            ("T1", "careful", "user", "message", "hello True nothing"),
        ]


async def test_an_answer_that_does_not_fit_is_refused_with_the_schema_and_changes_nothing(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        await peer.post(notice("T1", "careful", "hello"))
        asked = await peer.asked("T1", "careful")
        refused = await peer.post(message("T1", "careful", "perhaps"), 400)
        assert refused["type"] == "error_response"
        assert refused["recipient_id"] == "user"
        assert refused["metadata"]["details"]["question"] == asked["question"]
        assert refused["metadata"]["details"]["answer_schema"] == asked["answer_schema"]
        assert (await peer.asked("T1", "careful"))["question"] == asked["question"]
        await peer.post(message("T1", "careful", "", metadata={"answer": {"approved": False}}))


async def test_of_several_questions_the_one_that_is_meant_has_to_be_named(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        taken = await peer.post(notice("T1", "curious", ""))
        while len((await peer.get("/tasks/T1"))["questions"]) < 2:
            await server.engine.runs.next_hint(taken["run_id"])
        asked = {one["payload"]["message"]: one["question"] for one in (await peer.get("/tasks/T1"))["questions"]}
        refused = await peer.post(message("T1", "curious", "x"), 409)
        listed = {one["question"] for one in refused["metadata"]["details"]["questions"]}
        assert listed == set(asked.values())
        for name in ("Two?", "One?"):
            await peer.post(message("T1", "curious", name, metadata={"question": asked[name]}))
        late = await peer.post(message("T1", "curious", "x", metadata={"question": asked["One?"]}), 409)
        assert "answered" in late["error_message"]
        assert (await peer.all("T1"))[-1][2]["output"] == {"text": "One? Two?"}
        await peer.post(message("T1", "curious", "x", metadata={"question": "nothing"}), 404)


async def test_a_message_that_answers_nothing_is_told_to_the_agent(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        await peer.post(notice("T1", "listener", "heard", sender="orchestrator"))
        await peer.post(message("T1", "listener", "good news", sender="orchestrator"))
        events = await peer.all("T1")
        assert said(events)[-1] == ("T1", "listener", "orchestrator", "message", "heard: good news")
        late = await peer.post(message("T1", "listener", "more"), 409)
        assert late["metadata"]["code"] == "already_finished"
        await peer.post(message("T1", "somebody", "hi"), 404)


async def test_a_failure_is_an_error_response_with_its_number_and_its_own_code(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        await peer.post(notice("T1", "unwilling", "today"))
        events = await peer.all("T1")
        error = events[-2][2]
        assert (error["type"], error["error_code"], error["error_message"]) == ("error_response", 502, "not today")
        assert error["metadata"] == {"code": "unwilling", "transient": False, "details": {"why": "no"}}
        assert events[-1][2]["error"]["code"] == "unwilling"


@pytest.mark.parametrize("how", ["post", "message"])
async def test_a_task_is_cancelled(store: Path, how: str) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        await peer.post(notice("T1", "patient", "x"))
        await peer.until("T1", "status", status="running")
        if how == "post":
            response = await peer.http.post("/tasks/T1/cancel")
            assert response.status_code == 202
        else:
            stop = {"error_code": 499, "error_message": "enough"}
            await peer.post({"type": "error_response", "task_id": "T1", "sender_id": "user",
                             "recipient_id": "patient", **stop})  # fmt: skip
        events = await peer.all("T1")
        assert events[-1][2]["status"] == "cancelled"
        assert events[-2][2]["error_code"] == 499
        assert (await peer.http.post("/tasks/T1/cancel")).json()["status"] == "cancelled"


# -- teams ----------------------------------------------------------------------------------------------------


async def test_a_task_of_a_team_begins_with_its_entry_agent_and_shows_what_all_of_them_say(store: Path) -> None:
    async with door(store, sales()) as server, Peer(server) as peer:
        taken = await peer.post(notice("T1", "pm-1", "Analyze sales", sender="orchestrator"))
        assert taken["agent"] == "pm-1"
        await peer.until("T1", "message", recipient_id="user", content="Which region?")
        await peer.post(message("T1", "pm-1", "Europe"))
        events = await peer.all("T1")
        spoken = said(events)
        assert spoken[:4] == [
            ("T1", "orchestrator", "pm-1", "delegation_notice", "Analyze sales"),
            ("T1", "pm-1", "user", "message", "Which region?"),
            ("T1", "user", "pm-1", "message", "Europe"),
            ("T1.1", "pm-1", "analyst-1", "delegation_notice", "Analyze sales in Europe"),
        ]
        assert ("T1.1", "analyst-1", "pm-1", "message", "Working on it.") in spoken
        assert ("T1.1", "analyst-1", "pm-1", "message", "ANALYZE SALES IN EUROPE") in spoken
        assert spoken[-1] == ("T1", "pm-1", "orchestrator", "message", "Report: ANALYZE SALES IN EUROPE")
        for _, kind, data in events:
            if kind == "message":
                assert wire.write(wire.read(data)) == data
        asked = next(data for _, kind, data in events if data.get("content") == "Which region?")
        assert asked["metadata"]["answer_schema"]["required"] == ["text"]
        notices = [data for _, _, data in events if data.get("type") == "delegation_notice"]
        assert notices[1]["metadata"] == {"rule": "when analyst-1 knows better", "reason": "it knows data"}


async def test_a_task_is_shown_with_its_parts_its_questions_and_its_conversation(store: Path) -> None:
    async with door(store, sales()) as server, Peer(server) as peer:
        taken = await peer.post(notice("T1", "sales", "Analyze"))
        asked = await peer.asked("T1", "pm-1")
        waiting = await peer.get("/tasks/T1")
        assert waiting["status"] == "waiting"
        assert waiting["questions"] == [asked]
        assert waiting["subtasks"] == []
        await peer.post(message("T1", "pm-1", "Europe"))
        await server.engine.runs.wait(taken["run_id"], timeout=20)
        done = await peer.get("/tasks/T1")
        assert done["output"] == {"text": "Report: ANALYZE IN EUROPE"}
        assert done["subtasks"] == [{"task_id": "T1.1", "agent": "analyst-1", "status": "succeeded", "subtasks": []}]
        assert said([("", "message", one) for one in done["conversation"]])[0][4] == "Analyze"
        part = await peer.get("/tasks/T1.1")
        assert (part["task_id"], part["agent"], part["output"]) == ("T1.1", "analyst-1", {"text": "ANALYZE IN EUROPE"})
        assert {one["task_id"] for one in part["conversation"]} == {"T1.1"}
        assert {data["task_id"] for _, _, data in await peer.all("T1.1")} == {"T1.1"}
        await peer.get("/tasks/T1.2", 404)
        await peer.get("/tasks/T1" + ".1" * 5000, 404)


async def test_a_caller_finds_its_own_names_for_tasks_everywhere(store: Path) -> None:
    async with door(store, sales()) as server, Peer(server) as peer:
        for task in ("mine", "T1"):
            taken = await peer.post(notice(task, "pm-1", task))
            await peer.asked(task, "pm-1")
            await peer.post(message(task, "pm-1", "Europe"))
            await server.engine.runs.wait(taken["run_id"], timeout=20)
        mine, second = await peer.get("/tasks/mine"), await peer.get("/tasks/T1")
        assert (mine["label"], second["label"]) == ("T1", "T2")  # what the engine calls them
        assert mine["subtasks"][0]["task_id"] == "mine.1"
        assert second["conversation"][0]["context_summary"] == "T1"
        assert {one["task_id"] for one in second["conversation"]} == {"T1", "T1.1"}
        assert (await peer.get("/tasks/mine.1"))["label"] == "T1.1"
        assert (await peer.get("/tasks/T2.1"))["task_id"] == "T2.1"  # nobody has a task of that name: the engine's
        listed = (await peer.get("/tasks"))["tasks"]
        assert [one["task_id"] for one in listed] == ["T1", "mine"]


async def test_a_message_of_the_user_reaches_any_participant(store: Path) -> None:
    @il.agent
    async def waits(ctx: il.Context[Any, Any], text: str) -> str:
        heard = await ctx.receive()
        assert heard.sender == "user"
        return f"{text} {heard.text}"

    async with door(store, sales(**{"analyst-1": waits})) as server, Peer(server) as peer:
        await peer.post(notice("T1", "pm-1", "Analyze"))
        await peer.asked("T1", "pm-1")
        await peer.post(message("T1", "pm-1", "Europe"))
        await peer.until("T1", "message", recipient_id="analyst-1", type="delegation_notice")
        await _begun(server, peer, "T1.1")
        await peer.post(message("T1.1", "analyst-1", "and Asia"))
        events = await peer.all("T1")
        assert ("T1.1", "user", "analyst-1", "message", "and Asia") in said(events)
        assert events[-1][2]["output"] == {"text": "Report: Analyze in Europe and Asia"}
        await peer.post(message("T1", "qa-1", "hello?"), 404)


async def _begun(server: Server, peer: Peer, task: str) -> None:
    """Wait until a part of a task is worked on."""
    whole = (await peer.get(f"/tasks/{task.partition('.')[0]}"))["run_id"]
    async with asyncio.timeout(20):
        while True:
            response = await peer.http.get(f"/tasks/{task}")
            if response.status_code == 200 and response.json()["status"] != "pending":
                return
            await server.engine.runs.next_hint(whole)


async def test_only_a_typed_verdict_on_exactly_the_result_approves(store: Path) -> None:
    async with door(store, overseen()) as server, Peer(server) as peer:
        taken = await peer.post(notice("T1", "writer", "draft"))
        first = await peer.asked("T1", "writer")
        assert first["question_type"] == "review"
        hash_ = first["payload"]["result_hash"]
        wrong = {"decision": "approve", "result_hash": "0" * 64}
        refused = await peer.post(message("T1", "writer", "ok", metadata={"verdict": wrong}), 400)
        assert refused["metadata"]["details"]["answer_schema"]["properties"]["result_hash"]["enum"] == [hash_]
        await peer.post(message("T1", "writer", "Approved."))  # words: something that the overseer wants to know
        second = await peer.asked("T1", "writer", but=first)
        assert second["payload"]["result"]["output"] == {"text": "draft Approved."}
        inquiry = {"type": "oversight_inquiry", "task_id": "T1", "sender_id": "user", "recipient_id": "writer"}
        await peer.post({**inquiry, "inquiry": "Which source?"})
        third = await peer.asked("T1", "writer", but=second)
        hash_ = third["payload"]["result_hash"]
        await peer.post(
            message("T1", "writer", "", metadata={"verdict": {"decision": "approve", "result_hash": hash_}})
        )
        done = await server.engine.runs.wait(taken["run_id"], timeout=20)
        assert done.output == {"text": "draft Approved. Which source?"}
        await peer.post({**inquiry, "inquiry": "Too late?"}, 409)


async def test_nothing_of_a_result_is_told_before_it_is_approved(store: Path) -> None:
    (await key(store, "owner", "*"))
    ada, bob = await key(store, "ada"), await key(store, "bob", "see:all")
    async with door(store, overseen()) as server, Peer(server, ada) as peer, Peer(server, bob) as other:
        taken = await peer.post(notice("T1", "writer", "the secret plan"))
        asked = await peer.asked("T1", "writer")
        seen = await other.get(f"/tasks/{taken['run_id']}")
        assert seen["questions"] == []
        told = [one for one in seen["conversation"] if one["type"] != "delegation_notice"]
        assert "secret" not in json.dumps(told)
        verdict = {"decision": "approve", "result_hash": asked["payload"]["result_hash"]}
        theirs = message(taken["run_id"], "writer", "", metadata={"verdict": verdict})
        await other.post(theirs, 403)  # it is not theirs to speak in
        await peer.post(message("T1", "writer", "", metadata={"verdict": verdict}))
        assert (await peer.all("T1"))[-1][2]["output"] == {"text": "the secret plan"}


async def test_what_an_overseer_says_is_told_in_its_time_once_the_result_is_approved(store: Path) -> None:
    approve = asyncio.Event()

    @il.agent
    async def analyst(text: str) -> str:
        return f"{text} twice"

    @il.agent
    async def qa(ctx: il.Context[Any, Any], text: str) -> Any:
        assert ctx.review is not None
        if not ctx.review.earlier:
            return {"decision": "inquire", "inquiry": "Only once?", "result_hash": ctx.review.result_hash}
        await approve.wait()
        return {"decision": "approve", "result_hash": ctx.review.result_hash}

    @il.agent
    async def lead(ctx: il.Context[Any, Any], text: str) -> str:
        return str((await ctx.delegate("analyst", text))["text"])

    manifests = [member("lead", "analyst"), member("analyst", overseer="qa"), member("qa")]
    crew = TeamAgent(team(*manifests, entry="lead"), {"lead": lead, "analyst": analyst, "qa": qa})
    async with door(store, crew) as server, Peer(server) as peer:
        taken = await peer.post(notice("T1", "lead", "measure"))
        async with asyncio.timeout(20):
            while len(reviews := await server.engine.runs.search(RunFilter(agent="crew/qa/review", sealed=True))) < 2:
                await server.engine.runs.next_hint(taken["run_id"])
        before = await peer.get("/tasks/T1")
        assert "Only once?" not in json.dumps(before)
        assert "twice" not in json.dumps(before)
        for review in reviews:
            await peer.get(f"/tasks/{review.id}", 404)
        approve.set()
        events = await peer.all("T1")
        assert events[-1][2]["output"] == {"text": "measure twice"}
        after = await peer.get("/tasks/T1")
        times = [one["timestamp"] for one in after["conversation"]]
        assert times == sorted(times)
        kinds = [one["type"] for one in after["conversation"]]
        assert "oversight_inquiry" in kinds
        assert sorted(kinds) == sorted(data["type"] for _, kind, data in events if kind == "message")


async def test_instances_of_one_agent_are_participants_of_their_own(store: Path) -> None:
    @il.agent
    async def hears(ctx: il.Context[Any, Any], text: str) -> str:
        return f"{text} {(await ctx.receive()).text}"

    @il.agent
    async def lead(ctx: il.Context[Any, Any], text: str) -> str:
        parts = (ctx.delegate("analyst", f"part {number}", key=str(number)) for number in (1, 2))
        return " and ".join(str(one["text"]) for one in await asyncio.gather(*parts))

    crew = TeamAgent(team(member("lead", "analyst"), member("analyst"), entry="lead"), {"lead": lead, "analyst": hears})
    async with door(store, crew) as server, Peer(server) as peer:
        await peer.post(notice("T1", "lead", "x"))
        for task in ("T1.1", "T1.2"):
            await _begun(server, peer, task)
        parts = {part["agent"]: part["task_id"] for part in (await peer.get("/tasks/T1"))["subtasks"]}
        assert parts == {"analyst": "T1.1", "analyst#2": "T1.2"}
        await peer.post(message("T1", "analyst#2", "second"))
        await peer.post(message("T1", "analyst", "first"))
        await peer.post(message("T1", "analyst#3", "third"), 404)
        events = await peer.all("T1")
        given = {one[3]: one[4] for one in said(events) if one[3] == "delegation_notice"}
        assert given
        assert {(one[1], one[4].split()[-1]) for one in said(events) if one[2] == "lead" and one[3] == "message"} == {
            ("analyst", "first"), ("analyst#2", "second"),
        }  # fmt: skip


async def test_a_part_of_a_task_is_cancelled_alone(store: Path) -> None:
    @il.agent
    async def forever(text: str) -> str:
        await asyncio.Event().wait()
        return text

    @il.agent
    async def lead(ctx: il.Context[Any, Any], text: str) -> str:
        try:
            await ctx.delegate("analyst", text)
        except il.ChildFailed as error:
            return f"without it: {error.error.code}"
        return ""

    crew = TeamAgent(
        team(member("lead", "analyst"), member("analyst"), entry="lead"), {"lead": lead, "analyst": forever}
    )
    async with door(store, crew) as server, Peer(server) as peer:
        await peer.post(notice("T1", "lead", "x"))
        await _begun(server, peer, "T1.1")
        response = await peer.http.post("/tasks/T1.1/cancel")
        assert (response.status_code, response.json()["agent"]) == (202, "analyst")
        assert (await peer.all("T1"))[-1][2]["output"] == {"text": "without it: cancelled"}
        assert (await peer.get("/tasks/T1.1"))["status"] == "cancelled"


# -- the stream -----------------------------------------------------------------------------------------------


async def test_a_stream_is_taken_up_after_any_of_its_events(store: Path) -> None:
    async with door(store, sales(), *PLAIN) as server, Peer(server) as peer:
        await peer.post(notice("A", "careful", "hello"))
        await peer.post(notice("B", "pm-1", "Analyze"))
        await peer.asked("A", "careful")
        await peer.post(message("A", "careful", "yes"))
        await peer.until("A", "message", content="What else?")
        await peer.post(message("A", "careful", "nothing"))
        await peer.asked("B", "pm-1")
        await peer.post(message("B", "pm-1", "Europe"))
        for task in ("A", "B"):
            whole = await peer.all(task)
            assert [one[0] for one in whole] == sorted({one[0] for one in whole}, key=lambda id_: _order(id_))
            for place, (id_, _, _) in enumerate(whole):
                assert await peer.all(task, id_) == whole[place + 1 :]


def _order(id_: str) -> tuple[int, float]:
    seq, _, number = id_.partition(".")
    return int(seq), float(number or "inf")


async def test_a_stream_survives_a_restart_of_the_server(store: Path) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        await peer.post(notice("T1", "careful", "hello"))
        asked = await peer.until("T1", "message", recipient_id="user")
        before = [one async for one in _some(peer, "T1", 4)]
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        await peer.post(message("T1", "careful", "yes", metadata={"question": asked["metadata"]["question"]}))
        await peer.until("T1", "message", content="What else?")
        await peer.post(message("T1", "careful", "nothing"))
        after = await peer.all("T1", before[-1])
        whole = await peer.all("T1")
        assert [one[0] for one in whole] == [*before, *(one[0] for one in after)]
        assert after[-1][2]["output"] == {"text": "hello True nothing"}


async def _some(peer: Peer, task: str, count: int) -> Any:
    async with contextlib.aclosing(peer.events(task)) as events:  # type: ignore[type-var]
        async for one in events:
            yield one.id
            count -= 1
            if not count:
                return


async def test_a_silent_stream_is_kept_alive_and_ends_when_the_server_stops(store: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(door(store, *PLAIN, keep_alive=0.05))
        peer = await stack.enter_async_context(Peer(server))
        await peer.post(notice("T1", "patient", "x"))
        async with peer.http.stream("GET", "/tasks/T1/events") as response:
            seen = b""
            async for chunk in response.aiter_bytes():
                seen += chunk
                if b": keep-alive" in seen:
                    break
        closing = server.app.doors["cap"][1].close_streams
        assert closing is not None
        seen_kinds: list[str | None] = []
        async for one in peer.events("T1"):
            seen_kinds.append(one.event)
            if '"running"' in one.data:
                await closing()
        assert seen_kinds[-1] == "status"
        refused = await peer.get("/tasks/T1/events", 503)
        assert refused["type"] == "error_response"


@pytest.mark.parametrize("last", ["x", "999", "1.x", "-1"])
async def test_a_stream_cannot_be_taken_up_where_it_never_was(store: Path, last: str) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        await peer.post(notice("T1", "words", "x"))
        await peer.all("T1")
        response = await peer.http.get("/tasks/T1/events", headers={"last-event-id": last})
        assert response.status_code == 400
        assert response.json()["type"] == "error_response"
        assert (await peer.http.head("/tasks/T1/events")).status_code == 405


async def test_more_streams_than_allowed_are_refused(store: Path) -> None:
    async with door(store, *PLAIN, max_streams=1) as server, Peer(server) as peer:
        await peer.post(notice("T1", "patient", "x"))
        async with peer.http.stream("GET", "/tasks/T1/events") as first:
            assert first.status_code == 200
            async for _ in first.aiter_bytes():
                refused = await peer.get("/tasks/T1/events", 503)
                assert refused["metadata"]["transient"] is True
                break


async def test_one_caller_cannot_have_all_streams(store: Path) -> None:
    mine, yours = await key(store, "mine", "*"), await key(store, "yours", "*")
    async with (
        door(store, *PLAIN, max_streams=2) as server, Peer(server, mine) as one, Peer(server, yours) as other,
    ):  # fmt: skip
        for peer, task in ((one, "T1"), (other, "T2")):
            await peer.post(notice(task, "patient", "x"))
        async with one.http.stream("GET", "/tasks/T1/events") as first:
            pieces = first.aiter_bytes()
            await anext(pieces)
            assert "you have 1 streams open already" in (await one.get("/tasks/T1/events", 503))["error_message"]
            async with other.http.stream("GET", "/tasks/T2/events") as second:
                assert second.status_code == 200
        status = 503
        async with asyncio.timeout(20):
            while status == 503:  # until it is noticed that the first has ended
                async with one.http.stream("GET", "/tasks/T1/events") as again:
                    status = again.status_code
        assert status == 200


# -- who may say what -----------------------------------------------------------------------------------------


async def test_a_forged_notice_is_refused_and_on_record(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with door(store, sales()) as server, Peer(server) as peer:
        run = (await peer.post(notice("T1", "pm-1", "Analyze")))["run_id"]
        await peer.asked("T1", "pm-1")
        before = len(await server.engine.runs.search(RunFilter(limit=100, sealed=True)))
        with caplog.at_level(logging.WARNING, "interlingua.cap"):
            for sender in ("pm-1", "pm-1#2", "analyst-1", "stranger"):
                refused = await peer.post(notice("T1.1", "analyst-1", "Do as I say", sender=sender), 403)
                assert refused["type"] == "error_response"
                assert refused["recipient_id"] == sender
                assert f"as:{sender.partition('#')[0]}" in refused["error_message"]
        assert len([one for one in caplog.records if one.name == "interlingua.cap"]) == 4
        assert "pm-1#2" in caplog.text
        assert len(await server.engine.runs.search(RunFilter(limit=100, sealed=True))) == before
        refusals: list[str] = []
        async for event in server.engine.runs.events(run):
            if isinstance(event.body, DelegationRefused):
                refusals.append(event.body.reason)
                if len(refusals) == 4:
                    break
        assert all("a delegation_notice of" in one and "caller anonymous was refused" in one for one in refusals)
        for recipient in ("analyst-1", "analyst-1#2"):
            await peer.post(notice("T2", recipient, "Begin with me", sender="orchestrator"), 404)


async def test_not_even_with_its_scope_does_an_agent_hand_work_over_from_outside(store: Path) -> None:
    spoofer = await key(store, "spoofer", "as:pm-1", "as:analyst-1")
    async with door(store, sales()) as server, Peer(server, spoofer) as peer:
        for recipient in ("analyst-1", "pm-1", "sales"):
            refused = await peer.post(notice("T1", recipient, "x", sender="pm-1"), 403)
            assert "within its own run" in refused["error_message"]
        assert await server.engine.runs.search(RunFilter(sealed=True)) == []


async def test_whoever_has_the_scope_speaks_as_that_agent_and_nobody_else(store: Path) -> None:
    @il.agent(asks=[il.AskText])
    async def waits(ctx: il.Context[Any, Any], text: str) -> str:
        heard = await ctx.receive(sender="analyst-1")
        return f"{heard.sender} said {heard.text}"

    @il.agent
    async def silent(ctx: il.Context[Any, Any], text: str) -> str:
        return (await ctx.receive()).text

    @il.agent
    async def lead(ctx: il.Context[Any, Any], text: str) -> str:
        results = await asyncio.gather(
            ctx.delegate("analyst-1", "analyse", key="a"), ctx.delegate("qa-1", "check", key="b")
        )
        return " and ".join(str(one["text"]) for one in results)

    crew = TeamAgent(
        team(member("pm-1", "analyst-1", "qa-1"), member("analyst-1"), member("qa-1"), entry="pm-1"),
        {"pm-1": lead, "analyst-1": silent, "qa-1": waits},
    )
    ada, voice = await key(store, "ada"), await key(store, "voice", "as:analyst-1", "see:all")
    async with door(store, crew) as server, Peer(server, ada) as peer, Peer(server, voice) as agent:
        taken = await peer.post(notice("T1", "pm-1", "x"))
        for task in ("T1.1", "T1.2"):
            await _begun(server, peer, task)
        run = taken["run_id"]
        await peer.post(message("T1", "qa-1", "fake", sender="analyst-1"), 403)
        await agent.post(message(run, "qa-1", "fake", sender="pm-1"), 403)
        await agent.post(message(run, "qa-1", "fake", sender="user"), 403)
        await agent.post(message(run, "qa-1", "fake", sender="analyst-1#2"), 404)  # there is one instance
        await agent.post(message(run, "qa-1", "the truth", sender="analyst-1"))
        await peer.post(message("T1", "analyst-1", "thanks"))
        done = await server.engine.runs.wait(run, timeout=20)
        assert done.output == {"text": "thanks and analyst-1 said the truth"}


async def test_tasks_of_others_are_not_there(store: Path) -> None:
    ada, bob = await key(store, "ada"), await key(store, "bob")
    async with door(store, *PLAIN, sales()) as server, Peer(server, ada) as one, Peer(server, bob) as other:
        mine = await one.post(notice("T1", "careful", "hello"))
        theirs = await other.post(notice("T1", "careful", "hello"))
        assert mine["run_id"] != theirs["run_id"]  # the same id of two callers is two tasks
        run = mine["run_id"]
        team_run = await one.post(notice("team", "pm-1", "x"))
        await one.asked("team", "pm-1")
        for task in (run, team_run["run_id"], "team", "team.1"):
            missing = await other.get(f"/tasks/{task}", 404)
            assert missing["metadata"]["code"] == "task_not_found"
            await other.get(f"/tasks/{task}/events", 404)
            assert (await other.http.post(f"/tasks/{task}/cancel")).status_code == 404
            await other.post(message(task, "careful", "yes"), 404)
        assert (await other.get("/tasks/T1"))["run_id"] == theirs["run_id"]
        assert [task["run_id"] for task in (await other.get("/tasks"))["tasks"]] == [theirs["run_id"]]


async def test_scopes_limit_what_a_caller_may_do(store: Path) -> None:
    await key(store, "owner", "*")
    reader, runner = await key(store, "reader", "do:read"), await key(store, "runner", "do:run", "agents:words")
    async with door(store, *PLAIN) as server, Peer(server, reader) as read, Peer(server, runner) as run:
        refused = await read.post(notice("T1", "words", "x"), 403)
        assert "do:run" in refused["error_message"]
        assert [one["id"] for one in (await run.get("/agents"))["agents"]] == ["words"]
        assert (await read.get("/agents"))["agents"] == []
        await run.post(notice("T1", "careful", "x"), 404)
        await run.post(notice("T1", "words", "x"))
        await run.get("/tasks/T1", 403)
    async with door(store, *PLAIN) as server, Peer(server) as nobody:
        response = await nobody.http.get("/agents")
        assert response.status_code == 401
        assert response.json()["error_code"] == 401
        assert "www-authenticate" in response.headers


# -- listing --------------------------------------------------------------------------------------------------


async def test_agents_are_listed_as_manifests_and_teams_by_their_entry_agents(store: Path) -> None:
    @il.agent(name="org.mail", version="1.0")
    async def mail(text: str) -> str:
        """Sends mail."""
        return text

    async with door(store, mail, sales()) as server, Peer(server) as peer:
        listed = {one["id"]: one for one in (await peer.get("/agents"))["agents"]}
        assert set(listed) == {"org-_2e_mail", "pm-1"}
        assert listed["org-_2e_mail"]["interlingua"]["name"] == "org.mail"
        assert listed["pm-1"]["allowed_agents"] == ["analyst-1"]
        assert listed["pm-1"]["interlingua"]["team"] is True
        await peer.post(notice("T1", "org-_2e_mail", "hello"))
        assert (await peer.all("T1"))[-1][2]["output"] == {"text": "hello"}


async def test_how_agents_think_is_told_to_the_owner_alone(store: Path) -> None:
    ada, boss = await key(store, "ada"), await key(store, "boss", "do:admin", "do:run")
    async with door(store, sales()) as server, Peer(server, ada) as peer, Peer(server, boss) as owner:
        assert "You are pm-1." not in json.dumps(await peer.get("/agents"))
        assert (await owner.get("/agents"))["agents"][0]["system_prompt"] == "You are pm-1."


async def test_teams_that_begin_with_agents_of_one_name_are_told_apart(store: Path) -> None:
    both = [
        TeamAgent(team(member("lead"), entry="lead", name=name), {"lead": words}) for name in ("north", "south")
    ]  # fmt: skip
    async with door(store, *both) as server, Peer(server) as peer:
        assert [one["id"] for one in (await peer.get("/agents"))["agents"]] == ["north", "south"]
        refused = await peer.post(notice("T1", "lead", "x"), 409)
        assert "north, south" in refused["error_message"]
        await peer.post(notice("T1", "south", "x"))
        assert (await peer.all("T1"))[-1][2]["output"] == {"text": "x"}


async def test_tasks_are_listed_page_by_page_newest_first(store: Path) -> None:
    async with door(store, *PLAIN, sales()) as server, Peer(server) as peer:
        for number in range(5):
            await peer.post(notice(f"A{number}", "words", "x"))
        await peer.post(notice("team", "pm-1", "x"))
        await peer.asked("team", "pm-1")
        found: list[str] = []
        path = "/tasks?limit=2"
        while path:
            page = await peer.get(path)
            found += [one["task_id"] for one in page["tasks"]]
            cursor = page.get("next_cursor")
            path = f"/tasks?limit=2&cursor={cursor}" if cursor else ""
        assert found == ["team", "A4", "A3", "A2", "A1", "A0"]
        for wrong in ("limit=0", "limit=x", "limit=1000", "cursor=zzz"):
            assert (await peer.get(f"/tasks?{wrong}", 400))["type"] == "error_response"


async def test_a_task_that_was_begun_at_another_door_is_a_task_here(store: Path) -> None:
    async with door(store, sales()) as server, Peer(server) as peer:
        run = await server.engine.runs.submit(il.RunRequest("sales", input={"text": "Analyze"}, caller=OWNER))
        await peer.asked(run.id, "pm-1")
        await peer.post(message("T1", "pm-1", "Europe"))
        done = await server.engine.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "Report: ANALYZE IN EUROPE"}
        assert (await peer.get("/tasks/T1"))["run_id"] == run.id


# -- what is wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"", ""),
        (b"{", ""),
        (b"[]", ""),
        (b'{"type": "greeting"}', "/type"),
        (json.dumps({**notice("T1", "words", "x"), "task_id": ""}).encode(), "/task_id"),
        (json.dumps({**notice("T1", "words", "x"), "sender_id": "a b"}).encode(), "/sender_id"),
        (json.dumps({**notice("T1", "words", "x"), "context_summary": 3}).encode(), "/context_summary"),
        (json.dumps({**notice("T1", "words", "x"), "attachments": [{"type": "x"}]}).encode(), "/attachments/0/type"),
        (json.dumps({**notice("T1\u0007", "words", "x")}).encode(), "/task_id"),
        (json.dumps({**notice("T" * 300, "words", "x")}).encode(), "/task_id"),
    ],
)
async def test_what_is_no_message_is_answered_with_an_error_response(store: Path, body: bytes, path: str) -> None:
    async with door(store, *PLAIN) as server, Peer(server) as peer:
        response = await peer.http.post("/messages", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400
        told = response.json()
        assert wire.read(told).type == "error_response"
        assert told["error_code"] == 400
        assert told.get("metadata", {}).get("details", {}).get("path", "") == path
        assert await server.engine.runs.search(RunFilter()) == []


async def test_a_body_that_is_too_large_or_not_json_by_its_type_is_refused(store: Path) -> None:
    async with door(store, *PLAIN, max_body_bytes=1000) as server, Peer(server) as peer:
        assert (await peer.post(notice("T1", "words", "x" * 2000), 413))["error_code"] == 413
        response = await peer.http.post("/messages", content=b"{}", headers={"content-type": "text/plain"})
        assert response.status_code == 415
        assert response.json()["type"] == "error_response"


async def test_an_agent_that_is_not_there_is_named_with_those_that_are(store: Path) -> None:
    async with door(store, words) as server, Peer(server) as peer:
        refused = await peer.post(notice("T1", "wrods", "x"), 404)
        assert refused["error_code"] == 404
        assert "words" in refused["error_message"]
        assert refused["task_id"] == "T1"


async def test_whatever_is_sent_is_answered_in_the_words_of_the_protocol(store: Path) -> None:
    chance = random.Random(7)
    odd: list[Any] = [
        None, True, -1, 2**63, 1e300, "", "\x00", "user", "orchestrator", "words", "pm-1", "pm-1#2", "#", "T1", "T1.1",
        "T1.1.1.1.1", [], [[]], {}, {"": ""}, {"question": None}, {"question": 3}, {"answer": []}, {"verdict": 1},
        {"verdict": {"decision": "approve"}}, {"input": {}}, {"config": 1}, {"version": "9"}, {"stream": 1},
        [{"type": "file", "path": "data:;base64,!"}], [{"type": "text_snippet", "text": 1}], "x" * 1000,
    ]  # fmt: skip
    base: list[dict[str, Any]] = [
        notice("T1", "words", "x"),
        notice("T2", "pm-1", "x", sender="orchestrator"),
        message("T2", "pm-1", "x"),
        {**message("T2", "pm-1", "x"), "type": "oversight_inquiry", "inquiry": "?"},
        {**message("T1", "words", "x"), "type": "error_response", "error_code": 500, "error_message": "?"},
    ]
    async with door(store, *PLAIN, sales()) as server, Peer(server) as peer:
        for number in range(400):
            told = dict(chance.choice(base))
            for _ in range(chance.randint(1, 3)):
                name = chance.choice([*told, "metadata", "attachments", "timestamp", "extra"])
                told[name] = chance.choice(odd)
                if chance.random() < 0.1:
                    del told[name]
            response = await peer.http.post("/messages", content=json.dumps(told).encode())
            if response.status_code != 202:
                refused = wire.read(response.json())
                assert isinstance(refused, wire.ErrorResponse), (number, told)
                assert refused.error_code == response.status_code in (400, 403, 404, 409), (told, response.text)
        await peer.post(notice("last", "words", "still there"))
        assert (await peer.all("last"))[-1][2]["output"] == {"text": "still there"}

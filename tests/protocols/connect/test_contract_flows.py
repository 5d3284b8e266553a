"""The flows of the protocol's document, each one test that reads from top to bottom: plain requests on real sockets.

The spellings are the document's where it differs from the OpenAPI: `result`, `interrupt_type`, `callback`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import interlingua as il

from .test_door import Gate, MailSendApproval, Receiver, Reply, Teller, chat, echo, greeter, up


async def test_agents_are_listed_then_found_by_name_and_version_then_described(store: Path) -> None:
    async with up(store, greeter, echo) as s:
        everyone = await s.post("/agents/search", {})
        assert [agent["metadata"]["ref"]["name"] for agent in everyone] == ["greeter", "echo"]

        (found,) = await s.post("/agents/search", {"name": "echo", "version": "0.1.3"})
        assert found == everyone[1]

        described = await s.get(f"/agents/agent/{found['id']}/descriptor")
        assert described["metadata"] == found["metadata"]
        assert described["specs"]["input"]["properties"]["text"] == {"type": "string"}


async def test_a_run_is_started_and_polled_until_it_is_done_and_then_its_output_is_fetched(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        (agent,) = await s.post("/agents/search", {"name": "held"})
        run = await s.post(
            "/runs", {"agent_id": agent["id"], "input": {"text": "the line"}, "metadata": {"order": "17"}}
        )
        assert run["status"] == "pending"
        assert run["creation"]["metadata"] == {"order": "17"}

        await gate.entered.get()
        assert (await s.get(f"/runs/{run['run_id']}"))["status"] == "pending"

        gate.go.set()
        async with asyncio.timeout(20):
            while (polled := await s.get(f"/runs/{run['run_id']}"))["status"] == "pending":
                pass
        assert polled["status"] == "success"

        output = (await s.get(f"/runs/{run['run_id']}/wait?timeout=0"))["output"]
        assert (output["type"], output["result"]) == ("result", {"text": "held the line"})


async def test_a_run_is_started_and_its_caller_blocks_until_the_output_is_there(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s:
        run = await s.post("/runs", {"agent_id": "held", "input": {"text": "tight"}})
        assert run["status"] == "pending"

        await gate.entered.get()
        assert await s.get(f"/runs/{run['run_id']}/wait?timeout=0.05", 204) is None, "nothing yet"

        blocked = asyncio.create_task(s.get(f"/runs/{run['run_id']}/wait?timeout=20"))
        # A request that comes later is answered first: the blocked one really waits.
        assert (await s.get(f"/runs/{run['run_id']}"))["status"] == "pending"
        assert not blocked.done()

        gate.go.set()
        output = (await blocked)["output"]
        assert (output["type"], output["result"]) == ("result", {"text": "held tight"})


async def test_a_run_is_started_with_a_callback_which_is_called_when_its_status_changes(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent) as s, Receiver() as receiver:
        run = await s.post("/runs", {"agent_id": "held", "callback": {"POST": receiver.url}})
        assert run["status"] == "pending"

        await gate.entered.get()
        assert receiver.got.empty(), "the status has not changed yet"

        gate.go.set()
        _, called = (await receiver.until("success"))[-1]
        assert called["run_id"] == run["run_id"]

        output = (await s.get(f"/runs/{run['run_id']}/wait?timeout=0"))["output"]
        assert (output["type"], output["result"]) == ("result", {"text": "held it"})


async def test_a_run_is_interrupted_and_its_caller_resumes_it_with_what_it_asks_for(store: Path) -> None:
    written = asyncio.Event()

    @il.agent(asks=[MailSendApproval])
    async def writer(ctx: il.Context[None, None], message: str) -> Reply:
        await written.wait()
        mail = MailSendApproval(subject="Lunch", body=message, recipients=["ada@example.org"])
        return Reply("Sent." if (await ctx.ask(mail)).approved else "Not sent.")

    async with up(store, writer) as s:
        run = await s.post("/runs", {"agent_id": "writer", "input": {"message": "at noon?"}})
        assert run["status"] == "pending"

        written.set()
        asked = (await s.get(f"/runs/{run['run_id']}/wait"))["output"]
        assert (asked["type"], asked["interrupt_type"]) == ("interrupt", "mail_send_approval")
        assert asked["interrupt_payload"]["body"] == "at noon?"

        approval = {"approved": True, "reason": f"to {asked['interrupt_payload']['recipients'][0]}"}
        resumed = await s.post(
            f"/runs/{run['run_id']}", {"interrupt_type": asked["interrupt_type"], "resume_payload": approval}
        )
        assert (resumed["run_id"], resumed["status"]) == (run["run_id"], "pending")

        output = (await s.get(f"/runs/{run['run_id']}/wait"))["output"]
        assert (output["type"], output["result"]) == ("result", {"message": "Sent."})


async def test_runs_on_one_thread_remember_what_was_said_before(store: Path) -> None:
    async with up(store, chat) as s:
        thread = await s.post("/threads", {})
        assert thread["status"] == "idle"
        runs = f"/threads/{thread['thread_id']}/runs"

        first = await s.post(runs, {"agent_id": "chat", "input": {"message": "Hello, my name is John"}})
        assert first["status"] == "pending"
        assert (await s.get(f"{runs}/{first['run_id']}/wait"))["output"]["result"] == {"message": "Hello John"}

        second = await s.post(runs, {"agent_id": "chat", "input": {"message": "Can you remind my name?"}})
        assert second["status"] == "pending"
        reminded = (await s.get(f"{runs}/{second['run_id']}/wait"))["output"]
        assert reminded["result"] == {"message": "Yes, your name is John"}

        now = await s.get(f"/threads/{thread['thread_id']}")
        assert now["status"] == "idle"
        assert now["values"] == {
            "messages": [
                "Hello, my name is John",
                "Hello John",
                "Can you remind my name?",
                "Yes, your name is John",
            ]
        }


async def test_a_run_is_started_and_its_output_streams_until_the_server_closes_the_connection(store: Path) -> None:
    words = ["Hello", ", how", " can", " I help", " you", " today"]
    teller = Teller(*words)
    async with up(store, teller.agent) as s:
        body = {"agent_id": "teller", "stream_mode": "values"}
        async with s.stream("POST", "/runs/stream", body) as updates:
            ids = []
            for count in range(1, len(words) + 1):
                teller.next.release()
                id_, update = await anext(updates)
                ids.append(id_)
                assert update["type"] == "values"
                assert update["result"] == {"message": "".join(words[:count])}, "each holds all of it so far"

            teller.next.release()
            id_, last = await anext(updates)
            assert last["result"] == {"message": "Hello, how can I help you today"}
            assert last["status"] == "success"
            assert len({*ids, id_}) == len(words) + 1

            assert [update async for update in updates] == [], "the connection is closed"
        assert (await s.get(f"/runs/{last['run_id']}"))["status"] == "success"

"""Flows of the protocol's document that the checker does not see to their end, in the spellings of its text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import interlingua as il

from .test_door import MailSendApproval, Reply, Teller, up


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

"""Taking requests back: `notifications/cancelled`, and clients that only go away."""

from __future__ import annotations

import asyncio
import uuid

from ..base import applies, expect, shown
from .driver import Driver, check
from .links import Message
from .talk import Client, Run, is_answer

META_KEY = "interlingua/key"


@check("mcp.door.cancel")
async def a_request_is_taken_back(d: Driver) -> None:
    agent = await d.agent("slow")
    client = await d.busy()
    applies(
        not (client.modern and client.link.kind == "http"), "without a session, who leaves a request cancels it"
    )  # fmt: skip
    run = await client.begin(agent.name, d.input(agent), "slow")
    going = asyncio.ensure_future(run.begun())
    await asyncio.wait({going}, timeout=d.subject.patience / 2)  # an agent need not tell of progress
    if going.done():
        applies(going.result(), f"{agent.name} should be slow, and was answered at once")
    else:
        going.cancel()
    await taken_back(client, run)
    if client.link.kind == "stdio":  # over HTTP, the second post may be there first
        early = await client.begin(agent.name, d.input(agent), "early")
        await taken_back(client, early)


async def taken_back(client: Client, run: Run) -> None:
    """Cancel a request: it gets no answer, and its run says no more."""
    await client.notify("notifications/cancelled", {"requestId": run.id, "reason": "enough of it"})
    ended = client.answers(run.id)
    client.forget(run.id)
    await client.alive()
    await client.link.silent(lambda message: ended(message) and is_answer(message), run.first)
    found = [m for m in client.link.messages[run.first :] if is_answer(m) and ended(m)]
    # Over Streamable HTTP the stream of a request ends with its answer, so there has to be one.
    answers = [m for m in found if client.link.kind != "http" or "result" in m]
    expect(not answers, f"a request that was taken back is answered: {shown(answers[:1])}")
    token = run.request["params"]["_meta"]["progressToken"]
    before = client.now
    await client.alive()

    def says(message: Message) -> bool:
        params = message.get("params")
        return isinstance(params, dict) and params.get("progressToken") == token

    expect(
        await client.link.silent(says, before), "a run whose request was taken back goes on: it tells of its progress"
    )  # fmt: skip


@check("mcp.door.cancel")
async def a_client_that_goes_away_cancels_nothing(d: Driver) -> None:
    """The run of a key is joined by who comes again with it."""
    await d.promises()
    agent = await d.agent("slow")
    applies(d.way.kind != "stdio" and not d.way.modern, "a command ends with its client, and takes its runs along")
    key = {META_KEY: uuid.uuid4().hex}
    async with d.another() as leaving:
        run = await leaving.begin(agent.name, d.input(agent), "leaving", **key)
        applies(await run.begun(), f"{agent.name} should be slow, and was answered at once")
        leaving.link.leave()
    client = await d.busy()
    again = await client.begin(agent.name, d.input(agent), "coming back", **key)
    expect(await again.begun(), "the run of a client that went away has ended")
    await taken_back(client, again)

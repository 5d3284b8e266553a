"""Checks cancelled requests: `notifications/cancelled`, and clients that only disconnect.

A missing answer alone shows nothing: a run that goes on in silence gives none either. The checks expect that a run
which sent progress again and again falls silent, that its stream ends, or (if there are keys) that the run has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

from ...base import Broken, Gone, applies, expect, shown
from ..driver import Driver, check
from ..links import Message
from ..talk import Client, Run, is_answer

META_KEY = "interlingua/key"
_TELLS = 2.0  # seconds in which an agent tells of its progress, if it does
_AGAIN = 3  # times as long as it was quiet before, to know that it is


@check("mcp.door.cancel")
async def a_request_is_taken_back(d: Driver) -> None:
    agent = await d.agent("slow")
    client = await d.busy()
    applies(
        not (client.modern and client.link.kind == "http"), "without a session, who leaves a request cancels it"
    )  # fmt: skip
    key = {META_KEY: uuid.uuid4().hex} if client.extended else {}
    run = await client.begin(agent.name, d.input(agent), "slow", **key)
    going = asyncio.ensure_future(run.begun())
    await asyncio.wait({going}, timeout=min(_TELLS, d.subject.patience / 2))
    if going.done():
        applies(going.result(), f"{agent.name} should be slow, and was answered at once")
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)
    pace = None if key else await _pace(client, run)
    seen = await taken_back(client, run, pace)
    if client.link.kind == "stdio":  # over HTTP, the second post may be there first
        early = await client.begin(agent.name, d.input(agent), "early")
        await taken_back(client, early, pace)
    if key:
        await has_ended(await client.begin(agent.name, d.input(agent), "looking again", **key))
    applies(
        key or seen,
        f"{agent.name} tells nothing more after its first word, so that nobody sees whether it was cancelled: "
        "name one with --slow that tells of its progress at least every second",
    )


async def _pace(client: Client, run: Run) -> float | None:
    """Seconds in which a run tells of its progress again; None where it does not."""
    clock = asyncio.get_running_loop().time
    longest = 0.0
    with contextlib.suppress(TimeoutError, Gone):
        async with asyncio.timeout(min(_TELLS, client.subject.patience / 2)):
            for _ in range(2):
                start, before = clock(), client.now
                await client.alive()  # some servers act only when a message comes
                await client.link.until(_progress_of(run), "progress of the run", before)
                longest = max(longest, clock() - start)
            return longest
    return None


def _progress_of(run: Run) -> Any:
    token = run.request["params"]["_meta"]["progressToken"]

    def says(message: Message) -> bool:
        params = message.get("params")
        return isinstance(params, dict) and params.get("progressToken") == token

    return says


async def taken_back(client: Client, run: Run, pace: float | None = None) -> bool:
    """Cancels a request: it gets no answer, and its run sends no more. Returns whether the run was seen to end: it sent
    its progress at this pace before, or its stream has ended."""
    await client.notify("notifications/cancelled", {"requestId": run.id, "reason": "enough of it"})
    ended = client.answers(run.id)
    client.forget(run.id)
    await client.alive()
    if client.link.kind == "http":
        with contextlib.suppress(TimeoutError, Gone):
            async with asyncio.timeout(min(_TELLS, client.subject.patience / 2)):
                await client.link.until(ended, "the end of the stream", run.first)
    await client.link.silent(lambda message: ended(message) and is_answer(message), run.first)
    found = [m for m in client.link.messages[run.first :] if is_answer(m) and ended(m)]
    # Over Streamable HTTP the stream of a request ends with its answer, so there has to be one.
    answers = [m for m in found if client.link.kind != "http" or "result" in m]
    expect(not answers, f"a request that was taken back is answered: {shown(answers[:1])}")
    before = client.now
    for _ in range(2):  # a server that acts beside its answers has acted by the second
        await client.alive()
    quiet = max(client.subject.quiet, _AGAIN * (pace or 0.0))
    expect(
        await client.link.silent(_progress_of(run), before, quiet),
        "a run whose request was taken back goes on: it tells of its progress",
    )
    return pace is not None or any(ended(message) for message in client.link.messages[run.first :])


async def has_ended(again: Run) -> None:
    """Expects the run of a key to have ended: `again`, a second request with the key, then gets its end."""
    try:
        await again.end()
    except Gone:
        await again.client.notify("notifications/cancelled", {"requestId": again.id})
        raise Broken("a run whose request was taken back goes on: who comes again with its key joins it") from None


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
    await has_ended(await client.begin(agent.name, d.input(agent), "looking again", **key))

"""Processes that share a store and a bus: work is offered to those that serve its queue, and to no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import interlingua as il
from interlingua.bus.nats.subject_bus import SubjectBus

from .agents_process import SETTINGS
from .test_engines import SOON, until_ready


def mailer(source: str) -> il.Agent[..., str]:
    @il.agent(name="mailer", asks=[il.Confirm])
    async def mail(ctx: il.Context[None, None], asks: bool = False) -> str:
        if asks:
            await ctx.ask(il.Confirm("Send it?"))
        return source

    mail.source = source
    return mail


@asynccontextmanager
async def shop(store: Path, bus: str, *agents: il.Agent[..., str]) -> AsyncIterator[il.Engine]:
    async with il.Engine(store, agents=agents, bus=bus, settings=SETTINGS, project="shop") as made:
        made.core.store.on_change = lambda: None  # the file tells nothing: what comes, comes by the bus
        await until_ready(made)
        yield made


async def test_work_of_one_origin_is_not_taken_by_code_of_another(store: Path, nats_url: str) -> None:
    async with (
        shop(store, nats_url, mailer("file:a.py")) as first,
        shop(store, nats_url, mailer("file:b.py")) as second,
        shop(store, nats_url) as door,
        asyncio.timeout(SOON),
    ):
        assert isinstance(first.core.bus, SubjectBus)
        subjects = {
            first.core.bus.subjects.work(eng.agents.queue(agent)) for eng in (first, second) for agent in eng.agents
        }
        assert len(subjects) == 2
        await door.cluster.remote_agents.start(looks=False)
        for _ in range(5):
            # The card of the first origin is the one that a process without the code finds.
            run = (await door.runs.submit(il.RunRequest("mailer"))).id
            assert (await door.runs.wait(run)).output == {"text": "file:a.py"}
            run = (await second.runs.submit(il.RunRequest("mailer", delay=0.01))).id
            assert (await door.runs.wait(run)).output == {"text": "file:b.py"}


async def test_a_run_moved_in_one_process_is_taken_by_another_at_once(store: Path, nats_url: str) -> None:
    async with shop(store, nats_url, mailer("file:old.py")) as old, asyncio.timeout(SOON):
        run = (await old.runs.submit(il.RunRequest("mailer", input={"asks": True}))).id
        asked = (await old.runs.wait(run, settled=True)).questions[0]
    async with (
        shop(store, nats_url, mailer("file:new.py")) as new,
        shop(store, nats_url) as door,
        asyncio.timeout(SOON),
    ):
        await door.runs.move(run, "shop file:new.py")
        await door.questions.answer(asked.id, {"approved": True})
        assert (await door.runs.wait(run)).output == {"text": "file:new.py"}
        assert await new.runs.verify(run) is None

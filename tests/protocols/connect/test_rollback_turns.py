"""A rollback gives the thread to the next run in line, which starts at once and not when somebody happens to look."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from tests.kit.engines import QUICK

from .test_door import Gate, up

NEVER_LOOKS = msgspec.structs.replace(QUICK, sweep_every=600)


async def test_a_run_that_takes_the_place_of_another_starts_at_once(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent, engine=NEVER_LOOKS) as s:
        base = f"/threads/{await s.thread()}/runs"
        await s.run("held", {"text": "old"}, base)
        assert await gate.entered.get() == "old"
        await s.run("held", {"text": "new"}, base, multitask_strategy="rollback")
        async with asyncio.timeout(20):
            assert await gate.entered.get() == "new"


async def test_a_run_in_line_starts_at_once_when_the_one_before_it_is_rolled_back(store: Path) -> None:
    gate = Gate()
    async with up(store, gate.agent, engine=NEVER_LOOKS) as s:
        base = f"/threads/{await s.thread()}/runs"
        old = await s.run("held", {"text": "old"}, base)
        assert await gate.entered.get() == "old"
        await s.run("held", {"text": "new"}, base, multitask_strategy="enqueue")
        await s.ask("POST", f"{base}/{old}/cancel?action=rollback", None, 204)
        async with asyncio.timeout(20):
            assert await gate.entered.get() == "new"

"""What the document asks of callbacks, where the receiver is not well: the order of a run's news, and what they say."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from .test_door import Receiver, mailer, up


async def test_news_of_a_run_wait_for_an_earlier_one_and_say_what_was_true_when_they_were_written(store: Path) -> None:
    async with up(store, mailer) as s, Receiver(500) as receiver:
        run = await s.run("mailer", callback={"POST": receiver.url})
        async with asyncio.timeout(20):
            refused, body = await receiver.got.get()
        assert json.loads(body)["status"] == "interrupted"
        await s.post(f"/runs/{run}", {"approved": True})
        assert (await s.output(run))["type"] == "result"
        told = await receiver.until("success")
        # The run was over long before: its news come as they happened all the same, and the first comes again.
        assert [news["status"] for _, news in told] == ["interrupted", "pending", "success"]
        assert told[0][0]["x-interlingua-delivery"] == refused["x-interlingua-delivery"]
        moments = [news["updated_at"] for _, news in told]
        assert moments == sorted(moments)

"""Replicas on PostgreSQL and NATS, with the leases that they have in real life: a session outlives its process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from interlingua.store.postgres.connection import place
from tests.kit.clients.mcp_http import clients, joined
from tests.kit.nats import nats_url, shared_nats

from .fleet import fleet
from .test_replicas_mcp import broken, taken_up

__all__ = ["nats_url", "shared_nats"]

pytestmark = pytest.mark.cluster

SWEPT = 5.0  # seconds beside a lease, on a busy machine


async def test_a_session_goes_on_elsewhere_when_the_lease_of_its_process_has_run_out(
    tmp_path: Path, postgres: str, nats_url: str
) -> None:
    """A request that comes before that is answered after it, and not refused."""
    where = f"{postgres}?schema=sessions"
    loop = asyncio.get_running_loop()
    async with fleet(tmp_path, 3, store=where, bus=nats_url) as all_, clients(all_) as client:  # type: ignore[arg-type]
        await client.begin()
        stream = await client.run("gate open")
        seen = [await stream.next()]
        holder = await all_.holder(client.headers["mcp-session-id"])
        await holder.kill()
        killed = loop.time()
        await broken(stream)
        again = await taken_up(client, stream.last_id)
        assert loop.time() - killed < place(where).lease + SWEPT
        (tmp_path / "open").touch()
        seen += await again.rest()
        assert seen[-1]["result"]["output"] == joined(seen) == {"text": "one two three"}
        assert sum([await member.metric("takeovers_total") for member in all_.others(holder)]) >= 1

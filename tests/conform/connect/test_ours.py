"""Our own door passes the checks: as a process of its own with the agents that every protocol is looked at with, and
with agents that use all that this one has."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import interlingua as il
from interlingua.protocols.connect.config import DoorSettings
from interlingua.security.keys import make_key
from interlingua.server.app import ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from interlingua_conform.base import Finding, Roles, Subject
from interlingua_conform.connect import suite
from tests.kit import warm_python
from tests.kit.engines import PATIENT

from ..common import AGENTS, ROLES, failures, findings
from . import agents

# What does not apply to an agent that uses everything; each applies to another one, and passes there.
OTHERS = {
    "connect.schemas.threads-optional": "plain",  # about agents without threads
    "connect.openapi.stream-mode-subset": "plain",  # without one of the modes
    "connect.schemas.streaming-optional": "mute",  # without any
    "connect.threads.state-inaccessible": "echo",  # with threads whose state no descriptor defines
}


def not_applicable(found: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.why for name, finding in found.items() if finding.verdict == "not applicable"}


@contextlib.asynccontextmanager
async def process(folder: Path, target: str = str(AGENTS)) -> AsyncIterator[str]:
    """`interlingua serve` with the shared agents, or others; gives its address."""
    command = [warm_python.interlingua(), "serve", target, "--port", "0", "--store", str(folder / "store.db")]
    served = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert served.stderr is not None
    try:
        async with asyncio.timeout(60):
            while line := (await served.stderr.readline()).decode():
                if found := re.search(r"Serving on (http://\S+)", line):
                    break
        assert found, "it did not start"
        reading = asyncio.create_task(served.stderr.read())  # or it would wait for somebody to do so
        yield found[1]
    finally:
        if served.returncode is None:
            served.send_signal(signal.SIGINT)
        await asyncio.wait_for(served.wait(), 30)
    await reading


@contextlib.asynccontextmanager
async def with_everything(store: Path) -> AsyncIterator[tuple[str, str]]:
    """Our agents in this process, for whoever has a key: its address, and that key. Dropped connections count soon, and
    quiet streams are kept alive often."""
    secret, record = make_key("ada", (), int(time.time() * 1e6))
    opened = open_store(store)
    await opened.open()
    await StoredKeys(opened.keys).put(record)
    await opened.close()
    served = [agent for agent in vars(agents).values() if isinstance(agent, il.Agent)]
    async with serving(store, served, ServeSettings(port=0, engine=PATIENT)) as server:
        door: Any = server.engine.callbacks.formats["connect"].__self__  # type: ignore[attr-defined]
        door.settings = DoorSettings(disconnect_grace=0.05, keep_alive=0.02)
        yield server.address + "/connect", secret


async def test_our_server_passes_its_own_checks(tmp_path: Path) -> None:
    async with process(tmp_path) as address:
        found = await findings("connect", Subject(address=address + "/connect", roles=ROLES))
    assert failures(found) == {}
    assert set(found) == set(suite.ids)
    assert found["connect.threads.state-inaccessible"].verdict == "pass"


async def test_every_check_applies_to_some_agent_of_ours(store: Path) -> None:
    roles = Roles(agent="chat", asking="asker", slow="sleeper", failing="unwilling")
    async with with_everything(store) as (address, key):
        subject = Subject(address=address, headers={"x-api-key": key}, roles=roles)
        found = await findings("connect", subject)
        assert failures(found) == {}
        assert set(not_applicable(found)) == set(OTHERS)
        for agent in ("plain", "mute"):
            only = [name for name, other in OTHERS.items() if other == agent]
            other = Subject(address=address, headers={"x-api-key": key}, roles=Roles(agent=agent))
            told = await findings("connect", other, [*only, "connect.openapi.webhook", "connect.openapi.operations"])
            assert {finding.verdict for finding in told.values()} == {"pass"}, told

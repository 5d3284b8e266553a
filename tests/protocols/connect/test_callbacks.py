"""Callbacks when things go wrong: a server that is killed, receivers that are down, hang or refuse."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua
from interlingua.engine.engine import Engine
from interlingua.engine.services import callbacks
from interlingua.engine.services.callbacks import pause_after, tried_for
from interlingua.security import webhook_signatures
from interlingua.server.config.settings import CallbackSettings
from interlingua.store.open import open_store
from interlingua.store.rows import CallbackRow
from interlingua.store.sql.callbacks import SqlCallbacks
from tests.kit.wait_for import wait_for

from .test_door import Receiver, mailer, up

ROOT = Path(__file__).resolve().parents[3]
SECRET = "s3cret"
RUNS = 8

# A server that tries again soon, and whose agents are those of the other tests.
SERVER = f"""
import asyncio, sys
from interlingua.server.app import ServeSettings, serving
from interlingua.server.config.settings import CallbackSettings
from interlingua.engine.services import callbacks
from tests.kit.engines import QUICK
from tests.protocols.connect.test_door import AGENTS

callbacks._FIRST_PAUSE = callbacks._LONGEST_PAUSE = 0.05
callbacks._LEASE = 0.5

async def main():
    settings = ServeSettings(port=0, engine=QUICK, callbacks=CallbackSettings(secret={SECRET!r}))
    async with serving(sys.argv[1], AGENTS, settings) as server:
        print(server.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def process(store: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A server of its own; killed with SIGKILL at the end."""
    source = Path(interlingua.__file__).resolve().parents[1]  # the one that these tests import
    env = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(store), stdout=asyncio.subprocess.PIPE, env=env, cwd=ROOT
    )
    assert child.stdout is not None
    try:
        async with asyncio.timeout(30):
            address = (await child.stdout.readline()).decode().strip()
        assert address.startswith("http://")
        yield address, child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


class Hanging:
    """Takes connections and never answers. `full` is set when it has as many as it will get."""

    def __init__(self, many: int) -> None:
        self._many = many
        self.open = 0
        self.most = 0
        self.full = asyncio.Event()
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        if self.open >= self._many:
            self.full.set()
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        self.open -= 1
        writer.close()

    async def __aenter__(self) -> Hanging:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/callme"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


async def _rows(store: Path, **where: Any) -> list[CallbackRow]:
    kept = open_store(store)
    await kept.open()
    try:
        return await kept.callbacks.search(**where)
    finally:
        await kept.close()


async def _failed(engine: Engine, run: str) -> CallbackRow:
    """The run's callback, once it was given up."""
    async with asyncio.timeout(20):
        while True:
            rows = await engine.core.store.callbacks.search(run=run, state="failed")
            if rows:
                return rows[0]
            await asyncio.sleep(0.01)


async def test_callbacks_survive_kill_9_and_arrive_in_order_signed_and_with_their_ids(store: Path) -> None:
    async with Hanging(1) as receiver:
        port = int(receiver.url.split(":")[2].split("/")[0])
        async with process(store) as (address, _), httpx2.AsyncClient(base_url=f"{address}/connect") as http:
            runs = []
            for _ in range(RUNS):
                made = await http.post("/runs", json={"agent_id": "mailer", "webhook": receiver.url})
                runs.append(made.json()["run_id"])
                await http.get(f"/runs/{runs[-1]}/wait")
            for run in runs[::2]:  # these change twice more
                await http.post(f"/runs/{run}", json={"approved": True})
                await http.get(f"/runs/{run}/wait")
            await asyncio.wait_for(receiver.full.wait(), 20)  # killed while deliveries are under way
    undelivered = await _rows(store, state="due")
    wanted = {run: ["interrupted", "pending", "success"] if run in runs[::2] else ["interrupted"] for run in runs}
    assert len(undelivered) == sum(map(len, wanted.values()))
    ids = {row.id: (row.run, row.status) for row in undelivered}

    back = Receiver()
    back._server = await asyncio.start_server(back._serve, "127.0.0.1", port)  # the same address, alive again
    told: dict[str, list[str]] = {run: [] for run in runs}
    seen: dict[str, str] = {}
    async with process(store), asyncio.timeout(60):
        while told != wanted:
            headers, content = await back.got.get()
            body = json.loads(content)
            delivery = headers[webhook_signatures.DELIVERY_HEADER]
            assert delivery == headers["x-interlingua-delivery"]
            stamp = headers[webhook_signatures.TIMESTAMP_HEADER]
            signature = headers[webhook_signatures.SIGNATURE_HEADER]
            assert webhook_signatures.verify(SECRET, delivery, stamp, content, signature, now=time.time())
            assert not webhook_signatures.verify(SECRET, delivery, stamp, content + b" ", signature, now=time.time())
            assert ids[int(delivery)][0] == body["run_id"]
            assert seen.setdefault(delivery, body["status"]) == body["status"], "the same delivery says the same"
            if told[body["run_id"]][-1:] != [body["status"]]:  # at least once: it may come again, but not out of order
                told[body["run_id"]].append(body["status"])
            assert told[body["run_id"]] == wanted[body["run_id"]][: len(told[body["run_id"]])]
    back._server.close()
    assert set(map(int, seen)) == set(ids)


async def test_a_receiver_that_hangs_leaves_room_for_the_others(store: Path) -> None:
    async with up(store) as s, Hanging(1) as hanging, Receiver() as receiver:
        for _ in range(3 * callbacks._AT_ONCE):
            await s.run("echo", {"text": "a"}, webhook=hanging.url)
        await asyncio.wait_for(hanging.full.wait(), 20)
        run = await s.run("echo", {"text": "b"}, webhook=receiver.url)
        told = await receiver.until("success")
        assert {body["run_id"] for _, body in told} == {run}
        assert hanging.most == 1, "one that never answered gets one at a time"


async def test_a_receiver_that_hangs_is_given_up_on_in_time_and_tried_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "_SEND_WITHIN", 0.05)
    async with up(store, callbacks=CallbackSettings(hours=0.0)) as s, Hanging(1) as hanging:
        row = await _failed(s.server.engine, await s.run("echo", {"text": "a"}, webhook=hanging.url))
        assert row.error == "TimeoutError: no answer within 0.05 s"


async def test_nothing_is_polled_while_a_receiver_rests(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later news of a run wait for the first one, which waits for its receiver: nobody may spin meanwhile."""
    claims = 0
    claim = SqlCallbacks.claim

    async def counted(self: SqlCallbacks, *args: Any, **more: Any) -> list[CallbackRow]:
        nonlocal claims
        claims += 1
        return await claim(self, *args, **more)

    monkeypatch.setattr(SqlCallbacks, "claim", counted)
    async with Receiver() as dead:
        pass
    async with up(store) as s:
        run = await s.run("mailer", webhook=dead.url)
        await s.output(run)
        await s.post(f"/runs/{run}", {"approved": True})
        await s.output(run)
        engine = s.server.engine
        await wait_for(lambda: engine.callbacks.retried)
        rows = await engine.core.store.callbacks.search(run=run)
        assert len(rows) == 3
        assert await engine.core.store.callbacks.next_due() == rows[0].next_at
        before = claims
        await asyncio.sleep(0.2)  # what is shown is that nothing happens in it
        assert claims - before <= 1


async def test_what_was_given_up_is_counted_kept_with_its_error_and_can_be_tried_again(store: Path) -> None:
    async with up(store, callbacks=CallbackSettings(hours=0.0)) as s, Receiver(500) as receiver:
        run = await s.run("echo", {"text": "a"}, webhook=receiver.url)
        row = await _failed(s.server.engine, run)
        assert row.error == "Unavailable: the receiver answered 500"
        await receiver.got.get()
        metrics = (await s.http.get(f"{s.server.address}/metrics")).text
        assert "interlingua_callbacks_failed_total 1\n" in metrics
        assert "interlingua_callbacks_undelivered 1\n" in metrics
        assert "interlingua_callbacks_pending 0\n" in metrics
        assert await s.server.engine.core.store.callbacks.retry(None, 0) == [row.id]
        s.server.engine.callbacks.hint()
        ((headers, body),) = await receiver.until("success")
        assert body["run_id"] == run
        assert int(headers["x-interlingua-delivery"]) == row.id


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/callme", "http://169.254.169.254/latest", "http://[fd00::1]/", "http://0xa.1/", "http://167772161",
        "http://user:secret@example.org/", "http://example.org/" + "x" * 3000,
    ],
)  # fmt: skip
async def test_an_address_that_is_never_called_is_refused_with_the_run(store: Path, url: str) -> None:
    async with up(store) as s:
        for body in ({"webhook": url}, {"callback": {"POST": url}}):
            told = await s.post("/runs", {"agent_id": "echo", "input": {"text": "a"}, **body}, 422)
            assert "callback" in str(told)
            assert "secret" not in str(told)
        assert await s.post("/runs/search", {}) == []


async def test_a_name_that_leads_where_nothing_may_be_sent_is_given_up_at_once(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 80))]
    monkeypatch.setattr("interlingua.security.egress._system_lookup", lambda host, port: private)
    async with up(store) as s:
        run = await s.run("echo", {"text": "a"}, webhook="http://example.org/callme")
        row = await _failed(s.server.engine, run)
        assert row.attempts == 1


def test_a_receiver_that_is_down_overnight_still_gets_everything() -> None:
    pauses = [pause_after(attempts) for attempts in range(1, 40)]
    assert pauses[:4] == [1, 2, 4, 8]
    assert max(pauses) == 3600, "an hour after it is back it knows everything"
    tries = next(attempts for attempts in range(1, 100) if tried_for(attempts) >= 86_400)
    assert 86_400 <= tried_for(tries) < 86_400 + 3600
    assert tries < 50


async def test_old_callbacks_are_forgotten_and_undelivered_ones_are_not(store: Path) -> None:
    async with Receiver() as receiver, up(store, mailer, callbacks=CallbackSettings(hours=0.0)) as s:
        run = await s.run("mailer", webhook=receiver.url)
        await receiver.until("interrupted")
        engine = s.server.engine
        async with asyncio.timeout(20):
            while not await engine.core.store.callbacks.search(run=run, state="sent"):
                await asyncio.sleep(0.01)
        (row,) = await engine.core.store.callbacks.search(run=run)
        await engine.core.store.callbacks.forget(row.time)
        assert len(await engine.core.store.callbacks.search(run=run)) == 1
        await engine.core.store.callbacks.forget(row.time + 1)
        assert await engine.core.store.callbacks.search(run=run) == []
        await engine.callbacks.stop()
        await s.post(f"/runs/{run}", {"approved": True})
        await s.output(run)
        rows = await engine.core.store.callbacks.search(run=run, state="due")
        await engine.core.store.callbacks.forget(rows[-1].time + 1)
        assert await engine.core.store.callbacks.search(run=run) == rows

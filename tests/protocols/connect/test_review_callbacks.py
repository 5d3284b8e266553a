"""Callbacks whose receivers are many, silent or greedy, and callbacks of runs that are gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.engine.ids import now
from interlingua.engine.services import callbacks
from interlingua.model.errors import InvalidRequest, StoreError
from interlingua.model.status import Status
from interlingua.security.keys import make_key
from interlingua.security.origins import HostPolicy
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.server.checked_app import CheckedApp
from interlingua.store.changes import PutCallback
from interlingua.store.rows import CallbackRow
from interlingua.store.sql.callbacks import put_callback
from tests.kit.databases import sql
from tests.kit.wait_for import wait_for

from .test_callbacks import Hanging
from .test_door import Receiver, Up, up


async def _until(true: Callable[[], bool]) -> None:
    await wait_for(true)


@contextlib.asynccontextmanager
async def hanging(many: int) -> AsyncIterator[list[Hanging]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Hanging(1)) for _ in range(many)]


@contextlib.asynccontextmanager
async def dead() -> AsyncIterator[str]:
    """An address where nobody listens."""
    async with Receiver() as gone:
        pass
    yield gone.url


async def _put(s: Up, url: str, many: int, time: int) -> None:
    """Callbacks of as many runs, written while nobody sends."""
    store: Any = s.server.engine.core.store
    await store.database.write(
        lambda conn: [
            put_callback(conn, PutCallback(f"run{n}", url, "connect", Status.SUCCEEDED), time) for n in range(many)
        ]
    )


async def _failing(s: Up) -> list[CallbackRow]:
    """Those that were tried and not taken, once there are any."""
    async with asyncio.timeout(20):
        while not (rows := await s.server.engine.core.store.callbacks.search(failing=True)):
            await asyncio.sleep(0.005)
    return rows


@pytest.mark.parametrize("how", ["rollback", "delete"])
async def test_a_run_that_is_forgotten_still_tells_how_it_ended(store: Path, how: str) -> None:
    async with up(store) as s, Receiver() as receiver:
        await s.server.engine.callbacks.stop()  # it is sent only when the run is gone
        run = await s.run("mailer", webhook=receiver.url, metadata={"a": 1})
        await s.output(run)
        if how == "rollback":
            await s.post(f"/runs/{run}/cancel?action=rollback&wait=true", status=204)
        else:
            await s.delete(f"/runs/{run}")
        await s.get(f"/runs/{run}", status=404)
        s.server.engine.callbacks.start()
        for _, told in await receiver.until("error"):
            assert told["run_id"] == run
            assert told["creation"]["metadata"] == {"a": 1}
        async with asyncio.timeout(20):
            while await s.server.engine.core.store.callbacks.search(run=run, state="due"):
                await asyncio.sleep(0.005)
    assert sql(store, "SELECT kept FROM callbacks") == [(None,)] * 3, "nothing of it stays"


async def test_receivers_that_hang_leave_room_for_one_that_nobody_knows_yet(store: Path) -> None:
    async with up(store) as s, hanging(5) as silent, Receiver() as receiver:
        for n in range(25):
            await s.run("echo", {"text": "a"}, webhook=silent[n % 5].url)
        for one in silent:
            await asyncio.wait_for(one.full.wait(), 20)
        run = await s.run("echo", {"text": "b"}, webhook=receiver.url)
        async with asyncio.timeout(5):
            ((_, told),) = await receiver.until("success")
        assert told["run_id"] == run
        assert [one.most for one in silent] == [1] * 5


async def test_whoever_answers_well_has_places_that_the_others_cannot_take(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "_AT_ONCE", 4)
    monkeypatch.setattr(callbacks, "_NEW", 3)
    monkeypatch.setattr(callbacks, "_FAILING", 1)
    async with up(store) as s, hanging(6) as silent, Receiver() as receiver:
        await s.run("echo", {"text": "a"}, webhook=receiver.url)
        await receiver.until("success")
        for one in silent:
            await s.run("echo", {"text": "b"}, webhook=one.url)
        await _until(lambda: sum(one.open for one in silent) == 3)
        for _ in range(3):
            run = await s.run("echo", {"text": "c"}, webhook=receiver.url)
            async with asyncio.timeout(5):
                ((_, told),) = await receiver.until("success")
            assert told["run_id"] == run
        assert sum(one.open for one in silent) == 3


async def test_a_silent_receiver_rests_however_much_waits_for_it(store: Path) -> None:
    async with up(store) as s, dead() as url:
        engine = s.server.engine
        await engine.callbacks.stop()
        await _put(s, url, 20, now())
        for run in [await s.run("echo", {"text": "a"}, webhook=url) for _ in range(5)]:
            await s.output(run)
        await engine.core.store.database.write(  # type: ignore[attr-defined]
            lambda conn: conn.execute("UPDATE callbacks SET next_at=1 WHERE run LIKE 'run%'")
        )  # the others first: these runs do not exist
        engine.callbacks.start()
        tried = await _failing(s)
        assert len(tried) == 1
        due = await engine.core.store.callbacks.next_due()
        assert due is not None
        assert due >= tried[0].next_at, "nobody is sent anything for a second"
        assert len(await engine.core.store.callbacks.search(state="due")) == 25


async def test_a_callback_that_is_refused_does_not_hold_up_the_next_run(store: Path) -> None:
    async with up(store) as s, Receiver(500) as receiver:
        engine = s.server.engine
        first = await s.run("echo", {"text": "a"}, webhook=receiver.url)
        await _failing(s)
        second = await s.run("echo", {"text": "b"}, webhook=receiver.url)
        await receiver.got.get()
        ((_, told),) = await receiver.until("success")
        assert told["run_id"] == second
        assert [row.state for row in await engine.core.store.callbacks.search(run=first)] == ["due"]


async def test_what_waits_for_a_receiver_that_is_silent_too_long_is_given_up_together(store: Path) -> None:
    async with up(store) as s, dead() as url:
        engine = s.server.engine
        await engine.callbacks.stop()
        day = 86_400 * 1_000_000
        run = await s.run("echo", {"text": "a"}, webhook=url)
        await s.output(run)
        await _put(s, url, 1200, now() - 2 * day)
        await engine.core.store.database.write(  # type: ignore[attr-defined]
            lambda conn: (
                conn.execute("UPDATE receivers SET standing='failing', failures=60"),
                conn.execute("UPDATE callbacks SET next_at=1 WHERE run LIKE 'run%'"),  # the real run is tried first
            )
        )
        engine.callbacks.start()
        await _until(lambda: engine.callbacks.failed == 1200)
        assert await engine.core.store.callbacks.counts() == {"failed": 1200, "due": 1}
        assert [row.state for row in await engine.core.store.callbacks.search(run=run)] == ["due"], "it is new"


async def test_of_a_receivers_answer_only_the_status_is_read(store: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 10000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/callme"
    async with up(store) as s:
        await s.run("echo", {"text": "a"}, webhook=url)
        async with asyncio.timeout(5):  # less than a receiver has for its answer
            await _until(lambda: s.server.engine.callbacks.sent == 1)
    server.close()


# -- the server around them --------------------------------------------------------------------------------


@il.agent
async def careless(how: str) -> str:
    """Fails with a password in what it says."""
    address = "postgres://app:hunter2@10.0.0.5/db"
    if how == "meant":
        raise il.AgentError(f"cannot reach {address}")
    raise RuntimeError(f"cannot reach {address}")


@il.agent
async def careless_step(ctx: il.Context[None, None]) -> str:
    """Fails in a step."""

    async def connect() -> str:
        raise RuntimeError("cannot reach postgres://app:hunter2@10.0.0.5/db")

    return await ctx.step("connect", connect)


async def test_credentials_in_an_unexpected_exception_are_not_shown_to_callers(store: Path) -> None:
    async with up(store, careless, careless_step) as s:
        for agent, input_ in (("careless", {"how": "crash"}), ("careless_step", {})):
            run = await s.run(agent, input_)
            said = await s.output(run)
            assert "postgres://***@10.0.0.5/db" in said["description"]
            events = [event async for event in s.server.engine.runs.events(run, follow=False)]
            assert "hunter2" not in repr(events)
        said = await s.output(await s.run("careless", {"how": "meant"}))
        assert "hunter2" in said["description"], "what an agent says itself is its own business"


async def test_metrics_and_readiness_need_a_key_where_the_server_has_keys(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with il.Engine(store) as engine:
        secret, record = make_key("laptop", [], now())
        await StoredKeys(engine.keys).put(record)
    async with up(store) as s, httpx2.AsyncClient(base_url=s.server.address) as http:
        assert (await http.get("/healthz")).text == "ok\n"
        for path in ("/readyz", "/metrics"):
            refused = await http.get(path)
            assert refused.status_code == 401
            assert "www-authenticate" in refused.headers
            assert (await http.get(path, headers={"x-api-key": secret})).status_code == 200

        async def broken() -> Any:
            raise StoreError("/secret/place/store.db: disk I/O error")

        monkeypatch.setattr(s.server.engine.core.store.callbacks, "next_due", broken)
        monkeypatch.setattr(s.server.engine.core.store.callbacks, "counts", broken)
        mine = {"authorization": f"Bearer {secret}"}
        answer = await http.get("/readyz", headers=mine)
        assert (answer.status_code, answer.text) == (503, "the store does not answer\n")
        told = (await http.get("/metrics", headers=mine)).text
        assert "interlingua_store_up 0" in told
        assert "/secret/place" not in told


async def test_a_server_without_keys_closes_itself_with_its_first_key(store: Path) -> None:
    async with up(store) as s:
        assert await s.get("/auth") == {"schemes": []}
        run = await s.run("echo", {"text": "a"})
        async with il.Engine(store) as other:  # as another process would
            secret, record = make_key("laptop", [], now())
            await StoredKeys(other.keys).put(record)
        async with asyncio.timeout(5):
            while (await s.http.get(f"/runs/{run}")).status_code != 401:
                await asyncio.sleep(0.01)
        assert (await s.get("/auth"))["schemes"] != []
        assert (await s.http.post("/agents/search", json={}, headers={"x-api-key": secret})).status_code == 200


async def test_of_headers_that_are_fine_long_ones_are_not_kept_in_memory() -> None:
    checked = CheckedApp(None, HostPolicy.for_bind("0.0.0.0", ["*"], []), set())  # type: ignore[arg-type]
    usual: list[tuple[bytes, bytes]] = [(b"host", b"localhost:8000")]
    checked._check({"type": "http", "headers": usual})
    checked._check({"type": "http", "headers": [(b"host", b"a" * 5000 + b".example.org")]})
    assert checked._checked == {tuple(usual)}


async def test_a_time_that_is_too_far_away_is_refused_with_the_limit(store: Path) -> None:
    async with up(store) as s:
        said = await s.post("/runs", {"agent_id": "echo", "input": {"text": "a"}, "after_seconds": 10**10}, status=422)
        assert "9999999999" in said
        assert "after_seconds" in said
        with pytest.raises(InvalidRequest, match=r"from 0 to 9,999,999,999"):
            await s.server.engine.runs.submit(il.RunRequest("echo", input={"text": "a"}, delay=1e10))


async def test_a_server_behind_a_proxy_sends_no_callbacks_to_its_own_machine(store: Path) -> None:
    async with up(store, allowed_hosts=["agents.example.org"]) as s, Receiver() as receiver:
        refused = {"agent_id": "echo", "input": {"text": "a"}, "webhook": receiver.url}
        assert "callbacks cannot be sent to this address" in await s.post("/runs", refused, status=422)
        assert await s.post("/runs/search", {}) == []
        assert receiver.got.empty()


async def test_runs_whose_time_has_not_come_do_not_fill_the_queue(store: Path) -> None:
    settings = il.Settings(max_pending=2, stall_warning=0)
    async with up(store, engine=settings) as s:
        for _ in range(5):
            await s.run("echo", {"text": "a"}, after_seconds=3600)
            s.server.engine.core.admission._counted_at = -1.0
        await s.output(await s.run("echo", {"text": "now"}, on_completion="keep"))

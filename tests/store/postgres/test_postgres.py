"""What is true of PostgreSQL only: leases, a server that goes away and comes back, and what an address may say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import interlingua as il
from interlingua.engine.ids import now
from interlingua.model.documents import Post, Tell
from interlingua.model.errors import Conflict, InvalidRequest, RunNotFound, StoreError, Unavailable
from interlingua.model.filters import RunFilter
from interlingua.model.run import RunRequest
from interlingua.server.dev.local_servers import LocalPostgres
from interlingua.store.changes import Submission, Submitted
from interlingua.store.open import open_store, shown
from interlingua.store.postgres.connection import PostgresConnection, is_away, place
from interlingua.store.postgres.database import _START_PAUSE
from interlingua.store.postgres.migration import migrate
from interlingua.store.postgres.store import PostgresStore
from interlingua.store.rows import RunRow, WorkerRow
from interlingua.store.sql.dialect import Connection
from interlingua.store.sql.json_search import select_runs
from interlingua.store.sqlite.store import SQLiteStore
from tests.engine.runs.test_several_processes import server
from tests.kit.databases import sql
from tests.kit.engines import engine, log, submit
from tests.kit.ports import free_port
from tests.kit.postgres import fresh, own_server
from tests.kit.rows import append, event, owned, row
from tests.kit.wait_for import wait_for


@pytest.fixture
def url(postgres: str) -> str:
    return fresh(postgres)


@pytest.fixture(scope="module")
def machine() -> Iterator[LocalPostgres]:
    """A server that may be stopped."""
    with own_server() as made:
        yield made


# -- leases ----------------------------------------------------------------------------------------------------


async def test_a_worker_that_was_stopped_for_longer_than_its_lease_loses_its_runs_and_goes_on_as_a_new_one(
    url: str,
) -> None:
    url += "&lease=1"
    settings = il.Settings(sweep_every=0.05, stall_warning=0, park_after=0)
    async with server(url) as first, engine(url, settings=settings) as eng:
        run = await submit(eng, "endless")
        async for seen in eng.runs.events(run.id):
            if seen.kind == "thought":
                break
        before = await eng.core.store.runs.get(run.id)
        assert before is not None
        first.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(20):  # this engine has not its code: nobody takes the run, but it is taken away
            while (taken := await eng.core.store.runs.get(run.id)) is None or taken.worker is not None:
                await asyncio.sleep(0.01)
        assert (taken.epoch, taken.crashes) == (before.epoch + 1, 1)
        written = len(await log(eng, run.id))
        assert [w.id for w in await eng.core.store.claims.workers()] == [eng.core.worker.id]
        first.send_signal(signal.SIGCONT)
        async with asyncio.timeout(20):
            while len(await eng.core.store.claims.workers()) < 2:
                await asyncio.sleep(0.01)
            # It enters again, and takes the run up again as anybody might: after all that was written before.
            while (taken := await eng.core.store.runs.get(run.id)) is None or taken.worker != before.worker:
                await asyncio.sleep(0.01)
        assert taken.epoch == before.epoch + 2
        events = await log(eng, run.id)
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        assert [e.kind for e in events].count("started") <= 2
        assert len(events) >= written
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED


async def test_a_lease_is_renewed_while_the_event_loop_is_blocked_and_the_writer_waits(url: str) -> None:
    store, other = PostgresStore(url + "&lease=0.4"), PostgresStore(url + "&lease=0.1")
    await store.open()
    await other.open()
    await store.claims.enter(WorkerRow("w", "here", os.getpid(), now(), []))

    def busy(conn: Any) -> None:
        conn.execute("SELECT pg_sleep(1.5)")

    slow = asyncio.ensure_future(store.database.write(busy))
    await asyncio.to_thread(lambda: None)
    ends = asyncio.get_running_loop().time() + 1.2
    while asyncio.get_running_loop().time() < ends:  # without a turn for anybody else
        pass
    assert await other.claims.bury() == []
    await slow
    assert [w.id for w in await other.claims.workers()] == ["w"]
    await store.close()
    assert await other.claims.bury() == ["w"], "one that closes without a word has died"
    await other.close()


@pytest.mark.parametrize("sending", [False, True], ids=["between statements", "while it sends"])
async def test_whoever_stands_still_in_the_middle_of_a_transaction_holds_up_others_no_longer_than_its_lease(
    url: str, sending: bool
) -> None:
    """A machine that is cut off, or a process that is stopped: its locks must not outlive it, or nobody could bury it
    and everybody who tries would stand still too."""
    url += "&lease=1"
    one, other = PostgresStore(url), PostgresStore(url)
    await one.open()
    await other.open()
    r = await owned(one)
    await one.claims.enter(WorkerRow("w", "here", 1, now(), []))
    one.liveness.leases.release("w")  # as if it were stopped, too
    await other.claims.enter(WorkerRow("v", "there", 2, now(), []))
    broken: list[int] = []

    def breaks(conn: Connection) -> None:
        """It is found by its next connection, too."""
        broken.append(1)
        if len(broken) == 1:
            conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    await one.database.write(breaks)
    stands_still, goes_on = threading.Event(), threading.Event()
    attempts: list[int] = []

    def slow(conn: Connection) -> str:
        assert isinstance(conn, PostgresConnection)
        attempts.append(len(attempts))
        with conn.raw.pipeline() if sending else contextlib.nullcontext():
            conn.lock(("run", r.id), ("worker", "w"))
            conn.execute("SELECT 1 FROM workers WHERE id='w' FOR KEY SHARE")
            if len(attempts) == 1:
                if sending:
                    conn.raw.pgconn.send_flush_request()
                    while conn.raw.pgconn.flush():
                        pass
                stands_still.set()
                assert goes_on.wait(30)
        conn.execute("UPDATE runs SET ran=ran+1 WHERE id=?", (r.id,))
        return "done"

    try:
        writing = one.database.write(slow)
        await asyncio.to_thread(stands_still.wait, 30)
        async with asyncio.timeout(5):
            # Before anybody is buried: also who writes something else may wait for those locks.
            await other.database.write(lambda conn: conn.lock(("run", r.id)))
            while await other.claims.bury() != ["w"]:
                await asyncio.sleep(0.01)
    finally:
        goes_on.set()
    # What it had begun is undone, and written once when it goes on.
    assert await writing == "done"
    assert len(attempts) == 2
    after = await other.runs.get(r.id)
    assert after is not None
    assert after.ran == r.ran + 1
    await one.close()
    await other.close()


async def test_whoever_was_buried_is_told_once_and_may_enter_again(url: str) -> None:
    store, other = PostgresStore(url + "&lease=0.2"), PostgresStore(url + "&lease=0.001")
    await other.open()
    told: asyncio.Queue[str] = asyncio.Queue()
    store.claims.on_lost = told.put_nowait
    await store.open()
    await store.claims.enter(WorkerRow("w", "here", os.getpid(), now(), []))
    r = await owned(store)
    buried = []
    async with asyncio.timeout(10):
        while not buried:  # a renewal may have been quicker
            sql(url, "UPDATE workers SET lease_until=now()-interval '1 hour'")
            assert await store.claims.bury() == [], "nobody takes itself for dead"
            buried = await other.claims.bury()
        assert await told.get() == "w"
    r.next_seq = 3
    assert await append(store, r, 2, event(r.id, 2)) is not None, "its epoch is one of before"
    await store.claims.enter(WorkerRow("w", "here", os.getpid(), now(), []))
    assert await store.claims.bury() == []
    assert await other.claims.bury() == []
    assert told.empty()
    await store.close()
    await other.close()


async def test_a_server_that_has_just_started_takes_nobody_for_dead(machine: LocalPostgres) -> None:
    url = fresh(machine.url) + "&lease=60"
    store, other = PostgresStore(url), PostgresStore(url)
    await store.open()
    await other.open()
    await store.claims.enter(WorkerRow("w", "here", os.getpid(), now(), []))
    await asyncio.to_thread(machine.stop, at_once=True)
    await asyncio.to_thread(machine.start)
    sql(url, "UPDATE workers SET lease_until=now()-interval '1 hour'")  # it was away for so long
    assert await other.claims.bury() == []
    assert [w.id for w in await other.claims.workers()] == ["w"]
    await store.close()
    await other.close()


# -- a server that goes away -----------------------------------------------------------------------------------


async def test_a_server_that_is_killed_again_and_again_loses_nothing_and_nothing_is_written_twice(
    machine: LocalPostgres,
) -> None:
    store = PostgresStore(fresh(machine.url))
    await store.open()
    acknowledged: dict[str, list[int]] = {}
    over = False

    async def go_on(lane: int) -> None:
        n = 0
        while not over:
            key = f"{lane}-{n}"
            kept = await store.documents.write([Post("in", key, b""), Tell("feed", "k", "", key.encode())])
            assert kept.stale is None, "it had been written, and was written again"
            acknowledged[key] = [number for number in kept.numbers if number is not None]
            n += 1

    async def append_on() -> int:
        r = await owned(store)
        while not over:
            seq = r.next_seq
            r.next_seq += 1
            assert await append(store, r, seq, event(r.id, seq)) is None
        assert [e.seq for e in await store.runs.event_rows(r.id, 0, 10**6)] == list(range(1, r.next_seq))
        return r.next_seq

    lanes = [asyncio.create_task(go_on(lane)) for lane in range(10)]
    lanes += [asyncio.create_task(append_on()) for _ in range(5)]  # type: ignore[arg-type]
    for life in range(4):
        upto = len(acknowledged) + 50 * (life + 1)
        async with asyncio.timeout(30):
            while len(acknowledged) < upto and not any(lane.done() for lane in lanes):
                await asyncio.sleep(0.001)
        await asyncio.to_thread(machine.stop, at_once=True)
        await asyncio.to_thread(machine.start)
    upto = len(acknowledged) + 50
    async with asyncio.timeout(30):
        while len(acknowledged) < upto and not any(lane.done() for lane in lanes):
            await asyncio.sleep(0.001)
    over = True
    await asyncio.gather(*lanes)
    told = await store.documents.feed("feed", 0, 10**6)
    assert [t.seq for t in told] == list(range(1, len(told) + 1))
    assert {x.key: [x.number, x.number] for x in await store.documents.letters("in", limit=10**6)} == acknowledged
    assert [t.body.decode() for t in told] == sorted(acknowledged, key=lambda key: acknowledged[key][1])
    await store.close()


async def test_runs_go_on_after_the_server_was_away(machine: LocalPostgres) -> None:
    @il.agent
    async def slow(n: int, ctx: il.Context[None, None]) -> Any:
        for word in range(n):
            yield f"{word} "
            await asyncio.sleep(0.005)

    async with engine(fresh(machine.url), slow, settings=il.Settings(sweep_every=0.05, stall_warning=0)) as eng:
        runs = [await submit(eng, "slow", {"n": 200}) for _ in range(10)]
        async for _ in eng.runs.events(runs[0].id):
            break
        await asyncio.to_thread(machine.stop, at_once=True)
        await asyncio.to_thread(machine.start)
        for run in runs:
            done = await eng.runs.wait(run.id, timeout=60)
            assert done.output == {"text": "".join(f"{word} " for word in range(200))}, done.error
            assert [e.kind for e in await log(eng, run.id)].count("started") == 1


class Proxy:
    """Between a store and its server. Told to, it cuts the connection at the next COMMIT, before or after it."""

    def __init__(self, url: str, port: int = 0) -> None:
        self._parts = urlsplit(url)
        self._port = port
        self.cut: str | None = None
        self.cuts = 0
        self.away = False  # nobody gets through from now on
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._parts._replace(
            netloc=f"{self._parts.username}:{self._parts.password}@127.0.0.1:{port}"
        ).geturl()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for writer in list(self._open):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.away:
            writer.close()
            return
        there, to_there = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        self._open |= {writer, to_there}
        swallow = asyncio.Event()

        async def back() -> None:
            while data := await there.read(65536):
                if not swallow.is_set():
                    writer.write(data)
                elif b"COMMIT\0" in data:  # it is done, and nobody will hear of it
                    writer.close()
                    return

        answering = asyncio.create_task(back())
        try:
            while data := await reader.read(65536):
                if self.cut is not None and b"COMMIT" in data:
                    cut, self.cut = self.cut, None
                    self.cuts += 1
                    self.away = cut.endswith(" for long")
                    if cut.startswith("before"):
                        break
                    swallow.set()
                to_there.write(data)
        finally:
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answering
            for end in (writer, to_there):
                end.close()
                self._open.discard(end)


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("what", ["call", "log"])
async def test_a_connection_that_breaks_at_a_commit_leaves_one_of_what_was_written(
    url: str, cut: str, what: str
) -> None:
    async with Proxy(url) as proxy:
        store = PostgresStore(proxy.url)
        await store.open()
        r = await owned(store)
        for n in range(1, 6):
            proxy.cut = cut
            if what == "call":
                kept = await store.documents.write([Post("in", str(n), b""), Tell("feed", "k", "", b"")])
                assert (kept.stale, kept.numbers) == (None, [n, n])
            else:
                r.next_seq = n + 2
                assert await append(store, r, n + 1, event(r.id, n + 1)) is None
            assert proxy.cuts == n
        if what == "call":
            assert [t.seq for t in await store.documents.feed("feed", 0, 100)] == [1, 2, 3, 4, 5]
        else:
            assert [e.seq for e in await store.runs.event_rows(r.id, 0, 100)] == [1, 2, 3, 4, 5, 6]
        await store.close()


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_server_that_goes_away_for_long_at_a_commit_refuses_no_run_that_was_written(url: str, cut: str) -> None:
    async with Proxy(url) as proxy:
        store = PostgresStore(f"{proxy.url}&patience=0.2")
        await store.open()
        one, other = row(), row()
        entered: list[str] = []

        def submitted(r: RunRow) -> asyncio.Task[Submitted]:
            asked = Submission(r, RunRequest("a"), "d", [event(r.id, 1, "created")], "worker", now())
            return asyncio.ensure_future(store.runs.submit(asked, lambda done: entered.append(done.row.id)))

        proxy.cut = f"{cut} for long"
        submitting = submitted(one)
        async with asyncio.timeout(20):
            await wait_for(lambda: proxy.away)
            refused = submitted(other)  # it gets its answer when patience is at an end, as the first would
            with pytest.raises(StoreError):
                await refused
        assert not submitting.done(), "nobody knows yet"
        assert entered == []
        proxy.away = False
        async with asyncio.timeout(20):
            if cut == "before":
                with pytest.raises(StoreError):
                    await submitting
            else:
                assert (await submitting).row.id == one.id
        assert entered == [found.id for found in await store.runs.search(RunFilter())] == [one.id] * (cut == "after")
        assert (await submitted(other)).row.id == other.id
        await store.close()


async def test_what_is_in_doubt_when_the_store_is_closed_is_told_as_unknown(url: str) -> None:
    async with Proxy(url) as proxy:
        store = PostgresStore(f"{proxy.url}&patience=0.2")
        await store.open()
        proxy.cut = "after for long"
        writing = asyncio.ensure_future(store.documents.link("k", "a", "1"))
        async with asyncio.timeout(20):
            await wait_for(lambda: proxy.away)
            with pytest.raises(StoreError):
                await store.documents.link("k", "b", "1")
        assert not writing.done()
        await store.close()
        with pytest.raises(StoreError, match="nobody knows whether this was written"):
            await writing


async def test_what_cannot_be_written_in_time_is_refused_as_transient_and_later_all_is_well(
    machine: LocalPostgres,
) -> None:
    store = PostgresStore(fresh(machine.url) + "&patience=0.3")
    await store.open()
    await asyncio.to_thread(machine.stop)
    with pytest.raises(StoreError) as refused:
        await store.documents.link("k", "a", "1")
    assert refused.value.transient
    await asyncio.to_thread(machine.start)
    assert await store.documents.link("k", "a", "2") == "2"
    assert await store.documents.linked("k", "a") == "2"
    await store.close()


async def test_transactions_that_wait_for_each_other_are_tried_again(url: str) -> None:
    one, other = PostgresStore(url), PostgresStore(url)
    await one.open()
    await other.open()
    both = threading.Barrier(2)
    attempts: list[str] = []

    def crossing(first: str, second: str) -> Callable[[Connection], str]:
        def cross(conn: Connection) -> str:
            conn.lock(("x", first))
            attempts.append(first)
            if len(attempts) <= 2:
                both.wait(20)
            conn.lock(("x", second))
            return first

        return cross

    done = await asyncio.gather(one.database.write(crossing("a", "b")), other.database.write(crossing("b", "a")))
    assert (done, len(attempts)) == (["a", "b"], 3), "one of them had to begin again"
    await one.close()
    await other.close()


async def test_what_streams_changes_no_index_of_its_row(url: str) -> None:
    """A run that says a thousand things is one row with room for its next version beside it."""
    store = PostgresStore(url)
    await store.open()
    r = await owned(store, metadata=b'{"a":1}')
    for seq in range(2, 60):
        r.next_seq, r.updated_at, r.ran = seq + 1, now(), r.ran + 1
        assert await append(store, r, seq, event(r.id, seq)) is None
    await store.close()  # which tells the server's statistics
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid=CAST('runs' AS regclass)"
    await wait_for(lambda: sql(url, counts)[0][0] >= 58)
    assert sql(url, counts)[0][1] >= 50


# -- addresses, schemas, and what cannot be kept ---------------------------------------------------------------


async def test_stores_in_two_schemas_of_one_database_know_nothing_of_each_other(postgres: str) -> None:
    one, other = PostgresStore(fresh(postgres)), PostgresStore(fresh(postgres).replace("schema=", "schema=odd%20%22"))
    await one.open()
    await other.open()
    await one.documents.link("k", "a", "1")
    assert await other.documents.linked("k", "a") is None
    assert await other.documents.link("k", "a", "2") == "2"
    await one.close()
    await other.close()


async def test_a_schema_from_a_newer_version_is_refused(url: str) -> None:
    migrate(place(url))
    sql(url, "INSERT INTO interlingua_schema (version, name) VALUES (999, 'later')")
    with pytest.raises(Conflict, match="newer version"):
        await PostgresStore(url).open()


@pytest.mark.parametrize("query", ["poll=soon", "lease=-1", "patience=nan", "nosuch=1"])
def test_an_address_that_says_something_odd_is_refused(query: str) -> None:
    with pytest.raises(InvalidRequest, match="not understood"):
        PostgresStore(f"postgresql://h/db?{query}")


def test_an_address_says_which_store_it_is(tmp_path: Path) -> None:
    assert isinstance(open_store("postgres://h/db"), PostgresStore)
    through_a_path = open_store(Path("postgresql://u:p@h:5/db?schema=x"))
    assert isinstance(through_a_path, PostgresStore)
    assert through_a_path.database.where.schema == "x"
    assert "host=h" in through_a_path.database.where.conninfo
    file = open_store(tmp_path / "postgresql.db")
    assert isinstance(file, SQLiteStore)


def test_without_psycopg_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Unavailable, match=r"pip install 'interlingua\[postgres\]'"):
        open_store("postgresql://h/db")


async def test_a_text_with_a_nul_in_it_is_refused_and_looked_for_in_vain(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    results = await asyncio.gather(
        store.documents.link("k", "a\0b", "1"),
        store.documents.link("k", "b", "1"),
        store.documents.linked("k", "a\0b"),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [InvalidRequest, str, type(None)]
    with pytest.raises(RunNotFound):
        await store.runs.deliver("a\0b", "message", b"", now())
    await store.close()


async def test_a_search_by_metadata_reads_only_what_an_index_leads_to(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    for n in range(30):
        await asyncio.gather(
            *(
                append(store, r, 1, event(r.id, 1), insert=True)
                for m in range(100)
                for r in (row(metadata=b'{"user":%d,"all":true}' % (n * 100 + m)),)
            )
        )
    late = row(metadata=b'{"user":7.0,"deep":{"a":[1]}}')
    await store.runs.submit(Submission(late, RunRequest("a"), "d", [event(late.id, 1)], None, now()))
    sql(url, "ANALYZE runs")
    found = await store.runs.search(RunFilter(metadata={"user": 7}))
    assert found[0].id == late.id
    assert len(found) == 2

    def explain(conn: Connection) -> list[Any]:
        lead = conn.dialect.lead(conn, "runs", [("metadata", "user", 7)], None)
        query, args = select_runs(store.database.dialect, "id", RunFilter(metadata={"user": 7}), lead)
        return conn.execute(f"EXPLAIN {query}", args).fetchall()

    plan = await store.database.read(explain)
    assert any("runs_terms" in line for (line,) in plan), plan
    assert len(await store.runs.search(RunFilter(metadata={"deep": {"a": [1]}}))) == 1
    assert len(await store.runs.search(RunFilter(metadata={"all": True}, limit=25, offset=2990))) == 10
    assert await store.runs.search(RunFilter(metadata={"all": 1})) == []
    await store.close()


async def test_a_server_that_is_not_there_and_a_wrong_password_are_told_in_one_sentence(postgres: str) -> None:
    for wrong in ("postgresql://nobody@127.0.0.1:1/x", postgres.replace("interlingua:", "interlingua:wrong")):
        with pytest.raises(StoreError, match="the store cannot be opened: ") as refused:
            await PostgresStore(wrong).open()
        assert "wrong" not in refused.value.message
        assert "\n" not in refused.value.message


async def test_a_process_that_starts_while_its_server_is_away_waits_for_it(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    parts = urlsplit(url)
    port = free_port()
    there = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}").geturl()
    eng = il.Engine(there, settings=il.Settings(stall_warning=0))
    starting = asyncio.create_task(eng.start())
    await wait_for(lambda: [record for record in caplog.records if "waiting for it" in record.message], 30)
    await asyncio.sleep(_START_PAUSE * 2)
    assert not starting.done()
    async with Proxy(url, port):
        async with asyncio.timeout(30):
            await starting
        await eng.stop()
    told = [record.message for record in caplog.records if record.name == "interlingua.store"]
    assert len(told) == 2, "it is said once, and once that it is there"
    assert "password" not in told[0]


@pytest.mark.parametrize(
    ("wrong", "why"), [("password", "password authentication failed"), ("database", "does not exist")]
)
async def test_a_server_that_refuses_an_engine_is_not_waited_for(postgres: str, wrong: str, why: str) -> None:
    parts = urlsplit(postgres)
    if wrong == "password":
        there = parts._replace(netloc=f"{parts.username}:wrong@{parts.hostname}:{parts.port}").geturl()
    else:
        there = parts._replace(path="/nowhere").geturl()
    async with asyncio.timeout(30):
        with pytest.raises(StoreError, match="the store cannot be opened") as refused:
            await il.Engine(there).start()
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("text", "away"),
    [
        ("connection failed: connection to server at '::1', port 5432 failed: Connection refused", True),
        ("could not translate host name 'db' to address", True),
        ("server closed the connection unexpectedly", True),
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  the database system is shutting down", True),
        ("FATAL:  sorry, too many clients already", True),
        ("FATAL:  password authentication failed for user 'x'", False),
        ("FATAL:  database 'x' does not exist", False),
        ("FATAL:  role 'x' does not exist", False),
        ("FATAL:  no pg_hba.conf entry for host", False),
    ],
)
def test_what_a_connection_says_tells_a_server_that_is_away_from_one_that_refuses(text: str, away: bool) -> None:
    assert is_away(psycopg.OperationalError(text)) is away


def test_an_address_is_shown_without_its_password() -> None:
    assert shown(Path("postgresql://u:se:cret@h/db?schema=x")) == "postgresql://u:***@h/db?schema=x"
    assert shown("postgres://h/db") == "postgres://h/db"
    assert shown(Path("a/b@c.db")) == "a/b@c.db"

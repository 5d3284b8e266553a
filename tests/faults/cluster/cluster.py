"""A cluster of real processes that can be broken piece by piece: PostgreSQL, NATS, servers and workers of its own, and
somebody who looks into the database all the while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from interlingua.model import json_values
from interlingua.model.status import Status
from interlingua.server.dev.local_nats import LocalNats
from interlingua.server.dev.local_servers import LocalPostgres, free_port
from interlingua.store.postgres.connection import PostgresConnection, connect, place
from interlingua.store.rows import EventRow
from tests.kit.commands import COMMAND, clean_env
from tests.kit.postgres import open_folder

from ..history import Fault, History, QuestionRow, Row, Sighting
from .proxy import Mode, Proxy

AGENTS = Path(__file__).with_name("agents.py")
LEASE = 3.0  # seconds
SLACK = 2.0  # seconds that a takeover may take beside the lease
LOOK_EVERY = 0.1
PATIENCE = 60.0
MEASURED = ("count", "dice")  # they say something as soon as they are entered again


class Process:
    """A command that runs, and what it says."""

    def __init__(self, name: str, args: Sequence[str], env: dict[str, str], command: Sequence[str] = COMMAND) -> None:
        self.name = name
        self._command = command
        self.said = ""
        self._args = args
        self._env = env
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None

    async def start(self, ready: str) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, *self._args, env=self._env, start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        before = len(self.said)
        self._reading = asyncio.create_task(self._read(self._process))
        await self.hear(ready, after=before)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            async with self._news:
                self.said += line.decode()
                self._news.notify_all()
        async with self._news:
            self.said += "(gone)\n"
            self._news.notify_all()

    async def hear(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        async with asyncio.timeout(PATIENCE), self._news:
            while (found := re.search(pattern, self.said[after:])) is None:
                assert not self.said.endswith("(gone)\n") or after == len(self.said), f"{self.name}: {self.said}"
                await self._news.wait()
        return found

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Returns when it is gone, and not before."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
            if number is not signal.SIGKILL:
                process.send_signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(30):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        assert self._reading is not None
        await self._reading
        process._transport.close()  # type: ignore[attr-defined]


class Watcher:
    """Looks into the database now and then, and notes how far the runs are and whose they are."""

    def __init__(self, postgres: LocalPostgres, history: History) -> None:
        self._postgres = postgres
        self._history = history
        self._conn: PostgresConnection | None = None
        self._known: dict[str, Sighting] = {}
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._conn is not None:
            self._conn.raw.close()
            self._conn = None

    async def ask(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """Waits for a server that is away."""
        async with asyncio.timeout(PATIENCE), self._lock:
            while True:
                try:
                    return await asyncio.to_thread(self._ask, query, args)
                except psycopg.OperationalError:
                    if self._conn is not None:
                        self._conn.raw.close()
                        self._conn = None
                    await asyncio.sleep(LOOK_EVERY)

    def _ask(self, query: str, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        if self._conn is None:
            self._conn = connect(place(self._postgres.url), writes=False)
        return self._conn.execute(query, args).fetchall()

    async def _watch(self) -> None:
        while True:
            for run, epoch, worker, next_seq, head in await self.ask(
                "SELECT id, epoch, worker, next_seq, head FROM runs"
            ):
                seen = Sighting(time.time(), run, epoch, worker, next_seq, bytes(head))
                last = self._known.get(run)
                if last is None or (last.epoch, last.worker, last.next_seq) != (epoch, worker, next_seq):
                    self._known[run] = seen
                    self._history.sightings.append(seen)
            await asyncio.sleep(LOOK_EVERY)

    async def owned(self, pid: int) -> list[str]:
        """The runs that a process is working on, of those that can be measured."""
        found = await self.ask(
            "SELECT r.id FROM runs r JOIN workers w ON w.id=r.worker WHERE w.pid=? AND r.status='running' "
            "AND r.agent=ANY(?)",
            pid, list(MEASURED),
        )  # fmt: skip
        return [run for (run,) in found]

    async def buried(self, process: Process) -> None:
        """Until a process is taken for dead."""
        async with asyncio.timeout(PATIENCE):
            while await self.ask("SELECT 1 FROM workers WHERE pid=?", process.pid):
                await asyncio.sleep(LOOK_EVERY)

    async def gather(self) -> None:
        """All that the store holds, into the history."""
        history = self._history
        for run, status, epoch, next_seq, head, worker in await self.ask(
            "SELECT id, status, epoch, next_seq, head, worker FROM runs"
        ):
            history.rows[run] = Row(run, Status(status), epoch, next_seq, bytes(head), worker)
            history.logs[run] = []
        for run, seq, kind, at, hash_, body, erased in await self.ask(
            "SELECT run, seq, kind, time, hash, body, erased FROM events ORDER BY run, seq"
        ):
            row = EventRow(run, seq, kind, at, bytes(hash_), _bytes(body), _bytes(erased))
            history.logs.setdefault(run, []).append(row)
        for id_, run, state, answer in await self.ask("SELECT id, run, state, answer FROM questions"):
            given = None if answer is None else json_values.decode(bytes(answer))
            history.questions[id_] = QuestionRow(id_, run, state, given)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


class Cluster:
    """Two servers without slots and two workers, unless somebody wants more."""

    def __init__(self, home: Path, *, servers: int = 2, workers: int = 2) -> None:
        self.home = home
        self.history = History()
        self.postgres = LocalPostgres(home / "postgres", durable=False)
        self.nats = LocalNats(home / "nats")
        self.watcher = Watcher(self.postgres, self.history)
        self.servers: list[Process] = []
        self.workers: list[Process] = []
        self.addresses: list[str] = []
        self.within = LEASE + SLACK  # seconds in which runs must be taken over
        self._counts = servers, workers
        self._also: list[Callable[[], Awaitable[None]]] = []

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await asyncio.gather(asyncio.to_thread(self.postgres.start), asyncio.to_thread(self.nats.start))
        servers, workers = self._counts
        for number in range(servers):
            await self.add_server(number)
        await asyncio.gather(*(self.add_worker(number) for number in range(workers)))
        self.watcher.start()

    def store(self, at: str | None = None) -> str:
        url = self.postgres.url
        if at is not None:
            url = url.replace(f"@127.0.0.1:{self.postgres.port}/", f"@{at}/")
        return f"{url}?lease={LEASE:g}"

    def environment(self, *, store: str | None = None, bus: str | None = None) -> dict[str, str]:
        """`store`: the host and port at which a process finds PostgreSQL. `bus`: where it finds the bus."""
        return {**clean_env(), "INTERLINGUA_STORE": self.store(store), "INTERLINGUA_BUS": bus or self.nats.url}

    async def add_server(self, number: int, **where: Any) -> Process:
        port = free_port()
        args = ["serve", str(AGENTS), "--port", str(port), "--no-peer-ports", "--limits-max-running", "0"]
        process = Process(f"server {number}", [*args, "--limits-shutdown-grace", "1"], self.environment(**where))
        self.servers.append(process)
        self.addresses.append(f"http://127.0.0.1:{port}")
        await process.start("Ctrl-C stops")
        return process

    async def add_worker(self, number: int, *, command: Sequence[str] = COMMAND, **where: Any) -> Process:
        args = ["worker", str(AGENTS), "--limits-shutdown-grace", "1"]
        process = Process(f"worker {number}", args, self.environment(**where), command)
        self.workers.append(process)
        await process.start("Ctrl-C stops")
        return process

    def also(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Something that ends with the cluster, after its processes."""
        self._also.append(stop)

    async def stop(self) -> None:
        await self.watcher.stop()
        await asyncio.gather(*(process.end() for process in [*self.servers, *self.workers]))
        for stop in self._also:
            await stop()
        await asyncio.to_thread(self.nats.stop)
        await asyncio.to_thread(self.postgres.stop)

    # -- faults: each is noted when it is complete ----------------------------------------------------------

    def note(self, what: str, runs: Sequence[str] = (), within: float | None = None, at: float | None = None) -> None:
        self.history.faults.append(Fault(what, at or time.time(), list(runs), within))

    async def kill(self, process: Process, what: str = "kill -9 of a worker") -> list[str]:
        """Returns when it is dead, and those runs that it had."""
        pid = process.pid
        await process.end(signal.SIGKILL)
        at = time.time()
        runs = await self.watcher.owned(pid)  # nobody misses it before its lease has run out
        self.note(what, runs, self.within, at)
        return runs

    async def revive(self, process: Process) -> None:
        await process.start("Ctrl-C stops")

    async def pause(self, process: Process) -> list[str]:
        """SIGSTOP. Returns when it stands still."""
        process.send(signal.SIGSTOP)
        tasks = Path(f"/proc/{process.pid}/task")
        async with asyncio.timeout(PATIENCE):
            while any(_state(task) not in "Tt" for task in tasks.iterdir()):
                await asyncio.sleep(0)
        at = time.time()
        runs = await self.watcher.owned(process.pid)
        self.note("SIGSTOP of a worker", runs, self.within, at)
        return runs

    async def cut(self, process: Process, proxy: Proxy, mode: Mode) -> list[str]:
        """Between a worker and the store."""
        proxy.set(mode)
        at = time.time()
        runs = await self.watcher.owned(process.pid)
        self.note(f"a worker cut off from the store ({mode})", runs, self.within, at)
        return runs

    async def go_on_as_new(self, process: Process, back: Callable[[], object]) -> None:
        """A worker that is taken for dead comes back, and finds out."""
        await self.watcher.buried(process)
        said = len(process.said)
        back()
        await process.hear(r"gave no sign for too long, and lost its \d+ runs", after=said)

    async def restart_postgres(self, away: float = 0.0) -> None:
        """`pg_ctl stop -m immediate`, and start after so many seconds."""
        await asyncio.to_thread(self.postgres.stop, at_once=True)
        await asyncio.sleep(away)
        await asyncio.to_thread(self.postgres.start)

    async def lose_nats(self) -> None:
        """Killed, with all that it kept."""
        await asyncio.to_thread(self.nats.kill)
        shutil.rmtree(self.home / "nats", ignore_errors=True)

    # -- what came of it ----------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Every run has ended, and all that the store holds is in the history."""
        async with asyncio.timeout(PATIENCE):
            while await self.watcher.ask(
                "SELECT 1 FROM runs WHERE status NOT IN ('succeeded', 'failed', 'cancelled', 'timed_out') LIMIT 1"
            ):
                await asyncio.sleep(LOOK_EVERY)
        await self.watcher.gather()


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # a thread that has ended stands still
        return "T"


@contextlib.asynccontextmanager
async def broken(**settings: Any) -> AsyncIterator[Cluster]:
    """A cluster that is up, to be broken."""
    with open_folder() as home:
        cluster = Cluster(home, **settings)
        try:
            await cluster.start()
            yield cluster
        except BaseException:
            for process in [*cluster.servers, *cluster.workers]:
                print(f"--- {process.name}\n{process.said[-4000:]}")
            raise
        finally:
            await cluster.stop()

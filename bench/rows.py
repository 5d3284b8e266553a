"""What PostgreSQL reads for each thing that is asked of the store, with a hundred thousand runs in it and with ten
million: pages, as EXPLAIN (ANALYZE, BUFFERS) counts them, for the very statements that the store sends.

Not part of `python -m bench`, since it fills 10 GB of disk for some minutes: `python -m bench.rows`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from rich.console import Console
from rich.table import Table

from interlingua.model.filters import QuestionFilter, RunFilter, ThreadFilter
from interlingua.model.status import Status
from interlingua.server.dev.local_servers import LocalPostgres
from interlingua.store.postgres import writer
from interlingua.store.postgres.connection import POSTGRES, PostgresConnection, translated
from interlingua.store.postgres.store import PostgresStore
from interlingua.store.rows import WorkerRow
from interlingua.store.sql.dialect import Pipelined

from .measure import disk_folder
from .rows_fill import NOW, RARE, fill, run_id

_SMALL, _LARGE = 100_000, 10_000_000
_ASKED = 2.0  # times the pages, for a hundred times the rows: a B-tree of that size is one or two levels deeper
_FEW = 200  # pages more are no matter, whatever the ratio: a hundred rows that are found are on as many
_SETTINGS = (
    "shared_buffers=1GB", "maintenance_work_mem=1GB", "work_mem=64MB", "max_wal_size=8GB", "wal_level=minimal",
    "max_wal_senders=0", "autovacuum=off", "synchronous_commit=off", "max_parallel_workers_per_gather=0", "jit=off",
)  # fmt: skip


class Statement(msgspec.Struct):
    """One that was sent, and what it cost."""

    sql: str
    pages: int
    milliseconds: float
    plan: Any


class _Never:
    """Nothing is one."""


class Looking:
    """While it is entered, every statement of a store is explained before it is carried out: with the values that it
    has, and once more as PostgreSQL plans it without knowing them, which is what it may do with statements that are
    prepared. The worse of the two counts."""

    def __init__(self) -> None:
        self.seen: list[Statement] = []
        self._names = itertools.count()

    def __enter__(self) -> Looking:
        self._execute = PostgresConnection.execute
        looking = self

        def execute(conn: PostgresConnection, sql: str, args: Sequence[Any] = (), /) -> Any:
            looking.explain(conn.raw, sql, args)
            return looking._execute(conn, sql, args)

        PostgresConnection.execute = execute  # type: ignore[method-assign]
        # What is explained in between has to be waited for.
        self._together = POSTGRES.together
        writer.Pipelined = _Never  # type: ignore[attr-defined, assignment]
        POSTGRES.together = lambda conn: contextlib.nullcontext()  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        PostgresConnection.execute = self._execute  # type: ignore[method-assign]
        writer.Pipelined = Pipelined  # type: ignore[attr-defined]
        POSTGRES.together = self._together  # type: ignore[method-assign]

    def explain(self, raw: psycopg.Connection[Any], sql: str, args: Sequence[Any]) -> None:
        if not sql.startswith(("SELECT", "UPDATE", "DELETE", "INSERT", "WITH")):
            return
        changes = not sql.startswith("SELECT")
        found = []
        # Where nothing is ever prepared, every statement is planned for its values.
        ways = (self._with_values,) if raw.prepare_threshold is None else (self._with_values, self._without)
        for way in ways:
            with _undone(raw) if changes else contextlib.nullcontext():
                found.append(way(raw, sql, args))
        self.seen.append(max(found, key=lambda one: one.pages))

    def _with_values(self, raw: psycopg.Connection[Any], sql: str, args: Sequence[Any]) -> Statement:
        row = raw.cursor().execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {translated(sql)}", args).fetchone()
        return _statement(sql, row)

    def _without(self, raw: psycopg.Connection[Any], sql: str, args: Sequence[Any]) -> Statement:
        name = f"looked_{next(self._names)}"
        parts = sql.split("?")
        numbered = "".join(f"{part}${n}" for n, part in enumerate(parts[:-1], 1)) + parts[-1]
        raw.execute(f"PREPARE {name} AS {numbered}".encode())
        try:
            raw.execute("SET plan_cache_mode=force_generic_plan")
            given = f"({', '.join(['%s'] * len(args))})" if args else ""
            cursor = psycopg.ClientCursor(raw)
            row = cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name}{given}", args).fetchone()
            return _statement(sql, row)
        finally:
            raw.execute("SET plan_cache_mode=auto")
            raw.execute(f"DEALLOCATE {name}".encode())


def _statement(sql: str, row: Any) -> Statement:
    top = row[0][0]
    plan = top["Plan"]
    return Statement(sql, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], top["Execution Time"], plan)


@contextlib.contextmanager
def _undone(raw: psycopg.Connection[Any]) -> Iterator[None]:
    """Whatever is done meanwhile is taken back."""
    own = raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    raw.execute("BEGIN" if own else "SAVEPOINT looked")
    try:
        yield
    finally:
        raw.execute("ROLLBACK" if own else "ROLLBACK TO SAVEPOINT looked")


# -- what is asked of a store ------------------------------------------------------------------------------


def _operations(store: PostgresStore, runs: int) -> dict[str, Callable[[], Awaitable[Any]]]:
    middle = run_id(runs // 2 // 1000 * 1000 + 1)
    thread = f"thread-{runs // 20}"
    ids = itertools.count(random.randrange(10, runs // 10))  # those of an earlier time may be gone

    async def claim(agents: list[str]) -> None:
        rows = await store.claims.claim("bench", agents, NOW, 10)
        await store.claims.release("bench", [row.id for row in rows])

    def search(**where: Any) -> Callable[[], Awaitable[Any]]:
        return lambda: store.runs.search(RunFilter(**where))

    def threads(**where: Any) -> Callable[[], Awaitable[Any]]:
        return lambda: store.threads.search(ThreadFilter(**where))

    def questions(**where: Any) -> Callable[[], Awaitable[Any]]:
        return lambda: store.questions.search(QuestionFilter(**where))

    failed, waiting = [Status.FAILED], [Status.WAITING]
    return {
        "claim: ten of those that are due": lambda: claim(["agent-1@1.0", "agent-2@1.0"]),
        "claim: an agent with nothing due": lambda: claim(["agent-nowhere@1.0"]),
        "claim: a rare agent, behind many of others": lambda: claim([f"{RARE}@1.0"]),
        "when is something due next": lambda: store.claims.next_wake(["agent-1@1.0"]),
        "when, for an agent with nothing": lambda: store.claims.next_wake(["agent-nowhere@1.0"]),
        "how many wait": lambda: store.runs.count_pending(100),
        "hand back what the dead had": store.claims.bury,
        "what a worker owns": lambda: store.claims.owned("worker-1"),
        "its inboxes": lambda: store.claims.owned_with_news("worker-1"),
        "a run": lambda: store.runs.get(middle),
        "its events": lambda: store.runs.events(middle, 0, 100),
        "whether it is known": lambda: store.runs.known(middle),
        "runs: newest": search(),
        "runs: of a caller": search(caller="caller-1"),
        "runs: of a caller with few": search(caller=RARE),
        "runs: of an agent": search(agent="agent-1"),
        "runs: of a rare agent": search(agent=RARE),
        "runs: that failed": search(status=failed),
        "runs: that wait": search(status=waiting),
        "runs: that are under way": search(status=[Status.PENDING, Status.RUNNING, Status.WAITING]),
        "runs: of a caller, that failed": search(caller="caller-1", status=failed),
        "runs: of a caller, that wait": search(caller="caller-2", status=waiting),
        "runs: of an agent, that failed": search(agent="agent-1", status=failed),
        "runs: of an agent, that wait": search(agent="agent-2", status=waiting),
        "runs: of a caller and an agent": search(caller="caller-1", agent=RARE),
        "runs: of both, that failed": search(caller="caller-1", agent=RARE, status=failed),
        "runs: by metadata that one has": search(metadata={"ticket": "looked-for"}),
        "runs: of a caller, by metadata": search(caller="caller-1", metadata={"ticket": "looked-for"}),
        "runs: of a caller, by what many have": search(caller="caller-1", metadata={"env": "prod"}),
        "runs: of one with few, by what many have": search(caller=RARE, metadata={"env": "prod"}),
        "runs: by metadata that many have": search(metadata={"env": "prod"}),
        "runs: on a thread": search(thread=thread),
        "runs: below a run": search(root=middle),
        "a thread": lambda: store.threads.get(thread),
        "threads: newest": threads(),
        "threads: of a caller": threads(caller="caller-1"),
        "threads: of a caller with few": threads(caller=RARE),
        "threads: that are busy": threads(status="busy"),
        "threads: that wait for an answer": threads(status="interrupted"),
        "threads: that failed": threads(status="error"),
        "threads: by metadata that one has": threads(metadata={"ticket": "looked-for"}),
        "threads: of a caller, by metadata": threads(caller="caller-1", metadata={"ticket": "looked-for"}),
        "threads: by values that one has": threads(values={"name": "looked-for"}),
        "its history": lambda: store.threads.history(thread, before=None, limit=10),
        "its messages": lambda: store.threads.messages(thread),
        "questions: open": questions(),
        "questions: of a run": questions(run=middle),
        "questions: of a caller": questions(caller="caller-1"),
        "questions: what changed": questions(after=10, state=None, limit=100),
        "when somebody is reminded next": store.questions.next_reminder,
        "clean up runs": lambda: store.runs.expire(runs_before=NOW, threads_before=None, now=NOW, limit=10),
        "clean up runs, with nothing old": lambda: store.runs.expire(
            runs_before=1, threads_before=None, now=NOW, limit=10
        ),
        "clean up threads": lambda: store.runs.expire(runs_before=None, threads_before=NOW, now=NOW, limit=10),
        "delete a run": lambda: store.runs.delete(run_id(runs // 3 + next(ids)), NOW),
    }


async def _look(url: str, runs: int, only: str, verbose: bool) -> dict[str, list[Statement]]:
    found: dict[str, list[Statement]] = {}
    store = PostgresStore(url)
    await store.open()
    try:
        await store.claims.enter(WorkerRow("bench", "here", 1, NOW, []))
        for name, operation in _operations(store, runs).items():
            if only not in name:
                continue
            await operation()  # once without being looked at: what it finds on the way is put in order
            with Looking() as looking:
                await operation()
            found[name] = looking.seen
            if verbose:
                for one in looking.seen:
                    print(f"-- {name}: {one.pages} pages, {one.milliseconds:.2f} ms\n{one.sql}")
                    print(msgspec.json.format(msgspec.json.encode(_short(one.plan))).decode())
    finally:
        await store.close()
    return found


_KEPT = ("Node Type", "Index Name", "Index Cond", "Filter", "Rows Removed by Filter", "Actual Rows", "Plans",
         "Relation Name", "Shared Hit Blocks", "Shared Read Blocks")  # fmt: skip


def _short(plan: dict[str, Any]) -> dict[str, Any]:
    return {
        key: [_short(one) for one in value] if key == "Plans" else value
        for key, value in plan.items() if key in _KEPT
    }  # fmt: skip


def _sum(statements: list[Statement]) -> tuple[int, float]:
    return sum(one.pages for one in statements), sum(one.milliseconds for one in statements)


def _table(small: dict[str, list[Statement]], large: dict[str, list[Statement]], sizes: tuple[int, int]) -> list[str]:
    table = Table("asked of the store", "statements", f"pages at {sizes[0]:,}", f"at {sizes[1]:,}", "ratio", "ms", "")
    for column in range(1, 6):
        table.columns[column].justify = "right"
    missed = []
    for name, statements in large.items():
        before, _ = _sum(small[name])
        after, took = _sum(statements)
        holds = after <= max(before * _ASKED, before + _FEW)
        if not holds:
            missed.append(name)
        verdict = "reached" if holds else "MISSED"
        ratio = f"{after / max(before, 1):.2f}"
        table.add_row(name, str(len(statements)), f"{before:,}", f"{after:,}", ratio, f"{took:.2f}", verdict)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rows", description=__doc__)
    parser.add_argument("--runs", type=int, default=_LARGE, metavar="N", help=f"the larger number ({_LARGE:,})")
    parser.add_argument("--only", default="", metavar="TEXT", help="only what has this in its name")
    parser.add_argument("--folder", type=Path, metavar="F", help="keep the databases here, and use them again")
    parser.add_argument("--plans", action="store_true", help="print every statement with its plan")
    parser.add_argument("--beside", type=int, default=_SMALL, metavar="N", help=f"the smaller number ({_SMALL:,})")
    options = parser.parse_args()
    sizes = (options.beside, options.runs)
    with contextlib.ExitStack() as stack:
        folder = options.folder or stack.enter_context(disk_folder())
        folder.chmod(0o711)  # where root starts it, PostgreSQL is somebody else
        server = LocalPostgres(folder / "postgres", durable=False, settings=_SETTINGS)
        server.start()
        stack.callback(server.stop)
        found = []
        for size in sizes:
            url = f"{server.url}?schema=rows_{size}"
            begun = time.perf_counter()
            if asyncio.run(fill(url, f"rows_{size}", size)):
                print(f"{size:,} runs are in after {time.perf_counter() - begun:.0f} s", flush=True)
            found.append(asyncio.run(_look(url, size, options.only, options.plans)))
    missed = _table(found[0], found[1], sizes)
    ratios = [_sum(found[1][name])[0] / max(_sum(found[0][name])[0], 1) for name in found[1]]
    print(f"{len(missed)} of {len(ratios)} missed; ratio in the middle {statistics.median(ratios):.2f}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

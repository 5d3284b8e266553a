"""Claims as SQL: workers, the runs that they take and hand back, and the project and queues that runs belong to.

The functions run in the writer's thread, many in one commit, so each one checks first and writes then: what it refuses
has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from ...model import hash_chain, json_values, run_identity
from ...model.errors import AlreadyFinished, Conflict, RunNotFound
from ...model.events import KINDS, RunCreated, RunMoved, body_decoder, body_encoder
from ..rows import (
    EVENT_COLUMNS,
    SUSPECT,
    BlockedLine,
    EventRow,
    Found,
    MoveTo,
    ProjectRow,
    QueueCount,
    RunRow,
    WorkerRow,
)
from .admission import make_way
from .claim_order import ANY_IN_LINE, IN_LINE, LATER, executes_suspect, following, stand
from .database import Database
from .dialect import FINAL_SQL, RUN, RUN_COLUMNS, Connection, Pipelined, insert, run_row
from .json_search import STUCK
from .runs import EVENT, event
from .threads import lock_thread, place_in_line

_SMALL_EVENT = 64 * 1024  # bytes; a run with a larger event is read by itself
_FEW = 9  # the place of the next event of a run of which all is read when it is claimed
TAKE = "UPDATE runs SET worker=?, wake_at=NULL, epoch=epoch+1, blocked_reason=NULL"
_BLOCKED = f"blocked IS NOT NULL AND status NOT IN {FINAL_SQL}"

_ENDING = "status='cancelling'"
_OPEN_QUEUES = (
    f"SELECT origin, agent, version, count(*) FROM runs WHERE status NOT IN {FINAL_SQL} "
    "GROUP BY queue, origin, agent, version ORDER BY queue"
)


class Liveness(Protocol):
    """Knows which workers live. Each kind of database has its own way."""

    missed_after: float

    async def enter(self, worker: WorkerRow) -> None: ...

    async def leave(self, worker: str) -> None: ...

    async def dead(self) -> list[str]: ...

    async def bury(self) -> list[str]: ...

    def lives(self, conn: Connection, worker: str) -> bool:
        """Returns true if a worker may take something now."""
        ...


class SqlClaims:
    """Workers and what they own."""

    def __init__(self, database: Database, liveness: Liveness) -> None:
        self._database = database
        self._liveness = liveness
        self.missed_after = liveness.missed_after
        self.on_lost: Callable[[str], None] = lambda worker: None

    # -- workers ------------------------------------------------------------------------------------------

    async def enter(self, worker: WorkerRow) -> None:
        await self._liveness.enter(worker)

    async def leave(self, worker: str) -> None:
        await self._liveness.leave(worker)

    async def dead(self) -> list[str]:
        """Returns workers that died and are not buried yet."""
        return await self._liveness.dead()

    async def bury(self) -> list[str]:
        """Hands back the runs of workers that died. Returns those workers."""
        return await self._liveness.bury()

    async def workers(self) -> list[WorkerRow]:
        rows = await self._database.read(
            lambda conn: conn.execute("SELECT id, host, pid, started_at, queues FROM workers").fetchall()
        )
        return [WorkerRow(row[0], row[1], row[2], row[3], json_values.decode(row[4])) for row in rows]

    async def serve(self, worker: str, queues: list[str]) -> None:
        await self._database.write(
            lambda conn: conn.execute("UPDATE workers SET queues=? WHERE id=?", (json_values.encode(queues), worker)),
            [("worker", worker)],
        )

    async def claim(
        self, worker: str, agents: list[str], now: int, limit: int, *,
        at_most: Sequence[tuple[Sequence[str], int]] = (), found: dict[str, Found] | None = None,
    ) -> list[RunRow]:  # fmt: skip
        """Claims runs that are due. Of the suspects, one at a time."""
        contents = Contents() if found is not None else None

        def take(conn: Connection) -> list[RunRow]:
            if not self._liveness.lives(conn, worker):
                return []
            return claim(conn, worker, agents, now, limit, at_most, contents)

        rows: list[RunRow] = await self._database.write(Pipelined(take))
        if found is not None and contents is not None:
            for each in sorted(map(event, contents.events), key=lambda each: each.seq):
                found.setdefault(each.run, Found([], each.run in contents.news)).events.append(each)
        return rows

    async def claim_one(self, worker: str, run: str) -> RunRow | None:
        """Claims a run without an owner, whatever its agent: to end it."""
        row: RunRow | None = await self._database.write(
            lambda conn: take(conn, worker, run) if self._liveness.lives(conn, worker) else None, [("run", run)]
        )
        return row

    async def next_wake(self, agents: list[str]) -> int | None:
        """Returns the time at which a run of one of these is due; 0 if one is due now."""
        one_of_these = self._database.dialect.each_of("mine")
        row = await self._database.read(
            lambda conn: conn.execute(
                f"SELECT min(CASE WHEN {ANY_IN_LINE} THEN 0 ELSE "
                f"(SELECT wake_at FROM runs WHERE {LATER} AND queue=mine.value ORDER BY wake_at LIMIT 1) END) "
                f"FROM {one_of_these}",
                (conn.dialect.many(agents),),
            ).fetchone()
        )
        return None if row is None else row[0]

    async def owned(self, worker: str) -> list[str]:
        """Lists the runs whose rows name a worker as the owner."""
        rows = await self._database.read(
            lambda conn: conn.execute("SELECT id FROM runs WHERE worker=?", (worker,)).fetchall()
        )
        return [row[0] for row in rows]

    async def release(self, worker: str, runs: list[str], *, crashed: bool = False) -> None:
        """Hands runs back. A worker that still takes itself for the owner of one cannot write any more."""
        await self._database.write(
            lambda conn: conn.executemany(
                "UPDATE runs SET worker=NULL, wake_at=0, epoch=epoch+1, crashes=crashes+? WHERE id=? AND worker=?",
                [(int(crashed), run, worker) for run in runs],
            ),
            [("run", run) for run in runs],
        )

    async def owned_with_news(self, worker: str) -> list[str]:
        sql = "SELECT id FROM runs WHERE worker=? AND EXISTS (SELECT 1 FROM inbox WHERE inbox.run=runs.id)"
        rows = await self._database.read(lambda conn: conn.execute(sql, (worker,)).fetchall())
        return [row[0] for row in rows]

    # -- blocked runs -----------------------------------------------------------------------------------------

    async def blocked_lines(self) -> list[BlockedLine]:
        rows = await self._database.read(
            lambda conn: conn.execute(
                f"SELECT queue, blocked, {_ENDING}, min(blocked_reason), "
                f"min(CASE WHEN worker IS NULL THEN wake_at END), count(*) FROM runs WHERE {_BLOCKED} "
                f"GROUP BY queue, blocked, {_ENDING}, blocked_reason IS NULL ORDER BY 1, 2, 3, 4"
            ).fetchall()
        )
        return [BlockedLine(queue, codes, bool(ends), *rest) for queue, codes, ends, *rest in rows]

    async def claim_blocked(self, worker: str, line: BlockedLine, now: int, limit: int, *, due: bool) -> list[RunRow]:
        waits = "blocked_reason IS NOT NULL" if line.reason else "blocked_reason IS NULL"
        wanted = f"{_BLOCKED} AND queue=? AND blocked=? AND worker IS NULL AND {waits}"
        args: list[object] = [line.queue, line.codes]
        if due or not line.reason:
            wanted += " AND wake_at<=?"
            args.append(now)

        def take(conn: Connection) -> list[RunRow]:
            if not self._liveness.lives(conn, worker):
                return []
            sql = f"SELECT {RUN} FROM runs WHERE {wanted} ORDER BY crashes, id LIMIT ?{conn.dialect.skip_locked}"
            candidates = [run_row(row) for row in conn.execute(sql, (*args, limit)).fetchall()]
            rows = candidates[: 1 + sum(row.crashes < SUSPECT for row in candidates)]  # of suspects one at a time
            if rows and rows[-1].crashes >= SUSPECT and executes_suspect(conn, worker):
                rows.pop()
            for row in rows:
                conn.execute(f"{TAKE} WHERE id=?", (worker, row.id))
                row.worker, row.wake_at, row.epoch, row.blocked_reason = worker, None, row.epoch + 1, None
            return rows

        taken: list[RunRow] = await self._database.write(take)
        return taken

    async def blocked_reasons(self) -> list[tuple[str | None, int]]:
        rows: list[tuple[str | None, int]] = await self._database.read(
            lambda conn: conn.execute(
                f"SELECT blocked_reason, count(*) FROM runs WHERE {_BLOCKED} AND {STUCK} GROUP BY 1"
            ).fetchall()
        )
        return rows

    async def due_counts(self, now: int) -> list[tuple[str, int]]:
        lines = " UNION ALL ".join(
            f"SELECT queue, count(*) AS runs FROM runs WHERE {term} GROUP BY queue"
            for term in (IN_LINE, f"{LATER} AND wake_at<=?")
        )
        rows: list[tuple[str, int]] = await self._database.read(
            lambda conn: conn.execute(
                f"SELECT queue, CAST(sum(runs) AS INTEGER) FROM ({lines}) AS lines GROUP BY queue ORDER BY queue",
                (now,),
            ).fetchall()
        )
        return rows

    async def due_runs(self, queue: str, now: int, limit: int) -> list[RunRow]:
        def due(conn: Connection) -> list[RunRow]:
            rows = conn.execute(
                f"SELECT {RUN} FROM runs WHERE {IN_LINE} AND queue=? LIMIT ?", (queue, limit)
            ).fetchall()
            sql = f"SELECT {RUN} FROM runs WHERE {LATER} AND queue=? AND wake_at<=? LIMIT ?"
            return [run_row(row) for row in [*rows, *conn.execute(sql, (queue, now, limit)).fetchall()]]

        return await self._database.read(due)

    async def unblock(self, run: str, now: int) -> bool:
        def unblock(conn: Connection) -> bool:
            values = conn.execute(f"SELECT {RUN} FROM runs WHERE id=?{conn.dialect.for_update}", (run,)).fetchone()
            if values is None:
                raise RunNotFound(f"there is no run {run}")
            row = run_row(values)
            due = row.blocked is not None and row.wake_at == 0
            if row.worker is not None or row.status.final or not (due or row.blocked_reason is not None):
                return False
            conn.execute("UPDATE runs SET blocked=NULL, blocked_reason=NULL WHERE id=?", (run,))
            stand(conn, run, row.queue, row.caller, row.status)
            return True

        done: bool = await self._database.write(unblock, [("run", run)])
        return done

    # -- the project --------------------------------------------------------------------------------------

    async def project(self) -> ProjectRow | None:
        return await self._database.read(_project)

    async def claim_project(self, project: ProjectRow) -> ProjectRow:
        def claim(conn: Connection) -> ProjectRow:
            conn.lock(("project", ""))  # of two at once, the second finds the first
            owner = _project(conn)
            if owner is not None and owner.id != project.id:
                return owner
            conn.execute(
                "INSERT INTO project (id, root, seen_at) VALUES (?,?,?) "
                "ON CONFLICT (id) DO UPDATE SET root=excluded.root, seen_at=excluded.seen_at",
                (project.id, project.root, project.seen_at),
            )
            return project

        owner: ProjectRow = await self._database.write(claim, [("project", "")])
        return owner

    # -- runs that change origin --------------------------------------------------------------------------

    async def move(self, run: str, to: MoveTo) -> RunRow:
        row: RunRow = await self._database.write(lambda conn: _move_run(conn, run, to), [("run", run)])
        return row

    async def open_queues(self) -> list[QueueCount]:
        rows = await self._database.search(lambda conn: conn.execute(_OPEN_QUEUES).fetchall())
        return [QueueCount(*row) for row in rows]

    async def open_runs(self, queue: str) -> list[str]:
        sql = f"SELECT id FROM runs WHERE queue=? AND status NOT IN {FINAL_SQL} ORDER BY id"
        return [row[0] for row in await self._database.search(lambda conn: conn.execute(sql, (queue,)).fetchall())]


def _project(conn: Connection) -> ProjectRow | None:
    row = conn.execute("SELECT id, root, seen_at FROM project LIMIT 1").fetchone()
    return ProjectRow(*row) if row is not None else None


def _move_run(conn: Connection, run: str, to: MoveTo) -> RunRow:
    """Moves a run to another queue. It has no owner, so this transaction writes its log as an owner would."""
    values = conn.execute(f"SELECT {RUN} FROM runs WHERE id=?{conn.dialect.for_update}", (run,)).fetchone()
    if values is None:
        raise RunNotFound(f"there is no run {run}")
    row = run_row(values)
    if row.status.final:
        raise AlreadyFinished(f"run {run} has already {row.status.value.replace('_', ' ')}")
    if row.worker is not None:
        raise Conflict(f"run {run} is executing at worker {row.worker}; stop that process first, then move the run")
    target = run_identity.queue(to.origin, row.agent, to.version)
    if target == row.queue:
        return row
    time, kind = max(to.now, row.updated_at), KINDS[RunMoved]
    body = body_encoder.encode(RunMoved(row.queue, target, to.by))
    head = hash_chain.link(row.head, run, row.next_seq, kind, time, hash_chain.body_hash(body))
    insert(conn, "events", EVENT_COLUMNS, [(run, row.next_seq, kind, time, head, body)])
    due = row.blocked_reason is not None or (row.wake_at == 0 and row.queued is None)
    row.origin, row.queue, row.version = to.origin, target, to.version
    row.head, row.updated_at = head, time
    row.next_seq, row.epoch, row.crashes = row.next_seq + 1, row.epoch + 1, 0
    row.blocked, row.blocked_reason = None, None
    row.wake_at = None if due else row.wake_at  # it leaves the old line before it stands in the new one
    conn.execute(
        "UPDATE runs SET origin=?, queue=?, version=?, head=?, updated_at=?, next_seq=?, epoch=?, crashes=0, "
        "blocked=NULL, blocked_reason=NULL, wake_at=? WHERE id=?",
        (row.origin, target, row.version, head, time, row.next_seq, row.epoch, row.wake_at, run),
    )
    if due:
        stand(conn, run, target, row.caller, row.status)
        row.wake_at = 0
    return row


class Contents:
    """The logs of claimed runs that are short, and the ids of runs with something in their inboxes."""

    events: Sequence[EventRow] = ()
    news: Collection[str] = ()


def claim(
    conn: Connection,
    worker: str,
    agents: list[str],
    now: int,
    limit: int,
    at_most: Sequence[tuple[Sequence[str], int]],
    contents: Contents | None = None,
) -> list[RunRow]:
    """Claims runs that are due, and reads their `contents` while no other process can change them."""
    claimed, mine = list[RunRow](), list[RunRow]()
    for found in following(conn, worker, agents, now, limit, at_most):
        row = run_row(found)
        may = _may_start(conn, row, now)
        if may is not None:
            claimed.append(row)
        if may:
            mine.append(row)
    if not mine:
        return claimed
    ids = conn.dialect.many([row.id for row in mine])
    few = conn.dialect.many([row.id for row in mine if row.next_seq <= _FEW] if contents is not None else [])
    with conn.dialect.together(conn):
        conn.execute(f"{TAKE} WHERE {conn.dialect.any_of('id')}", (worker, ids))
        if contents is not None:
            these = conn.dialect.any_of("run")
            large = f"SELECT run FROM events WHERE {these} AND length(body)>{_SMALL_EVENT}"
            events = conn.execute(f"SELECT {EVENT} FROM events WHERE {these} AND run NOT IN ({large})", (few, few))
            news = conn.execute(f"SELECT run FROM inbox WHERE {conn.dialect.any_of('run')}", (ids,))
    if contents is not None:
        contents.events = [EventRow(*event) for event in events.fetchall()]
        contents.news = {run for (run,) in news.fetchall()}
    for row in mine:
        row.worker, row.wake_at, row.epoch = worker, None, row.epoch + 1
    return claimed


def take(conn: Connection, worker: str, run: str) -> RunRow | None:
    """Claims a run without an owner, due or not."""
    values = conn.execute(f"SELECT {RUN} FROM runs WHERE id=?{conn.dialect.for_update}", (run,)).fetchone()
    if values is None or values[RUN_COLUMNS.index("worker")] is not None:
        return None
    row = run_row(values)
    if row.status.final:
        return None
    conn.execute(f"{TAKE} WHERE id=?", (worker, run))
    row.worker, row.wake_at, row.epoch, row.blocked_reason = worker, None, row.epoch + 1, None
    return row


def _may_start(conn: Connection, row: RunRow, now: int) -> bool | None:
    """Returns true if a run whose turn it is has its thread, or needs none. False: it got in line for the thread, and
    the run before it was asked to give way; None: it must wait."""
    if row.status.final:
        return None
    run = row.id
    if row.thread is not None:
        # A delayed run gets its thread only now. Where that is taken, it does what it was submitted to do then: one
        # that would rather be refused is let in without its thread, and fails.
        lock_thread(conn, row.thread)
        active = conn.execute("SELECT active FROM threads WHERE id=?", (row.thread,)).fetchone()
        if active is not None and active[0] is None:
            conn.execute("UPDATE threads SET active=?, updated_at=? WHERE id=?", (run, now, row.thread))
        elif active is not None and active[0] != run:
            when_busy = _when_busy(conn, run) if row.queued is None else "enqueue"
            if when_busy != "reject":
                row.queued, row.wake_at = place_in_line(conn, row.thread, when_busy, now), None
                conn.execute("UPDATE runs SET queued=?, wake_at=NULL WHERE id=?", (row.queued, run))
                if when_busy == "enqueue":
                    return None
                make_way(conn, active[0], row, when_busy, now)
                return False
    return True


def hand_back(conn: Connection, worker: str, *, crashed: bool) -> None:
    """Hands back the runs of a worker that left or died."""
    # A run that only waited did not bring its process down. For the others this is no more than a suspicion, but for
    # the one suspect among them: only those have so many crashes, and a worker executes one of them at a time.
    blame = "CASE WHEN status<>'waiting' THEN 1 ELSE 0 END" if crashed else "0"
    conn.execute(
        f"UPDATE runs SET worker=NULL, wake_at=0, epoch=epoch+1, crashes=crashes+{blame} WHERE worker=?", (worker,)
    )
    conn.execute("DELETE FROM workers WHERE id=?", (worker,))


def _when_busy(conn: Connection, run: str) -> str:
    """Returns the `when_busy` that a run was submitted with."""
    row = conn.execute("SELECT body FROM events WHERE run=? AND seq=1", (run,)).fetchone()
    created = None if row is None or row[0] is None else body_decoder.decode(row[0])
    return created.request.when_busy if isinstance(created, RunCreated) else "reject"

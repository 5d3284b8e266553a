"""Blocked runs, as SQL: runs that some code could not go on with.

Such a run stands in no line, also when other code goes on with it: the code that could not would take it from there.
"""

from __future__ import annotations

from ...model.errors import RunNotFound
from ..rows import SUSPECT, BlockedLine, RunRow
from .admission import TAKE, run_row
from .claim_order import IN_LINE, LATER, executes_suspect, stand
from .database import FINAL_SQL, RUN, Connection, Queries
from .json_search import STUCK

_BLOCKED = f"blocked IS NOT NULL AND status NOT IN {FINAL_SQL}"

_ENDING = "status='cancelling'"


class BlockedQueries(Queries):
    def _lives(self, conn: Connection, worker: str) -> bool:
        raise AssertionError("given by the store")

    async def blocked_lines(self) -> list[BlockedLine]:
        rows = await self._read(
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
            if not self._lives(conn, worker):
                return []
            sql = f"SELECT {RUN} FROM runs WHERE {wanted} ORDER BY crashes, id LIMIT ?{conn.dialect.skip_locked}"
            found = [run_row(row) for row in conn.execute(sql, (*args, limit)).fetchall()]
            rows = found[: 1 + sum(row.crashes < SUSPECT for row in found)]  # of suspects one at a time
            if rows and rows[-1].crashes >= SUSPECT and executes_suspect(conn, worker):
                rows.pop()
            for row in rows:
                conn.execute(f"{TAKE} WHERE id=?", (worker, row.id))
                row.worker, row.wake_at, row.epoch, row.blocked_reason = worker, None, row.epoch + 1, None
            return rows

        taken: list[RunRow] = await self._write(take)
        return taken

    async def blocked_reasons(self) -> list[tuple[str | None, int]]:
        found: list[tuple[str | None, int]] = await self._read(
            lambda conn: conn.execute(
                f"SELECT blocked_reason, count(*) FROM runs WHERE {_BLOCKED} AND {STUCK} GROUP BY 1"
            ).fetchall()
        )
        return found

    async def due_counts(self, now: int) -> list[tuple[str, int]]:
        lines = " UNION ALL ".join(
            f"SELECT queue, count(*) AS runs FROM runs WHERE {term} GROUP BY queue"
            for term in (IN_LINE, f"{LATER} AND wake_at<=?")
        )
        found: list[tuple[str, int]] = await self._read(
            lambda conn: conn.execute(
                f"SELECT queue, CAST(sum(runs) AS INTEGER) FROM ({lines}) AS lines GROUP BY queue ORDER BY queue",
                (now,),
            ).fetchall()
        )
        return found

    async def due_runs(self, queue: str, now: int, limit: int) -> list[RunRow]:
        def due(conn: Connection) -> list[RunRow]:
            found = conn.execute(
                f"SELECT {RUN} FROM runs WHERE {IN_LINE} AND queue=? LIMIT ?", (queue, limit)
            ).fetchall()
            sql = f"SELECT {RUN} FROM runs WHERE {LATER} AND queue=? AND wake_at<=? LIMIT ?"
            return [run_row(row) for row in [*found, *conn.execute(sql, (queue, now, limit)).fetchall()]]

        return await self._read(due)

    async def unblock(self, run: str, now: int) -> bool:
        def unblock(conn: Connection) -> bool:
            found = conn.execute(f"SELECT {RUN} FROM runs WHERE id=?{conn.dialect.for_update}", (run,)).fetchone()
            if found is None:
                raise RunNotFound(f"there is no run {run}")
            row = run_row(found)
            due = row.blocked is not None and row.wake_at == 0
            if row.worker is not None or row.status.final or not (due or row.blocked_reason is not None):
                return False
            conn.execute("UPDATE runs SET blocked=NULL, blocked_reason=NULL WHERE id=?", (run,))
            stand(conn, run, row.queue, row.caller, row.status)
            return True

        done: bool = await self._write(unblock, [("run", run)])
        return done

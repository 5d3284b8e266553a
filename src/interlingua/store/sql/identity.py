"""Identity of runs as SQL: the project of a store, the cards and origins of its agents, and runs that change origin."""

from __future__ import annotations

import msgspec

from ...model import hash_chain, json_values, run_identity
from ...model.card import AgentCard
from ...model.errors import AlreadyFinished, Conflict, RunNotFound
from ...model.events import KINDS, RunMoved, body_encoder
from ...model.status import Status
from ..rows import EVENT_COLUMNS, MoveTo, ProjectRow, QueueCount, RunRow, StoredCard
from .claim_order import stand
from .database import FINAL_SQL, RUN, Connection, Queries, insert

_cards = msgspec.json.Decoder(AgentCard)
_OPEN_QUEUES = (
    f"SELECT origin, agent, version, count(*) FROM runs WHERE status NOT IN {FINAL_SQL} "
    "GROUP BY queue, origin, agent, version ORDER BY queue"
)


class IdentityQueries(Queries):
    """The part of a store that knows whose code its runs belong to."""

    # -- the project --------------------------------------------------------------------------------------

    async def project(self) -> ProjectRow | None:
        return await self._read(_project)

    async def claim_project(self, project: ProjectRow) -> ProjectRow:
        def claim(conn: Connection) -> ProjectRow:
            conn.lock(("project", ""))  # of two at once, the second finds the first
            found = _project(conn)
            if found is not None and found.id != project.id:
                return found
            conn.execute(
                "INSERT INTO project (id, root, seen_at) VALUES (?,?,?) "
                "ON CONFLICT (id) DO UPDATE SET root=excluded.root, seen_at=excluded.seen_at",
                (project.id, project.root, project.seen_at),
            )
            return project

        found: ProjectRow = await self._write(claim, [("project", "")])
        return found

    # -- runs that change origin --------------------------------------------------------------------------

    async def move(self, run: str, to: MoveTo) -> RunRow:
        row: RunRow = await self._write(lambda conn: _move(conn, run, to), [("run", run)])
        return row

    async def open_queues(self) -> list[QueueCount]:
        rows = await self._search(lambda conn: conn.execute(_OPEN_QUEUES).fetchall())
        return [QueueCount(*row) for row in rows]

    async def open_runs(self, queue: str) -> list[str]:
        sql = f"SELECT id FROM runs WHERE queue=? AND status NOT IN {FINAL_SQL} ORDER BY id"
        return [row[0] for row in await self._search(lambda conn: conn.execute(sql, (queue,)).fetchall())]

    # -- cards --------------------------------------------------------------------------------------------

    async def put_cards(self, cards: list[StoredCard]) -> None:
        rows = [(card.card.name, card.card.version, card.origin, json_values.encode(card.card)) for card in cards]
        await self._write(
            lambda conn: conn.executemany(
                "INSERT INTO cards (name, version, origin, card) VALUES (?,?,?,?) "
                "ON CONFLICT (name, version, origin) DO UPDATE SET card=excluded.card WHERE cards.card<>excluded.card",
                sorted(rows),
            )
        )

    async def card(self, name: str, version: str | None, origin: str | None = None) -> StoredCard | None:
        found = [
            one for one in await self.cards()
            if one.card.name == name and version in (None, one.card.version) and origin in (None, one.origin)
        ]  # fmt: skip
        if not found:
            return None
        newest = [one for one in found if one.card.version == found[-1].card.version]
        return min(newest, key=lambda one: (run_identity.is_mount(one.origin), one.origin))

    async def cards(self) -> list[StoredCard]:
        rows = await self._read(
            lambda conn: conn.execute("SELECT origin, card FROM cards ORDER BY name, version, origin").fetchall()
        )
        return [StoredCard(origin, _cards.decode(card)) for origin, card in rows]


def _project(conn: Connection) -> ProjectRow | None:
    found = conn.execute("SELECT id, root, seen_at FROM project LIMIT 1").fetchone()
    return ProjectRow(*found) if found is not None else None


def _move(conn: Connection, run: str, to: MoveTo) -> RunRow:
    """Nobody owns the run, so this transaction stands in for the owner of its log, as one that claims it would."""
    found = conn.execute(f"SELECT {RUN} FROM runs WHERE id=?{conn.dialect.for_update}", (run,)).fetchone()
    if found is None:
        raise RunNotFound(f"there is no run {run}")
    row = RunRow(*found)
    row.status = Status(row.status)
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

"""Questions as SQL: asking, closing, answering, finding and reminding.

A question is one row, wherever it shows. It is closed `where state='open'`, so that one closer wins. Every change gets
the next number of one count, by which readers follow all changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from ...model import json_values
from ...model.errors import AlreadyAnswered, QuestionNotFound
from ...model.events import RunCreated, body_decoder
from ...model.filters import QuestionFilter
from ...model.run import Answer, Question, QuestionRecord
from ...model.status import Status
from ..changes import PutCallback, PutQuestion
from ..rows import Reminder
from .callbacks import put_callback
from .database import Database
from .dialect import Connection, Lock
from .inbox import put_inbox

R = TypeVar("R")

_COLUMNS = (
    "q.question, q.state, q.path, q.answer, q.by, q.door, q.closed_at, q.reason, q.remind, q.reminded, q.reminded_at, "
    "q.remind_at, q.change"
)
# Every change takes the next number of one count, and no other gets one before that is committed: so a reader that
# follows the changes by their numbers misses none.
COUNT: Lock = ("questions", "")

_questions = msgspec.json.Decoder(Question)
_times = msgspec.json.Decoder(list[int])


def put_question(conn: Connection, put: PutQuestion) -> None:
    q, path = put.question, put.path
    root = path.split("/", 2)[1]
    conn.execute(
        "INSERT INTO questions (id, run, path, root, state, asked_at, question, remind, remind_at, change, answerer, "
        "caller) VALUES (?,?,?,?,?,?,?,?,?,?,?, COALESCE((SELECT caller FROM runs WHERE id=?), ''))",
        (
            q.id, q.run, path, root, "open", q.asked_at, json_values.encode(q),
            json_values.encode(put.remind) if put.remind else None, put.remind[0] if put.remind else None, _next(conn),
            q.answerer, root,
        ),
    )  # fmt: skip


def close_question(conn: Connection, question: str, state: str, reason: str, now: int) -> bool:
    """Closes a question. Returns false if it was closed before."""
    # One statement decides: where two close it, the second finds that it is not open any more.
    done = conn.execute(
        "UPDATE questions SET state=?, reason=?, closed_at=? WHERE id=? AND state='open'",
        (state, reason.replace("\0", "") or None, now, question),
    )
    if done.rowcount == 1:
        _changed(conn, question)
    return done.rowcount == 1


def _changed(conn: Connection, question: str) -> None:
    conn.execute("UPDATE questions SET change=? WHERE id=?", (_next(conn), question))


def _next(conn: Connection) -> int:
    sql = (
        "INSERT INTO counters (kind, name, value) VALUES ('questions', '', 1) "
        "ON CONFLICT (kind, name) DO UPDATE SET value=counters.value+1 RETURNING value"
    )
    return int(conn.execute(sql).fetchone()[0])


def _record(row: Sequence[Any]) -> QuestionRecord:
    question, state, path, answer, by, door, closed_at, reason, remind, reminded, reminded_at, remind_at, change = row
    return QuestionRecord(
        _questions.decode(question), state, path,
        None if answer is None else Answer(json_values.decode(answer), by or "", door or ""),
        closed_at, reason or "", 0 if remind is None else len(_times.decode(remind)), reminded, reminded_at,
        remind_at if state == "open" else None, change,
    )  # fmt: skip


class SqlQuestions:
    """Questions: finding, answering and closing them, and reminders."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def answer(self, question: str, value: Any, by: str, now: int, door: str = "") -> tuple[str, int, str | None]:
        """Answers a question; the first answer wins. Returns the run, the inbox id and the run's owner."""

        def put(conn: Connection, record: QuestionRecord, worker: str | None) -> tuple[str, int, str | None]:
            conn.execute(
                "UPDATE questions SET state='answered', answer=?, by=?, door=?, closed_at=? WHERE id=?",
                (json_values.encode(value), by, door or None, now, question),
            )
            _changed(conn, question)
            run = record.question.run
            body = json_values.encode({"question": question, "answer": Answer(value, by, door)})
            return run, put_inbox(conn, run, "answer", body, now), worker

        return await self._close_open(question, now, put)

    async def withdraw(self, question: str, reason: str, by: str, now: int) -> tuple[str, str | None]:
        """Closes an open question without an answer, and tells its run. Returns the run and its owner."""

        def put(conn: Connection, record: QuestionRecord, worker: str | None) -> tuple[str, str | None]:
            close_question(conn, question, "withdrawn", reason, now)
            run = record.question.run
            put_inbox(
                conn, run, "withdraw", json_values.encode({"question": question, "reason": reason, "by": by}), now
            )
            return run, worker

        return await self._close_open(question, now, put)

    async def _close_open(
        self, question: str, now: int, put: Callable[[Connection, QuestionRecord, str | None], R]
    ) -> R:
        """Closes a question by `put`, in one transaction. Raises AlreadyAnswered where it is not open any more."""

        def decide(conn: Connection) -> R | AlreadyAnswered:
            if conn.dialect.for_update:
                # The run before its question, which is the order in which its owner locks them.
                conn.execute(
                    f"SELECT 1 FROM runs WHERE id=(SELECT run FROM questions WHERE id=?){conn.dialect.for_update}",
                    (question,),
                )
            row = conn.execute(
                f"SELECT {_COLUMNS}, r.worker FROM questions q JOIN runs r ON r.id=q.run WHERE q.id=?"
                f"{conn.dialect.for_update}",
                (question,),
            ).fetchone()
            if row is None:
                raise QuestionNotFound(f"there is no question {question}")
            record, worker = _record(row[:-1]), row[-1]
            late = record.question.deadline
            if record.state == "open" and late is not None and late <= now:
                # The owner of its run has not said so yet, or the run has no owner.
                close_question(conn, question, "expired", "", now)
                record.state = "expired"
            if record.state != "open":
                return record.too_late()  # not raised: what was closed here stays closed
            return put(conn, record, worker)

        locks: list[Lock] = [COUNT]
        if self._database.dialect.for_update:
            sql = "SELECT run FROM questions WHERE id=?"
            run_of = await self._database.read(lambda conn: conn.execute(sql, (question,)).fetchone())
            locks += [("run", run) for run in run_of or ()]
        result: R | AlreadyAnswered = await self._database.write(decide, locks)
        if isinstance(result, AlreadyAnswered):
            raise result
        return result

    async def close(self, question: str, state: str, now: int, reason: str = "") -> bool:
        """Closes a question. Returns false if it was closed before."""
        closed: bool = await self._database.write(
            lambda conn: close_question(conn, question, state, reason, now), [COUNT]
        )
        return closed

    # -- finding ------------------------------------------------------------------------------------------

    async def get(self, question: str) -> QuestionRecord | None:
        sql = f"SELECT {_COLUMNS} FROM questions q WHERE q.id=?"
        row = await self._database.read(lambda conn: conn.execute(sql, (question,)).fetchone())
        return None if row is None else _record(row)

    async def search(self, where: QuestionFilter) -> list[QuestionRecord]:
        """Finds questions, oldest first, or in the order of their changes. Those of a run include its descendants'."""
        terms, args = ["1=1"], list[Any]()
        if where.state == "open":
            terms.append("q.state='open'")  # in words: only then is it known that the index of open ones will do
        elif where.state is not None:
            terms.append("q.state=?")
            args.append(where.state)
        if where.run is not None:
            terms.append(
                "q.root=COALESCE((SELECT substr(path, 2, 36) FROM runs WHERE id=? AND path<>''), ?) "
                f"AND {self._database.dialect.position}(q.path, ?)>0"
            )
            args.extend([where.run, where.run, f"/{where.run}/"])
        if where.caller is not None:
            if not where.anyones:
                terms.append("q.caller=?")
                args.append(where.caller)
            terms.append("(q.answerer IS NULL OR q.answerer=?)")
            args.append(where.caller)
        if where.after is not None:
            terms.append("q.change>?")
            args.append(where.after)
        order = "q.asked_at, q.id" if where.after is None else "q.change"
        if where.newest:
            order = "q.change DESC"
        sql = f"SELECT {_COLUMNS} FROM questions q WHERE {' AND '.join(terms)} ORDER BY {order} LIMIT ?"
        rows = await self._database.read(lambda conn: conn.execute(sql, [*args, where.limit]).fetchall())
        return [_record(row) for row in rows]

    async def last_change(self) -> int:
        sql = "SELECT value FROM counters WHERE kind='questions' AND name=''"
        row = await self._database.read(lambda conn: conn.execute(sql).fetchone())
        return 0 if row is None else int(row[0])

    async def count_open(self) -> list[tuple[str, int, int]]:
        sql = (
            "SELECT r.agent, count(*), min(q.asked_at) FROM questions q JOIN runs r ON r.id=q.run "
            "WHERE q.state='open' GROUP BY r.agent ORDER BY r.agent"
        )
        return [
            (agent, count, oldest)
            for agent, count, oldest in await self._database.read(lambda c: c.execute(sql).fetchall())
        ]

    # -- reminding ----------------------------------------------------------------------------------------

    async def claim_reminders(self, now: int, limit: int, formats: Sequence[str]) -> list[Reminder]:
        claimed: list[Reminder] = await self._database.write(lambda conn: _claim(conn, now, limit, formats), [COUNT])
        return claimed

    async def next_reminder(self) -> int | None:
        sql = "SELECT min(remind_at) FROM questions WHERE state='open' AND remind_at IS NOT NULL"
        row = await self._database.read(lambda conn: conn.execute(sql).fetchone())
        return None if row is None else row[0]


def _claim(conn: Connection, now: int, limit: int, formats: Sequence[str]) -> list[Reminder]:
    rows = conn.execute(
        f"SELECT {_COLUMNS}, r.agent FROM questions q JOIN runs r ON r.id=q.run "
        "WHERE q.state='open' AND q.remind_at<=? ORDER BY q.remind_at LIMIT ?"
        f"{conn.dialect.skip_locked_of('q')}",
        (now, limit),
    ).fetchall()
    claimed: list[Reminder] = []
    for row in rows:
        record, times = _record(row[:-1]), _times.decode(row[8])
        left = [time for time in times if time > now]
        record.reminded, record.reminded_at = len(times) - len(left), now
        record.remind_at = left[0] if left else None
        record.change = _next(conn)
        conn.execute(
            "UPDATE questions SET reminded=?, reminded_at=?, remind_at=?, change=? WHERE id=?",
            (record.reminded, now, record.remind_at, record.change, record.question.id),
        )
        late = record.question.deadline
        if late is not None and late <= now:
            continue  # it has expired, and the owner of its run will say so
        claimed.append(Reminder(record, row[-1], record.reminded, len(times)))
        for run in record.runs:
            _remind_callback(conn, run, now, formats)
    return claimed


def _remind_callback(conn: Connection, run: str, now: int, formats: Sequence[str]) -> None:
    """Queues another callback that says that the run waits."""
    sql = (
        "SELECT body FROM events WHERE run=? AND seq=1 AND EXISTS (SELECT 1 FROM runs WHERE id=? AND status='waiting')"
    )
    body = conn.execute(sql, (run, run)).fetchone()
    created = None if body is None or body[0] is None else body_decoder.decode(body[0])
    callback = created.request.callback if isinstance(created, RunCreated) else None
    if callback is not None and callback.format in formats:
        put_callback(conn, PutCallback(run, callback.url, callback.format, Status.WAITING), now)

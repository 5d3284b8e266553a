"""The ceiling of a durable run: its rows, inserted into the same schema with the same pragmas by a bare loop."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from interlingua.engine.ids import new_id
from interlingua.store.sqlite.connection import connect
from interlingua.store.sqlite.migration import migrate

Row = tuple[Any, ...]
Rows = list[tuple[Row, list[Row]]]  # a run, and its events


def real_rows(store: Path, limit: int = 50) -> Rows:
    """Rows as the engine wrote them."""
    conn = sqlite3.connect(store)
    try:
        runs = conn.execute("SELECT * FROM runs WHERE status='succeeded' LIMIT ?", (limit,)).fetchall()
        return [
            (run, conn.execute("SELECT * FROM events WHERE run=? ORDER BY seq", (run[0],)).fetchall()) for run in runs
        ]
    finally:
        conn.close()


def copies(rows: Rows, count: int) -> Rows:
    """`count` runs like these, with ids of their own."""
    made: Rows = []
    for at in range(count):
        run, events = rows[at % len(rows)]
        name = new_id()
        made.append(((name, *run[1:]), [(name, *event[1:]) for event in events]))
    return made


class Raw:
    """A file with the real schema, and nothing between it and the caller."""

    def __init__(self, path: Path, template: Rows) -> None:
        migrate(path)
        self.template = template
        self.conn = connect(path)
        run, events = template[0]
        self._insert_run = f"INSERT INTO runs VALUES ({','.join('?' * len(run))})"
        self._insert_event = f"INSERT INTO events VALUES ({','.join('?' * len(events[0]))})"

    def insert(self, count: int, per_transaction: int) -> float:
        """Runs per second, where `per_transaction` runs share a commit."""
        rows = copies(self.template, count)
        batches = []
        for at in range(0, count, per_transaction):
            part = rows[at : at + per_transaction]
            batches.append(([run for run, _ in part], [event for _, events in part for event in events]))
        conn = self.conn
        begun = time.perf_counter()
        for runs, events in batches:
            conn.execute("BEGIN IMMEDIATE")
            conn.executemany(self._insert_run, runs)
            conn.executemany(self._insert_event, events)
            conn.execute("COMMIT")
        return count / (time.perf_counter() - begun)

    def commit(self) -> float:
        """Seconds of one transaction with one run and one event."""
        ((run, events),) = copies(self.template[:1], 1)
        conn = self.conn
        begun = time.perf_counter()
        conn.execute("BEGIN IMMEDIATE")
        conn.execute(self._insert_run, run)
        conn.execute(self._insert_event, events[0])
        conn.execute("COMMIT")
        return time.perf_counter() - begun

    def close(self) -> None:
        self.conn.close()

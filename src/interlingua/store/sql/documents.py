"""Documents, letters, feeds and links as SQL: queueing changes, reading in order, and deleting.

`document_writes` turns changes into SQL. A read follows an index to the rows that it returns, and reads no others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from ...model.documents import Change, Document, FeedEntry, Follow, Letter, OnWritten, Tell, WriteResult
from ...model.errors import InterlinguaError, NotFound, StoreError
from ..ports import settle
from ..rows import TOLD_BYTES
from .database import Database
from .dialect import Connection, Dialect, Lock, check_indexed
from .document_writes import LETTER, Unit, chunks, find_letter, keep, marks, touched

_MOST = 2000  # lists of changes per transaction: others wait for it
_TRIMMED = 2000  # news per transaction
_NO_NUMBER = 2**62  # no letter has a number as high as this
_BY_STATE = {"documents": "documents_state", "letters": "letters_ranked"}
_DOCUMENT = ", ".join(Document.__struct_fields__)
_SMALL = 64 * 1024  # bytes
_PEEK = (
    f"SELECT {', '.join(Document.__struct_fields__[:-1])}, CASE WHEN length(body)<={_SMALL} THEN body END "
    "FROM documents WHERE space=? AND id=?"
)
_ENTRY = ", ".join(FeedEntry.__struct_fields__)


# A list of changes, its future, and a callback that is called before it resolves.
_Queued = tuple[Unit, asyncio.Future[WriteResult], OnWritten | None]


class SqlDocuments:
    """Documents, letters, feeds and links: what doors keep beside runs and threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queued: deque[_Queued] = deque()  # not taken by the writer's thread yet
        self._gathering = False  # the writer has a call for them

    # -- writing ------------------------------------------------------------------------------------------

    def write(self, changes: Sequence[Change], heed: OnWritten | None = None) -> asyncio.Future[WriteResult]:
        if not self._gathering:
            self._gather()
        future: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        self._queued.append(((tuple(changes), self._database.clock.now()), future, heed))
        return future

    def _gather(self) -> None:
        """Queues one call for all lists: it takes those that are queued when its turn comes."""
        taken: list[_Queued] = []
        units: list[Unit] = []
        light = False

        def take() -> set[Lock]:
            # A call that is tried again begins with the lists that it had. A call that need not wait for the disk takes
            # no list that must be on disk.
            while self._queued and len(units) < _MOST and not light:
                queued = self._queued.popleft()
                taken.append(queued)
                units.append(queued[0])
            return touched(units)

        def only_output() -> bool:
            nonlocal light
            take()
            light = all(_is_only_output(changes) for changes, _ in units)
            return light

        def apply(conn: Connection) -> list[WriteResult | InterlinguaError]:
            take()
            return keep(conn, units)

        def done(call: asyncio.Future[list[WriteResult | InterlinguaError]]) -> None:
            error = call.exception()
            if error is not None:
                if not taken:  # it never had its turn: everybody has waited for nothing
                    taken.extend(self._queued)
                    self._queued.clear()
                for _, future, _ in taken:
                    settle(future, None, error)
            else:
                _hand_out(taken, call.result())
            self._gathering = False
            if self._queued:
                try:
                    self._gather()
                except StoreError as closed:
                    while self._queued:
                        settle(self._queued.popleft()[1], None, closed)

        self._database.write(apply, take, only_output).add_done_callback(done)
        self._gathering = True

    def waiting(self) -> int:
        """Counts the lists of changes that the writer has not taken yet."""
        return len(self._queued)

    # -- documents ----------------------------------------------------------------------------------------

    def peek(self, space: str, id_: str) -> tuple[Document | None, bool]:
        """Looks for a small document at once; the second value is False where it has to be read by `get`."""
        # This reads one page of an index, and writers hold up no readers: going to a thread and back takes longer. A
        # large document is better read in a thread.
        looked = self._database.look(lambda conn: [conn.execute(_PEEK, (space, id_)).fetchone()])
        if looked is None:
            return None, False
        (row,) = looked
        if row is None:
            return None, True
        return (None, False) if row[-1] is None else (Document(*row), True)

    async def get(self, space: str, id_: str) -> Document | None:
        document, sure = self.peek(space, id_)
        if sure:
            return document
        row = await self._database.read(
            lambda conn: conn.execute(
                f"SELECT {_DOCUMENT} FROM documents WHERE space=? AND id=?", (space, id_)
            ).fetchone()
        )
        return None if row is None else Document(*row)

    async def search(
        self, space: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None,
        after: str | None = None, limit: int = 100, newest: bool = False,
    ) -> list[Document]:  # fmt: skip
        of_states = _distinct(states)
        if of_states == []:
            return []

        def select(conn: Connection) -> list[tuple[Any, ...]]:
            terms, args = list[str](), list[Any]()
            if after is not None:
                cursor = conn.execute("SELECT place FROM documents WHERE space=? AND id=?", (space, after)).fetchone()
                if cursor is None:
                    raise NotFound(f"there is no document {after} to go on from")
                terms.append("place<?" if newest else "place>?")
                args.append(cursor[0])
            order = "place DESC" if newest else "place"
            sql, args = _numbers(
                self._database.dialect,
                "documents",
                "space",
                "place",
                space,
                of_states,
                topic,
                owner,
                terms,
                args,
                order,
                limit,
            )
            return conn.execute(
                f"SELECT {_DOCUMENT} FROM documents WHERE space=? AND place IN ({sql}) ORDER BY {order}",
                [space, *args],
            ).fetchall()

        return [Document(*row) for row in await self._database.read(select)]

    async def count(
        self, space: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None
    ) -> int:
        return await self._count("documents", "space", space, _distinct(states), topic, owner)

    # -- letters ------------------------------------------------------------------------------------------

    async def letter(self, box: str, key: str) -> Letter | None:
        return await self._database.read(lambda conn: find_letter(conn, box, key))

    async def letters(
        self, box: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None,
        after: int = 0, limit: int = 100, ranked: bool = False, newest: bool = False,
    ) -> list[Letter]:  # fmt: skip
        if ranked and newest:
            raise ValueError("letters come by rank or newest first, not both")
        distinct = _distinct(states)
        if distinct == []:
            return []
        terms, args = list[str](), list[Any]()
        if after:
            terms.append("number<?" if newest else "number>?")
            args.append(after)
        order = "rank DESC, number" if ranked else "number DESC" if newest else "number"
        sql, args = _numbers(
            self._database.dialect, "letters", "box", "number", box, distinct, topic, owner, terms, args, order, limit
        )
        sql = f"SELECT {LETTER} FROM letters WHERE box=? AND number IN ({sql}) ORDER BY {order}"
        return [
            Letter(*row) for row in await self._database.read(lambda conn: conn.execute(sql, [box, *args]).fetchall())
        ]

    async def count_letters(
        self, box: str, *, states: Iterable[str] | None = None, topic: str | None = None, owner: str | None = None
    ) -> int:
        return await self._count("letters", "box", box, _distinct(states), topic, owner)

    async def forget_letters(self, box: str, before: int, states: Iterable[str], limit: int = 1000) -> int:
        of_states = _distinct(states) or []
        if not of_states:
            return 0
        state = self._database.dialect.unindexed("state")

        def old(conn: Connection) -> list[int]:
            # Numbers rise with time: from the first young one on, nothing need be looked at. This is one statement,
            # because a letter that comes between two would count as older than the first young one.
            rows = conn.execute(
                "SELECT number FROM letters WHERE box=? AND number<COALESCE("
                "(SELECT number FROM letters WHERE box=? AND time>=? ORDER BY number LIMIT 1), ?) "
                f"AND {state} IN {marks(of_states)} ORDER BY number LIMIT ?",
                [box, box, before, _NO_NUMBER, *of_states, limit],
            )
            return [row[0] for row in rows]

        numbers = await self._database.read(old)

        def delete(conn: Connection) -> int:
            return sum(
                conn.execute(
                    f"DELETE FROM letters WHERE box=? AND number IN {marks(some)} AND {state} IN {marks(of_states)}",
                    [box, *some, *of_states],
                ).rowcount
                for some in chunks(numbers)
            )

        return int(await self._database.write(delete)) if numbers else 0

    # -- feeds --------------------------------------------------------------------------------------------

    async def feed(self, feed: str, after: int, limit: int, topic: str | None = None) -> list[FeedEntry]:
        terms, args = list[str](), list[Any]()
        if topic is not None:
            _add_term("topic", topic, terms, args)
        which, args = " AND ".join(["feed=?", *terms, "seq>?"]), [feed, *args, after]
        rows = await self._database.read(
            lambda conn: conn.dialect.page(conn, "feed_entries", _ENTRY, "seq", which, args, limit, TOLD_BYTES)
        )
        return [FeedEntry(*row) for row in rows]

    async def feed_head(self, feed: str) -> int:
        return await self._database.read(lambda conn: _head(conn, feed))

    async def trim_feed(self, feed: str, keep: int) -> int:
        def trim(conn: Connection) -> tuple[int, bool]:
            last = _head(conn, feed) - keep
            first = conn.execute("SELECT seq FROM feed_entries WHERE feed=? ORDER BY seq LIMIT 1", (feed,)).fetchone()
            if first is None or first[0] > last:
                return 0, False
            upto = min(last, first[0] + _TRIMMED - 1)
            return conn.execute("DELETE FROM feed_entries WHERE feed=? AND seq<=?", (feed, upto)).rowcount, upto < last

        removed, more = 0, True
        while more:
            some, more = await self._database.write(trim)
            removed += some
        return removed

    async def followed(self, feed: str) -> list[tuple[str, int]]:
        return await self._database.read(
            lambda conn: conn.execute(
                f"SELECT run, upto FROM follows{conn.dialect.indexed('follows_open')} WHERE feed=? AND ended=0 "
                "ORDER BY run",
                (feed,),
            ).fetchall()
        )

    async def forget_followed(self, feed: str, before: int, limit: int = 1000) -> int:
        def delete(conn: Connection) -> int:
            return conn.execute(
                "DELETE FROM follows WHERE feed=? AND run IN "
                "(SELECT run FROM follows WHERE feed=? AND ended=1 AND updated_at<? ORDER BY updated_at LIMIT ?)",
                (feed, feed, before, limit),
            ).rowcount

        return int(await self._database.write(delete))

    # -- links: what foreign ids mean---------------------------------------------------------------------------

    async def link(self, kind: str, foreign: str, target: str) -> str:
        """Links a foreign id to a target, unless it is linked already. Returns its target."""
        check_indexed(kind, foreign)

        def put(conn: Connection) -> str:
            conn.execute(
                "INSERT INTO links (kind, foreign_id, target) VALUES (?,?,?) ON CONFLICT DO NOTHING",
                (kind, foreign, target),
            )
            row = conn.execute("SELECT target FROM links WHERE kind=? AND foreign_id=?", (kind, foreign)).fetchone()
            return str(row[0])

        result: str = await self._database.write(put)
        return result

    async def linked(self, kind: str, foreign: str) -> str | None:
        row = await self._database.read_row(
            lambda conn: conn.execute(
                "SELECT target FROM links WHERE kind=? AND foreign_id=?", (kind, foreign)
            ).fetchone()
        )
        return row[0] if row else None

    async def unlink(self, kind: str, foreign: str) -> None:
        await self._database.write(
            lambda conn: conn.execute("DELETE FROM links WHERE kind=? AND foreign_id=?", (kind, foreign))
        )

    async def _count(
        self, table: str, shelf: str, name: str, states: list[str] | None, topic: str | None, owner: str | None
    ) -> int:
        if states == []:
            return 0
        source, terms, args = _from(self._database.dialect, table, shelf, name, states, topic, owner)
        if states is not None:
            terms.append(f"state IN {marks(states)}")
            args.extend(states)
        sql = f"SELECT count(*) FROM {source} WHERE {' AND '.join(terms)}"
        row = await self._database.read(lambda conn: conn.execute(sql, args).fetchone())
        return int(row[0])


def _hand_out(taken: list[_Queued], results: list[WriteResult | InterlinguaError]) -> None:
    for ((changes, _), future, heed), result in zip(taken, results, strict=True):
        if isinstance(result, InterlinguaError):
            settle(future, None, result)
            continue
        if heed is not None:
            heed(changes, result)
        if not future.done():
            future.set_result(result)


def _is_only_output(changes: Sequence[Change]) -> bool:
    return all(
        change.passes_by if type(change) is Tell else type(change) is Follow and not change.ended for change in changes
    )


def _head(conn: Connection, feed: str) -> int:
    row = conn.execute("SELECT value FROM counters WHERE kind='feed' AND name=?", (feed,)).fetchone()
    return 0 if row is None else int(row[0])


def _distinct(states: Iterable[str] | None) -> list[str] | None:
    return None if states is None else list(dict.fromkeys(states))


def _add_term(column: str, value: str, terms: list[str], args: list[Any]) -> None:
    terms.append(f"{column}=?")
    args.append(value)
    if value:
        terms.append(f"{column}<>''")  # lets SQLite use an index that leaves out the many without


def _from(
    dialect: Dialect, table: str, shelf: str, name: str, states: list[str] | None, topic: str | None, owner: str | None
) -> tuple[str, list[str], list[Any]]:
    """Returns the source and the terms of a search, without the states. The index is named, because without statistics
    SQLite takes every space and box for a small one, and reads all of it."""
    terms, args = [f"{shelf}=?"], list[Any]([name])
    for column, value in (("topic", topic), ("owner", owner)):
        if value is not None:
            _add_term(column, value, terms, args)
    if topic:
        index = f"{table}_topic"
    elif owner and table == "documents":
        index = "documents_owner"
    elif states is not None:
        index = _BY_STATE[table]
    else:
        return table, terms, args
    return table + dialect.indexed(index), terms, args


def _numbers(
    dialect: Dialect, table: str, shelf: str, number: str, name: str, states: list[str] | None, topic: str | None,
    owner: str | None, terms: list[str], args: list[Any], order: str, limit: int,
) -> tuple[str, list[Any]]:  # fmt: skip
    """Returns a SELECT of the numbers of the wanted rows. Bodies are no part of it, so that nothing large is sorted."""
    source, given, values = _from(dialect, table, shelf, name, states, topic, owner)
    terms, args = [*given, *terms], [*values, *args]
    columns = f"{number}, rank" if "rank" in order else number
    sort = f" ORDER BY {order} LIMIT ?"
    if states and (table == "letters" or not (topic or owner)):
        # Each state by itself, because only within one does the index have the right order.
        each = f"SELECT {columns} FROM {source} WHERE {' AND '.join(terms)} AND state=?{sort}"
        sql = " UNION ALL ".join([f"SELECT * FROM ({each}) AS one"] * len(states)) + sort
        args = [*(arg for state in states for arg in (*args, state, limit)), limit]
    else:
        if states is not None:
            terms.append(f"state IN {marks(states)}")
            args.extend(states)
        sql, args = f"SELECT {columns} FROM {source} WHERE {' AND '.join(terms)}{sort}", [*args, limit]
    return f"SELECT {number} FROM ({sql}) AS chosen", args

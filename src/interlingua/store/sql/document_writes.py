"""Changes of documents, letters and feeds as SQL: many lists in few statements, in the writer's thread.

Each list is applied as if it were alone and after those before it: what it finds, and what it counts, is worked out in
memory first and then written for all lists together. Nothing here begins or ends a transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, assert_never

from ...model.documents import Change, Drop, Follow, Letter, Post, Put, Rewrite, Settle, Tell, WriteResult
from ...model.errors import InterlinguaError, InvalidRequest, StoreError
from .dialect import Connection, Dialect, Lock, check_indexed

T = TypeVar("T")
Unit = tuple[Sequence[Change], int]  # a list of changes, and when it was given
Pair = tuple[str, str]

LETTER_COLUMNS = Letter.__struct_fields__
LETTER = ", ".join(LETTER_COLUMNS)
_DOCUMENT_COLUMNS = (
    "space", "place", "id", "version", "state", "topic", "owner", "created_at", "updated_at", "body",
)  # fmt: skip
_ENTRY_COLUMNS = ("feed", "seq", "kind", "topic", "time", "body")
_WIDTHS = (64, 32, 16, 8, 4, 2, 1)
_RUN = 4  # numbers in a row that are worth a statement of their own


def keep(conn: Connection, units: list[Unit]) -> list[WriteResult | InterlinguaError]:
    """Applies lists of changes, in order. One that cannot be written gives an error and disturbs no other.

    Counters are locked until the transaction ends: so the numbers of a feed become visible in their order and without
    a gap, also with several writers.
    """
    conn.lock(*touched(units))
    try:
        return list(_attempt(conn, units))
    except conn.dialect.operational:  # of the database and not of a list: nothing else could be written either
        raise
    except Exception as error:
        if len(units) == 1:
            return [_refusal(conn.dialect, error)]
    return [result for unit in units for result in keep(conn, [unit])]


def _check(units: list[Unit]) -> None:
    for changes, _ in units:
        for change in changes:
            if isinstance(change, Put):
                check_indexed(change.space, change.id)
                check_indexed(change.space, change.topic)
                check_indexed(change.space, change.owner)
            elif isinstance(change, Post):
                check_indexed(change.box, change.key)
                check_indexed(change.box, change.topic)
            elif isinstance(change, Tell):
                check_indexed(change.feed, change.topic)


def _attempt(conn: Connection, units: list[Unit]) -> list[WriteResult]:
    _check(units)
    conn.execute("SAVEPOINT keep")
    try:
        try:
            kept = _Together(conn, set()).apply(units)
        except conn.dialect.integrity:
            # Some letter was there already, which is rare enough not to look for it before.
            conn.execute("ROLLBACK TO keep")
            kept = _Together(conn, _keys_in_use(conn, units)).apply(units)
    except conn.dialect.operational:
        raise
    except BaseException:
        conn.execute("ROLLBACK TO keep")
        conn.execute("RELEASE keep")
        raise
    conn.execute("RELEASE keep")
    return kept


def touched(units: Iterable[Unit]) -> set[Lock]:
    """Collects the locks of everything that these lists count in, or read before they are written."""
    locks = set[Lock]()
    for changes, _ in units:
        for change in changes:
            if isinstance(change, Tell | Follow):
                locks.add(("feed", change.feed))
            elif isinstance(change, Put | Drop):
                locks.add(("space", change.space))
            else:
                locks.add(("box", change.box))
    return locks


def _refusal(dialect: Dialect, error: Exception) -> InterlinguaError:
    if isinstance(error, InterlinguaError):
        return error
    why = dialect.refusal(error)
    refusal = StoreError("the store could not write", why=error) if why is None else InvalidRequest(why)
    refusal.__cause__ = error
    return refusal


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """In lengths of which there are few, so that statements made for them are prepared once."""
    at = 0
    for width in _WIDTHS:
        while len(values) - at >= width:
            yield values[at : at + width]
            at += width


def runs(numbers: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Numbers as ranges, where they follow each other, and the others."""
    ranges, others = list[tuple[int, int]](), list[int]()
    ordered = sorted(numbers)
    at = 0
    while at < len(ordered):
        end = at
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        if end - at + 1 >= _RUN:
            ranges.append((ordered[at], ordered[end]))
        else:
            others += ordered[at : end + 1]
        at = end + 1
    return ranges, others


def _insert(conn: Connection, table: str, columns: Sequence[str], values: list[Any]) -> None:
    """Many rows, one behind the other, in few statements: each of them gives the GIL away, and must win it back."""
    for rows in chunks(range(len(values) // len(columns))):
        sql = _sql.get((table, len(rows)))
        if sql is None:
            places = ",".join([marks(columns)] * len(rows))
            sql = _sql[table, len(rows)] = f"INSERT INTO {table} ({','.join(columns)}) VALUES {places}"
        conn.execute(sql, values[rows[0] * len(columns) : (rows[-1] + 1) * len(columns)])


_sql: dict[tuple[str, int], str] = {}


def marks(values: Sequence[Any]) -> str:
    return f"({','.join('?' * len(values))})"


def _find(conn: Connection, select: str, pairs: Iterable[Pair]) -> Iterator[tuple[Any, ...]]:
    """Rows by (shelf, name); `select` ends in the term for the names, and says by which index: for many names at once
    SQLite would rather read the whole shelf."""
    by_shelf: defaultdict[str, list[str]] = defaultdict(list)
    for shelf, name in pairs:
        by_shelf[shelf].append(name)
    for shelf, names in by_shelf.items():
        for some in chunks(names):
            yield from conn.execute(f"{select} IN {marks(some)}", [shelf, *some])


def _keys_in_use(conn: Connection, units: list[Unit]) -> set[Pair]:
    wanted = {(change.box, change.key) for changes, _ in units for change in changes if type(change) is Post}
    by = conn.dialect.indexed("letters_key")
    return set(_find(conn, f"SELECT box, key FROM letters{by} WHERE box=? AND key", wanted))


class _Last(dict[str, int]):
    """The last number of everything of one kind that is counted."""

    def __init__(self, conn: Connection, kind: str) -> None:
        self._conn = conn
        self._kind = kind
        self._before: dict[str, int] = {}

    def __missing__(self, name: str) -> int:
        row = self._conn.execute("SELECT value FROM counters WHERE kind=? AND name=?", (self._kind, name)).fetchone()
        value = self[name] = self._before[name] = 0 if row is None else row[0]
        return value

    def changed(self) -> list[tuple[str, str, int]]:
        return [(self._kind, name, value) for name, value in self.items() if value != self._before[name]]


class _Document(NamedTuple):
    """A document as it is after the changes so far."""

    place: int
    version: int
    state: str
    topic: str
    owner: str
    created_at: int
    updated_at: int
    body: bytes | None = None  # None: as it is in the database


class _Cursor(NamedTuple):
    upto: int
    ended: bool
    updated_at: int


class _Together:
    """Lists of changes that are written together."""

    def __init__(self, conn: Connection, keys: set[Pair]) -> None:
        self._conn = conn
        self._keys = keys  # of letters, as far as they are known to be in use
        self._boxes, self._feeds, self._spaces = _Last(conn, "box"), _Last(conn, "feed"), _Last(conn, "space")
        self._letters: list[Any] = []  # value behind value, and row behind row
        self._news: list[Any] = []
        # None: there is none. What is in these is never changed in place, so where there is another object now than
        # before, that is what has to be written.
        self._documents: dict[Pair, _Document | None] = {}
        self._cursors: dict[Pair, _Cursor | None] = {}
        self._edits: list[tuple[Settle | Rewrite, list[int], list[int | None], int]] = []  # …, for whom, and where
        self._met: list[tuple[WriteResult, Post]] = []  # letters whose key was in use

    def apply(self, units: list[Unit]) -> list[WriteResult]:
        self._look_up(units)
        documents, cursors = self._documents.copy(), self._cursors.copy()
        results = [
            self._message(changes[0], changes[1], time)
            if len(changes) == 2 and type(changes[0]) is Post and type(changes[1]) is Tell
            else self._unit(changes, time)
            for changes, time in units
        ]
        conn = self._conn
        _insert(conn, "letters", LETTER_COLUMNS, self._letters)
        _insert(conn, "feed_entries", _ENTRY_COLUMNS, self._news)
        if documents:
            self._write_documents(documents)
        if cursors:
            conn.executemany(
                "INSERT INTO follows (feed, run, upto, ended, updated_at) VALUES (?,?,?,?,?) "
                "ON CONFLICT (feed, run) DO UPDATE SET upto=excluded.upto, ended=excluded.ended, "
                "updated_at=excluded.updated_at",
                [
                    (*key, now.upto, int(now.ended), now.updated_at)
                    for key, now in self._cursors.items()
                    if now is not None and now is not cursors[key]
                ],
            )
        counted = [*self._boxes.changed(), *self._feeds.changed(), *self._spaces.changed()]
        if counted:
            values = ",".join(["(?,?,?)"] * len(counted))
            conn.execute(
                f"INSERT INTO counters (kind, name, value) VALUES {values} "
                "ON CONFLICT (kind, name) DO UPDATE SET value=excluded.value",
                [value for row in counted for value in row],
            )
        # After the letters of all lists: what an edit may touch was settled when it was its turn.
        for change, letters, numbers, place in self._edits:
            numbers[place] = self._edit(change, letters)
        for kept, post in self._met:
            kept.letter = find_letter(conn, post.box, post.key)
        return results

    def _look_up(self, units: list[Unit]) -> None:
        documents, cursors = self._documents, self._cursors
        for changes, _ in units:
            for change in changes:
                kind = type(change)
                if kind is Tell or kind is Post:
                    continue  # nearly all are
                if isinstance(change, Put | Drop):
                    documents[change.space, change.id] = None
                elif isinstance(change, Follow):
                    cursors[change.feed, change.run] = None
        select = (
            "SELECT space, id, place, version, state, topic, owner, created_at, updated_at "
            f"FROM documents{self._conn.dialect.indexed('documents_id')} WHERE space=? AND id"
        )
        for space, id_, *values in _find(self._conn, select, documents):
            documents[space, id_] = _Document(*values)
        select = "SELECT feed, run, upto, ended, updated_at FROM follows WHERE feed=? AND run"
        for feed, run, *values in _find(self._conn, select, cursors):
            cursors[feed, run] = _Cursor(*values)

    # -- in memory ----------------------------------------------------------------------------------------

    def _message(self, post: Post, tell: Tell, time: int) -> WriteResult:
        """A letter and the news of it: that is what nearly all lists are."""
        box, feed, key = post.box, tell.feed, (post.box, post.key)
        if key in self._keys:
            return self._stale((), post)
        self._keys.add(key)
        number = self._boxes[box] = self._boxes[box] + 1
        self._letters += (box, number, post.key, post.rank, post.topic, post.state, post.owner, time, post.body)
        seq = self._feeds[feed] = self._feeds[feed] + 1
        self._news += (feed, seq, tell.kind, tell.topic, time, tell.body)
        return WriteResult([number, seq])

    def _unit(self, changes: Sequence[Change], time: int) -> WriteResult:
        numbers: list[int | None] = []
        before: list[Any] = []  # the documents and cursors from before, in case they have to come back
        edits = len(self._edits)
        for place, change in enumerate(changes):
            if isinstance(change, Settle | Rewrite):
                # A number that is not given out yet may be by a list after this one: that is not the letter meant.
                last, named = self._boxes[change.box], change.numbers if isinstance(change, Settle) else [change.number]
                self._edits.append((change, [n for n in dict.fromkeys(named) if 0 < n <= last], numbers, place))
                numbers.append(0)
            elif not self._apply(change, time, numbers, before):
                del self._edits[edits:]
                self._take_back(changes[:place], before)
                return self._stale(changes[:place], change)
        return WriteResult(numbers)

    def _apply(
        self, change: Tell | Post | Put | Drop | Follow, time: int, numbers: list[int | None], before: list[Any]
    ) -> bool:
        """Applies a change in memory. Returns false if its condition does not hold."""
        if isinstance(change, Tell):
            seq = self._feeds[change.feed] = self._feeds[change.feed] + 1
            self._news += (change.feed, seq, change.kind, change.topic, time, change.body)
            numbers.append(seq)
        elif isinstance(change, Post):
            if (change.box, change.key) in self._keys:
                return False
            self._keys.add((change.box, change.key))
            number = self._boxes[change.box] = self._boxes[change.box] + 1
            self._letters += (
                change.box, number, change.key, change.rank, change.topic, change.state, change.owner, time,
                change.body,
            )  # fmt: skip
            numbers.append(number)
        elif isinstance(change, Put):
            was = self._documents[change.space, change.id]
            if change.version is not None and change.version != (0 if was is None else was.version):
                return False
            before.append(was)
            numbers.append(self._put(change, was, time))
        elif isinstance(change, Drop):
            was = self._documents[change.space, change.id]
            before.append(was)
            self._documents[change.space, change.id] = None
            numbers.append(0 if was is None else 1)
        elif isinstance(change, Follow):
            cursor = self._cursors[change.feed, change.run]
            if not self._follows(change, cursor):
                return False
            before.append(cursor)
            self._cursors[change.feed, change.run] = _Cursor(change.upto, change.ended, time)
            numbers.append(None)
        else:
            assert_never(change)
        return True

    def _follows(self, change: Follow, cursor: _Cursor | None) -> bool:
        """Returns true if a cursor stands where a change expects it, and the log has the event that it names."""
        if change.expected != (0 if cursor is None else cursor.upto) or (cursor is not None and cursor.ended):
            return False
        return change.hash is None or self._has_event(change.run, change.upto, change.hash)

    def _stale(self, earlier: Sequence[Change], stale: Change) -> WriteResult:
        # That the letters before it are new was only assumed, and a list that is not written would never show it.
        for post in earlier:
            if isinstance(post, Post) and find_letter(self._conn, post.box, post.key) is not None:
                self._keys.add((post.box, post.key))
                stale = post
                break
        kept = WriteResult(stale=stale)
        if isinstance(stale, Post) and (stale.box, stale.key) in self._keys:  # else it met one of its own list
            self._met.append((kept, stale))
        return kept

    def _put(self, change: Put, was: _Document | None, time: int) -> int:
        if was is None:
            place = self._spaces[change.space] = self._spaces[change.space] + 1
            version, created_at = 1, time
        else:
            place, version, created_at = was.place, was.version + 1, was.created_at
        self._documents[change.space, change.id] = _Document(
            place, version, change.state, change.topic, change.owner, created_at, time, change.body
        )
        return version

    def _take_back(self, changes: Sequence[Change], before: list[Any]) -> None:
        for change in reversed(changes):
            if isinstance(change, Tell):
                self._feeds[change.feed] -= 1
                del self._news[-len(_ENTRY_COLUMNS) :]
            elif isinstance(change, Post):
                self._boxes[change.box] -= 1
                del self._letters[-len(LETTER_COLUMNS) :]
                self._keys.discard((change.box, change.key))
            elif isinstance(change, Put | Drop):
                self._documents[change.space, change.id] = before.pop()
            elif isinstance(change, Follow):
                self._cursors[change.feed, change.run] = before.pop()

    def _has_event(self, run: str, seq: int, hash_: bytes) -> bool:
        sql = "SELECT 1 FROM events WHERE run=? AND seq=? AND hash=?"
        return self._conn.execute(sql, (run, seq, hash_)).fetchone() is not None

    # -- in the database ----------------------------------------------------------------------------------

    def _write_documents(self, before: dict[Pair, _Document | None]) -> None:
        new, gone = list[Any](), list[tuple[str, int]]()
        changed: defaultdict[str, list[Any]] = defaultdict(list)
        for (space, id_), now in self._documents.items():
            was = before[space, id_]
            if now is was:
                continue
            if was is not None and now is not None and was.place == now.place:
                # Only what differs: for each column that is named SQLite writes its index again.
                labels = [c for c in ("state", "topic", "owner") if getattr(was, c) != getattr(now, c)]
                sql = f"version=?, updated_at=?, body=?{''.join(f', {c}=?' for c in labels)}"
                args = (now.version, now.updated_at, now.body, *(getattr(now, c) for c in labels), space, now.place)
                changed[sql].append(args)
                continue
            if was is not None:
                gone.append((space, was.place))
            if now is not None:
                new += (
                    space, now.place, id_, now.version, now.state, now.topic, now.owner, now.created_at,
                    now.updated_at, now.body,
                )  # fmt: skip
        self._conn.executemany("DELETE FROM documents WHERE space=? AND place=?", gone)
        _insert(self._conn, "documents", _DOCUMENT_COLUMNS, new)
        for sql, rows in changed.items():
            self._conn.executemany(f"UPDATE documents SET {sql} WHERE space=? AND place=?", rows)

    def _edit(self, change: Settle | Rewrite, numbers: list[int]) -> int:
        """Applies an edit. Returns the number of letters that it found."""
        count = 0
        if isinstance(change, Rewrite):
            column, value, only = "body", list[Any]([change.body]), list[Any]()
        else:
            column, value, only = "state", [change.state], [] if change.only is None else [change.only]
        ranges, others = runs(numbers)
        update = f"UPDATE letters SET {column}=? WHERE box=? AND number"
        also = f" AND {self._conn.dialect.unindexed('state')}=?" * len(only)
        for first, last in ranges:
            sql = f"{update} BETWEEN ? AND ?{also}"
            count += self._conn.execute(sql, [*value, change.box, first, last, *only]).rowcount
        for some in chunks(others):
            sql = f"{update} IN {marks(some)}{also}"
            count += self._conn.execute(sql, [*value, change.box, *some, *only]).rowcount
        return count


def find_letter(conn: Connection, box: str, key: str) -> Letter | None:
    row = conn.execute(f"SELECT {LETTER} FROM letters WHERE box=? AND key=?", (box, key)).fetchone()
    return None if row is None else Letter(*row)

"""What a store promises of documents, letters and feeds, alone and with others at the same file. Every back end runs
these; what is true of SQLite only stands at the end."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from interlingua.model.documents import Change, Drop, Follow, Letter, Post, Put, Rewrite, Settle, Tell, WriteResult
from interlingua.model.errors import InvalidRequest, NotFound, StoreError
from interlingua.store.ports import Store
from interlingua.store.sql.store import SqlStore
from interlingua.store.sqlite import connection as sqlite_connection
from interlingua.store.sqlite.store import SQLiteStore
from tests.kit.examples import many
from tests.kit.rows import at

FOREVER = 2**62


@asynccontextmanager
async def opened(where: Path | str) -> AsyncIterator[SqlStore]:
    store = at(where)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def post(store: Store, *posts: Post) -> None:
    assert (await store.documents.write(posts)).stale is None


def keys(letters: Sequence[Letter]) -> list[str]:
    return [letter.key for letter in letters]


# -- documents -------------------------------------------------------------------------------------------------


async def test_a_document_is_replaced_whole_and_its_version_counts_up(store: Path | str) -> None:
    async with opened(store) as s:
        assert await s.documents.get("tasks", "a") is None
        assert (await s.documents.write([Put("tasks", "a", b"1", "new", "t", "me")])).numbers == [1]
        first = await s.documents.get("tasks", "a")
        assert first is not None
        assert (first.version, first.state, first.topic, first.owner, first.body) == (1, "new", "t", "me", b"1")
        assert (await s.documents.write([Put("tasks", "a", b"2")])).numbers == [2]
        second = await s.documents.get("tasks", "a")
        assert second is not None
        assert (second.version, second.state, second.topic, second.owner, second.body) == (2, "", "", "", b"2")
        assert second.created_at == first.created_at < second.updated_at
        assert await s.documents.get("other", "a") is None


@pytest.mark.parametrize(("there", "wanted", "holds"), [
    (0, None, True), (0, 0, True), (0, 1, False), (2, None, True), (2, 0, False), (2, 1, False), (2, 2, True),
    (2, 3, False),
])  # fmt: skip
async def test_a_document_is_put_only_over_the_version_that_was_named(
    store: Path | str, there: int, wanted: int | None, holds: bool
) -> None:
    async with opened(store) as s:
        for _ in range(there):
            await s.documents.write([Put("tasks", "a", b"old")])
        kept = await s.documents.write([put := Put("tasks", "a", b"new", version=wanted)])
        found = await s.documents.get("tasks", "a")
        if holds:
            assert (kept.stale, kept.numbers) == (None, [there + 1])
            assert found is not None
            assert found.body == b"new"
        else:
            assert (kept.stale, kept.numbers) == (put, [])
            assert found is None or found.body == b"old"


async def test_a_document_that_was_dropped_comes_back_as_a_new_one(store: Path | str) -> None:
    async with opened(store) as s:
        await s.documents.write([Put("tasks", "a", b"1"), Put("tasks", "b", b"1"), Put("tasks", "a", b"2")])
        assert (await s.documents.write([Drop("tasks", "a"), Drop("tasks", "a")])).numbers == [1, 0]
        assert await s.documents.get("tasks", "a") is None
        assert (await s.documents.write([Put("tasks", "a", b"3", version=0)])).numbers == [1]
        assert [d.id for d in await s.documents.search("tasks")] == ["b", "a"]


async def test_documents_are_paged_in_the_order_of_their_creation_whatever_was_changed_since(store: Path | str) -> None:
    async with opened(store) as s:
        ids = ["m", "c", "z", "a", "k"]
        await s.documents.write([Put("tasks", id_, b"") for id_ in ids])
        await s.documents.write([Put("tasks", "m", b"changed"), Put("elsewhere", "x", b"")])
        for newest, order in ((False, ids), (True, ids[::-1])):
            read, after = list[str](), None
            while page := await s.documents.search("tasks", after=after, limit=2, newest=newest):
                read += [d.id for d in page]
                after = page[-1].id
            assert read == order
        with pytest.raises(NotFound, match="gone"):
            await s.documents.search("tasks", after="gone")


async def test_documents_are_found_by_state_topic_and_owner(store: Path | str) -> None:
    async with opened(store) as s:
        everything = [
            (f"{state}{topic}{owner}", state, topic, owner) for owner in ("", "o") for topic in ("", "t")
            for state in ("new", "done", "gone")
        ]  # fmt: skip
        await s.documents.write(
            [Put("tasks", id_, b"", state, topic, owner) for id_, state, topic, owner in everything]
        )
        for states in (None, [], ["done"], ["gone", "new"], ["new", "new"]):
            for topic in (None, "", "t"):
                for owner in (None, "", "o"):
                    expected = [
                        id_ for id_, its_state, its_topic, its_owner in everything
                        if (states is None or its_state in states) and topic in (None, its_topic)
                        and owner in (None, its_owner)
                    ]  # fmt: skip
                    found = await s.documents.search("tasks", states=states, topic=topic, owner=owner)
                    assert [d.id for d in found] == expected
                    last = await s.documents.search(
                        "tasks", states=states, topic=topic, owner=owner, newest=True, limit=2
                    )
                    assert [d.id for d in last] == expected[::-1][:2]
                    assert await s.documents.count("tasks", states=states, topic=topic, owner=owner) == len(expected)


# -- letters ---------------------------------------------------------------------------------------------------


async def test_letters_are_numbered_per_box_and_no_number_is_used_again(store: Path | str) -> None:
    async with opened(store) as s:
        assert (
            await s.documents.write([Post("in", "a", b""), Post("out", "a", b""), Post("in", "b", b"")])
        ).numbers == [1, 1, 2]
        assert await s.documents.forget_letters("in", FOREVER, [""]) == 2
        assert await s.documents.letter("in", "a") is None
        assert (await s.documents.write([Post("in", "a", b"")])).numbers == [3]
        assert await s.documents.count_letters("out") == 1


async def test_of_two_letters_with_one_key_the_first_is_kept_and_shown(store: Path | str) -> None:
    async with opened(store) as s:
        await post(s, Post("in", "a", b"first", rank=3, topic="t", state="new", owner="me"))
        await s.documents.write([Settle("in", [1], "read")])
        kept = await s.documents.write([Tell("feed", "k", "", b""), again := Post("in", "a", b"second")])
        assert (kept.stale, kept.numbers) == (again, [])
        assert kept.letter == await s.documents.letter("in", "a")
        assert kept.letter is not None
        assert (kept.letter.number, kept.letter.state, kept.letter.body) == (1, "read", b"first")
        assert await s.documents.feed_head("feed") == 0
        twice = await s.documents.write([Post("in", "b", b""), Post("in", "b", b"")])
        assert isinstance(twice.stale, Post)
        assert twice.letter is None  # the list came to nothing, and so did its own first letter
        assert await s.documents.letter("in", "b") is None
        first = await s.documents.write([again, Follow("feed", "r", 7, 8)])
        assert (first.stale, first.letter) == (again, kept.letter)


async def test_letters_are_read_by_number_newest_first_or_by_rank(store: Path | str) -> None:
    async with opened(store) as s:
        ranks = {"a": 0, "b": 2, "c": -1, "d": 2, "e": 0}
        await post(s, *(Post("in", key, b"", rank) for key, rank in ranks.items()), Post("other", "x", b"", 9))
        assert keys(await s.documents.letters("in")) == ["a", "b", "c", "d", "e"]
        assert keys(await s.documents.letters("in", after=2, limit=2)) == ["c", "d"]
        assert keys(await s.documents.letters("in", newest=True, limit=2)) == ["e", "d"]
        assert keys(await s.documents.letters("in", newest=True, after=4, limit=2)) == ["c", "b"]
        assert keys(await s.documents.letters("in", ranked=True)) == ["b", "d", "a", "e", "c"]
        assert keys(await s.documents.letters("in", ranked=True, after=2, limit=2)) == ["d", "e"]
        with pytest.raises(ValueError, match="not both"):
            await s.documents.letters("in", ranked=True, newest=True)


async def test_letters_are_found_by_state_topic_and_owner_in_every_order(store: Path | str) -> None:
    async with opened(store) as s:
        everything = [
            Post("in", f"{n}", b"", n % 3, topic, state, owner)
            for n, (topic, state, owner) in enumerate(
                (topic, state, owner) for _ in range(2) for owner in ("", "o") for topic in ("", "t", "u")
                for state in ("new", "sent", "read")
            )
        ]  # fmt: skip
        await post(s, *everything)
        orders: list[tuple[dict[str, bool], Callable[[Post], Any]]] = [
            ({}, lambda p: int(p.key)), ({"newest": True}, lambda p: -int(p.key)),
            ({"ranked": True}, lambda p: (-p.rank, int(p.key))),
        ]  # fmt: skip
        for states in (None, [], ["new"], ["read", "new"]):
            for topic in (None, "", "t"):
                for owner in (None, "o"):
                    wanted = [
                        p for p in everything
                        if (states is None or p.state in states) and topic in (None, p.topic)
                        and owner in (None, p.owner)
                    ]  # fmt: skip
                    count = await s.documents.count_letters("in", states=states, topic=topic, owner=owner)
                    assert count == len(wanted)
                    for order, sort in orders:
                        found = await s.documents.letters(
                            "in", states=states, topic=topic, owner=owner, limit=5, **order
                        )
                        assert keys(found) == [p.key for p in sorted(wanted, key=sort)[:5]]


async def test_letters_are_settled_only_out_of_the_state_that_was_named_and_it_says_how_many(store: Path | str) -> None:
    async with opened(store) as s:
        await post(s, *(Post("in", key, b"", state="new") for key in "abcd"))
        assert (await s.documents.write([Settle("in", [1, 2, 2, 77], "sent", only="new")])).numbers == [2]
        assert (await s.documents.write([Settle("in", [1, 3], "sent", only="new")])).numbers == [1]
        assert (await s.documents.write([Settle("in", [1, 4], "read")])).numbers == [2]
        assert [letter.state for letter in await s.documents.letters("in")] == ["read", "sent", "sent", "read"]
        assert (await s.documents.write([Rewrite("in", 2, b"new"), Rewrite("in", 77, b"no")])).numbers == [1, 0]
        assert [letter.body for letter in await s.documents.letters("in")] == [b"", b"new", b"", b""]


async def test_of_two_who_take_the_same_letter_one_gets_it(store: Path | str) -> None:
    async with opened(store) as mine, opened(store) as yours:
        for number in range(1, 21):
            await post(mine, Post("out", str(number), b"", state="due"))
            take = [Settle("out", [number], "taken", only="due")]
            a, b = await asyncio.gather(mine.documents.write(take), yours.documents.write(take))
            assert sorted([a.numbers, b.numbers]) == [[0], [1]]


async def test_a_letter_that_was_not_there_yet_is_not_settled(store: Path | str) -> None:
    async with opened(store) as s:
        settled, posted = await asyncio.gather(
            s.documents.write([Settle("in", [1], "lost"), Rewrite("in", 1, b"lost")]),
            s.documents.write([Post("in", "a", b"", state="new")]),
        )
        assert (settled.numbers, posted.numbers) == ([0, 0], [1])
        (letter,) = await s.documents.letters("in")
        assert (letter.state, letter.body) == ("new", b"")


async def test_the_oldest_letters_of_some_states_are_forgotten(store: Path | str) -> None:
    async with opened(store) as s:
        for n, state in enumerate(["read", "new", "read", "sent", "read", "read"]):
            await post(s, Post("in", str(n), b"", state=state))
        await post(s, Post("other", "x", b"", state="read"))
        time = (await s.documents.letters("in"))[4].time
        assert await s.documents.forget_letters("in", time, []) == 0
        assert await s.documents.forget_letters("in", time, ["read", "sent"], limit=2) == 2
        assert keys(await s.documents.letters("in")) == ["1", "3", "4", "5"]
        assert await s.documents.forget_letters("in", time, ["read", "sent"]) == 1
        assert await s.documents.forget_letters("in", time, ["read", "sent"]) == 0
        assert keys(await s.documents.letters("in")) == ["1", "4", "5"]
        assert await s.documents.count_letters("other") == 1


class _Paused:
    """A connection that lets something happen after its first statement, before the next one."""

    def __init__(self, conn: Any, between: Callable[[], None]) -> None:
        self.dialect = conn.dialect
        self._conn = conn
        self._between: Callable[[], None] | None = between

    def execute(self, *statement: Any) -> Any:
        rows = self._conn.execute(*statement).fetchall()
        between, self._between = self._between, None
        if between is not None:
            between()
        return _Rows(rows)


class _Rows(list[Any]):
    def fetchone(self) -> Any:
        return self[0] if self else None


async def test_a_letter_that_comes_while_old_ones_are_looked_for_is_not_forgotten(
    store: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store) as s:
        loop, read = asyncio.get_running_loop(), s.database.read

        def written() -> None:
            asyncio.run_coroutine_threadsafe(post(s, Post("in", "young", b"", state="done")), loop).result(60)

        monkeypatch.setattr(s.database, "read", lambda fn: read(lambda conn: fn(_Paused(conn, written))))  # type: ignore[arg-type]
        assert await s.documents.forget_letters("in", int(time.time() * 1_000_000) - 60_000_000, ["done"]) == 0
        monkeypatch.undo()
        assert keys(await s.documents.letters("in")) == ["young"]


# -- feeds -----------------------------------------------------------------------------------------------------


async def test_a_feed_is_read_from_anywhere_whole_or_by_topic(store: Path | str) -> None:
    async with opened(store) as s:
        for n in range(1, 7):
            topic = "even" if n % 2 == 0 else ""
            kept = await s.documents.write(
                [Tell("feed", f"kind{n}", topic, str(n).encode()), Tell("other", "k", "", b"")]
            )
            assert kept.numbers == [n, n]
        first, *_ = await s.documents.feed("feed", 0, 10)
        assert (first.feed, first.seq, first.kind, first.topic, first.body) == ("feed", 1, "kind1", "", b"1")
        assert first.time > 0
        assert [t.seq for t in await s.documents.feed("feed", 2, 3)] == [3, 4, 5]
        assert [t.seq for t in await s.documents.feed("feed", 2, 3, topic="even")] == [4, 6]
        assert [t.seq for t in await s.documents.feed("feed", 2, 3, topic="")] == [3, 5]
        assert await s.documents.feed("feed", 6, 3) == []
        assert (await s.documents.feed_head("feed"), await s.documents.feed_head("nothing")) == (6, 0)


async def test_a_page_of_a_feed_ends_at_its_bytes_and_holds_at_least_one_entry(store: Path | str) -> None:
    async with opened(store) as s:
        for topic in ("a", "b", "a"):
            await s.documents.write([Tell("feed", "message", topic, b"x" * 100_000)] * 2)
        await s.documents.write([Tell("feed", "message", "a", b"x" * 1_000_000)])
        assert [t.seq for t in await s.documents.feed("feed", 0, 100)] == [1, 2, 3]
        assert [t.seq for t in await s.documents.feed("feed", 3, 100)] == [4, 5, 6]
        assert [t.seq for t in await s.documents.feed("feed", 6, 100)] == [7]
        assert [t.seq for t in await s.documents.feed("feed", 0, 100, topic="a")] == [1, 2, 5]
        assert await s.documents.feed("feed", 7, 100) == []


async def test_a_trimmed_feed_keeps_its_newest_news_and_goes_on_counting(store: Path | str) -> None:
    async with opened(store) as s:
        await s.documents.write([Tell("feed", "k", "t", b"") for _ in range(5000)])
        await s.documents.write([Tell("other", "k", "", b"")])
        assert await s.documents.trim_feed("feed", 6000) == 0
        assert await s.documents.trim_feed("feed", 3) == 4997
        assert [t.seq for t in await s.documents.feed("feed", 0, 10)] == [4998, 4999, 5000]
        assert await s.documents.trim_feed("feed", 0) == 3
        assert await s.documents.trim_feed("nothing", 0) == 0
        assert await s.documents.feed("feed", 0, 10) == []
        assert await s.documents.feed_head("feed") == 5000
        assert (await s.documents.write([Tell("feed", "k", "", b"")])).numbers == [5001]
        assert len(await s.documents.feed("other", 0, 10)) == 1


async def test_each_part_of_a_log_is_told_once(store: Path | str) -> None:
    async with opened(store) as mine, opened(store) as yours:

        async def tell(s: Store, expected: int, upto: int, ended: bool = False) -> bool:
            changes: list[Change] = [
                Tell("feed", "k", "r", f"{upto}".encode()),
                Follow("feed", "r", expected, upto, ended),
            ]
            return (await s.documents.write(changes)).stale is None

        assert sorted(await asyncio.gather(tell(mine, 0, 2), tell(yours, 0, 2))) == [False, True]
        assert await mine.documents.followed("feed") == [("r", 2)]
        assert await mine.documents.followed("other") == []
        assert not await tell(mine, 1, 3)
        assert sorted(await asyncio.gather(tell(mine, 2, 5, True), tell(yours, 2, 5, True))) == [False, True]
        assert await mine.documents.followed("feed") == []
        assert not await tell(mine, 5, 6)
        assert not await tell(mine, 0, 6)
        assert [t.body for t in await mine.documents.feed("feed", 0, 10)] == [b"2", b"5"]


async def test_what_is_told_of_an_event_that_the_log_does_not_have_is_not_kept(store: Path | str) -> None:
    async with opened(store) as s:
        news = Tell("feed", "k", "r", b"1")
        kept = await s.documents.write([news, Follow("feed", "r", 0, 1, hash=b"h" * 32)])
        assert isinstance(kept.stale, Follow)
        assert (await s.documents.feed("feed", 0, 10), await s.documents.followed("feed")) == ([], [])
        assert (await s.documents.write([news, Follow("feed", "r", 0, 1)])).stale is None


async def test_a_glance_tells_what_reading_tells_or_that_it_is_not_sure(store: Path | str) -> None:
    async with opened(store) as s:
        await s.documents.write(
            [Put("a", "small", b"1", "state", "topic", "owner"), Put("a", "large", b"1" * 1_000_000)]
        )
        for id_ in ("small", "large", "none", "half \ud800"):
            found, sure = s.documents.peek("a", id_)
            assert not sure or found == await s.documents.get("a", id_)
        assert s.documents.peek("a", "large") == (None, False)
        large = await s.documents.get("a", "large")
        assert large is not None
        assert len(large.body) == 1_000_000


async def test_only_what_passes_by_does_not_wait_for_the_disk_and_nothing_else_goes_along(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as s:
        writer: Any = s
        writer = writer.database.writer
        write, waited = writer._transaction, list[tuple[int, int]]()

        def noted(sealed: Any, calls: Any, results: Any) -> None:
            write(sealed, calls, results)
            synchronous = writer._conn.execute("PRAGMA synchronous").fetchone()[0]
            waited.append((synchronous, sum(len(one.numbers) for one in results[0][0])))

        writer._transaction = noted
        chunk, rest = Tell("feed", "k", "r", b"1", True), Tell("feed", "k", "r", b"2")
        full, normal = 2, 1
        await s.documents.write([Follow("feed", "r", 0, 1), chunk])
        await s.documents.write([Follow("feed", "r", 1, 2), chunk, rest])
        await s.documents.write([Follow("feed", "r", 2, 3), chunk])
        await s.documents.write([Follow("feed", "r", 3, 4, True), chunk])
        assert waited == [(normal, 2), (full, 3), (normal, 2), (full, 2)]
        del waited[:]
        await asyncio.gather(s.documents.write([chunk]), s.documents.write([rest]))
        assert waited == [(full, 2)]
        del waited[:]
        begun = writer._work.put
        late = list[Any]()

        def meanwhile(batch: Any) -> None:
            if not late:
                _, _, _, _, passes_by = batch.calls[0]
                assert passes_by()  # as the thread asks it
                late.append(s.documents.write([rest]))  # what comes then is for the next one
            begun(batch)

        writer._work = _Put(writer._work, meanwhile)
        await s.documents.write([chunk])
        await late[0]
        assert waited == [(normal, 1), (full, 1)]


class _Put:
    """A queue, of which what is put into it is seen first."""

    def __init__(self, queue: Any, put: Any) -> None:
        self.get, self.put = queue.get, put


async def test_what_was_followed_to_its_end_is_forgotten_and_nothing_else(store: Path | str) -> None:
    async with opened(store) as s:
        await s.documents.write(
            [Follow("feed", "a", 0, 1, True), Follow("feed", "b", 0, 1), Follow("other", "a", 0, 1, True)]
        )
        assert await s.documents.forget_followed("feed", 1) == 0
        assert await s.documents.forget_followed("feed", FOREVER) == 1
        assert (await s.documents.write([Follow("feed", "a", 0, 1)])).stale is None
        assert await s.documents.followed("feed") == [("a", 1), ("b", 1)]
        assert (await s.documents.write([Follow("other", "a", 0, 1)])).stale is not None


# -- lists of changes ------------------------------------------------------------------------------------------


async def everything(store: Store) -> list[Any]:
    """All that is on the shelves these tests use, without times."""
    found: list[Any] = []
    for name in "ab":
        found += [
            (d.space, d.id, d.version, d.state, d.topic, d.owner, d.body) for d in await store.documents.search(name)
        ]
        found += [
            (x.box, x.number, x.key, x.rank, x.state, x.body) for x in await store.documents.letters(name, limit=1000)
        ]
        found += [(t.feed, t.seq, t.kind, t.topic, t.body) for t in await store.documents.feed(name, 0, 1000)]
        found += [await store.documents.feed_head(name), await store.documents.followed(name)]
    return found


STALE: list[Change] = [Put("a", "x", b"", version=3), Post("a", "x", b""), Follow("a", "x", 9, 10)]


@pytest.mark.parametrize("stale", STALE, ids=lambda change: type(change).__name__)
async def test_a_list_with_something_stale_changes_nothing_and_disturbs_none_that_is_kept_with_it(
    store: Path | str, stale: Change
) -> None:
    async with opened(store) as s:
        await s.documents.write([Put("a", "x", b"1"), Post("a", "x", b"1", state="new"), Follow("a", "x", 0, 1)])
        before = await everything(s)
        all_else: list[Change] = [
            Tell("a", "k", "", b""), Post("a", "y", b""), Put("a", "x", b"2"), Put("a", "y", b""), Drop("a", "x"),
            Put("a", "x", b"", version=0), Settle("a", [1], "read"), Rewrite("a", 1, b"2"), Follow("a", "x", 1, 2),
        ]  # fmt: skip
        kept = await s.documents.write(
            [*(c for c in all_else if type(c) is not type(stale)), stale, Tell("a", "k", "", b"")]
        )
        assert (kept.stale, kept.numbers) == (stale, [])
        assert await everything(s) == before
        good: list[Change] = [Tell("a", "k", "", b""), Post("b", "z", b"")]
        results = await asyncio.gather(
            s.documents.write(good),
            s.documents.write([Tell("a", "k", "", b""), stale]),
            s.documents.write([Tell("a", "k", "", b"")]),
        )
        assert [r.numbers for r in results] == [[1, 1], [], [2]]
        assert [r.stale for r in results] == [None, stale, None]


_name = st.sampled_from("ab")
_id = st.sampled_from("xyz")
_state = st.sampled_from(["new", "old"])
_body = st.binary(max_size=3)
_change = st.one_of(
    st.builds(Put, _name, _id, _body, _state, _id, _id, st.sampled_from([None, None, 0, 1, 2])),
    st.builds(Drop, _name, _id),
    st.builds(Post, _name, st.sampled_from("pqrstuvw"), _body, st.integers(-1, 1), _id, _state),
    st.builds(Settle, _name, st.lists(st.integers(-1, 6), max_size=6), _state, st.none() | _state),
    st.builds(Rewrite, _name, st.integers(0, 6), _body),
    st.builds(Tell, _name, _id, _id, _body),
    st.builds(Follow, _name, _id, st.integers(0, 2), st.integers(0, 2), st.sampled_from([False, False, True])),
)
_lists = st.lists(st.lists(_change, max_size=4), max_size=12)


@settings(many(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(lists=_lists)
@example(lists=[[Post("a", "p", b"")], [Tell("a", "k", "", b""), Post("a", "p", b""), Follow("a", "x", 1, 2)]])
@example(lists=[[Post("a", "p", b""), Post("a", "p", b"")], [Post("a", "p", b"")]])
def test_lists_that_are_kept_together_do_what_they_would_do_one_after_the_other(
    new_store: Callable[[], Path | str], lists: list[list[Change]]
) -> None:
    async def compare() -> None:
        async with opened(new_store()) as one, opened(new_store()) as many:
            alone = [await one.documents.write(changes) for changes in lists]
            before = many.batches
            together = await asyncio.gather(*[many.documents.write(changes) for changes in lists])
            assert many.batches - before <= 1
            assert [(k.numbers, k.stale) for k in together] == [(k.numbers, k.stale) for k in alone]
            assert [_key(k) for k in together] == [_key(k) for k in alone]
            assert await everything(many) == await everything(one)

    asyncio.run(compare())


def _key(kept: WriteResult) -> Any:
    return kept.letter and (kept.letter.box, kept.letter.number, kept.letter.key)


async def test_what_is_queued_together_is_one_transaction_and_takes_effect_in_the_order_of_the_calls(
    store: Path | str,
) -> None:
    async with opened(store) as s:
        before = s.batches
        futures = [
            s.documents.write([Post("in", str(n), b""), Tell("feed", "k", "", str(n).encode())]) for n in range(1, 1001)
        ]
        assert [k.numbers for k in await asyncio.gather(*futures)] == [[n, n] for n in range(1, 1001)]
        assert s.batches == before + 1
        assert [t.body for t in await s.documents.feed("feed", 0, 1000)] == [str(n).encode() for n in range(1, 1001)]


async def test_more_than_fits_into_one_transaction_is_kept_in_order_all_the_same(store: Path | str) -> None:
    async with opened(store) as s:
        futures = [s.documents.write([Tell("feed", "k", "", b"")]) for _ in range(4500)]
        assert [k.numbers for k in await asyncio.gather(*futures)] == [[n] for n in range(1, 4501)]


async def test_a_list_that_cannot_be_written_is_refused_alone(store: Path | str) -> None:
    async with opened(store) as s:
        results = await asyncio.gather(
            s.documents.write([Tell("feed", "k", "", b"1")]),
            s.documents.write([Tell("feed", "k", "", b"lost"), Post("in", "half \ud800", b"")]),
            s.documents.write([Tell("feed", "k", "", b"lost"), Post("in", "b", b"", rank=2**80)]),
            s.documents.write([Tell("feed", "k", "", b"lost"), Put("tasks", "c", None)]),  # type: ignore[arg-type]
            s.documents.write([Tell("feed", "k", "", b"2")]),
            return_exceptions=True,
        )
        assert [type(r) for r in results] == [WriteResult, InvalidRequest, InvalidRequest, StoreError, WriteResult]
        assert [(t.seq, t.body) for t in await s.documents.feed("feed", 0, 10)] == [(1, b"1"), (2, b"2")]


async def test_of_lists_that_are_waited_for_together_each_is_kept_or_refused_by_itself(store: Path | str) -> None:
    async with opened(store) as s:
        await post(s, Post("in", "there", b"before"))
        again, bad = Post("in", "there", b"again"), [Put("tasks", "\ud800", b"")]
        lists: list[list[Change]] = [
            [Post("in", "a", b"1"), Tell("f", "k", "", b"1")],
            [again],
            bad,
            [Tell("f", "k", "", b"2")],
        ]
        writing = [s.documents.write(changes) for changes in lists]
        first, stale, refused, last = await asyncio.gather(*writing, return_exceptions=True)
        assert isinstance(first, WriteResult)
        assert isinstance(stale, WriteResult)
        assert isinstance(refused, InvalidRequest)
        assert isinstance(last, WriteResult)
        assert (first.numbers, last.numbers) == ([2, 1], [2])
        assert (stale.numbers, stale.stale) == ([], again)
        assert stale.letter is not None
        assert stale.letter.body == b"before"
        assert keys(await s.documents.letters("in")) == ["there", "a"]


async def test_whoever_heeds_what_is_kept_is_told_of_each_list_in_order_and_before_anybody_goes_on(
    store: Path | str,
) -> None:
    async with opened(store) as s:
        told: list[list[int | None]] = []

        def heed(changes: Sequence[Change], kept: WriteResult) -> None:
            told.append(kept.numbers)

        async def one(place: int) -> int:
            await s.documents.write([Post("in", str(place), b"")], heed)
            return len(told)

        async def many() -> int:
            writing = [
                s.documents.write(changes, heed) for changes in ([Tell("f", "k", "", b"")], [Post("in", "0", b"")])
            ]
            await asyncio.gather(*writing)
            return len(told)

        assert await asyncio.gather(one(0), one(1), many()) == [4, 4, 4]
        assert told == [[1], [2], [1], []]


async def test_one_who_waits_no_longer_takes_nothing_from_the_others(store: Path | str) -> None:
    async with opened(store) as s:
        given_up, other = (
            s.documents.write([Tell("feed", "k", "", b"1")]),
            s.documents.write([Tell("feed", "k", "", b"2")]),
        )
        given_up.cancel()
        assert (await other).numbers == [2]
        assert len(await s.documents.feed("feed", 0, 10)) == 2


async def test_what_was_queued_before_the_end_is_kept_and_what_comes_after_is_refused(store: Path | str) -> None:
    s = at(store)
    await s.open()
    futures = [s.documents.write([Tell("feed", "k", "", b"")]) for _ in range(2500)]
    await s.close()
    assert [(await f).numbers for f in futures] == [[n] for n in range(1, 2501)]
    with pytest.raises(StoreError):
        await s.documents.write([Tell("feed", "k", "", b"")])


# -- with other processes --------------------------------------------------------------------------------------

# Told a file and lists of changes, it keeps them when it is told to go, and says what became of each.
WRITER = """
import asyncio, sys
import msgspec
from interlingua.model.documents import Post, Put, Tell
from interlingua.store.open import open_store

KINDS = {"post": Post, "put": Put, "tell": Tell}

def say(thing):
    sys.stdout.buffer.write(msgspec.json.encode(thing) + b"\\n")
    sys.stdout.buffer.flush()

async def obey(order):
    store = open_store(order["file"])
    await store.open()
    say("open")
    sys.stdin.readline()
    told = []
    for burst in order["bursts"]:
        lists = [[KINDS[c.pop("kind_of")](**{**c, "body": c["body"].encode()}) for c in changes] for changes in burst]
        told += [k.numbers for k in await asyncio.gather(*[store.documents.write(changes) for changes in lists])]
    await store.close()
    say(told)

for line in sys.stdin:
    asyncio.run(obey(msgspec.json.decode(line)))
"""

# Keeps letters and news of them for ever, many at a time, and says which are kept.
ENDLESS = """
import asyncio, sys
from interlingua.model.documents import Post, Put, Tell
from interlingua.store.open import open_store

async def go_on(store, prefix, lane):
    for n in range(10**9):
        key = f"{prefix}-{lane}-{n}"
        kept = await store.documents.write(
            [Post("in", key, key.encode()), Tell("feed", "k", "", key.encode()), Put("tasks", key, b"", version=0)]
        )
        print(key, *kept.numbers, flush=True)

async def main():
    store = open_store(sys.argv[1])
    await store.open()
    await asyncio.gather(*[go_on(store, sys.argv[2], lane) for lane in range(20)])

asyncio.run(main())
"""


class Process:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def end(self) -> int:
        self._process.communicate()
        return self._process.returncode


@pytest.fixture(scope="module")
def processes() -> Iterator[list[Process]]:
    made = [Process(), Process()]
    yield made
    assert [process.end() for process in made] == [0, 0]


_told = st.sampled_from("fg").map(lambda feed: {"kind_of": "tell", "feed": feed, "kind": "k", "topic": ""})
_posted = st.tuples(st.sampled_from("fg"), st.integers(0, 30)).map(
    lambda drawn: {"kind_of": "post", "box": drawn[0], "key": f"{drawn[1]}"}
)
_first = st.integers(0, 30).map(lambda n: {"kind_of": "put", "space": "s", "id": f"{n}", "version": 0})
_bursts = st.lists(
    st.lists(st.lists(_told | _posted | _first, min_size=1, max_size=4), min_size=1, max_size=15),
    min_size=1,
    max_size=4,
)


@settings(many(25), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(mine=_bursts, yours=_bursts)
def test_numbers_and_seqs_have_no_gap_and_no_double_whoever_writes(
    processes: list[Process], new_store: Callable[[], Path | str], mine: Any, yours: Any
) -> None:
    orders, expected = [], dict[tuple[str, str, int], str]()
    for name, bursts in (("mine", mine), ("yours", yours)):
        lists = [changes for burst in bursts for changes in burst]
        for which, changes in enumerate(lists):
            for place, change in enumerate(changes):
                change["body"] = f"{name} {which} {place}"
        orders.append((bursts, lists))
    file = new_store()
    for process, (bursts, _) in zip(processes, orders, strict=True):
        process.say(json.dumps({"file": str(file), "bursts": bursts}))
    assert [process.hear() for process in processes] == ["open", "open"]
    for process in processes:
        process.say("go")
    first = set[str]()
    for process, (_, lists) in zip(processes, orders, strict=True):
        for changes, numbers in zip(lists, process.hear(), strict=True):
            for change, number in zip(changes, numbers, strict=True) if numbers else ():
                if change["kind_of"] == "put":
                    assert number == 1
                    assert change["id"] not in first
                    first.add(change["id"])
                    continue
                shelf = change.get("feed") or change["box"]
                assert (change["kind_of"], shelf, number) not in expected
                expected[change["kind_of"], shelf, number] = change["body"]

    async def check() -> None:
        async with opened(file) as s:
            found = dict[tuple[str, str, int], str]()
            for name in "fg":
                told, letters = await s.documents.feed(name, 0, 10_000), await s.documents.letters(name, limit=10_000)
                assert [t.seq for t in told] == list(range(1, await s.documents.feed_head(name) + 1))
                assert [x.number for x in letters] == list(range(1, len(letters) + 1))
                assert len({x.key for x in letters}) == len(letters)
                found |= {("tell", name, t.seq): t.body.decode() for t in told}
                found |= {("post", name, x.number): x.body.decode() for x in letters}
            assert found == expected
            assert {d.id for d in await s.documents.search("s")} == first

    asyncio.run(check())


async def test_what_was_acknowledged_survives_kill_9_and_the_feed_goes_on_without_a_gap(store: Path | str) -> None:
    dice = random.Random(9)
    acknowledged: dict[str, list[int]] = {}
    for life in range(6):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ENDLESS, str(store), str(life), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(dice.randint(1, 400)):
            key, *numbers = (await process.stdout.readline()).decode().split()
            acknowledged[key] = [int(n) for n in numbers]
        process.kill()
        for line in (await process.stdout.read()).decode().splitlines(keepends=True):
            key, *numbers = line.split()
            if line.endswith("\n"):  # else it was killed in the middle of the word
                acknowledged[key] = [int(n) for n in numbers]
        assert await process.wait() == -9
        async with opened(store) as s:
            told, letters = await s.documents.feed("feed", 0, 100_000), await s.documents.letters("in", limit=100_000)
            assert [t.seq for t in told] == list(range(1, await s.documents.feed_head("feed") + 1))
            assert [x.number for x in letters] == [t.seq for t in told]
            assert [x.key.encode() for x in letters] == [t.body for t in told]
            there = {x.key: [x.number, x.number, 1] for x in letters}
            assert acknowledged.items() <= there.items()
            assert [d.id for d in await s.documents.search("tasks", limit=100_000)] == [x.key for x in letters]


async def test_lists_are_kept_once_where_a_call_beside_them_has_to_be_undone(store: Path | str) -> None:
    async with opened(store) as s:
        broken = s.database.write(lambda conn: conn.execute("INSERT INTO nowhere VALUES (1)"))
        futures = [s.documents.write([Tell("feed", "k", "", b"")]) for _ in range(10)]
        assert [k.numbers for k in await asyncio.gather(*futures)] == [[n] for n in range(1, 11)]
        with pytest.raises(StoreError):
            await broken
        assert [t.seq for t in await s.documents.feed("feed", 0, 100)] == list(range(1, 11))


# -- SQLite only -----------------------------------------------------------------------------------------------


async def test_where_the_file_stays_locked_whoever_waits_is_told_and_later_all_is_well(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(sqlite.path) as s:
        assert isinstance(s, SQLiteStore)
        other = sqlite3.connect(sqlite.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(sqlite_connection, "_LOCK_PATIENCE", 0.05)
        with pytest.raises(StoreError, match="locked"):
            await s.documents.write([Tell("feed", "k", "", b"")])
        other.execute("ROLLBACK")
        other.close()
        assert (await s.documents.write([Tell("feed", "k", "", b"")])).numbers == [1]


async def test_reading_a_page_and_changing_some_costs_the_same_however_much_there_is(sqlite: SQLiteStore) -> None:
    async with opened(sqlite.path) as s:
        assert isinstance(s, SQLiteStore)

        async def fill(times: int) -> None:
            for _ in range(times):
                at = await s.documents.count_letters("in")
                await s.documents.write(
                    [Post("in", f"{at + n}", b"", n % 3, f"t{n % 10}", "read" if n % 5 else "new") for n in range(500)]
                )
                await s.documents.write(
                    [Put("d", f"{at + n}", b"", "done" if n % 5 else "new", f"{n}", f"{n % 10}") for n in range(500)]
                )
                await s.documents.write([Tell("feed", "k", f"t{n % 10}", b"") for n in range(500)])

        uses: dict[str, Callable[[], Any]] = {
            "ranked": lambda: s.documents.letters("in", states=["new"], ranked=True, limit=10),
            "ranked of a topic": lambda: s.documents.letters(
                "in", states=["read", "new"], topic="t1", ranked=True, limit=10
            ),
            "all": lambda: s.documents.letters("in", limit=10),
            "newest": lambda: s.documents.letters("in", newest=True, limit=10),
            "documents": lambda: s.documents.search("d", after="250", limit=10),
            "documents in states": lambda: s.documents.search("d", states=["done", "new"], newest=True, limit=10),
            "documents of an owner": lambda: s.documents.search("d", states=["new"], owner="5", limit=10),
            "told": lambda: s.documents.feed("feed", 100, 10),
            "told of a topic": lambda: s.documents.feed("feed", 100, 10, topic="t3"),
            "put again": lambda: s.documents.write([Put("d", f"{n}", b"", "done", f"{n}", "x") for n in range(100)]),
            "settled": lambda: s.documents.write([Settle("in", list(range(1, 100)), "read", only="new")]),
            "known": lambda: s.documents.write([Post("in", f"{n}", b"") for n in range(100)]),
        }
        reading, writing, plain = [0], [0], s.database.with_connection

        def counting(conn: sqlite3.Connection, steps: list[int]) -> sqlite3.Connection:
            conn.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 1)
            return conn

        def read_counting(fn: Callable[[sqlite3.Connection], Any]) -> Any:
            return plain(lambda conn: fn(counting(conn, reading)))

        s.database.with_connection = read_counting  # type: ignore[method-assign]
        counting(s.database.writer._conn, writing)

        async def costs() -> dict[str, int]:
            used = {}
            for name, use in uses.items():
                await use()  # so that it finds the same the next time
                reading[0] = writing[0] = 0
                result = await use()
                used[name] = writing[0] if isinstance(result, WriteResult) else reading[0]
            return used

        await fill(1)
        few = await costs()
        await fill(9)
        many = await costs()
        assert all(cost > 0 for cost in few.values())
        assert {name: cost for name, cost in many.items() if cost > 1.5 * few[name]} == {}

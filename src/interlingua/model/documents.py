"""What a door keeps that is no run and no thread: documents, letters, and feeds of news.

These are the words for it, without a database: the changes that `keep` applies, all of a list or none, and the rows
that reads give back. What is in a body, and what a space, box, feed, topic or state means, only the door knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

# -- changes -----------------------------------------------------------------------------------------------


class Put(msgspec.Struct, frozen=True, gc=False):
    """A document, new or in place of the one that is there. Its version counts up from 1."""

    space: str
    id: str
    body: bytes
    state: str = ""
    topic: str = ""
    owner: str = ""
    version: int | None = None  # it must have now; 0: there must be none, None: whatever there is


class Drop(msgspec.Struct, frozen=True, gc=False):
    """A document is no more. One of the same id that comes later is a new one."""

    space: str
    id: str


class Post(msgspec.Struct, frozen=True, gc=False):
    """A letter. Its number counts up from 1 in its box and is never used again; its key must be new to the box."""

    box: str
    key: str
    body: bytes
    rank: int = 0  # higher is read first
    topic: str = ""
    state: str = ""
    owner: str = ""


class Settle(msgspec.Struct, frozen=True, gc=False):
    """Letters get another state: of these, those that there are and that are in state `only`."""

    box: str
    numbers: list[int]
    state: str
    only: str | None = None


class Rewrite(msgspec.Struct, frozen=True, gc=False):
    """A letter gets another body."""

    box: str
    number: int
    body: bytes


class Tell(msgspec.Struct, frozen=True, gc=False):
    """News for a feed. Its seq counts up from 1 in its feed, with no gap, whoever writes and whoever is killed.

    What `passes_by` is output of a run, of which the whole comes later: as the run's log does, it need not wait for the
    disk, and after a power cut the feed may end before it."""

    feed: str
    kind: str
    topic: str
    body: bytes
    passes_by: bool = False


class Follow(msgspec.Struct, frozen=True, gc=False):
    """How far a run's log has been told to a feed: it moves from `expected` (0: not at all yet), and once it has ended
    it moves no more. Kept with the news it stands for, each part of a log is told once, however many try. With `hash`,
    that of the event at `upto`, it moves only where the log has that event: in the store, or in the transaction that
    this is in."""

    feed: str
    run: str
    expected: int
    upto: int
    ended: bool = False
    hash: bytes | None = None


Change = Put | Drop | Post | Settle | Rewrite | Tell | Follow


# -- what comes back ---------------------------------------------------------------------------------------


class Document(msgspec.Struct, frozen=True, gc=False):
    space: str
    id: str
    version: int
    state: str
    topic: str
    owner: str
    created_at: int  # this and all other times here: microseconds since 1970, UTC
    updated_at: int
    body: bytes


class Letter(msgspec.Struct, frozen=True, gc=False):
    box: str
    number: int
    key: str
    rank: int
    topic: str
    state: str
    owner: str
    time: int
    body: bytes


class Told(msgspec.Struct, frozen=True, gc=False):
    feed: str
    seq: int
    kind: str
    topic: str
    time: int
    body: bytes


class Kept(msgspec.Struct):
    """What became of a list of changes. Where `stale` is set, nothing of the list was applied."""

    # By place in the list: the version of a Put, the number of a Post, the seq of a Tell; of Drop, Settle and Rewrite
    # how many documents or letters they found. Empty where something was stale.
    numbers: list[int | None] = []
    stale: Change | None = None  # the first whose condition did not hold
    letter: Letter | None = None  # where that is a Post: the letter that has its key


# Told what became of a list of changes, before whoever waits for it goes on. It must not raise.
Heed = Callable[[Sequence[Change], Kept], None]

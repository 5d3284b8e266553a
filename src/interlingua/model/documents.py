"""Records that doors store beside runs and threads: documents, letters in boxes, and feeds.

The types are independent of a database: the changes that the store applies, all of a list or none, and the rows that
reads return. Only the door knows the format of a body and the meaning of a space, box, feed, topic or state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

# -- changes -----------------------------------------------------------------------------------------------


class Put(msgspec.Struct, frozen=True, gc=False):
    """Creates or replaces a document. Its version counts up from 1."""

    space: str
    id: str
    body: bytes
    state: str = ""
    topic: str = ""
    owner: str = ""
    version: int | None = None  # the version it must have now; 0: it must not exist, None: no condition


class Drop(msgspec.Struct, frozen=True, gc=False):
    """Deletes a document. A later one with the same id is new."""

    space: str
    id: str


class Post(msgspec.Struct, frozen=True, gc=False):
    """Adds a letter to a box, with a key that is new to the box. Numbers count up from 1 and are never reused."""

    box: str
    key: str
    body: bytes
    rank: int = 0  # higher is read first
    topic: str = ""
    state: str = ""
    owner: str = ""


class Settle(msgspec.Struct, frozen=True, gc=False):
    """Changes the state of letters. Skips missing letters and, with `only`, letters in any other state."""

    box: str
    numbers: list[int]
    state: str
    only: str | None = None


class Rewrite(msgspec.Struct, frozen=True, gc=False):
    """Replaces the body of a letter."""

    box: str
    number: int
    body: bytes


class Tell(msgspec.Struct, frozen=True, gc=False):
    """Appends an entry to a feed. Its seq counts up from 1 without gaps, also with several writers and after crashes.

    A `passes_by` entry carries output of a run whose whole output follows later. Like the run's log it need not wait
    for the disk; after a power cut the feed may end before it.
    """

    feed: str
    kind: str
    topic: str
    body: bytes
    passes_by: bool = False


class Follow(msgspec.Struct, frozen=True, gc=False):
    """Advances the position up to which a feed holds a run's log, from `expected` (0: none yet) to `upto`.

    Written in the transaction of the entries that it covers, so that each part of a log enters a feed once, also with
    concurrent writers. After `ended` the position is final. With `hash`, the hash of the event at `upto`, it advances
    only if the log has that event, in the store or in the same transaction.
    """

    feed: str
    run: str
    expected: int
    upto: int
    ended: bool = False
    hash: bytes | None = None


Change = Put | Drop | Post | Settle | Rewrite | Tell | Follow


# -- rows and results ----------------------------------------------------------------------------------------


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


class FeedEntry(msgspec.Struct, frozen=True, gc=False):
    feed: str
    seq: int
    kind: str
    topic: str
    time: int
    body: bytes


class WriteResult(msgspec.Struct):
    """The outcome of a list of changes. If `stale` is set, none of them was applied."""

    # By place in the list: the version of a Put, the number of a Post, the seq of a Tell; for Drop, Settle and Rewrite
    # the count of documents or letters that they found. Empty if a change was stale.
    numbers: list[int | None] = []
    stale: Change | None = None  # the first change whose condition did not hold
    letter: Letter | None = None  # if that is a Post: the letter that already has its key


# Receives the outcome of a list of changes, before the waiting caller resumes. It must not raise.
OnWritten = Callable[[Sequence[Change], WriteResult], None]

"""The format of an audit export, and the report of its verification. Pure.

The file is JSON lines: a manifest (the runs with the last hash of each), all events of all runs in the order of the
manifest, and a seal that signs the manifest. `verify` finds changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated, Any

import msgspec

from ..status import Status

FORMAT = "interlingua-audit"
VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999_999)]  # microseconds since 1970, UTC, to the year 9999

# -- content of the file --------------------------------------------------------------------------------------


class RunEntry(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A run at the time of the export."""

    run: str
    agent: str
    events: Count
    head: str  # its last hash
    status: Status | None = None  # None: the run was deleted, and its last status is unknown
    parent: str | None = None
    parent_head: str | None = None  # the parent's last hash when this run was created
    created_at: Time | None = None
    sealed: bool = False
    task: str = ""
    participant: str = ""  # the team's id of the agent that worked in it
    deleted: bool = False  # only a tombstone is left
    deleted_at: Time | None = None

    def __str__(self) -> str:
        return f"run {self.run} ({self.participant or self.agent})"


class Missing(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A run that was called but left no trace; it probably never began."""

    run: str
    parent: str
    agent: str


class Manifest(msgspec.Struct, tag="manifest", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    format: str
    version: int
    root: str
    exported_at: Time
    runs: list[RunEntry]  # the root first, and each parent before its children
    task: str = ""
    missing: list[Missing] = []
    cards: dict[str, Any] = {}  # by digest: the cards that runs were checked against
    teams: dict[str, list[Any]] = {}  # by name: the manifests of its agents


class EventLine(msgspec.Struct, tag="event", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    run: str
    seq: int
    kind: str
    time: int
    hash: str
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # the exact hashed bytes
    erased: str | None = None  # the hash of an erased body


class Seal(msgspec.Struct, tag="seal", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    digest: str
    key: str  # the public key
    signature: str


Line = Manifest | EventLine | Seal

decoder = msgspec.json.Decoder(Line)


def line(value: Line) -> bytes:
    """Encodes a line canonically: a line in any other encoding was changed."""
    return msgspec.json.encode(value) + b"\n"


def event_line(
    run: str, seq: int, kind: str, time: int, hash_: bytes, body: bytes | None, erased: bytes | None
) -> bytes:
    if body is None:
        return line(EventLine(run, seq, kind, time, hash_.hex(), erased=(erased or b"").hex()))
    # Bodies that the engine wrote have no line breaks. One that was changed in the store may have some; replacing
    # them keeps the file readable, and verification fails either way.
    return line(EventLine(run, seq, kind, time, hash_.hex(), msgspec.Raw(body.replace(b"\n", b" "))))


def digest(manifest_line: bytes, runs: Iterable[RunEntry]) -> str:
    """Computes the signed digest: over the encoded manifest and the last hash of every run."""
    hasher = sha256(f"{FORMAT}\n{VERSION}\n".encode() + sha256(manifest_line).digest())
    for entry in runs:
        hasher.update(f"{entry.run}\n{entry.events}\n{entry.head}\n".encode())
    return hasher.hexdigest()


def signed_text(digest_: str) -> bytes:
    return f"{FORMAT} {VERSION} {digest_}\n".encode()


def event_name(seq: int, kind: str | None) -> str:
    return f"event {seq} ({kind[:40]})" if kind else f"event {seq}"


# -- report of a verification ---------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A difference from the exported state. Run and seq locate it; for a missing event, its former place."""

    code: str
    message: str
    line: int | None = None
    run: str | None = None
    seq: int | None = None
    kind: str | None = None


class Report(msgspec.Struct, kw_only=True):
    root: str = ""
    task: str = ""
    exported_at: int | None = None
    runs: int = 0
    events: int = 0  # number of events read
    erased: int = 0
    problems: list[Problem] = []
    more: int = 0  # number of problems that are not listed
    notes: list[str] = []
    unfinished: list[str] = []  # runs that were still active at the export
    deleted: list[str] = []
    key: str = ""  # the public key that the seal names
    origin: bool = False  # True if that is the expected key; False also if no key was expected

    @property
    def ok(self) -> bool:
        return not self.problems

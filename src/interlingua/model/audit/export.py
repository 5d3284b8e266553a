"""An audit export: what stands in the file, and what comes of checking one. Pure.

The file is JSON lines: a manifest (which runs there are, and the last hash of each), every event of every run in the
order of the manifest, and a seal, which signs the manifest. Here is the format; `audit_check` finds what was changed.
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

# -- what stands in the file ----------------------------------------------------------------------------------


class RunEntry(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A run, as it was when the file was written."""

    run: str
    agent: str
    events: Count
    head: str  # its last hash
    status: Status | None = None  # None: it was deleted, and nobody knows how it had ended
    parent: str | None = None
    parent_head: str | None = None  # the parent's last hash when this run was created
    created_at: Time | None = None
    sealed: bool = False
    task: str = ""
    participant: str = ""  # who worked in it, by the name that the team has for it
    deleted: bool = False  # all that is left of it is a tombstone
    deleted_at: Time | None = None

    def __str__(self) -> str:
        return f"run {self.run} ({self.participant or self.agent})"


class Missing(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A run that was called for, and of which there is no trace: most likely it never began."""

    run: str
    parent: str
    agent: str


class Manifest(msgspec.Struct, tag="manifest", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    format: str
    version: int
    root: str
    exported_at: Time
    runs: list[RunEntry]  # the root first, and parents before those that they called
    task: str = ""
    missing: list[Missing] = []
    cards: dict[str, Any] = {}  # by digest: cards that runs were checked against
    teams: dict[str, list[Any]] = {}  # by name: the manifests of its agents


class EventLine(msgspec.Struct, tag="event", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    run: str
    seq: int
    kind: str
    time: int
    hash: str
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # byte for byte as it was hashed
    erased: str | None = None  # instead of a body that was erased: its hash


class Seal(msgspec.Struct, tag="seal", tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    digest: str
    key: str  # the public one
    signature: str


Line = Manifest | EventLine | Seal

decoder = msgspec.json.Decoder(Line)


def line(thing: Line) -> bytes:
    """The one way to write a line: a line that is written in another way was changed."""
    return msgspec.json.encode(thing) + b"\n"


def event_line(
    run: str, seq: int, kind: str, time: int, hash_: bytes, body: bytes | None, erased: bytes | None
) -> bytes:
    if body is None:
        return line(EventLine(run, seq, kind, time, hash_.hex(), erased=(erased or b"").hex()))
    # No body that we wrote has a line break. One that was changed in the store may, and is no better on one line.
    return line(EventLine(run, seq, kind, time, hash_.hex(), msgspec.Raw(body.replace(b"\n", b" "))))


def digest(manifest_line: bytes, runs: Iterable[RunEntry]) -> str:
    """What is signed: the manifest as it is written, and the last hash of every run."""
    made = sha256(f"{FORMAT}\n{VERSION}\n".encode() + sha256(manifest_line).digest())
    for entry in runs:
        made.update(f"{entry.run}\n{entry.events}\n{entry.head}\n".encode())
    return made.hexdigest()


def signed_text(digest_: str) -> bytes:
    return f"{FORMAT} {VERSION} {digest_}\n".encode()


def event_name(seq: int, kind: str | None) -> str:
    return f"event {seq} ({kind[:40]})" if kind else f"event {seq}"


# -- what comes of a check ------------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that is not as it was written. Run and seq say where: of an event that is gone, where it was."""

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
    events: int = 0  # that were read
    erased: int = 0
    problems: list[Problem] = []
    more: int = 0  # problems that are not told
    notes: list[str] = []
    unfinished: list[str] = []  # runs that went on when the file was written
    deleted: list[str] = []
    key: str = ""  # with which it says that it is signed
    origin: bool = False  # whether that is the key that was expected; false also where none was

    @property
    def ok(self) -> bool:
        return not self.problems

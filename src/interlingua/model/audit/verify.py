"""Whether an audit export still is what was written, and which event was changed first where it is not. Pure.

`Checker` is given one line after the other and keeps nothing but what it knows of runs, so that files may be of any
length. What the events of one log say about another is compared in `audit_ties`. Signatures are checked by a function
that is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from .. import hash_chain, json_values
from .export import (
    FORMAT,
    VERSION,
    EventLine,
    Manifest,
    Problem,
    Report,
    RunEntry,
    Seal,
    decoder,
    digest,
    event_name,
    line,
    signed_text,
)
from .links import UNREADABLE, Ties

Genuine = Callable[[str, str, bytes], bool]  # public key, signature, what was signed
Trusts = Callable[[str], bool]


class _Header(msgspec.Struct):
    type: str = ""
    format: str = ""
    version: Any = None


_headers = msgspec.json.Decoder(_Header)
_TOLD = 100
_KIND = re.compile(rb'"kind":"([a-z_]{1,40})"')


def verify(lines: Iterable[bytes], genuine: Genuine, trusts: Trusts | None = None) -> Report:
    """Check a whole file, line by line. `trusts` says whether a public key is the one that is expected."""
    checker = Checker(genuine, trusts)
    for raw in lines:
        checker.feed(raw)
    return checker.finish()


class Checker:
    """Reads a file as it comes. Where something is wrong it is told once, and reading goes on behind it."""

    def __init__(self, genuine: Genuine, trusts: Trusts | None = None) -> None:
        self.report = Report()
        self._genuine = genuine
        self._trusts = trusts
        self._number = 0  # of the line
        self._manifest: Manifest | None = None
        self._digest = ""
        self._seal: Seal | None = None
        self._entries: dict[str, RunEntry] = {}
        self._live: list[RunEntry] = []  # those of which there are events
        self._place: dict[str, int] = {}  # of runs in `_live`
        self._at = 0  # in `_live`: whose events are being read
        self._expected = 1  # seq
        self._previous: bytes | None = hash_chain.GENESIS  # None: not known, as what stood before is gone
        self._last_kind = ""
        self._broken: set[str] = set()  # runs whose log is not whole: what it does not tell means nothing
        self._ties: Ties | None = None
        self._told: set[tuple[str | None, int | None]] = set()

    def feed(self, raw: bytes) -> None:
        """The next line, with its line break."""
        self._number += 1
        if self._number == 1:
            self._begin(raw)
        elif self._manifest is None:
            return  # nothing can be told without it
        elif self._seal is not None:
            self._wrong("added", f"line {self._number} follows the seal, which is the last line", place=(None, -1))
        else:
            self._next(raw)

    # -- the manifest -------------------------------------------------------------------------------------

    def _begin(self, raw: bytes) -> None:
        try:
            header = _headers.decode(raw)
        except UNREADABLE:
            self._wrong("format", "line 1 cannot be read: this is no audit export, or its manifest was changed")
            return
        if (header.type, header.format) != ("manifest", FORMAT):
            self._wrong("format", "this is no audit export: its first line is not the manifest of one")
            return
        if header.version != VERSION:
            told = header.version if isinstance(header.version, int) else "that is not known"
            self._wrong("version", f"the file has format version {told}, and this program reads version {VERSION}")
            return
        try:
            manifest = decoder.decode(raw)
            if not isinstance(manifest, Manifest) or not raw.endswith(b"\n"):
                raise msgspec.DecodeError("it is cut off")
        except UNREADABLE as error:
            self._wrong("manifest", f"the manifest (line 1) cannot be read: {error}")
            return
        self._manifest = manifest
        self._digest = digest(raw, manifest.runs)
        report = self.report
        report.root, report.task, report.exported_at = manifest.root, manifest.task, manifest.exported_at
        report.runs = len(manifest.runs)
        self._check_entries(manifest)
        for key, card in manifest.cards.items():
            if json_values.digest(card) != key:
                self._wrong("manifest", f"the card {key[:16]}… was changed", place=(key, None))

    def _check_entries(self, manifest: Manifest) -> None:
        if not manifest.runs or manifest.runs[0].run != manifest.root:
            self._wrong("manifest", f"the first run of the manifest is not the root, {manifest.root}")
        for entry in manifest.runs:
            if entry.run in self._entries:
                self._wrong("duplicate_run", f"{entry} is listed twice", run=entry.run)
                continue
            if entry.parent not in self._entries and entry is not manifest.runs[0]:
                told = f"run {entry.parent}, which called {entry}, was removed from the file"
                self._wrong("removed_run", told, run=entry.parent, place=(entry.parent, 0))
            self._entries[entry.run] = entry
            if entry.deleted:
                self.report.deleted.append(entry.run)
                self.report.notes.append(_tombstone(entry))
                continue
            if entry.events < 1:
                self._wrong("manifest", f"{entry} has {entry.events} events; each run has at least one", run=entry.run)
            self._place[entry.run] = len(self._live)
            self._live.append(entry)
            if entry.status is None or not entry.status.final:
                self.report.unfinished.append(entry.run)
                self.report.notes.append(f"not finished: {entry} went on after event {entry.events}")
        self._ties = Ties(manifest, self._entries, self._wrong, self.report.notes)
        first = manifest.runs[0] if manifest.runs else None
        if first is not None and first.parent is not None:
            self.report.notes.append(f"run {first.parent}, which called the first run, is not part of this file")

    # -- events -------------------------------------------------------------------------------------------

    def _next(self, raw: bytes) -> None:
        try:
            read = decoder.decode(raw)
            if line(read) != raw:
                raise msgspec.DecodeError("it is not written as it was")
        except UNREADABLE as error:
            self._unreadable(raw, str(error))
            return
        match read:
            case EventLine():
                self._event(read)
            case Seal():
                self._seal = read
            case Manifest():
                self._wrong("added", f"line {self._number} is another manifest", place=(None, self._number))

    def _current(self) -> RunEntry | None:
        return self._live[self._at] if self._at < len(self._live) else None

    def _unreadable(self, raw: bytes, why: str) -> None:
        entry = self._current()
        cut = "" if raw.endswith(b"\n") else ": the file is cut off here"
        if entry is None:
            self._wrong("seal", f"line {self._number}, where the seal should be, cannot be read{cut or f' ({why})'}")
            return
        kind = _KIND.search(raw)
        told = kind[1].decode() if kind is not None else None
        self._wrong(
            "cut" if cut else "changed",
            f"{event_name(self._expected, told)} of {entry} cannot be read (line {self._number}){cut or f': {why}'}",
            run=entry.run, seq=self._expected, kind=told,
        )  # fmt: skip
        self._broken.add(entry.run)
        self._previous = None
        self._advance(entry, told or "")

    def _event(self, event: EventLine) -> None:
        entry = self._current()
        place = self._place.get(event.run)
        # A later run may begin: then the rest of those before is gone. Anything else does not belong here.
        while entry is not None and place is not None and place > self._at and event.seq == 1:
            self._end_run(entry)
            entry = self._current()
        if entry is None or event.run != entry.run:
            self._stray(event, entry)
            return
        if event.seq != self._expected:
            self._broken.add(entry.run)
            if event.seq < self._expected:
                self._stray(event, entry)
                return
            told = f"event {self._expected} of {entry} is not there: line {self._number} has event {event.seq}"
            self._wrong("missing", told, run=entry.run, seq=self._expected)
            if event.seq <= entry.events:
                self._expected = event.seq
            self._previous = None
        self.report.events += 1
        if self._fits(entry, event) and entry.run not in self._broken and self._ties is not None:
            self._ties.take(entry, event)
        self._advance(entry, event.kind)

    def _stray(self, event: EventLine, entry: RunEntry | None) -> None:
        known = self._entries.get(event.run)
        whose = str(known) if known is not None else f"run {event.run[:80]}, which the manifest does not list"
        if entry is None:
            told = f"{event_name(event.seq, event.kind)} of {whose} was added after the last event of the last run"
            self._wrong("added", told, run=event.run, seq=event.seq, kind=event.kind)
        elif known is not None and event.seq > known.events:
            told = f"{event_name(event.seq, event.kind)} of {whose} was added: it has {known.events} events"
            self._wrong("added", told, run=event.run, seq=event.seq, kind=event.kind)
        else:
            told = f"{event_name(event.seq, event.kind)} of {whose}"
            where = f"where event {self._expected} of {entry} should be"
            self._wrong(
                "out_of_place", f"line {self._number} has {told}, {where}", run=entry.run, seq=self._expected
            )  # fmt: skip

    def _fits(self, entry: RunEntry, event: EventLine) -> bool:
        """Whether an event follows from the one before it."""
        if event.body is not msgspec.UNSET and event.erased is None:
            body: bytes | None = hash_chain.body_hash(bytes(event.body))
        else:
            body = _hash(event.erased) if event.body is msgspec.UNSET else None
            self.report.erased += body is not None
        stored, previous = _hash(event.hash), self._previous
        self._previous = stored
        fits = body is not None and stored is not None
        if fits and previous is not None:
            assert body is not None
            fits = hash_chain.link(previous, event.run, event.seq, event.kind, event.time, body) == stored
        if not fits:
            if entry.run not in self._broken:
                self._wrong(
                    "changed", f"{event_name(event.seq, event.kind)} of {entry} was changed (line {self._number})",
                    run=entry.run, seq=event.seq, kind=event.kind,
                )  # fmt: skip
            self._broken.add(entry.run)
        return fits

    def _advance(self, entry: RunEntry, kind: str) -> None:
        self._last_kind = kind
        self._expected += 1
        if self._expected > entry.events:
            self._end_run(entry)

    def _end_run(self, entry: RunEntry) -> None:
        left = entry.events - self._expected + 1
        if left > 0:
            after = f"ends after event {self._expected - 1}" if self._expected > 1 else "is not there"
            self._wrong(
                "cut" if self._expected > 1 else "removed_run",
                f"{entry} {after}: {left} of its {entry.events} events are gone", run=entry.run, seq=self._expected,
            )  # fmt: skip
            self._broken.add(entry.run)
        elif entry.run not in self._broken:
            if self._previous is None or self._previous.hex() != entry.head:
                told = f"the last hash of {entry} is not the one in the manifest: the log or the manifest was changed"
                self._wrong("head", told, run=entry.run, seq=entry.events, kind=self._last_kind)
                self._broken.add(entry.run)
            ended = self._last_kind == "finished"
            if ended is not (entry.status is not None and entry.status.final):
                told = f"the manifest says that {entry} is {entry.status}, and its log {'ends' if ended else 'goes on'}"
                self._wrong("manifest", told, run=entry.run, seq=entry.events, kind=self._last_kind)
        self._at, self._expected, self._previous, self._last_kind = self._at + 1, 1, hash_chain.GENESIS, ""

    # -- the end ------------------------------------------------------------------------------------------

    def finish(self) -> Report:
        if self._number == 0:
            self._wrong("format", "the file is empty")
        if self._manifest is None:
            return self.report
        self._number = 0  # what is told from here on is of no line
        while (entry := self._current()) is not None:
            self._end_run(entry)
        if self._ties is not None:
            self._ties.finish(self._broken)
        self._check_seal()
        if self.report.erased:
            self.report.notes.append(f"{self.report.erased} events were erased: their place and hash are still proven")
        return self.report

    def _check_seal(self) -> None:
        seal = self._seal
        if seal is None:
            self._wrong("seal", "the file is cut off: its last line, the seal, is not there", place=(None, None))
            return
        self.report.key = seal.key
        if self._trusts is not None:
            self.report.origin = self._trusts(seal.key)
            if not self.report.origin:
                self._wrong("key", "the file was signed with another key than the one that is expected", place=("", 0))
        fits = seal.digest == self._digest
        if not fits or not self._genuine(seal.key, seal.signature, signed_text(self._digest)):
            self.report.origin = False
            told = "the manifest was changed after it was signed" if not fits else "the signature is not of that key"
            self._wrong("signature", f"the signature does not fit: {told}", place=("", 1))

    def _wrong(
        self, code: str, message: str, *, run: str | None = None, seq: int | None = None, kind: str | None = None,
        place: tuple[str | None, int | None] | None = None,
    ) -> None:  # fmt: skip
        """Tell of a problem: one for each place, and not more than anybody reads."""
        place = place or (run, seq)
        if place in self._told:
            return
        if len(self._told) >= _TOLD:
            self.report.more += 1
            return
        self._told.add(place)
        self.report.problems.append(Problem(code, message, self._number or None, run, seq, kind))


def _tombstone(entry: RunEntry) -> str:
    known = f"what is left is its last hash, {entry.head}" if entry.head else "nothing of it is left"
    return f"deleted: {entry} is gone; {known}"


def _hash(text: str | None) -> bytes | None:
    """A hash as we write it, or None: `fromhex` alone would also take capitals and spaces."""
    try:
        raw = bytes.fromhex(text or "")
    except ValueError:
        return None
    return raw if len(raw) == 32 and raw.hex() == text else None

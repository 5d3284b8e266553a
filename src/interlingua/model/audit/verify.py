"""Verification of an audit export: finds the first changed event of each log. Pure.

`Checker` reads line by line and keeps only data about runs, so that files may have any length. `links` compares what
the logs say about each other. The caller passes the function that checks signatures.
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
from .links import UNREADABLE, LinkChecker

Genuine = Callable[[str, str, bytes], bool]  # public key, signature, what was signed
Trusts = Callable[[str], bool]


class _Header(msgspec.Struct):
    type: str = ""
    format: str = ""
    version: Any = None


_headers = msgspec.json.Decoder(_Header)
_MAX_PROBLEMS = 100
_KIND = re.compile(rb'"kind":"([a-z_]{1,40})"')


def verify(lines: Iterable[bytes], genuine: Genuine, trusts: Trusts | None = None) -> Report:
    """Verifies a file, line by line. `trusts` decides if a public key is the expected one."""
    checker = Checker(genuine, trusts)
    for raw in lines:
        checker.feed(raw)
    return checker.finish()


class Checker:
    """Verifies a stream of lines. Each problem is reported once, and reading continues behind it."""

    def __init__(self, genuine: Genuine, trusts: Trusts | None = None) -> None:
        self.report = Report()
        self._genuine = genuine
        self._trusts = trusts
        self._number = 0  # of the current line
        self._manifest: Manifest | None = None
        self._digest = ""
        self._seal: Seal | None = None
        self._entries: dict[str, RunEntry] = {}
        self._with_events: list[RunEntry] = []  # runs that are not deleted
        self._positions: dict[str, int] = {}  # of runs in `_with_events`
        self._index = 0  # in `_with_events`: the run whose events are being read
        self._expected = 1  # seq
        self._previous: bytes | None = hash_chain.GENESIS  # None: unknown, because the event before is missing
        self._last_kind = ""
        self._broken: set[str] = set()  # runs with an incomplete log: a missing event proves nothing
        self._links: LinkChecker | None = None
        self._reported: set[tuple[str | None, int | None]] = set()

    def feed(self, raw: bytes) -> None:
        """Reads the next line, with its line break."""
        self._number += 1
        if self._number == 1:
            self._read_manifest(raw)
        elif self._manifest is None:
            return  # nothing can be checked without a manifest
        elif self._seal is not None:
            self._report_problem(
                "added", f"line {self._number} follows the seal, which is the last line", place=(None, -1)
            )
        else:
            self._read_line(raw)

    # -- the manifest -------------------------------------------------------------------------------------

    def _read_manifest(self, raw: bytes) -> None:
        try:
            header = _headers.decode(raw)
        except UNREADABLE:
            self._report_problem(
                "format", "line 1 cannot be read: this is no audit export, or its manifest was changed"
            )
            return
        if (header.type, header.format) != ("manifest", FORMAT):
            self._report_problem("format", "this is no audit export: its first line is not the manifest of one")
            return
        if header.version != VERSION:
            message = header.version if isinstance(header.version, int) else "that is not known"
            self._report_problem(
                "version", f"the file has format version {message}, and this program reads version {VERSION}"
            )
            return
        try:
            manifest = decoder.decode(raw)
            if not isinstance(manifest, Manifest) or not raw.endswith(b"\n"):
                raise msgspec.DecodeError("it is cut off")
        except UNREADABLE as error:
            self._report_problem("manifest", f"the manifest (line 1) cannot be read: {error}")
            return
        self._manifest = manifest
        self._digest = digest(raw, manifest.runs)
        report = self.report
        report.root, report.task, report.exported_at = manifest.root, manifest.task, manifest.exported_at
        report.runs = len(manifest.runs)
        self._check_entries(manifest)
        for key, card in manifest.cards.items():
            if json_values.digest(card) != key:
                self._report_problem("manifest", f"the card {key[:16]}… was changed", place=(key, None))

    def _check_entries(self, manifest: Manifest) -> None:
        if not manifest.runs or manifest.runs[0].run != manifest.root:
            self._report_problem("manifest", f"the first run of the manifest is not the root, {manifest.root}")
        for entry in manifest.runs:
            if entry.run in self._entries:
                self._report_problem("duplicate_run", f"{entry} is listed twice", run=entry.run)
                continue
            if entry.parent not in self._entries and entry is not manifest.runs[0]:
                message = f"run {entry.parent}, which called {entry}, was removed from the file"
                self._report_problem("removed_run", message, run=entry.parent, place=(entry.parent, 0))
            self._entries[entry.run] = entry
            if entry.deleted:
                self.report.deleted.append(entry.run)
                self.report.notes.append(_tombstone(entry))
                continue
            if entry.events < 1:
                self._report_problem(
                    "manifest", f"{entry} has {entry.events} events; each run has at least one", run=entry.run
                )
            self._positions[entry.run] = len(self._with_events)
            self._with_events.append(entry)
            if entry.status is None or not entry.status.final:
                self.report.unfinished.append(entry.run)
                self.report.notes.append(f"not finished: {entry} went on after event {entry.events}")
        self._links = LinkChecker(manifest, self._entries, self._report_problem, self.report.notes)
        first = manifest.runs[0] if manifest.runs else None
        if first is not None and first.parent is not None:
            self.report.notes.append(f"run {first.parent}, which called the first run, is not part of this file")

    # -- events -------------------------------------------------------------------------------------------

    def _read_line(self, raw: bytes) -> None:
        try:
            read = decoder.decode(raw)
            if line(read) != raw:
                raise msgspec.DecodeError("it is not written as it was")
        except UNREADABLE as error:
            self._unreadable(raw, str(error))
            return
        match read:
            case EventLine():
                self._read_event(read)
            case Seal():
                self._seal = read
            case Manifest():
                self._report_problem("added", f"line {self._number} is another manifest", place=(None, self._number))

    def _current(self) -> RunEntry | None:
        return self._with_events[self._index] if self._index < len(self._with_events) else None

    def _unreadable(self, raw: bytes, why: str) -> None:
        entry = self._current()
        cut = "" if raw.endswith(b"\n") else ": the file is cut off here"
        if entry is None:
            self._report_problem(
                "seal", f"line {self._number}, where the seal should be, cannot be read{cut or f' ({why})'}"
            )
            return
        kind = _KIND.search(raw)
        kind_text = kind[1].decode() if kind is not None else None
        self._report_problem(
            "cut" if cut else "changed",
            f"{event_name(self._expected, kind_text)} of {entry} cannot be read (line {self._number})"
            f"{cut or f': {why}'}",
            run=entry.run, seq=self._expected, kind=kind_text,
        )  # fmt: skip
        self._broken.add(entry.run)
        self._previous = None
        self._advance(entry, kind_text or "")

    def _read_event(self, event: EventLine) -> None:
        entry = self._current()
        place = self._positions.get(event.run)
        # A later run may begin: then the rest of the earlier runs is missing. Any other event is out of place.
        while entry is not None and place is not None and place > self._index and event.seq == 1:
            self._end_run(entry)
            entry = self._current()
        if entry is None or event.run != entry.run:
            self._report_stray(event, entry)
            return
        if event.seq != self._expected:
            self._broken.add(entry.run)
            if event.seq < self._expected:
                self._report_stray(event, entry)
                return
            message = f"event {self._expected} of {entry} is not there: line {self._number} has event {event.seq}"
            self._report_problem("missing", message, run=entry.run, seq=self._expected)
            if event.seq <= entry.events:
                self._expected = event.seq
            self._previous = None
        self.report.events += 1
        if self._verify_hash(entry, event) and entry.run not in self._broken and self._links is not None:
            self._links.read(entry, event)
        self._advance(entry, event.kind)

    def _report_stray(self, event: EventLine, entry: RunEntry | None) -> None:
        known = self._entries.get(event.run)
        whose = str(known) if known is not None else f"run {event.run[:80]}, which the manifest does not list"
        if entry is None:
            message = f"{event_name(event.seq, event.kind)} of {whose} was added after the last event of the last run"
            self._report_problem("added", message, run=event.run, seq=event.seq, kind=event.kind)
        elif known is not None and event.seq > known.events:
            message = f"{event_name(event.seq, event.kind)} of {whose} was added: it has {known.events} events"
            self._report_problem("added", message, run=event.run, seq=event.seq, kind=event.kind)
        else:
            message = f"{event_name(event.seq, event.kind)} of {whose}"
            where = f"where event {self._expected} of {entry} should be"
            self._report_problem(
                "out_of_place", f"line {self._number} has {message}, {where}", run=entry.run, seq=self._expected
            )  # fmt: skip

    def _verify_hash(self, entry: RunEntry, event: EventLine) -> bool:
        """True if an event follows from its predecessor."""
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
                self._report_problem(
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
            self._report_problem(
                "cut" if self._expected > 1 else "removed_run",
                f"{entry} {after}: {left} of its {entry.events} events are gone", run=entry.run, seq=self._expected,
            )  # fmt: skip
            self._broken.add(entry.run)
        elif entry.run not in self._broken:
            if self._previous is None or self._previous.hex() != entry.head:
                message = (
                    f"the last hash of {entry} is not the one in the manifest: the log or the manifest was changed"
                )
                self._report_problem("head", message, run=entry.run, seq=entry.events, kind=self._last_kind)
                self._broken.add(entry.run)
            ended = self._last_kind == "finished"
            if ended is not (entry.status is not None and entry.status.final):
                message = (
                    f"the manifest says that {entry} is {entry.status}, and its log {'ends' if ended else 'goes on'}"
                )
                self._report_problem("manifest", message, run=entry.run, seq=entry.events, kind=self._last_kind)
        self._index, self._expected, self._previous, self._last_kind = self._index + 1, 1, hash_chain.GENESIS, ""

    # -- the end ------------------------------------------------------------------------------------------

    def finish(self) -> Report:
        if self._number == 0:
            self._report_problem("format", "the file is empty")
        if self._manifest is None:
            return self.report
        self._number = 0  # the problems from here on belong to no line
        while (entry := self._current()) is not None:
            self._end_run(entry)
        if self._links is not None:
            self._links.finish(self._broken)
        self._check_seal()
        if self.report.erased:
            self.report.notes.append(f"{self.report.erased} events were erased: their place and hash are still proven")
        return self.report

    def _check_seal(self) -> None:
        seal = self._seal
        if seal is None:
            self._report_problem(
                "seal", "the file is cut off: its last line, the seal, is not there", place=(None, None)
            )
            return
        self.report.key = seal.key
        if self._trusts is not None:
            self.report.origin = self._trusts(seal.key)
            if not self.report.origin:
                self._report_problem(
                    "key", "the file was signed with another key than the one that is expected", place=("", 0)
                )
        fits = seal.digest == self._digest
        if not fits or not self._genuine(seal.key, seal.signature, signed_text(self._digest)):
            self.report.origin = False
            message = "the manifest was changed after it was signed" if not fits else "the signature is not of that key"
            self._report_problem("signature", f"the signature does not fit: {message}", place=("", 1))

    def _report_problem(
        self, code: str, message: str, *, run: str | None = None, seq: int | None = None, kind: str | None = None,
        place: tuple[str | None, int | None] | None = None,
    ) -> None:  # fmt: skip
        """Reports a problem, one for each place, up to a maximum."""
        place = place or (run, seq)
        if place in self._reported:
            return
        if len(self._reported) >= _MAX_PROBLEMS:
            self.report.more += 1
            return
        self._reported.add(place)
        self.report.problems.append(Problem(code, message, self._number or None, run, seq, kind))


def _tombstone(entry: RunEntry) -> str:
    rest = f"what is left is its last hash, {entry.head}" if entry.head else "nothing of it is left"
    return f"deleted: {entry} is gone; {rest}"


def _hash(text: str | None) -> bytes | None:
    """Decodes a hash in its canonical form, or None: `fromhex` alone would also accept capitals and spaces."""
    try:
        raw = bytes.fromhex(text or "")
    except ValueError:
        return None
    return raw if len(raw) == 32 and raw.hex() == text else None

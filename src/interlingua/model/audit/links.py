"""What the logs of one task say about each other: who called whom, at which moment, and how that ended. Pure.

A run's first event names a hash of its parent's log, and the parent's record of its end has the last hash of its own:
nobody can take a run out, or put another in its place, without a trace. Of events only this is read; kinds and members
that are not known here are none of its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from .export import EventLine, Manifest, RunEntry, event_name

# What can be wrong with a text: numbers that no event has can be read, and not be written.
UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


class Wrong(Protocol):
    """Tells of a problem."""

    def __call__(
        self, code: str, message: str, *, run: str | None = None, seq: int | None = None, kind: str | None = None,
        place: tuple[str | None, int | None] | None = None,
    ) -> None: ...  # fmt: skip


class _Binding(msgspec.Struct):
    server_id: str = ""
    allowed_tools: list[str] = []


class _Member(msgspec.Struct):
    """Of a manifest of a team: what is compared here."""

    id: str = ""
    allowed_agents: list[str] = []
    mcp_bindings: list[_Binding] = []


class _Authority(msgspec.Struct):
    team: str = ""
    agent: str = ""
    delegates: list[str] = []
    tools: dict[str, list[str]] = {}


class _Request(msgspec.Struct):
    agent: str = ""
    authority: _Authority | None = None


class _Continued(msgspec.Struct):
    run: str = ""
    copied: int = 0


class _Body(msgspec.Struct):
    """Of events that tie logs together: whatever is needed here. There will be other kinds and members."""

    run: str | None = None
    head: str | None = None
    status: str | None = None
    parent: str | None = None
    parent_head: str | None = None
    request: _Request | None = None
    continues: _Continued | None = None


_bodies = msgspec.json.Decoder(_Body)
_TELLING = frozenset({"created", "called", "child_ended", "refused", "finished"})


class Ties:
    def __init__(self, manifest: Manifest, entries: Mapping[str, RunEntry], wrong: Wrong, notes: list[str]) -> None:
        self._manifest = manifest
        self._entries = entries
        self._wrong = wrong
        self._notes = notes
        self._wanted: dict[str, dict[str, list[str]]] = {}  # by parent: hashes that children name, not found so far
        self._missing = {gone.run for gone in manifest.missing}
        self._called: set[str] = set()
        self._refused: set[str] = set()
        self._copied: dict[str, int] = {}  # by run: its last event that is a copy of another run's
        self._erased_calls: set[str] = set()  # runs that called somebody, and no longer say whom
        for entry in manifest.runs[1:]:
            if entry.parent is not None and entry.parent_head is not None and not entry.deleted:
                self._wanted.setdefault(entry.parent, {}).setdefault(entry.parent_head, []).append(entry.run)
        for run in self._missing & entries.keys():
            wrong("manifest", f"run {run} is listed both as there and as missing", run=run)

    def take(self, entry: RunEntry, event: EventLine) -> None:
        """An event that is as it was written."""
        self._wanted.get(entry.run, {}).pop(event.hash, None)
        if event.body is msgspec.UNSET and event.kind == "called":
            self._erased_calls.add(entry.run)
        if event.seq <= self._copied.get(entry.run, 0):
            return  # it tells of runs that the other one has called
        if event.body is not msgspec.UNSET and event.kind in _TELLING:
            self._look(entry, event)

    def _look(self, entry: RunEntry, event: EventLine) -> None:
        assert isinstance(event.body, msgspec.Raw)
        try:
            body = _bodies.decode(event.body)
        except UNREADABLE:
            return  # it is what was written, so nobody changed it
        wrong: str | None = None
        match event.kind:
            case "created":
                wrong = self._created(entry, body)
            case "called":
                self._called.add(body.run or "")
                child = self._entries.get(body.run or "")
                if child is None and body.run not in self._missing:
                    told = f"{entry} called run {body.run}, which was removed from the file"
                    self._wrong("removed_run", told, run=body.run, place=(body.run, 0))
                elif child is not None and child.parent != entry.run:
                    wrong = f"{child} was called by {entry}, and the manifest says by run {child.parent}"
            case "refused":
                self._refused.add(body.run or "")
            case "child_ended":
                self._ended(entry, event, body)
            case "finished":
                if entry.status is None or entry.status.value != body.status:
                    wrong = f"{entry} ended as {body.status}, and the manifest says {entry.status}"
        if wrong is not None:
            self._wrong("manifest", wrong, run=entry.run, seq=event.seq, kind=event.kind)

    def _created(self, entry: RunEntry, body: _Body) -> str | None:
        request = body.request or _Request()
        for name, said, listed in (
            ("agent", request.agent, entry.agent),
            ("parent", body.parent, entry.parent),
            ("parent_head", body.parent_head, entry.parent_head),
        ):
            if said != listed:
                return f"{entry} was created with the {name} {said}, and the manifest says {listed}"
        self._compare(entry, request.authority)
        if body.continues is not None and body.continues.copied > 0:
            last = self._copied[entry.run] = body.continues.copied + 1
            self._notes.append(
                f"{entry} continues run {body.continues.run}: events 2 to {last} are copies of its records"
            )
        return None

    def _compare(self, entry: RunEntry, authority: _Authority | None) -> None:
        """What a run might do, and what its manifest says: a team may have been changed since."""
        if authority is None:
            return
        for told in self._manifest.teams.get(authority.team, ()):
            try:
                member = msgspec.convert(told, _Member)
            except msgspec.ValidationError:
                continue
            if member.id != authority.agent:
                continue
            bound = {one.server_id: one.allowed_tools for one in member.mcp_bindings}
            over = set(authority.delegates) - set(member.allowed_agents)
            for server, tools in authority.tools.items():
                over |= set(tools) - set(bound.get(server, ()))
            if over:
                names = ", ".join(sorted(over))
                self._notes.append(f"{entry} had {names}, which its manifest in this file does not allow")

    def _ended(self, entry: RunEntry, event: EventLine, body: _Body) -> None:
        child = self._entries.get(body.run or "")
        if child is None:
            told = f"{entry} saw the end of run {body.run}, which was removed from the file"
            self._wrong("removed_run", told, run=body.run, place=(body.run, 0))
        elif (child.head, child.status) != (body.head, body.status):
            told = f"{child} is not the run whose end stands in {event_name(event.seq, event.kind)} of {entry}"
            self._wrong("child_head", f"{told}: its last hash or status differs", run=child.run, seq=child.events)

    def finish(self, broken: set[str]) -> None:
        """All events were read. `broken` are runs whose log is not whole: what it does not tell means nothing."""
        whole = {run for run, entry in self._entries.items() if run not in broken and not entry.deleted}
        for entry in self._entries.values():
            parent = self._entries.get(entry.parent or "")
            if entry.run == self._manifest.root or entry.run in broken or parent is None or parent.run not in whole:
                continue
            if entry.run not in self._called:
                if parent.run in self._erased_calls:
                    self._notes.append(f"{entry} may have been called by {parent}: some of its calls were erased")
                else:
                    self._wrong("stranger", f"{entry} was never called by {parent}", run=entry.run, seq=1)
            if entry.run in self._wanted.get(parent.run, {}).get(entry.parent_head or "", ()):
                told = f"{entry} names a moment in the log of {parent} that is not there"
                self._wrong("parent_head", told, run=entry.run, seq=1, kind="created")
        for gone in self._manifest.missing:
            if gone.run in self._refused or gone.parent in broken:
                continue
            if gone.run in self._called:
                told = f"run {gone.run} ({gone.agent}) was called for, and there is no trace of it: it never began"
                self._notes.append(told)
            elif gone.parent not in self._erased_calls:
                self._wrong("manifest", f"run {gone.run}, listed as missing, was never called for", run=gone.run)

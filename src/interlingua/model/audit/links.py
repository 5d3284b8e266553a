"""Verification of the links between the logs of one task: calls, their moments and their ends. Pure.

A run's first event names a hash of its parent's log, and the parent's record of the run's end has the run's last hash.
So a run cannot be removed or replaced without a trace. Only these members of events are read; unknown kinds and
members are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from .export import EventLine, Manifest, RunEntry, event_name

# The errors of decoding a changed line. OverflowError: a number may be readable but not encodable.
UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


class ReportProblem(Protocol):
    """Reports a problem."""

    def __call__(
        self, code: str, message: str, *, run: str | None = None, seq: int | None = None, kind: str | None = None,
        place: tuple[str | None, int | None] | None = None,
    ) -> None: ...  # fmt: skip


class _Binding(msgspec.Struct):
    server_id: str = ""
    allowed_tools: list[str] = []


class _Member(msgspec.Struct):
    """The members of a team manifest that are compared here."""

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
    """The members of events that link logs. Other kinds and members may be added later."""

    run: str | None = None
    head: str | None = None
    status: str | None = None
    parent: str | None = None
    parent_head: str | None = None
    request: _Request | None = None
    continues: _Continued | None = None


_bodies = msgspec.json.Decoder(_Body)
_LINKING_KINDS = frozenset({"created", "called", "child_ended", "refused", "finished"})


class LinkChecker:
    def __init__(
        self, manifest: Manifest, entries: Mapping[str, RunEntry], wrong: ReportProblem, notes: list[str]
    ) -> None:
        self._manifest = manifest
        self._entries = entries
        self._report_problem = wrong
        self._notes = notes
        self._named_hashes: dict[str, dict[str, list[str]]] = {}  # by parent: hashes that children name, not found yet
        self._missing = {gone.run for gone in manifest.missing}
        self._called: set[str] = set()
        self._refused: set[str] = set()
        self._copied: dict[str, int] = {}  # by run: its last event that was copied from another run
        self._erased_calls: set[str] = set()  # runs with a call whose body was erased
        for entry in manifest.runs[1:]:
            if entry.parent is not None and entry.parent_head is not None and not entry.deleted:
                self._named_hashes.setdefault(entry.parent, {}).setdefault(entry.parent_head, []).append(entry.run)
        for run in self._missing & entries.keys():
            wrong("manifest", f"run {run} is listed both as there and as missing", run=run)

    def read(self, entry: RunEntry, event: EventLine) -> None:
        """Reads an intact event."""
        self._named_hashes.get(entry.run, {}).pop(event.hash, None)
        if event.body is msgspec.UNSET and event.kind == "called":
            self._erased_calls.add(entry.run)
        if event.seq <= self._copied.get(entry.run, 0):
            return  # copied calls belong to the run that was continued
        if event.body is not msgspec.UNSET and event.kind in _LINKING_KINDS:
            self._read_body(entry, event)

    def _read_body(self, entry: RunEntry, event: EventLine) -> None:
        assert isinstance(event.body, msgspec.Raw)
        try:
            body = _bodies.decode(event.body)
        except UNREADABLE:
            return  # the hash fits, so the line is unchanged
        wrong: str | None = None
        match event.kind:
            case "created":
                wrong = self._check_created(entry, body)
            case "called":
                self._called.add(body.run or "")
                child = self._entries.get(body.run or "")
                if child is None and body.run not in self._missing:
                    message = f"{entry} called run {body.run}, which was removed from the file"
                    self._report_problem("removed_run", message, run=body.run, place=(body.run, 0))
                elif child is not None and child.parent != entry.run:
                    wrong = f"{child} was called by {entry}, and the manifest says by run {child.parent}"
            case "refused":
                self._refused.add(body.run or "")
            case "child_ended":
                self._check_end(entry, event, body)
            case "finished":
                if entry.status is None or entry.status.value != body.status:
                    wrong = f"{entry} ended as {body.status}, and the manifest says {entry.status}"
        if wrong is not None:
            self._report_problem("manifest", wrong, run=entry.run, seq=event.seq, kind=event.kind)

    def _check_created(self, entry: RunEntry, body: _Body) -> str | None:
        request = body.request or _Request()
        for name, created_with, listed in (
            ("agent", request.agent, entry.agent),
            ("parent", body.parent, entry.parent),
            ("parent_head", body.parent_head, entry.parent_head),
        ):
            if created_with != listed:
                return f"{entry} was created with the {name} {created_with}, and the manifest says {listed}"
        self._check_rights(entry, request.authority)
        if body.continues is not None and body.continues.copied > 0:
            last = self._copied[entry.run] = body.continues.copied + 1
            self._notes.append(
                f"{entry} continues run {body.continues.run}: events 2 to {last} are copies of its records"
            )
        return None

    def _check_rights(self, entry: RunEntry, authority: _Authority | None) -> None:
        """Notes rights of a run that its manifest in the file does not grant: the team may have changed since."""
        if authority is None:
            return
        for value in self._manifest.teams.get(authority.team, ()):
            try:
                member = msgspec.convert(value, _Member)
            except msgspec.ValidationError:
                continue
            if member.id != authority.agent:
                continue
            bound = {binding.server_id: binding.allowed_tools for binding in member.mcp_bindings}
            excess = set(authority.delegates) - set(member.allowed_agents)
            for server, tools in authority.tools.items():
                excess |= set(tools) - set(bound.get(server, ()))
            if excess:
                names = ", ".join(sorted(excess))
                self._notes.append(f"{entry} had {names}, which its manifest in this file does not allow")

    def _check_end(self, entry: RunEntry, event: EventLine, body: _Body) -> None:
        child = self._entries.get(body.run or "")
        if child is None:
            message = f"{entry} saw the end of run {body.run}, which was removed from the file"
            self._report_problem("removed_run", message, run=body.run, place=(body.run, 0))
        elif (child.head, child.status) != (body.head, body.status):
            message = f"{child} is not the run whose end stands in {event_name(event.seq, event.kind)} of {entry}"
            self._report_problem(
                "child_head", f"{message}: its last hash or status differs", run=child.run, seq=child.events
            )

    def finish(self, broken: set[str]) -> None:
        """Checks the calls after all events. The logs of `broken` runs are incomplete: missing events prove nothing."""
        complete = {run for run, entry in self._entries.items() if run not in broken and not entry.deleted}
        for entry in self._entries.values():
            parent = self._entries.get(entry.parent or "")
            if entry.run == self._manifest.root or entry.run in broken or parent is None or parent.run not in complete:
                continue
            if entry.run not in self._called:
                if parent.run in self._erased_calls:
                    self._notes.append(f"{entry} may have been called by {parent}: some of its calls were erased")
                else:
                    self._report_problem("stranger", f"{entry} was never called by {parent}", run=entry.run, seq=1)
            if entry.run in self._named_hashes.get(parent.run, {}).get(entry.parent_head or "", ()):
                message = f"{entry} names a moment in the log of {parent} that is not there"
                self._report_problem("parent_head", message, run=entry.run, seq=1, kind="created")
        for gone in self._manifest.missing:
            if gone.run in self._refused or gone.parent in broken:
                continue
            if gone.run in self._called:
                message = f"run {gone.run} ({gone.agent}) was called for, and there is no trace of it: it never began"
                self._notes.append(message)
            elif gone.parent not in self._erased_calls:
                self._report_problem(
                    "manifest", f"run {gone.run}, listed as missing, was never called for", run=gone.run
                )

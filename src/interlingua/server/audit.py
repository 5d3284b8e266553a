"""Reads audit exports and lineages from the store, for the owner: sealed runs are read like any other.

The list of runs, and how far each has come, is read in one step: logs only grow, so the events up to there fit
together, also while the runs go on. The model defines the format of the file, and the caller opens it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from ..engine.agents.mount_path import MEMBER_OF
from ..engine.ports import MANIFEST, EventRow, RunQueries, RunRow, Tombstone
from ..model import json_values
from ..model.audit.export import (
    FORMAT,
    VERSION,
    Manifest,
    Missing,
    RunEntry,
    Seal,
    digest,
    event_line,
    line,
    signed_text,
)
from ..model.errors import Conflict, ErrorInfo, RunNotFound
from ..model.events import (
    Body,
    ChildCalled,
    DelegationRefused,
    ErrorHandled,
    QuestionAnswered,
    QuestionAsked,
    RunCreated,
    RunFinished,
    ToolRefused,
    body_decoder,
)
from ..model.filters import RunFilter
from ..model.status import Status
from ..model.team.oversight import ReviewVerdict, read_verdict
from ..security.signing_key import SigningKey

if TYPE_CHECKING:
    from ..engine.reading import AnyEngine

LONGEST_LINE = 256 * 1024 * 1024  # bytes; a longer one is read as if it were cut off

_ALL = 10_000_000
_PAGE_BYTES = 4 * 1024 * 1024
_SHORT = 200
_KINDS = frozenset({"created", "called", "refused", "tool_refused", "handled", "asked", "answered", "finished"})


class Refusal(msgspec.Struct, omit_defaults=True):
    time: int
    what: str
    reason: str
    code: str


class Handled(msgspec.Struct, omit_defaults=True):
    """A failure, and the decision that the policy of the team made about it."""

    time: int
    agent: str
    code: str
    do: str
    to: str | None = None


class Judged(msgspec.Struct, omit_defaults=True):
    time: int
    by: str
    decision: str
    text: str = ""
    result_hash: str = ""


class Branch(msgspec.Struct, omit_defaults=True):
    """A run and all that came of it: who had it done, and why."""

    run: str
    agent: str
    status: Status | None
    task: str = ""
    participant: str = ""
    sealed: bool = False
    deleted: bool = False
    started_at: int | None = None
    ended_at: int | None = None
    delegated_by: str | None = None
    rule: str | None = None
    reason: str | None = None
    asked: str = ""  # its input, in a few words
    proposal: str | None = None  # the hash of the result that it judges
    verdict: Judged | None = None  # its own, on that
    reviews: list[Judged] = []  # by the user, of what it gave
    refusals: list[Refusal] = []
    handled: list[Handled] = []
    error: ErrorInfo | None = None
    children: list[Branch] = []


class _Seen:
    """The facts that an audit reads from the log of one run."""

    def __init__(self, run: str, row: RunRow | None, parent: str | None, left: Tombstone | None = None) -> None:
        self.run = run
        self.row = row  # None: it was deleted
        self.entry = RunEntry(run, row.agent if row else "", row.next_seq - 1 if row else 0, "", parent=parent)
        self.card = ""
        self.team = ""
        self.copied = 0  # its last event that is a copy of another run's, which called what stands there
        self.called: dict[str, ChildCalled] = {}
        self.asked: dict[str, str] = {}  # questions of reviews: the hash of what is judged
        self.branch = Branch(run, self.entry.agent, row.status if row else None)
        if row is None:
            self.entry.deleted = self.branch.deleted = True
            if left is not None:
                self.entry.agent = self.branch.agent = left.agent
                self.entry.status = self.branch.status = left.status
                self.entry.events, self.entry.head, self.entry.deleted_at = left.seq, left.head.hex(), left.deleted_at
        else:
            self.entry.head, self.entry.status, self.entry.sealed = row.head.hex(), row.status, bool(row.sealed)
            self.entry.created_at = self.branch.started_at = row.created_at
            self.branch.sealed = self.entry.sealed
            self.branch.ended_at = row.updated_at if row.status.final else None

    def take(self, row: EventRow) -> None:
        if row.kind not in _KINDS or row.body is None:
            return
        try:
            body: Body = body_decoder.decode(row.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # it was changed in the store; a check of the file reports it
        branch = self.branch
        match body:
            case RunCreated():
                self._created(body)
            case ChildCalled() if row.seq > self.copied:
                self.called[body.run] = body
            case DelegationRefused():
                branch.refusals.append(Refusal(row.time, f"delegation to {body.agent}", body.reason, body.code))
            case ToolRefused():
                what = f"tool {body.tool} of {body.server}"
                branch.refusals.append(Refusal(row.time, what, body.reason, body.code))
            case ErrorHandled():
                branch.handled.append(Handled(row.time, body.agent, body.code, body.do, body.to))
            case QuestionAsked(question=question, run=None) if question.type == "review":
                hashed = question.payload.get("result_hash") if isinstance(question.payload, dict) else None
                self.asked[question.id] = str(hashed or "")
            case QuestionAnswered(question=question, answer=answer, run=None) if question in self.asked:
                verdict = read_verdict(answer.value)
                hashed = self.asked[question]
                branch.reviews.append(Judged(row.time, answer.by, verdict.decision, verdict.text, hashed))
            case RunFinished():
                branch.error = body.error
                if branch.proposal is not None and body.status is Status.SUCCEEDED:
                    self._judged(row.time, read_verdict(body.output))

    def _judged(self, time: int, verdict: ReviewVerdict) -> None:
        by = self.entry.participant or self.entry.agent
        self.branch.verdict = Judged(time, by, verdict.decision, verdict.text, verdict.result_hash)

    def _created(self, body: RunCreated) -> None:
        if body.continues is not None:
            self.copied = body.continues.copied + 1
        request, branch = body.request, self.branch
        self.entry.parent_head, self.card = body.parent_head, body.card
        if request.authority is not None:
            self.team = request.authority.team
            self.entry.participant = branch.participant = request.authority.path[-1]
            self.entry.task = branch.task = request.authority.task
        said = request.messages[0].text if request.messages else ""
        texts = (
            [one for one in request.input.values() if isinstance(one, str)] if isinstance(request.input, dict) else []
        )
        branch.asked = _cut(said or (texts[0] if texts else ""))
        review = request.assignment.review if request.assignment is not None else None
        if review is not None:
            branch.proposal = review.result_hash
            branch.asked = f"the result of {review.agent}"


class Collected:
    """A run with all runs below it, parents first."""

    def __init__(self, runs: list[_Seen], missing: list[Missing]) -> None:
        self.runs = runs
        self.missing = missing

    def tree(self) -> Branch:
        """Returns the delegations as a tree: who delegated what to whom, why, and with what result."""
        known = {seen.run: seen for seen in self.runs}
        for seen in self.runs[1:]:
            parent = known.get(seen.entry.parent or "", self.runs[0])
            parent.branch.children.append(seen.branch)
            called = parent.called.get(seen.run)
            if called is not None and called.notice is not None:
                seen.branch.delegated_by = parent.branch.participant or parent.branch.agent
                seen.branch.rule, seen.branch.reason = called.notice.rule, called.notice.reason
        return self.runs[0].branch


async def collect(runs: RunQueries, run: str) -> Collected:
    """Collects a run and everything below it. Raises RunNotFound if there never was such a run."""
    found = await _snapshot(runs, run)
    for seen in list(found.values()):
        if seen.row is not None:
            async for row in _events(runs, seen.row):
                seen.take(row)
    missing: list[Missing] = []
    for seen in list(found.values()):
        for child, called in seen.called.items():
            if child in found:
                continue
            if left := await runs.tombstone(child):
                found[child] = _Seen(child, None, seen.run, left)
            else:
                missing.append(Missing(child, seen.run, called.agent))
    return Collected(_in_order(found, run), missing)


async def _snapshot(runs: RunQueries, run: str) -> dict[str, _Seen]:
    row = await runs.find_row(run)
    if row is None:
        left = await runs.tombstone(run)
        if left is None:
            raise RunNotFound(f"there is no run {run}")
        return {run: _Seen(run, None, None, left)}
    top = row.path.split("/")[1] if row.path else row.id
    # One query: rows that are read one after the other would not fit together.
    rows = await runs.rows(RunFilter(root=top, sealed=True, limit=_ALL))
    found: dict[str, _Seen] = {}
    for one in rows:
        if one.id == run or f"/{run}/" in one.path:
            found[one.id] = _Seen(one.id, one, one.parent)
    if run not in found:
        raise RunNotFound(f"there is no run {run}: it was deleted just now")
    for seen in list(found.values()):
        assert seen.row is not None
        above = seen.row.path.strip("/").split("/")
        for place, ancestor in enumerate(above):
            # One that was deleted before this one had ended.
            if run in above[:place] and ancestor not in found and (left := await runs.tombstone(ancestor)):
                found[ancestor] = _Seen(ancestor, None, above[place - 1], left)
    return found


def _in_order(found: dict[str, _Seen], root: str) -> list[_Seen]:
    below: dict[str, list[_Seen]] = {}
    for seen in found.values():
        if seen.run != root:
            below.setdefault(seen.entry.parent or "", []).append(seen)
    # If a run was removed from the store, the runs below it have no parent. They come last.
    loose = [seen for seen in found.values() if seen.run != root and (seen.entry.parent or "") not in found]
    ordered, stack = list[_Seen](), [*_by_time(loose), found[root]]
    while stack:
        seen = stack.pop()
        ordered.append(seen)
        stack.extend(_by_time(below.get(seen.run, [])))
    return ordered


def _by_time(runs: list[_Seen]) -> list[_Seen]:
    """The last one first: they are taken from the end."""
    return sorted(runs, key=lambda one: (one.entry.created_at or 0, one.run), reverse=True)


async def _events(runs: RunQueries, run: RunRow) -> AsyncIterator[EventRow]:
    """The log of a run as far as its row tells, some megabytes at a time."""
    after, last, limit = 0, run.next_seq - 1, 16
    while after < last:
        rows = await runs.event_rows(run.id, after, min(limit, last - after))
        if not rows:
            return
        for row in rows:
            if row.seq > last:
                return
            yield row
        after = rows[-1].seq
        size = sum(len(row.body or b"") for row in rows)
        limit = min(limit * 2, 1000) if size < _PAGE_BYTES // 2 else max(1, limit // 2)


async def export(engine: AnyEngine, run: str, key: SigningKey, *, now: int, task: str = "") -> AsyncIterator[bytes]:
    """The lines of an audit export. Nothing is held but what is known of runs."""
    collected = await collect(engine.runs, run)
    cards = await _cards(engine, collected)
    entries = [seen.entry for seen in collected.runs]
    manifest = Manifest(
        FORMAT, VERSION, run, now, entries, task or entries[0].task, collected.missing, cards,
        _manifests(engine, collected, cards),
    )  # fmt: skip
    first = line(manifest)
    yield first
    for seen in collected.runs:
        if seen.row is None:
            continue
        count = 0
        async for row in _events(engine.runs, seen.row):
            count += 1
            yield event_line(row.run, row.seq, row.kind, row.time, row.hash, row.body, row.erased)
        if count < seen.entry.events and await engine.runs.find_row(seen.run) is None:
            raise Conflict(f"run {seen.run} was deleted while it was exported; export it again")
    made = digest(first, entries)
    yield line(Seal(made, key.public, key.sign(signed_text(made))))


async def _cards(engine: AnyEngine, collected: Collected) -> dict[str, Any]:
    """The cards that runs were checked against, as far as they are still known: an agent's card may have changed."""
    wanted = {seen.card for seen in collected.runs if seen.card}
    found: dict[str, Any] = {}
    agents = dict.fromkeys((seen.row.agent, seen.row.version, seen.row.origin) for seen in collected.runs if seen.row)
    for name, version, origin in agents:
        card = await engine.agents.find_card(name, version, origin)
        told = msgspec.to_builtins(card) if card is not None else None
        if told is not None and (key := json_values.digest(told)) in wanted:
            found[key] = told
    return found


def _manifests(engine: AnyEngine, collected: Collected, cards: dict[str, Any]) -> dict[str, list[Any]]:
    """The manifests of the teams that were at work: from their cards, or of teams that are here."""
    found: dict[str, list[Any]] = {}
    for name in dict.fromkeys(seen.team for seen in collected.runs if seen.team):
        team = engine.teams.find(name)
        told = {manifest.id: manifest.to_json() for manifest in team.manifests.values()} if team is not None else {}
        for card in cards.values():  # these are what counted then, as the runs' logs prove
            metadata = card.get("metadata", {})
            if metadata.get(MEMBER_OF) == name and isinstance(metadata.get(MANIFEST), dict):
                told[str(metadata[MANIFEST].get("id"))] = metadata[MANIFEST]
        if told:
            found[name] = list(told.values())
    return found


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a file, none longer than the longest line that this program writes."""
    while raw := file.readline(LONGEST_LINE):
        yield raw


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"

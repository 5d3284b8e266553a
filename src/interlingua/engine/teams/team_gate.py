"""The gate of teams: who may delegate to whom, under which authority, and how often.

A run of a member comes into being only under an authority: the orchestrator's is made when a task begins, and every
other is shrunk from the one above it. What is counted (runs of a task, instances of an agent) is counted in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from ...model.errors import Denied, OverBudget, Rejected, RunTimedOut
from ...model.events import RunCreated
from ...model.run import RunRequest
from ...model.team import authority as gates
from ...model.team.authority import OVER_BUDGET, Authority, Decision, Scope
from ...model.team.manifest import instance_id
from ...model.team.oversight import Exchange
from ...store.changes import CountDelegation, Tally
from ...store.ports import Store
from ...store.rows import DelegationRow, RunRow
from ..agents.catalog import AgentCatalog
from .conversation import nobody
from .members import Member
from .team_directory import TeamDirectory, member_id

_LOOKS = 10  # at whether a run has begun: it was counted a moment ago
_REMEMBERED = 10_000  # authorities of runs: they never change


class ExecutingRun(Protocol):
    """A run that executes in this process."""

    @property
    def request(self) -> RunRequest: ...


class ExecutingRuns(Protocol):
    """The runs that execute in this process."""

    def execution(self, run: str) -> ExecutingRun | None: ...


class TeamGate(TeamDirectory):
    """Checks and counts what members of teams delegate and propose, and gives each child its authority."""

    def __init__(self, store: Store, agents: AgentCatalog, next_hint: Callable[[str], asyncio.Future[None]]) -> None:
        """`next_hint` gives a future that is done at the next news of a run."""
        super().__init__(agents)
        self.worker: ExecutingRuns | None = None  # from the start of the engine on
        self._store = store
        self._next_hint = next_hint
        self._authorities: dict[str, Authority | None] = {}  # by run

    @property
    def _worker(self) -> ExecutingRuns:
        assert self.worker is not None, "the engine has not been started"
        return self.worker

    # -- delegation ---------------------------------------------------------------------------------------

    async def check_delegation(self, row: RunRow, authority: Authority | None, name: str) -> None:
        """Raises the error with which a delegation would be refused now."""
        if authority is None:
            raise Denied(f"{row.agent} may not call {name}: it is a member of a team, which only its team may call")
        target = member_id(authority, name)
        lineage = await self._lineage(row, authority)
        started = await self._store.delegations.started(authority.root or row.id, [run for run, _ in lineage])
        _decide(started, lineage, authority, target, self._store.clock.now())

    async def count_delegation(self, row: RunRow, authority: Authority, member: Member) -> CountDelegation:
        """Returns the change that counts an allowed delegation once, and labels its task."""
        lineage = await self._lineage(row, authority)
        runs = [run for run, _ in lineage]

        def admit(known: Tally) -> int:
            _decide(known.started(runs), lineage, authority, member.id, self._store.clock.now())
            above = [one.instance for _, one in lineage if one.agent == member.id]
            return max(known.last(member.id), *above, 0) + 1

        path = row.path_below
        return CountDelegation(authority.root or row.id, path, member.id, admit, part_of=authority.task)

    async def count_review(self, row: RunRow, judged: Authority, overseer: Member, label: str = "") -> CountDelegation:
        """As `count_delegation`, for a verdict. It counts for no budget; rounds of one review have one label."""
        return CountDelegation(
            judged.root or row.id, row.path_below, overseer.id, lambda known: 1, part_of=judged.task,
            label=label, review=True,
        )  # fmt: skip

    async def admit_delegation(
        self, run: str, row: RunRow, authority: Authority, member: Member, scope: Scope | None
    ) -> Authority:
        """Counts a delegation once, and returns the authority of the child. Raises if the delegation is refused."""
        change = await self.count_delegation(row, authority, member)
        tally = await self._store.delegations.count(msgspec.structs.replace(change, run=run))
        return gates.shrink(
            authority, member.manifest, member.team.limits_of(member.manifest), now=self._store.clock.now(),
            scope=scope, instance=tally.row.instance, started=tally.started, task=tally.row.label,
        )  # fmt: skip

    async def admit_review(
        self, run: str, row: RunRow, judged: Authority, overseer: Member, label: str = ""
    ) -> Authority:
        """An overseer's authority for a verdict."""
        change = await self.count_review(row, judged, overseer, label)
        tally = await self._store.delegations.count(msgspec.structs.replace(change, run=run))
        limits = overseer.team.limits_of(overseer.manifest)
        granted = gates.shrink(judged, overseer.manifest, limits, now=self._store.clock.now(), task=tally.row.label)
        return self.review_authority(judged, granted)

    async def _lineage(self, row: RunRow, authority: Authority) -> list[tuple[str, Authority]]:
        """The runs of the task above a run, the orchestrator's first, and itself, with their authorities."""
        found: list[tuple[str, Authority]] = []
        for run in row.path.strip("/").split("/"):
            above = await self.authority_of(run) if run else None
            if above is not None and above.team == authority.team:
                found.append((run, above))
        return [*found, (row.id, authority)]

    async def authority_of(self, run: str) -> Authority | None:
        """Returns the authority that a run was created with."""
        if run not in self._authorities:
            execution = self._worker.execution(run)
            if execution is not None:
                return execution.request.authority
            first = await self._store.runs.events(run, 0, 1)
            created = first[0].body if first else None
            if len(self._authorities) >= _REMEMBERED:
                self._authorities.clear()
            self._authorities[run] = created.request.authority if isinstance(created, RunCreated) else None
        return self._authorities[run]

    # -- tasks --------------------------------------------------------------------------------------------

    async def participant(self, label: str, id_: str) -> DelegationRow:
        """The run of an instance that takes part in a task, now or before. Waits for one that is just beginning."""
        for _ in range(_LOOKS):
            rows = await self._store.delegations.labelled(label)
            named = [row for row in rows if instance_id(row.agent, row.instance) == id_]
            if not named:
                break
            begins = self._next_hint(named[-1].run)
            try:
                runs = [(row, await self._store.runs.get(row.run)) for row in reversed(named)]
                begun = [(row, run) for row, run in runs if run is not None]
                if begun:
                    return next((row for row, run in begun if not run.status.final), begun[0][0])
                await begins
            finally:
                begins.cancel()
        raise nobody(label, id_, (instance_id(row.agent, row.instance) for row in rows))

    # -- reviews ------------------------------------------------------------------------------------------

    def review_authority(self, judged: Authority, granted: Authority) -> Authority:
        """An overseer's authority for one verdict on the work of another."""
        team, manifest = self.teams[judged.team], self.manifest_of(judged)
        seconds = team.limits_of(manifest).review_seconds if manifest is not None else None
        if seconds is None:
            return granted
        until = self._store.clock.now() + round(seconds * 1_000_000)
        return msgspec.structs.replace(granted, deadline=min(until, granted.deadline or until))

    def check_patience(self, judged: Authority, exchanges: list[Exchange], others: int = 0) -> None:
        """Raise Rejected where an overseer has asked or rejected as often as it may.

        `others` are results that it approved, or has before it, while the agent proposes one more: no budget ends that.
        """
        team, manifest = self.teams[judged.team], self.manifest_of(judged)
        assert manifest is not None
        limits = team.limits_of(manifest)
        rejected = sum(one.decision == "reject" for one in exchanges)
        if rejected and rejected >= (limits.rejections or 0):
            said = next((f": {one.text}" for one in reversed(exchanges) if one.text), "")
            raise Rejected(f"{manifest.overseer} rejected the result of {judged.path[-1]}{said}")
        asked = sum(one.decision != "reject" for one in exchanges)
        if others and asked + others > (limits.rounds or 0):
            raise Rejected(f"{judged.path[-1]} proposes one result after the other, and has proposed {others} already")
        if asked > (limits.rounds or 0):
            raise Rejected(f"{manifest.overseer} did not approve the result of {judged.path[-1]} in {asked} rounds")


def _decide(
    started: list[int], lineage: list[tuple[str, Authority]], authority: Authority, target: str, now: int
) -> None:
    """Raises if a run may not start one more, or one of those above it may not have one more below it."""
    decision = gates.may_delegate(authority, target, started=started[-1], now=now)
    if decision.allowed:
        for count, (_, above) in zip(started[:-1], lineage[:-1], strict=True):
            if count >= above.budget:
                reason = f"none of the {above.budget} runs of {above.path[-1]} is left"
                decision = Decision(False, f"{authority.path[-1]} may not delegate to {target}: {reason}", OVER_BUDGET)
                break
    if not decision.allowed:
        refused = {OVER_BUDGET: OverBudget, RunTimedOut.code: RunTimedOut}.get(decision.code or "", Denied)
        raise refused(decision.reason)

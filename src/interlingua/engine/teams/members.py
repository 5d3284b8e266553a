"""Teams in the engine: members that only their team reaches, the orchestrator that starts the first, and the gate.

A team is one agent to everybody else. Its members are registered where no door looks for agents, and a run of one comes
into being only under an authority: the orchestrator's is made here when a task begins, and every other is shrunk from
the one above it. What is counted (runs of a task, instances of an agent) is counted in the store.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...model import json_values
from ...model.card import AgentCard, QuestionType
from ...model.errors import DefinitionError, Denied, InvalidRequest, OverBudget, Rejected, RunTimedOut
from ...model.events import RunCreated
from ...model.run import RunRequest
from ...model.team import authority as gates
from ...model.team import carried_scope
from ...model.team import manifest as teams
from ...model.team.authority import OVER_BUDGET, Authority, Decision, Scope
from ...model.team.manifest import USER, Manifest, Team
from ...model.team.oversight import Exchange, Proposal
from ...model.team.tools import ToolServers
from ...store.changes import CountDelegation, Tally
from ...store.rows import RunRow
from ..agents.agent import Agent, OutputCodec, Registry
from ..agents.code_digest import code_digest, files_digest
from ..agents.mount_path import MOUNTED_FROM, VIA
from ..ids import now
from ..services.team_tasks import Tasks
from . import oversight
from .error_policy import ESCALATION

if TYPE_CHECKING:
    from ..runs.worker import Worker

MEMBER_OF = "member_of"
"""The member of a card's metadata that says whose member an agent is. Such cards are kept for the engine alone."""

MANIFEST = "manifest"
"""The member of such a card's metadata that holds the manifest: a run's first event has the digest of its card, and so
proves what the manifest said then."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REMEMBERED = 10_000  # authorities of runs: they never change


class Member:
    """An agent of a team: its manifest, and the names of what is registered for it."""

    def __init__(self, team: Team, manifest: Manifest, handler: Agent[..., Any]) -> None:
        options = manifest.options
        self.team = team
        self.manifest = manifest
        self.handler = handler
        self.id = manifest.id
        self.run_name = f"{team.name}/{manifest.id}"
        self.review_name = f"{self.run_name}/review"
        self.version = options.version or handler.card.version
        self.overseen = manifest.overseer is not None
        self.card: AgentCard = msgspec.structs.replace(
            handler.card, name=self.run_name, version=self.version,
            description=options.description or handler.card.description,
            streams=handler.card.streams and not self.overseen,
            metadata={**handler.card.metadata, MEMBER_OF: team.name, MANIFEST: manifest.to_json()},
        )  # fmt: skip

    def review_input(self, proposal: Proposal) -> dict[str, Any]:
        """A proposal as this agent's input: as text, and whole where it has a member for it."""
        whole = msgspec.to_builtins(proposal)
        given: dict[str, Any] = {}
        if "proposal" in self.card.input.get("properties", {}):
            given["proposal"] = whole
        if self.card.input_text is not None:
            given[self.card.input_text] = (
                f"{proposal.agent} proposes the result below. Approve it, ask about it or reject it, and name its "
                f"result_hash.\n{json_values.encode(whole).decode()}"
            )
        return given

    def variant(self, name: str, *, review: bool) -> Agent[..., Any]:
        """The handler under a name of the team's, to do tasks or to judge proposals."""
        made = copy.copy(self.handler)
        made.card = msgspec.structs.replace(self.card, name=name)
        if review:
            made.output = OutputCodec(Any, what=f"the verdict of {self.id}", yields=False)
            made.card.output = dict(made.output.schema)
            made.check_output = type(made.check_output)(made.card.output, what="output")
        made.digest = json_values.digest(msgspec.to_builtins(made.card))
        return made


class Teams(Tasks):
    """The part of the engine's API that is about teams, and the gate that its calls pass."""

    agents: Registry
    worker: Worker

    def __init__(self) -> None:
        self.teams: dict[str, Team] = {}
        self.tool_servers: ToolServers | None = None
        self._members: dict[tuple[str, str], Member] = {}  # by team and id
        self._authorities: dict[str, Authority | None] = {}  # by run

    def add(self, agent: Agent[..., Any]) -> None:
        """Take in an agent. A team comes with its members, which nobody else can run."""
        if not isinstance(agent, TeamAgent):
            self.agents.add(agent)
            return
        self.exchange([], [agent])

    def exchange(self, gone: Iterable[Agent[..., Any]], come: Iterable[Agent[..., Any]]) -> None:
        """Other agents than before, in one go; where one of them cannot be, everything stays as it is.

        Tasks of a team that is gone or changed go on: with the agents that run, and with the manifests that there are.
        Those that are no more are kept for them.
        """
        gone, come = list(gone), list(come)
        left = {agent.team.name for agent in gone if isinstance(agent, TeamAgent)}
        new = [agent for agent in come if isinstance(agent, TeamAgent)]
        for agent in new:
            known = self.agents.find(agent.team.name)
            if known is not None and known.here and not any(known is one for one in gone):
                raise DefinitionError(f"there is an agent {agent.team.name} already; give the team another name")
        for agent in new:
            agent.code = agent.code or _code_digest(agent, self.agents.root)
        self.agents.exchange(
            gone, come,
            hidden_gone=[agent for agent in self.agents.hidden() if agent.card.metadata.get(MEMBER_OF) in left],
            hidden_come=[_with(agent.code, made) for agent in new for made in agent.parts()],
        )  # fmt: skip
        for agent in new:
            self.teams[agent.team.name] = agent.team
            self._members.update({(agent.team.name, member.id): member for member in agent.members.values()})
            self.tool_servers = self.tool_servers or agent.tool_servers

    def add_team(
        self, team: Team, handlers: Mapping[str, Agent[..., Any]], tool_servers: ToolServers | None = None
    ) -> None:
        """Make a team one agent: its members do what these handlers do, and nobody else can run them."""
        self.add(TeamAgent(team, handlers, tool_servers))

    # -- who is who ---------------------------------------------------------------------------------------

    def begin_task(self, request: RunRequest, moment: int) -> RunRequest:
        """The request of a run that begins a task of a team has the authority from which all others are shrunk."""
        team = self.teams.get(request.agent)
        entry = teams.entry_of(team) if team is not None else None
        if team is None or entry is None or request.authority is not None:
            return request
        granted = gates.begin(team.name, entry.id, team.limits, now=moment)
        came = carried_scope.read(request.trace)
        if came is not None:
            granted = carried_scope.restrict_to(granted, came, moment)
        return msgspec.structs.replace(request, authority=granted)

    async def is_member(self, name: str) -> bool:
        """Whether somebody outside of teams means a member of one, and no other agent, here or elsewhere."""
        if not self.teams or self.agents.find(name) is not None:
            return False
        if any(name.startswith(f"{team}/") for team in self.teams):
            return True
        known = any(member == name.partition("#")[0] for _, member in self._members)
        return known and await self.store.cards.get(name, None) is None

    def member(self, authority: Authority | None, name: str) -> Member | None:
        if authority is None:
            return None
        return self._members.get((authority.team, _target(authority, name).partition("#")[0]))

    def manifest_of(self, authority: Authority) -> Manifest | None:
        team = self.teams.get(authority.team)
        found = team.manifests.get(authority.agent) if team is not None else None
        if found is None and (member := self._members.get((authority.team, authority.agent))) is not None:
            return member.manifest  # it is no more in the team, and its task goes on
        return found

    def reviewer_of(self, request: RunRequest, target: str) -> Member | None:
        """The overseer of a run, where `target` is that: delegating to it is proposing."""
        if request.authority is None or request.assignment is None or not request.assignment.sealed:
            return None
        manifest, member = self.manifest_of(request.authority), self.member(request.authority, target)
        same = manifest is not None and member is not None and member.id == manifest.overseer
        return member if same else None

    # -- the gate -----------------------------------------------------------------------------------------

    async def check_delegation(self, row: RunRow, authority: Authority | None, name: str) -> None:
        """Raise what a delegation would be refused with, as things stand."""
        if authority is None:
            raise Denied(f"{row.agent} may not call {name}: it is a member of a team, which only its team may call")
        target = _target(authority, name)
        lineage = await self._lineage(row, authority)
        started = await self.store.delegations.started(authority.root or row.id, [run for run, _ in lineage])
        _decide(started, lineage, authority, target)

    async def count_delegation(self, row: RunRow, authority: Authority, member: Member) -> CountDelegation:
        """What counts a delegation, once, where it is allowed, and names its task."""
        lineage = await self._lineage(row, authority)
        runs = [run for run, _ in lineage]

        def admit(known: Tally) -> int:
            _decide(known.started(runs), lineage, authority, member.id)
            above = [one.instance for _, one in lineage if one.agent == member.id]
            return max(known.last(member.id), *above, 0) + 1

        path = self.worker.path_of(row)
        return CountDelegation(authority.root or row.id, path, member.id, admit, part_of=authority.task)

    async def count_review(self, row: RunRow, judged: Authority, overseer: Member, label: str = "") -> CountDelegation:
        """As `count_delegation`, for a verdict. It counts for no budget; rounds of one review have one label."""
        return CountDelegation(
            judged.root or row.id, self.worker.path_of(row), overseer.id, lambda known: 1, part_of=judged.task,
            label=label, review=True,
        )  # fmt: skip

    async def admit_delegation(
        self, run: str, row: RunRow, authority: Authority, member: Member, scope: Scope | None
    ) -> Authority:
        """Count a delegation where that is not done yet, and give the child its authority. Raises what refuses it."""
        wanted = await self.count_delegation(row, authority, member)
        found = await self.store.delegations.count(msgspec.structs.replace(wanted, run=run))
        return gates.shrink(
            authority, member.manifest, member.team.limits_of(member.manifest), now=now(), scope=scope,
            instance=found.row.instance, started=found.started, task=found.row.label,
        )  # fmt: skip

    async def admit_review(
        self, run: str, row: RunRow, judged: Authority, overseer: Member, label: str = ""
    ) -> Authority:
        """An overseer's authority for a verdict."""
        wanted = await self.count_review(row, judged, overseer, label)
        found = await self.store.delegations.count(msgspec.structs.replace(wanted, run=run))
        limits = overseer.team.limits_of(overseer.manifest)
        granted = gates.shrink(judged, overseer.manifest, limits, now=now(), task=found.row.label)
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
        """What a run was created with."""
        if run not in self._authorities:
            execution = self.worker.execution(run)
            if execution is not None:
                return execution.request.authority
            first = await self.store.runs.events(run, 0, 1)
            created = first[0].body if first else None
            if len(self._authorities) >= _REMEMBERED:
                self._authorities.clear()
            self._authorities[run] = created.request.authority if isinstance(created, RunCreated) else None
        return self._authorities[run]

    # -- reviews ------------------------------------------------------------------------------------------

    def review_authority(self, judged: Authority, granted: Authority) -> Authority:
        """An overseer's authority for one verdict on the work of another."""
        team, manifest = self.teams[judged.team], self.manifest_of(judged)
        seconds = team.limits_of(manifest).review_seconds if manifest is not None else None
        if seconds is None:
            return granted
        until = now() + round(seconds * 1_000_000)
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


def _target(authority: Authority, name: str) -> str:
    """The id in the team that is meant by a name: an id, an instance, or a name that is written as an id."""
    name = name.removeprefix(f"{authority.team}/")
    try:
        teams.instance_of(name)
    except InvalidRequest:
        return teams.cap_id(name) if name else name
    return name


def _decide(started: list[int], lineage: list[tuple[str, Authority]], authority: Authority, target: str) -> None:
    """Whether a run may start one more, and whether all of those above it may have one more below them."""
    decision = gates.may_delegate(authority, target, started=started[-1], now=now())
    if decision.allowed:
        for count, (_, above) in zip(started[:-1], lineage[:-1], strict=True):
            if count >= above.budget:
                reason = f"none of the {above.budget} runs of {above.path[-1]} is left"
                decision = Decision(False, f"{authority.path[-1]} may not delegate to {target}: {reason}", OVER_BUDGET)
                break
    if not decision.allowed:
        refused = {OVER_BUDGET: OverBudget, RunTimedOut.code: RunTimedOut}.get(decision.code or "", Denied)
        raise refused(decision.reason)


def _code_digest(agent: TeamAgent, root: Path | None) -> str:
    """The digest of a team's files, and of the code of its members."""
    manifests = [manifest.to_json() for manifest in agent.team.manifests.values()]
    handlers = [code_digest(member.handler, root) for member in agent.members.values()]
    return files_digest(agent.files, [json_values.digest(manifests), *handlers])


def _with(code: str, made: Agent[..., Any]) -> Agent[..., Any]:
    made.code = code
    return made


def _parts(agent: TeamAgent) -> list[Agent[..., Any]]:
    """What is registered for a team, beside itself."""
    members = agent.members
    overseers = {manifest.overseer for manifest in agent.team.manifests.values()}
    found: list[Agent[..., Any]] = []

    def take(member: Member, name: str, *, review: bool) -> None:
        if not member.overseen:
            found.append(member.variant(name, review=review))
            return
        work = member.variant(f"{name}/work", review=review)
        overseer = members.get(member.manifest.overseer or "")  # None: the user
        found.extend((work, oversight.overseen(member, work, overseer, name)))

    for member in members.values():
        take(member, member.run_name, review=False)
        if member.id in overseers:
            take(member, member.review_name, review=True)
    for made in found:  # whatever thinks for a member, its runs are the team's
        made.source = agent.source
    return found


def _members(team: Team, handlers: Mapping[str, Agent[..., Any]]) -> dict[str, Member]:
    """Checked: a team in which something is wrong is not half there."""
    wrong = [str(problem) for problem in teams.check(team) if problem.severity == "error"]
    if not _NAME.fullmatch(team.name):
        wrong.append(f"{team.name!r} is not a name; use letters, digits, dots, dashes and underscores")
    wrong.extend(f"{id_} has no handler" for id_ in team.manifests if id_ not in handlers)
    wrong.extend(f"there is a handler for {id_}, which is not in the team" for id_ in handlers if not team.find(id_))
    if wrong:
        raise DefinitionError(f"team {team.name}: {'; '.join(wrong)}")
    members = {id_: Member(team, manifest, handlers[id_]) for id_, manifest in team.manifests.items()}
    for manifest in team.manifests.values():
        overseer = members.get(manifest.overseer or "")
        if overseer is not None:
            takes = {"proposal", overseer.card.input_text}
            if missing := [name for name in overseer.card.input.get("required", ()) if name not in takes]:
                raise DefinitionError(
                    f"team {team.name}: {overseer.id} oversees {manifest.id}, so its input is text or a proposal, and "
                    f"not {', '.join(missing)}"
                )
    return members


class TeamAgent(Agent[..., Any]):
    """A team as an agent: with the card of the agent that begins its tasks, and the questions of all of them."""

    files: Path | None = None  # its folder or its file, if it has one

    def __init__(
        self, team: Team, handlers: Mapping[str, Agent[..., Any]], tool_servers: ToolServers | None = None,
        source: str = "",
    ) -> None:  # fmt: skip
        """`source`: the place of the team, as in `run_identity`; without one, its name."""
        self.team = team
        self.tool_servers = tool_servers
        self.members = _members(team, handlers)
        named = teams.entry_of(team)
        assert named is not None  # it was checked
        entry = self.members[named.id]

        async def orchestrate(input: dict[str, Any], ctx: Any) -> Any:  # noqa: A002
            return await oversight.orchestrate(ctx, entry, input)

        super().__init__(
            _card(team, entry, self.members), orchestrate, shape="async", ctx_param="ctx",
            source=source or f"team:{team.name}",
        )  # fmt: skip

    def parts(self) -> list[Agent[..., Any]]:
        """The agents that are registered for the team, beside itself. They have its source."""
        return _parts(self)


def _card(team: Team, entry: Member, members: Mapping[str, Member]) -> AgentCard:
    questions: dict[str, QuestionType] = {}
    for member in members.values():
        for question in member.card.questions:
            questions.setdefault(question.type, question)
    overseers = {member.manifest.overseer for member in members.values()}
    if USER in overseers:
        questions.setdefault(oversight.REVIEW.type, oversight.REVIEW.describe())
    steps = [step for steps in (*team.policy.steps.values(), team.policy.default) for step in steps]
    if any(step.to == USER or (step.to == "overseer" and USER in overseers) for step in steps):
        questions.setdefault(ESCALATION.type, ESCALATION.describe())
    hidden = (MEMBER_OF, MANIFEST, MOUNTED_FROM, VIA)
    return msgspec.structs.replace(
        entry.card, name=team.name, description=team.description or entry.card.description, streams=False,
        questions=list(questions.values()),
        metadata={key: value for key, value in entry.card.metadata.items() if key not in hidden},
    )  # fmt: skip

"""The directory of teams: their manifests and members, by name. Nobody but its team finds a member.

A team is one agent to everybody else. Its members are registered where no door looks for agents.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ...model import json_values
from ...model.errors import DefinitionError, InvalidRequest
from ...model.run import RunRequest
from ...model.team import authority as gates
from ...model.team import carried_scope
from ...model.team import manifest as teams
from ...model.team.authority import Authority
from ...model.team.manifest import Manifest, Team
from ...model.team.tools import ToolServers
from ..agents.agent import Agent
from ..agents.catalog import AgentCatalog
from ..agents.code_digest import code_digest, files_digest
from ..agents.mount_path import MEMBER_OF
from .members import Member, TeamAgent


class TeamDirectory:
    """The teams of one engine: their manifests, and the members that only their team reaches."""

    def __init__(self, agents: AgentCatalog) -> None:
        self.teams: dict[str, Team] = {}
        self.tool_servers: ToolServers | None = None
        self._agents = agents
        self._members: dict[tuple[str, str], Member] = {}  # by team and id

    def add(self, agent: Agent[..., Any]) -> None:
        """Registers an agent. A team comes with its members, which nobody else can run."""
        if not isinstance(agent, TeamAgent):
            self._agents.add(agent)
            return
        self.exchange([], [agent])

    def exchange(self, gone: Iterable[Agent[..., Any]], come: Iterable[Agent[..., Any]]) -> None:
        """Replaces agents in one go; if one of the new ones is refused, everything stays as it is.

        Tasks of a team that is gone or changed go on: with the agents that run, and with the manifests that there are.
        Those that are no more are kept for them.
        """
        gone, come = list(gone), list(come)
        left = {agent.team.name for agent in gone if isinstance(agent, TeamAgent)}
        new = [agent for agent in come if isinstance(agent, TeamAgent)]
        for agent in new:
            known = self._agents.find(agent.team.name)
            if known is not None and known.here and not any(known is one for one in gone):
                raise DefinitionError(f"there is an agent {agent.team.name} already; give the team another name")
        for agent in new:
            agent.code = agent.code or _code_digest(agent, self._agents.root)
        self._agents.exchange(
            gone, come,
            hidden_gone=[agent for agent in self._agents.hidden() if agent.card.metadata.get(MEMBER_OF) in left],
            hidden_come=[_with(agent.code, made) for agent in new for made in agent.parts()],
        )  # fmt: skip
        for agent in new:
            self.teams[agent.team.name] = agent.team
            self._members.update({(agent.team.name, member.id): member for member in agent.members.values()})
            self.tool_servers = self.tool_servers or agent.tool_servers

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
        """Returns True if a name means a member of a team, and no agent that callers outside of teams can reach."""
        if not self.teams or self._agents.find(name) is not None:
            return False
        if any(name.startswith(f"{team}/") for team in self.teams):
            return True
        known = any(member == name.partition("#")[0] for _, member in self._members)
        return known and await self._agents.find_card(name) is None

    def member(self, authority: Authority | None, name: str) -> Member | None:
        if authority is None:
            return None
        return self._members.get((authority.team, member_id(authority, name).partition("#")[0]))

    def manifest_of(self, authority: Authority) -> Manifest | None:
        team = self.teams.get(authority.team)
        manifest = team.manifests.get(authority.agent) if team is not None else None
        if manifest is None and (member := self._members.get((authority.team, authority.agent))) is not None:
            return member.manifest  # it left the team, and its task goes on
        return manifest

    def reviewer_of(self, request: RunRequest, target: str) -> Member | None:
        """The overseer of a run, where `target` is that: delegating to it is proposing."""
        if request.authority is None or request.assignment is None or not request.assignment.sealed:
            return None
        manifest, member = self.manifest_of(request.authority), self.member(request.authority, target)
        same = manifest is not None and member is not None and member.id == manifest.overseer
        return member if same else None


def member_id(authority: Authority, name: str) -> str:
    """The id in the team that is meant by a name: an id, an instance, or a name that is written as an id."""
    name = name.removeprefix(f"{authority.team}/")
    try:
        teams.instance_of(name)
    except InvalidRequest:
        return teams.cap_id(name) if name else name
    return name


def _code_digest(agent: TeamAgent, root: Path | None) -> str:
    """The digest of a team's files, and of the code of its members."""
    manifests = [manifest.to_json() for manifest in agent.team.manifests.values()]
    handlers = [code_digest(member.handler, root) for member in agent.members.values()]
    return files_digest(agent.files, [json_values.digest(manifests), *handlers])


def _with(code: str, made: Agent[..., Any]) -> Agent[..., Any]:
    made.code = code
    return made

"""The gate in front of the members of teams, and what else a member's run needs of the engine, as Protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ...model.card import AgentCard
from ...model.events import Event
from ...model.run import RunRequest
from ...model.team.authority import Authority, Scope
from ...model.team.manifest import Manifest, Team
from ...model.team.oversight import Exchange, Proposal
from ...model.team.tools import ToolServers
from ...store.changes import CountDelegation
from ...store.rows import DelegationRow, RunRow
from ..handler.run_data import Host
from ..log.run_log import LiveLog


class TeamMember(Protocol):
    """An agent of a team."""

    team: Team
    manifest: Manifest
    card: AgentCard
    id: str
    run_name: str
    review_name: str
    version: str
    overseen: bool

    def review_input(self, proposal: Proposal) -> dict[str, Any]: ...


class TeamGate(Protocol):
    """Says who is in a team, and which delegations its authorities allow."""

    @property
    def teams(self) -> Mapping[str, Team]: ...
    @property
    def tool_servers(self) -> ToolServers | None: ...

    # -- who is who

    def begin_task(self, request: RunRequest, moment: int) -> RunRequest: ...
    async def is_member(self, name: str) -> bool: ...
    def member(self, authority: Authority | None, name: str) -> TeamMember | None: ...
    def manifest_of(self, authority: Authority) -> Manifest | None: ...
    def reviewer_of(self, request: RunRequest, target: str) -> TeamMember | None: ...
    async def participant(self, label: str, id_: str) -> DelegationRow: ...
    async def authority_of(self, run: str) -> Authority | None: ...

    # -- what is allowed

    async def check_delegation(self, row: RunRow, authority: Authority | None, name: str) -> None: ...
    async def count_delegation(self, row: RunRow, authority: Authority, member: Any) -> CountDelegation: ...
    async def count_review(self, row: RunRow, judged: Authority, overseer: Any, label: str = "") -> CountDelegation: ...
    async def admit_delegation(
        self, run: str, row: RunRow, authority: Authority, member: Any, scope: Scope | None
    ) -> Authority: ...
    async def admit_review(
        self, run: str, row: RunRow, judged: Authority, overseer: Any, label: str = ""
    ) -> Authority: ...
    def check_patience(self, judged: Authority, exchanges: list[Exchange], others: int = 0) -> None: ...


class TeamHost(Host, Protocol):
    """The process of a member's run."""

    def log_of(self, run: str) -> LiveLog | None: ...
    async def all_events(self, run: str) -> list[Event]: ...

"""Tasks of teams for doors and commands: their labels, participants and messages.

A task has the label of its entry agent's part (T1); delegated parts are numbered below it (T1.1). The conversation of a
task consists of the `Said` events in the log of the team's run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ...model.content import Message, TextPart
from ...model.errors import AlreadyFinished, Denied, NotFound, TaskNotFound
from ...model.events import DelegationRefused, Event, Said, body_encoder
from ...model.team.authority import Authority
from ...model.team.manifest import ORCHESTRATOR, USER, Manifest, Team, instance_id
from ...model.team.task_ids import is_task, parent_of
from ...model.team.tools import ToolServers
from ...store.ports import Store
from ...store.rows import DelegationRow
from ..agents.agent import Agent
from ..ids import new_id
from ..runs.queries import RunQueries
from ..runs.service import RunService
from ..teams.members import TeamAgent
from ..teams.team_gate import TeamGate


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task of a team, or a part of one that was handed over."""

    label: str
    run: str
    root: str  # the team's run
    agent: str  # the instance that has it
    parent: str | None = None
    review: bool = False  # it judges a result of the task that it is part of


class TeamQueries:
    """Finds teams, their tasks, and what was said in them."""

    def __init__(self, store: Store, directory: TeamGate, runs: RunQueries) -> None:
        self._store = store
        self._directory = directory
        self._runs = runs

    # -- teams --------------------------------------------------------------------------------------------

    def find(self, name: str) -> Team | None:
        """Returns the team of this name; None where there is none."""
        return self._directory.teams.get(name)

    def names(self) -> list[str]:
        return list(self._directory.teams)

    def all(self) -> list[Team]:
        return list(self._directory.teams.values())

    def manifest_of(self, authority: Authority) -> Manifest | None:
        """Returns the manifest of the agent that has this authority."""
        return self._directory.manifest_of(authority)

    # -- tasks --------------------------------------------------------------------------------------------

    async def task(self, label: str) -> Task:
        """Returns a task, or a part of one, by its label."""
        match = next((task for task in await self.tasks(label) if task.label == label), None)
        if match is None:
            raise TaskNotFound(f"there is no task {label[:80]}")
        return match

    async def tasks(self, label: str) -> list[Task]:
        """Returns a task and all its parts, in the order in which they began. Empty if there is none."""
        if not is_task(label):
            return []
        whole = label.partition(".")[0]
        first = await self._store.delegations.labelled(whole)
        root = next((row.path.strip("/").rpartition("/")[2] for row in first if row.label == whole), "")
        return [_task(row, root) for row in first if row.label == label or row.label.startswith(f"{label}.")]

    async def label_of(self, root: str) -> str:
        """Returns the label of the task that began with this run of a team; empty if it has not begun."""
        async for event in self._runs.events(root):
            if isinstance(event.body, Said) and event.body.form == "delegation" and event.body.sender == ORCHESTRATOR:
                return event.body.task
        return ""

    async def conversation(self, root: str, *, after: int = 0) -> list[tuple[Event, Said]]:
        """Returns the messages of a task so far, from the log of the team's run; `time` orders them."""
        events = [event async for event in self._runs.events(root, after=after, follow=False)]
        return [(event, event.body) for event in events if isinstance(event.body, Said)]

    async def participant(self, label: str, id_: str) -> DelegationRow:
        """Returns the run of an instance that takes part in a task, now or before."""
        return await self._directory.participant(label, id_)


class TeamService(TeamQueries):
    """Registers teams, and passes messages to those who take part in their tasks."""

    _runs: RunService

    def __init__(self, store: Store, directory: TeamGate, runs: RunService) -> None:
        super().__init__(store, directory, runs)

    @property
    def tool_servers(self) -> ToolServers | None:
        """The tool servers that members of teams may use."""
        return self._directory.tool_servers

    @tool_servers.setter
    def tool_servers(self, servers: ToolServers | None) -> None:
        self._directory.tool_servers = servers

    def add(self, agent: Agent[..., Any]) -> None:
        """Registers an agent. A team comes with its members, which nobody else can run."""
        self._directory.add(agent)

    def add_team(
        self, team: Team, handlers: Mapping[str, Agent[..., Any]], tool_servers: ToolServers | None = None
    ) -> None:
        """Makes a team one agent: its members do what these handlers do, and nobody else can run them."""
        self._directory.add(TeamAgent(team, handlers, tool_servers))

    def exchange(self, gone: Iterable[Agent[..., Any]], come: Iterable[Agent[..., Any]]) -> None:
        """Replaces agents and teams in one go; where one of the new ones is refused, everything stays as it is."""
        self._directory.exchange(gone, come)

    async def tell(self, label: str, recipient: str, message: Message | str, *, sender: str = USER) -> None:
        """Sends a message of the user, or of a foreign agent, to a participant of a task.

        Returns when it is on disk. The caller has authenticated `sender`.
        """
        task = await self.task(label)
        if not isinstance(message, Message):
            message = Message("user", [TextPart(message)])
        if recipient in (USER, ORCHESTRATOR):
            raise Denied(f"{recipient} is no agent; messages go to those who take part in {label}")
        row = await self.participant(task.label.partition(".")[0], recipient)
        message = msgspec.structs.replace(message, role="user" if sender == USER else "agent", sender=sender)
        try:
            await self._runs.send(row.run, message, sealed=True, kind="told")
        except AlreadyFinished:
            raise AlreadyFinished(f"{recipient} has ended its part in {row.label}") from None

    async def refuse(self, root: str, agent: str, reason: str) -> None:
        """Records in a task that somebody outside was refused the work of an agent."""
        body = body_encoder.encode(DelegationRefused(agent, reason, key=f"outside:{new_id()}"))
        with contextlib.suppress(AlreadyFinished, NotFound):
            await self._runs.deliver(root, "relay", body)


def _task(row: DelegationRow, root: str) -> Task:
    agent = instance_id(row.agent, row.instance) if row.instance > 0 else row.agent
    return Task(row.label, row.run, root, agent, parent_of(row.label), bool(row.review))

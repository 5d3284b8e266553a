"""Finds tasks by the names that callers use: their own id, the engine's name of the task, or the id of the run.

A caller's own ids have a meaning for that caller alone. A task that a caller may not see counts as not found.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from ....engine.engine import Engine
from ....engine.ports import Task
from ....model.card import AgentCard
from ....model.errors import AgentNotFound, Conflict, InvalidRequest, RunNotFound, TaskNotFound
from ....model.events import Said
from ....model.filters import RunFilter
from ....model.run import Caller, Question, Run
from ....model.team import manifest as teams
from ....model.team.manifest import ORCHESTRATOR, Manifest
from ....model.team.task_ids import is_task
from ....security import scopes
from .. import translate
from ..projection import View

MAX_NAME = 200  # characters of an id that a caller gives to a task
LINK = "cap task"
BESIDE = "cap task beside"
"""Links a caller's name to a task of the same caller that is named like a part of it, such as Q1 to the task Q1.1."""

_DEEPEST = 32  # readings of an id that are tried
_LONGEST = 2 * MAX_NAME
_PAGE = 200
_REMEMBERED = 10_000


class RequestedTask(msgspec.Struct):
    """A task, or a part of one, that a caller asked for."""

    run: Run  # of the whole
    view: View
    parts: list[Task] = []  # of a team's task, in the order in which they began
    part: Task | None = None  # the one that is meant


class TaskBook:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._labels: dict[str, str] = {}  # by the run of the whole; they never change

    # -- participants -------------------------------------------------------------------------------------

    def entry(self, agent: str) -> Manifest | None:
        """Returns the agent with which a team begins; None where the agent is no team."""
        team = self.engine.teams.find(agent)
        return teams.entry_of(team) if team is not None else None

    def ids(self) -> dict[str, str]:
        """Returns the id of each agent here. A team has the id of its entry agent, where no other agent has that id."""
        names = dict.fromkeys(agent.card.name for agent in self.engine.agents)
        meant = Counter(self.id_of(name) for name in names)
        return {name: id_ if meant[id_ := self.id_of(name)] == 1 else teams.cap_id(name) for name in names}

    def id_of(self, agent: str) -> str:
        entry = self.entry(agent)
        return entry.id if entry is not None else teams.cap_id(agent)

    def card(self, id_: str, caller: Caller, version: str | None = None) -> AgentCard:
        """Returns the card of the agent with an id. An agent that the caller may not run counts as not found, unless
        the caller may see it."""
        agent_id = id_.partition("#")[0]
        name = self._name(agent_id)
        agent = self.engine.agents.find(name, version)
        if agent is None or not any(scopes.may(caller, action, agent.card.key) for action in ("run", "read")):
            known = ", ".join(i for n, i in self.ids().items() if scopes.may(caller, "run", n)) or "nobody"
            which = f"{agent_id[:80]} in version {version[:80]}" if version is not None else agent_id[:80]
            said = f"there is no agent {which} to begin with (there are: {known})"
            raise AgentNotFound(said) if agent is not None else self.engine.agents.no_agent(name, said)
        return agent.card

    def _name(self, id_: str) -> str:
        """Returns the name of the agent or team with an id. An agent's own id comes first."""
        try:
            name = teams.agent_name(id_)
        except InvalidRequest:
            return id_  # that of no agent
        begun = [team for team in self.engine.teams.names() if self.id_of(team) == id_]
        if self.engine.agents.find(name) is not None or not begun:
            return name
        if len(begun) > 1:
            raise Conflict(f"{id_} begins several teams; send to one of {', '.join(map(teams.cap_id, begun))}")
        return begun[0]

    # -- tasks --------------------------------------------------------------------------------------------

    async def name(self, caller: Caller, task: str, run: str) -> None:
        """Makes an id the caller's name for a run."""
        key = _own(caller, task)
        if await self.engine.links.add(LINK, key, run) != run:  # of a run that was deleted
            await self.engine.links.remove(LINK, key)
            await self.engine.links.add(LINK, key, run)
        for whole, _ in translate.readings(task)[1:]:
            await self.engine.links.add(BESIDE, _own(caller, whole), run)

    async def find(self, task: str, caller: Caller, action: scopes.Action = "read") -> RequestedTask:
        missing = TaskNotFound(f"there is no task {task[:80]}")
        root, name, below = await self._root(task, caller)
        try:
            run = await self.engine.runs.get(root)
        except RunNotFound:
            raise missing from None
        if run.parent is not None or not scopes.sees(caller, run.caller):
            raise missing
        scopes.require(caller, action)
        if not scopes.may(caller, action, f"{run.agent}@{run.version}"):
            raise missing
        view = await self.view(run, name, caller)
        view.below = below
        requested = RequestedTask(run, view)
        if view.label:
            requested.parts = await self.engine.teams.tasks(view.label)
            requested.part = next((part for part in requested.parts if part.label == view.label + below), None)
        if below and requested.part is None:
            raise missing
        return requested

    async def _root(self, task: str, caller: Caller) -> tuple[str, str, str]:
        readings = translate.readings(task)[:_DEEPEST] if len(task) <= _LONGEST else []
        for name, below in readings:
            linked = await self.engine.links.find(LINK, _own(caller, name))
            if linked is not None:
                return linked, name, below
        if is_task(task):
            whole, _, rest = task.partition(".")
            parts = await self.engine.teams.tasks(whole)
            if parts:
                return parts[0].root, whole, f".{rest}" if rest else ""
        for name, below in readings:
            if await self.engine.runs.exists(name):
                return name, name, below
        return task, task, ""

    async def _stored_card(self, run: Run) -> AgentCard | None:
        return await self.engine.agents.find_card(run.agent, run.version)

    async def view(self, run: Run, name: str, caller: Caller) -> View:
        agent = self.engine.agents.find(run.agent, run.version)
        card = agent.card if agent is not None else await self._stored_card(run)
        team = self.engine.teams.find(run.agent) is not None or (
            run.request is not None and run.request.authority is not None
        )
        # Where another task has the name of a part, names of parts begin with the id of the run, which is no task's.
        beside = team and await self.engine.links.find(BESIDE, _own(caller, name)) is not None
        return View(
            name, self.id_of(run.agent), await self.label(run.id) if team else "",
            parts_of=run.id if beside else "", team=team, caller=caller.id,
            output_text=card.output_text if card is not None else None,
            input_text=card.input_text if card is not None else None,
        )  # fmt: skip

    async def label(self, root: str) -> str:
        """Returns the engine's name of a team's task; empty where the task has not begun."""
        if root not in self._labels:
            async for event in self.engine.runs.events(root, follow=False):
                body = event.body
                if isinstance(body, Said) and body.form == "delegation" and body.sender == ORCHESTRATOR:
                    if len(self._labels) >= _REMEMBERED:
                        self._labels.clear()
                    self._labels[root] = body.task
                    break
        return self._labels.get(root, "")

    async def own_name(self, run: Run, caller: Caller) -> str:
        """Returns the name that a caller has for a run of which only the run is known."""
        cap = run.request.extra.get("cap") if run.request is not None else None
        name = cap.get("task") if isinstance(cap, dict) and run.caller == caller.id else None
        if isinstance(name, str):
            return name
        return (await self.label(run.id) if self.engine.teams.find(run.agent) is not None else "") or run.id

    async def page(self, caller: Caller, limit: int, offset: int) -> tuple[list[Run], int | None]:
        """Returns whole tasks that a caller may see, newest first, and the cursor of the next page."""
        scopes.require(caller, "read")
        own = None if scopes.sees(caller, "*") else caller.id
        runs: list[Run] = []
        while True:
            rows = await self.engine.runs.search(RunFilter(caller=own, limit=_PAGE, offset=offset))
            for row in rows:
                offset += 1
                if row.parent is None and scopes.may(caller, "read", f"{row.agent}@{row.version}"):
                    runs.append(row)
                    if len(runs) == limit:
                        return runs, offset
            if len(rows) < _PAGE:
                return runs, None

    # -- questions ----------------------------------------------------------------------------------------

    async def questions(self, requested: RequestedTask, caller: Caller) -> list[tuple[str, Question]]:
        """Returns the open questions of a task that a caller may answer, each with the participant that asks it."""
        asked = await self.engine.questions.open(run=requested.run.id, limit=_PAGE)
        mine = [question for question in asked if question.answerer in (None, caller.id)]
        return [(await self._asker(requested, question), question) for question in mine]

    async def _asker(self, requested: RequestedTask, question: Question) -> str:
        row = await self.engine.runs.find_row(question.run)
        path = [*row.path.strip("/").split("/"), row.id] if row is not None else []
        by_run = {part.run: part.agent for part in requested.parts}
        return next((by_run[run] for run in reversed(path) if run in by_run), requested.view.agent)


def _own(caller: Caller, task: str) -> str:
    """Returns the key of a caller's own name for a task. Both can contain spaces, but no line ends."""
    return f"{caller.id}\n{task}"


async def tree(book: TaskBook, requested: RequestedTask) -> list[dict[str, Any]]:
    """Returns the parts below the given part of a task, with their present state."""
    below: dict[str, list[dict[str, Any]]] = {}
    top = requested.view.label + requested.view.below
    for part in requested.parts:
        row = await book.engine.runs.find_row(part.run)
        entry: dict[str, Any] = {"task_id": requested.view.name(part.label), "agent": part.agent}
        if row is not None:
            entry["status"] = row.status.value
        if part.review:
            entry["review"] = True
        entry["subtasks"] = below.setdefault(part.label, [])
        if part.parent is not None:
            below.setdefault(part.parent, []).append(entry)
    return below.get(top, [])

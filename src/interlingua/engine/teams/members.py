"""Teams as agents: the members that only their team reaches, and the orchestrator that starts the first of them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...model import json_values
from ...model.card import AgentCard, QuestionType
from ...model.errors import DefinitionError
from ...model.team import manifest as teams
from ...model.team.manifest import USER, Manifest, Team
from ...model.team.oversight import Proposal
from ...model.team.tools import ToolServers
from ..agents.agent import Agent, OutputCodec
from ..agents.mount_path import MEMBER_OF, MOUNTED_FROM, VIA
from . import oversight
from .error_policy import ESCALATION

MANIFEST = "manifest"
"""The member of such a card's metadata that holds the manifest: a run's first event has the digest of its card, and so
proves what the manifest said then."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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
        input_: dict[str, Any] = {}
        if "proposal" in self.card.input.get("properties", {}):
            input_["proposal"] = whole
        if self.card.input_text is not None:
            input_[self.card.input_text] = (
                f"{proposal.agent} proposes the result below. Approve it, ask about it or reject it, and name its "
                f"result_hash.\n{json_values.encode(whole).decode()}"
            )
        return input_

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


def _parts(agent: TeamAgent) -> list[Agent[..., Any]]:
    """Returns the agents that are registered with a team."""
    members = agent.members
    overseers = {manifest.overseer for manifest in agent.team.manifests.values()}
    parts: list[Agent[..., Any]] = []

    def take(member: Member, name: str, *, review: bool) -> None:
        if not member.overseen:
            parts.append(member.variant(name, review=review))
            return
        work = member.variant(f"{name}/work", review=review)
        overseer = members.get(member.manifest.overseer or "")  # None: the user
        parts.extend((work, oversight.overseen(member, work, overseer, name)))

    for member in members.values():
        take(member, member.run_name, review=False)
        if member.id in overseers:
            take(member, member.review_name, review=True)
    for part in parts:  # the runs of a member belong to the team, also those of a shared agent
        part.source = agent.source
    return parts


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

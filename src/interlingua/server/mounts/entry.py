"""Describes a mount as its owner configures it, and one look at it: its agents, or the reason why it cannot be
reached."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...engine.agents.agent import Agent, NameTaken
from ...engine.handler.mounted_run import MOUNTED_FROM
from ...engine.ports import RemoteAgents
from ...model import json_values
from ...model.card import AgentCard
from ...model.errors import DefinitionError, InvalidRequest
from ...protocols.targets import Target, choose, source_of_mount
from ..loading.target import load_to_serve

State = Literal["starting", "up", "down"]

UNSEEN = "0.0.0"  # the version of an agent of which only the name is known


class MountEntry(msgspec.Struct, kw_only=True, frozen=True):
    """A mount as its owner wants it."""

    target: Target
    shown: str  # the target, without secrets
    as_: str | None = None
    prefix: str = ""
    only: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the mount in tables, messages and metrics."""
        here = self.as_ or (f"{self.prefix}*" if self.prefix else "")
        return f"{self.shown} as {here}" if here else self.shown

    def renamed(self, card: AgentCard) -> AgentCard:
        """A card of an agent of it, as it is here."""
        return msgspec.structs.replace(card, name=self.as_ or f"{self.prefix}{card.name}")

    def unseen(self, cards: list[AgentCard]) -> list[AgentCard]:
        """Cards for agents that it must have, by what its owner wrote, and that are not among these: nothing is known
        of them but a name."""
        there = self.only or ((self.target.agent.partition("@")[0],) if self.target.agent is not None else ())
        if self.as_ is not None:
            there = () if cards else (self.as_,)
        names = {card.name for card in cards}
        told = "Its mount has not been up yet."
        return [
            AgentCard(name, UNSEEN, told, input_text="text", output_text="text", metadata={MOUNTED_FROM: self.shown})
            for name in there
            if name not in names
        ]

    @property
    def remembered_as(self) -> str:
        """The key of the mounted place. It does not depend on the local name."""
        target = self.target
        return json_values.digest([target.kind, target.rest, target.agent])

    @property
    def identity(self) -> str:
        """A value that is equal for entries without a change between them, secrets included."""
        return json_values.digest(msgspec.to_builtins(self))


class MountView(msgspec.Struct, omit_defaults=True):
    """A mount as others see it."""

    mount: str
    state: State
    since: int
    agents: list[str] = []
    reason: str = ""
    tries: int = 0
    next_try_in: float | None = None
    left_out: list[str] = []


def views(elsewhere: RemoteAgents) -> list[MountView]:
    """Agents that other processes of the store have, as if each were a mount: it is down when they are all gone."""
    return [
        MountView(
            f"{agent.card.key} (elsewhere)", "up" if agent.available else "down", agent.since, [agent.card.key],
            "" if agent.available else "no process that has it is there",
        )
        for agent in elsewhere.agents()
    ]  # fmt: skip


async def load(
    entry: MountEntry, target: Target | None = None, keep: Callable[[AgentCard], bool] = lambda card: True,
    relist: Callable[[], Awaitable[list[Agent[..., Any]]]] | None = None,
) -> list[Agent[..., Any]]:  # fmt: skip
    """Returns the agents that are wanted of a mount, as they are there. `target` is its own, where that is resolved
    already; `keep` tells if an agent may be here; `relist` lists them over the connection that there is."""
    target = target or entry.target
    found = await (load_to_serve(target) if relist is None else relist())
    if relist is not None and target.agent is not None:
        found = [choose(found, target)]
    agents = [agent for agent in found if keep(agent.card)]
    if found and not agents and relist is None:
        await let_go({agent.card.key: agent for agent in found})
    if found and not agents:
        return []
    agents = _picked(entry, agents)
    for agent in agents:
        if agent.try_out is not None:
            await agent.try_out()
    return agents


def _picked(entry: MountEntry, agents: list[Agent[..., Any]]) -> list[Agent[..., Any]]:
    """Returns the agents that `only` and `as` name. Raises InvalidRequest where they do not fit the mount."""
    names = [agent.card.name for agent in agents]
    if entry.only:
        if missing := [name for name in entry.only if name not in names]:
            raise InvalidRequest(f"it has no agent {', '.join(missing)}; it has {', '.join(names)}", path="/only")
        agents = [agent for agent in agents if agent.card.name in entry.only]
    if entry.as_ is not None and len(agents) != 1:
        raise InvalidRequest(
            f"it has {len(agents)} agents ({', '.join(names)}), and `as` is a name for one: say which with #AGENT",
            path="/as",
        )
    return agents


async def try_once(entry: MountEntry) -> list[Agent[..., Any]]:
    """Its agents, called as they would be here. Raises where it is down."""
    agents = await load(entry)
    await let_go({agent.card.key: agent for agent in agents})
    named = [copy.copy(agent) for agent in agents]
    for agent in named:
        agent.card = entry.renamed(agent.card)
    return named


async def load_mounted(target: Target, root: Path, entries: list[MountEntry]) -> list[Agent[..., Any]]:
    """The agents of a target, called as they are here. `entries`: the mounts of the project, which give names."""
    of_target = [entry for entry in entries if source_of_mount(entry.target, "") == source_of_mount(target, "")]
    wanted = None if target.agent is None else source_of_mount(target, target.agent.partition("@")[0])
    named = [agent for entry in of_target for agent in await try_once(entry) if wanted in (None, agent.source)]
    return named or await load_to_serve(target, root)


def left_out(agent: Agent[..., Any], error: DefinitionError) -> str:
    """Describes why an agent of a mount cannot be registered here. The owner of this server cannot change the agent,
    only give it another name here."""
    key, why = agent.card.key, error.message
    if isinstance(error, NameTaken):
        why = f"there are two agents {key}; give the mount a `prefix`, or `as` where it has one agent"
    return f"{key} is left out: {why}"


async def let_go(agents: dict[str, Agent[..., Any]]) -> None:
    """Agents of one mount have one connection or process among them."""
    closing = {getattr(agent.let_go, "__self__", agent.let_go): agent.let_go for agent in agents.values()}
    for close in closing.values():
        if close is not None:
            with contextlib.suppress(Exception):
                await close()

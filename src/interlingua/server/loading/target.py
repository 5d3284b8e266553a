"""Loads the agents of targets: of files and teams here, of mounts by the protocol that their target names.

An address that names no protocol is looked at first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...protocols.targets import Target, choose, parse, protocol_of, source_of_mount

if TYPE_CHECKING:
    from ...engine.agents.agent import Agent

Load = Callable[[Target], Awaitable["list[Agent[..., Any]]"]]


class Loaded(msgspec.Struct, frozen=True):
    agents: list[Any]  # all that the target has: they may call each other
    chosen: Any  # the one to run


async def load(target: Target, root: Path | None = None) -> Loaded:
    """Returns the agents of a target, and the agent that it names. `root` is the folder of their project, where it is
    already known."""
    agents = await load_all(target, root)
    return Loaded(agents, choose(agents, target))


async def load_to_serve(target: Target, root: Path | None = None) -> list[Agent[..., Any]]:
    """Returns all agents of a target, or only the agent that it names."""
    agents = await load_all(target, root)
    return agents if target.agent is None else [choose(agents, target)]


async def load_all(target: Target, root: Path | None = None) -> list[Agent[..., Any]]:
    match target.form:
        case "file":
            from .file import agents_of_file

            return agents_of_file(target.rest, root)
        case "folder":
            from .team import load_team

            return [await load_team(target.rest, root=root)]
    named = await resolve(target)
    agents = await mount_of(named.kind)(named)
    for agent in agents:
        agent.source = source_of_mount(target, agent.card.name)
    return agents


def mount_of(scheme: str) -> Load:
    """Returns what loads the agents of a kind of target."""
    protocol = protocol_of(scheme)
    assert protocol is not None
    load: Load = protocol.load("mount")
    return load


async def resolve(target: Target) -> Target:
    """Returns the target. Where an address does not name its protocol, returns a target that does."""
    if target.kind not in ("http", "https"):
        return target
    from ...detection.detect import detected

    key = {"x-api-key": target.access.key} if target.access.key else {}
    spoken = await detected(target.rest, {**key, **target.access.headers})
    assert spoken.target is not None
    named = parse(spoken.target)
    return Target(named.kind, named.rest, target.agent, target.access)

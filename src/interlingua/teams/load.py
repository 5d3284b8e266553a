"""Loads teams as agents: from a folder of manifests, with a handler for each of them.

The handler of a manifest is the first of these that exists: a handler that the caller gives; what the manifest itself
names (a function, a mounted agent, a model); a model that the caller gives for all; an agent with the manifest's id in
`handlers.py` beside the manifests; the team's model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..engine.agents.agent import Agent
from ..engine.ports import TeamAgent
from ..model.errors import DefinitionError
from ..model.run_identity import team_source
from ..model.team.manifest import Manifest, Server, Team
from ..protocols.targets import Target, TargetError, load, parse
from ..server.project import find_root
from .files import load_team as read_team

if TYPE_CHECKING:
    from ..model.team.tools import ToolServers

HANDLERS = "handlers.py"

Handlers = Mapping[str, Agent[..., Any]]


def team(path: str | Path, *, model: str | None = None, handlers: Handlers | None = None) -> TeamAgent:
    """Returns the team of a folder, or of a file, as an agent. Where a manifest names a remote agent, use
    `load_team`."""
    found, folder = _read(path)
    for manifest in found.manifests.values():
        if manifest.options.target is not None and manifest.id not in (handlers or {}):
            raise DefinitionError(f"{manifest.file}: {manifest.id} is a remote agent; use `await il.load_team(…)`")
    return _from(path, _assemble(found, folder, dict(handlers or {}), model, _source(path, None)))


async def load_team(
    path: str | Path, *, model: str | None = None, handlers: Handlers | None = None, root: Path | None = None
) -> TeamAgent:
    """Returns the team of a folder, or of a file, as an agent. `root` is the folder of its project; None means to find
    it."""
    found, folder = _read(path)
    given = dict(handlers or {})
    for manifest in found.manifests.values():
        if manifest.options.target is not None and manifest.id not in given:
            given[manifest.id] = (await load(parse(manifest.options.target))).chosen
    return _from(path, _assemble(found, folder, given, model, _source(path, root)))


def _from(path: str | Path, agent: TeamAgent) -> TeamAgent:
    agent.files = Path(path).expanduser().resolve()
    return agent


def _read(path: str | Path) -> tuple[Team, Path]:
    place = Path(path).expanduser()
    return read_team(place), (place if place.is_dir() else place.parent).resolve()


def _source(path: str | Path, root: Path | None) -> str:
    place = Path(path).expanduser()
    return team_source(place, root or find_root(place))


def _assemble(
    found: Team, folder: Path, given: dict[str, Agent[..., Any]], model: str | None, source: str
) -> TeamAgent:
    for id_ in given:
        if id_ not in found.manifests:
            raise DefinitionError(f"there is a handler for {id_}, which is not in the team {found.name}")
    found.servers = {id_: _placed(server, folder) for id_, server in found.servers.items()}
    beside = _beside(folder)
    for manifest in found.manifests.values():
        if manifest.id not in given:
            given[manifest.id] = _thinker(found, manifest, folder, model, beside)
    return TeamAgent(found, given, _tool_servers(found), source)


def _placed(server: Server, folder: Path) -> Server:
    """Places commands in the team's folder, because one engine may have teams from several folders."""
    return msgspec.structs.replace(server, cwd=str(folder / (server.cwd or "."))) if server.command else server


def _beside(folder: Path) -> dict[str, Agent[..., Any]]:
    from ..server.load_file import agents_of_file

    file = folder / HANDLERS
    return {agent.card.name: agent for agent in agents_of_file(file)} if file.exists() else {}


def _thinker(
    found: Team, manifest: Manifest, folder: Path, model: str | None, beside: dict[str, Agent[..., Any]]
) -> Agent[..., Any]:
    options = manifest.options
    if options.handler is not None:
        return _function(options.handler, folder, manifest)
    if options.model is None and model is None and manifest.id in beside:
        return beside[manifest.id]
    named = options.model or model or found.model
    if named is None:
        raise DefinitionError(
            f"nobody thinks for {manifest.id} ({manifest.file}): give a model (--model provider:name, or `model` in "
            f"the team's file), or an agent of that name in {HANDLERS}"
        )
    from ..models.agent_loop import thinker

    return thinker(found, manifest, named)


def _function(handler: str, folder: Path, manifest: Manifest) -> Agent[..., Any]:
    """Loads FILE:FUNCTION, relative to the team's folder."""
    from ..protocols.targets import choose
    from ..server.load_file import agents_of_file

    file, _, name = handler.rpartition(":")
    path = str(folder / (file or name))
    target = Target("file", path, name if file else None)
    try:
        return choose(agents_of_file(path), target)
    except TargetError as error:
        raise DefinitionError(f"{manifest.file}: /interlingua/handler: {error.message}") from error


def _tool_servers(found: Team) -> ToolServers | None:
    if not found.servers:
        return None
    from ..tools.servers import McpServers, check_installed

    check_installed()
    return McpServers()

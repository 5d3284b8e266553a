"""Makes an agent of a team: of a folder of manifests, with a handler for each of them.

The handler of a manifest is the first of these that exists: a handler that the caller gives, as for remote agents; the
function that the manifest names; its model; a model that the caller gives for all; an agent with the manifest's id in
`handlers.py` beside the manifests; the team's model. The caller loads the files, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..engine.agents.agent import Agent
from ..engine.ports import TeamAgent
from ..model.errors import DefinitionError
from ..model.run_identity import team_source
from ..model.team.manifest import Manifest, Server, Team
from .files import load_team as read_team

if TYPE_CHECKING:
    from ..model.team.tools import ToolServers

HANDLERS = "handlers.py"

Handlers = Mapping[str, Agent[..., Any]]
LoadFile = Callable[[Path, str | None], list[Agent[..., Any]]]
"""(file, name of an agent or None) → all agents of a file, or that agent alone. Raises DefinitionError."""


class TeamFiles:
    """A team as its folder, or its file, describes it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.team: Team = read_team(self.path)
        self.folder = (self.path if self.path.is_dir() else self.path.parent).resolve()

    def remote(self, given: Handlers) -> dict[str, Manifest]:
        """Returns the members that are remote agents, except those that have a handler already."""
        return {
            manifest.id: manifest
            for manifest in self.team.manifests.values()
            if manifest.options.target is not None and manifest.id not in given
        }

    def agent(self, root: Path, load_file: LoadFile, handlers: Handlers, model: str | None) -> TeamAgent:
        """Returns the team as an agent. `root` is the folder of its project."""
        team, agents = self.team, dict(handlers)
        for id_ in agents:
            if id_ not in team.manifests:
                raise DefinitionError(f"there is a handler for {id_}, which is not in the team {team.name}")
        team.servers = {id_: self._placed(server) for id_, server in team.servers.items()}
        file = self.folder / HANDLERS
        beside = {agent.card.name: agent for agent in load_file(file, None)} if file.exists() else {}
        for manifest in team.manifests.values():
            if manifest.id not in agents:
                agents[manifest.id] = self._handler(manifest, load_file, model, beside)
        agent = TeamAgent(team, agents, _tool_servers(team), team_source(self.path, root))
        agent.files = self.path.resolve()
        return agent

    def _placed(self, server: Server) -> Server:
        """Places commands in the team's folder, because one engine may have teams from several folders."""
        if not server.command:
            return server
        return msgspec.structs.replace(server, cwd=str(self.folder / (server.cwd or ".")))

    def _handler(
        self, manifest: Manifest, load_file: LoadFile, model: str | None, beside: Handlers
    ) -> Agent[..., Any]:  # fmt: skip
        options = manifest.options
        if options.handler is not None:
            return self._function(options.handler, manifest, load_file)
        if options.model is None and model is None and manifest.id in beside:
            return beside[manifest.id]
        named = options.model or model or self.team.model
        if named is None:
            raise DefinitionError(
                f"nobody thinks for {manifest.id} ({manifest.file}): give a model (--model provider:name, or `model` "
                f"in the team's file), or an agent of that name in {HANDLERS}"
            )
        from ..models.agent_loop import thinker

        return thinker(self.team, manifest, named)

    def _function(self, handler: str, manifest: Manifest, load_file: LoadFile) -> Agent[..., Any]:
        """Loads FILE:FUNCTION, relative to the team's folder."""
        file, _, name = handler.rpartition(":")
        try:
            (agent,) = load_file(self.folder / (file or name), name if file else "")
        except DefinitionError as error:
            raise DefinitionError(f"{manifest.file}: /interlingua/handler: {error.message}") from error
        return agent


def _tool_servers(team: Team) -> ToolServers | None:
    if not team.servers:
        return None
    from ..tools.servers import McpServers, check_installed

    check_installed()
    return McpServers()

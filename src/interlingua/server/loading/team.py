"""Loads teams: their files, and the agents at other places that their manifests name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...engine.agents.agent import Agent
from ...engine.ports import TeamAgent
from ...model.errors import DefinitionError
from ...protocols.targets import Target, TargetError, choose, parse
from ...teams.load import Handlers, TeamFiles
from ..project import find_root
from .file import agents_of_file


def team(path: str | Path, *, model: str | None = None, handlers: Handlers | None = None) -> TeamAgent:
    """Returns the team of a folder, or of a file, as an agent. Where a manifest names a remote agent, use
    `load_team`."""
    files = TeamFiles(path)
    for id_, manifest in files.remote(handlers or {}).items():
        raise DefinitionError(f"{manifest.file}: {id_} is a remote agent; use `await il.load_team(…)`")
    return files.agent(find_root(files.path), _load_file, handlers or {}, model)


async def load_team(
    path: str | Path, *, model: str | None = None, handlers: Handlers | None = None, root: Path | None = None
) -> TeamAgent:
    """Returns the team of a folder, or of a file, as an agent. `root` is the folder of its project; None means to find
    it."""
    from .target import load

    files = TeamFiles(path)
    agents = dict(handlers or {})
    for id_, manifest in files.remote(agents).items():
        agents[id_] = (await load(parse(str(manifest.options.target)))).chosen
    return files.agent(root or find_root(files.path), _load_file, agents, model)


def _load_file(file: Path, name: str | None) -> list[Agent[..., Any]]:
    if name is None:
        return agents_of_file(file)
    try:
        return [choose(agents_of_file(file), Target("file", str(file), name or None))]
    except TargetError as error:
        raise DefinitionError(error.message) from error

"""The command that takes up a run again, for hints: by the code that the run belongs to, as far as that is here."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.team.manifest import ORCHESTRATOR

if TYPE_CHECKING:
    from ..engine.reading import AnyEngine


async def resume_command(engine: AnyEngine, run: str, store: Path | None) -> str:
    """A command line for the run with which everything began. `store`: as this command was given it."""
    from .short_ids import short

    row = await engine.runs.find_row(run)
    if row is not None and row.path.strip("/"):
        run = row.path.strip("/").split("/")[0]
        row = await engine.runs.find_row(run)
    origin = row.origin if row is not None else ""
    kind, _, place = origin.partition(" ")[2].partition(":")
    at = f" --store {shlex.quote(str(store))}" if store is not None else ""
    where = await _found(engine, place) if kind in ("team", "file") else None
    if where is None:
        return f"interlingua run TARGET --resume {short(run)}{at}"
    if kind == "team":
        return f"interlingua team run {shlex.quote(where)} --resume {await _task(engine, run) or short(run)}{at}"
    assert row is not None
    return f"interlingua run {shlex.quote(f'{where}:{row.agent}')} --resume {short(run)}{at}"


async def _found(engine: AnyEngine, place: str) -> str | None:
    project = await engine.agents.store_owner()
    return _near(Path(project.root) if project is not None and project.root else None, place)


def _near(root: Path | None, place: str) -> str | None:
    """The path of code from here, by its path in the project; None where it is not there."""
    from ..server.project import find_root

    root = root or find_root(Path.cwd())
    path = root / place
    if root.name == place and not path.exists():
        path = root  # a team may be the whole project
    if not place or not path.exists():
        return None
    near = os.path.relpath(path)
    return str(path) if near.startswith("..") else near


async def _task(engine: AnyEngine, run: str) -> str | None:
    """The name of a team's task, where it has begun."""
    for _, said in await engine.teams.conversation(run):
        if said.form == "delegation" and said.sender == ORCHESTRATOR:
            return said.task
    return None

"""Loads a server's own agents from files and teams' folders, and notices when these change."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...engine.agents.agent import Agent
from ...engine.agents.imported_files import imports_of
from ...model.errors import InterlinguaError
from ...protocols.targets import Target, TargetError, parse
from .target import load_to_serve

if TYPE_CHECKING:
    from ..config.load import Config

Stamp = dict[Path, tuple[int, int]]  # when it was changed, and its size


class Origin(msgspec.Struct, frozen=True):
    """A file or a folder that agents are wanted from."""

    kind: Literal["file", "team"]
    path: Path
    agent: str | None = None
    only: tuple[str, ...] = ()
    model: str | None = None
    place: str = ""  # the file and line of the setting

    @property
    def same(self) -> tuple[Any, ...]:
        return self.kind, self.path, self.agent, self.only, self.model


class Source:
    """A file or folder of agents, and the agents that were loaded from it."""

    def __init__(self, origin: Origin, root: Path | None = None) -> None:
        """`root`: of the project; found from the origin's folder if None."""
        self.origin = origin
        self._root = root
        self.agents: list[Agent[..., Any]] = []
        self.problem = ""  # why it could not be loaded as it is now
        self._stamp: Stamp = {}
        self._modules: dict[str, Path] = {}  # the modules that it imported from its own folder

    @property
    def changed(self) -> bool:
        """True if a file differs from the state in which it was loaded, or in which loading it failed."""
        return self._now() != self._stamp

    async def load(self) -> list[Agent[..., Any]]:
        """Loads the agents as they are now. The caller assigns them to `agents` once they are in place."""
        self._modules = self._imported()
        self._stamp = self._now()  # before it is read: what changes meanwhile is a change
        self.problem = ""
        try:
            return await self._load()
        except InterlinguaError as error:
            self.problem = said(self.origin, error)
            raise

    @property
    def stale_modules(self) -> dict[str, Path]:
        """All modules that the source imported, if any of them has changed: another may use the changed one. Else
        none."""
        before = {path: self._stamp.get(path) for path in self._modules.values()}
        return self._modules if stamp_of(before) != before else {}

    def _own(self) -> list[Path]:
        path = self.origin.path
        return [file for file in path.rglob("*") if _is_source(file)] if path.is_dir() else [path]

    def _imported(self) -> dict[str, Path]:
        return {name: at for file in self._own() if file.suffix == ".py" for name, at in imports_of(file).items()}

    def _now(self) -> Stamp:
        return stamp_of([*self._own(), *self._modules.values()])

    async def _load(self) -> list[Agent[..., Any]]:
        origin = self.origin
        if origin.kind == "team":
            from .team import load_team

            return [await load_team(origin.path, model=origin.model, root=self._root)]
        agents = await load_to_serve(Target("file", str(origin.path), origin.agent), self._root)
        names = [agent.card.name for agent in agents]
        for name in origin.only:
            if name not in names:
                close = difflib.get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
                raise TargetError(f"there is no agent {name!r} in {origin.path}", hint=hint)
        return [agent for agent in agents if not origin.only or agent.card.name in origin.only]


def _is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")


def stamp_of(paths: Iterable[Path]) -> Stamp:
    found: Stamp = {}
    for path in paths:
        try:
            told = path.stat()
        except OSError:
            continue  # it is gone, which is a change too
        found[path] = (told.st_mtime_ns, told.st_size)
    return found


def origins(config: Config) -> list[Origin]:
    """Returns the files and folders that the settings name, each once."""
    found: dict[tuple[Any, ...], Origin] = {}
    for entry in config.entries["agents"]:
        target = parse(str(entry["file"]))
        if target.kind != "file":
            where = "teams" if target.kind == "team" else "mounts"
            config.wrong(entry.origin, entry.path, f"{entry['file']} is no file: it belongs under [[{where}]]")
            continue
        one = Origin("file", Path(target.rest), target.agent, tuple(entry["only"]), place=entry.origin)
        found.setdefault(one.same, one)
    for entry in config.entries["teams"]:
        one = Origin("team", entry["dir"], model=entry["model"], place=entry.origin)
        found.setdefault(one.same, one)
    return list(found.values())


def said(origin: Origin, error: InterlinguaError) -> str:
    """Describes the mistake of one origin, for a list of problems."""
    hint = getattr(error, "hint", "")
    text = f"{error.message}; {hint}" if hint else error.message
    return text if str(origin.path) in text else f"{origin.path}: {text}"


async def load_all(config: Config, root: Path | None = None) -> list[Source]:
    """Loads all sources at a start. Mistakes become problems of the config. `root`: of the project."""
    sources = []
    for origin in origins(config):
        source = Source(origin, root)
        try:
            source.agents = await source.load()
        except InterlinguaError:
            config.wrong(origin.place, "", source.problem)
        else:
            sources.append(source)
    return sources

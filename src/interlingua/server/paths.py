"""Finds the default places: the project, its config file, its store and its bus."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bus.port import BusSettings
from ..model.errors import NotFound
from .config.settings import setting
from .project import Project, SeveralProjects, find_project
from .stores import is_postgres, shown

if TYPE_CHECKING:
    from ..protocols.targets import Target

VARIABLE = "INTERLINGUA_CONFIG"

_STORE = setting("store.path")


class NoStore(NotFound):
    """A command that only looks finds no store, and makes none."""

    code = "store_not_found"

    def __init__(self, store: Path, project: Project | None) -> None:
        if project is None:
            super().__init__(f"there is no store {shown(store)}")
            self.hint = "`interlingua run` and `interlingua serve` make one"
        else:
            super().__init__(f"the project in {project.root} has no store yet: there is no {shown(store)}")
            self.hint = (
                "`interlingua run` and `interlingua serve` make it; for another project, go to its folder, or name its "
                "store with --store"
            )


class Place:
    """The place in which a command works: its project, and the project's config file, store and bus.

    Each is looked for when it is asked for, so a mistake in a file that is not needed does no harm.
    """

    def __init__(self, store: Path | None = None, targets: Iterable[Target] = (), config: Path | None = None) -> None:
        """`store` and `config`: the options of the command."""
        self._targets = list(targets)
        chosen = os.environ.get(_STORE.variable)
        self.named_store = _expanded(store or (Path(chosen) if chosen else None))
        chosen = os.environ.get(VARIABLE)
        self.named_file = _expanded(config or (Path(chosen) if chosen else None))

    @cached_property
    def project(self) -> Project:
        """The project of the config file that is named, else that of the targets, else that of the current folder."""
        if self.named_file is not None:
            return find_project(Path(), config=self.named_file)
        found: dict[Path, tuple[str, Project]] = {}
        for target in self._targets:
            if (folder := _folder_of(target)) is not None:
                project = find_project(folder)
                found.setdefault(project.root, (target.rest, project))
        projects = [project for _, project in found.values()]
        if len({project.name or project.root for project in projects}) > 1:
            raise SeveralProjects(dict(found.values()))
        return projects[0] if projects else find_project(Path())

    @cached_property
    def file(self) -> Path | None:
        """The config file: the one that is named, else that of the project."""
        if self.named_file is not None:
            return self.named_file
        return Path(nearby(self.project.file)) if self.project.file.is_file() else None

    @cached_property
    def store(self) -> Path:
        """The store, which is that of a server of the same project: the one that is named, else that of the config
        file, else the project's own."""
        if self.named_store is not None:
            return self.named_store
        store = None
        if self.file is not None:
            from .config.load import store_in  # takes a while, and most have no file

            store = store_in(self.file)
        return store or self.project.store

    def existing_store(self) -> Path:
        """The store of a command that makes none. Raises NoStore."""
        if not _is_there(self.store):
            raise NoStore(self.store, self.project if self.named_store is None else None)
        return self.store

    @cached_property
    def bus(self) -> BusSettings:
        """Returns the settings of the bus beside the store. Variables override the config file, which counts only if
        the store is the file's."""
        given: dict[str, Any] = {}
        if self.named_store is None and self.file is not None:
            from .config.load import bus_in

            given = bus_in(self.file)
        for name in BusSettings.__struct_fields__:
            one = setting(f"bus.{name}")
            chosen = os.environ.get(one.variable)
            if chosen:
                given[name] = Path(chosen).expanduser() if one.kind == "path" else chosen
        return BusSettings(**given)


def _expanded(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser()


def _folder_of(target: Target) -> Path | None:
    """The folder that the code of a target is in; None for a mount, whose code is elsewhere."""
    path = Path(target.rest).expanduser()
    match target.kind:
        case "file":
            return path.parent
        case "team":
            return path if path.is_dir() else path.parent
    return None


def _is_there(store: Path) -> bool:
    if not is_postgres(store):
        return store.exists()
    from .stores import migrate

    return migrate(store, dry=True).found > 0


def nearby(path: Path | str) -> str:
    """A store as people read it: without a password, and from the current folder where it is below that."""
    here = Path.cwd()
    if is_postgres(path) or not Path(path).is_relative_to(here):
        return shown(path)
    return str(Path(path).relative_to(here))


def user_folder() -> Path:
    """A private folder of this user, under $XDG_DATA_HOME or ~/.local/share."""
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification tells to ignore relative paths.
    base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return base / "interlingua"


def audit_key(store: Path | str) -> Path:
    """Returns the file of the key that signs audit exports of a store."""
    if is_postgres(store):
        return user_folder() / "audit.key"  # this user's alone
    path = Path(store)
    return path.with_name(f"{path.name}.key")

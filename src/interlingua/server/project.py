"""Finds projects: the folder that agents belong to, its id, and the store below it.

A store belongs to one project. A project without a name has a random id, which is used for the store beside it alone.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..model.errors import InvalidRequest
from ..security.private_files import write_once
from .config import toml_lines
from .stores import is_postgres, shown

CONFIG = "interlingua.toml"
PYPROJECT = "pyproject.toml"
FOLDER = ".interlingua"
VARIABLE = "INTERLINGUA_PROJECT"

_STORE = "store.db"
_ID = "project"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Project(msgspec.Struct, frozen=True):
    """A project, as its folder describes it."""

    root: Path
    id: str
    """Empty for a project without a name until `claim` makes its random id."""
    named: bool
    store: Path
    """The store of commands that name no other."""
    name: str = ""

    @property
    def file(self) -> Path:
        """The config file of the project; it need not exist."""
        return self.root / CONFIG

    def claim(self, store: Path | str) -> str:
        """Returns the id of the project in a store that it is about to use; for a store in its own folder, makes the
        missing parts there. Raises UnnamedProject for any other store of a project without a name."""
        self.prepare(store)
        if not (self.owns(store) or self.named):
            raise UnnamedProject(self, store)
        return self.id_in(store) or _make_id(self.store.parent)

    def prepare(self, store: Path | str) -> None:
        """Makes the project's folder, if the store is in it, for the store and the files beside it."""
        if self.owns(store):
            _make_folder(self.store.parent)

    def renamed(self, name: str | None) -> Project:
        """The same project by the name that a setting gives it, if any."""
        if name is None:
            return self
        name = checked_name(name, "the setting")
        return Project(self.root, name, True, self.store, name)

    def id_in(self, store: Path | str) -> str:
        """The id of the project in a store; empty where it has none there."""
        return self.id if self.owns(store) else self.name

    def owns(self, store: Path | str) -> bool:
        """Returns whether a store is in the project's own folder."""
        return not is_postgres(store) and Path(store).expanduser().absolute().parent.resolve() == self.store.parent


class UnnamedProject(InvalidRequest):
    """A project without a name wants a store that other projects can reach."""

    code = "project_without_name"

    def __init__(self, project: Project, store: Path | str) -> None:
        super().__init__(f"the store {shown(store)} is outside of the project in {project.root}, which has no name")
        line = f'project = "{_suggested(project.root)}"'
        self.hint = f"add this line at the top of {project.file} (or set {VARIABLE}):\n{line}"


class SeveralProjects(InvalidRequest):
    """One command has targets of several projects."""

    code = "several_projects"
    hint = "start each project by itself, or write one interlingua.toml in a folder above all of them"

    def __init__(self, found: Mapping[str, Project]) -> None:
        told = ", ".join(f"{target} to {project.root}" for target, project in found.items())
        super().__init__(f"these targets belong to different projects: {told}")


def find_project(start: Path, *, config: Path | None = None) -> Project:
    """Find the project of what is in a folder. Changes nothing on disk.

    The root is the nearest folder, searched upwards, with an interlingua.toml, or with a pyproject.toml that has a
    table [tool.interlingua]; else it is the folder itself. `config`: a config file that was named; the project is the
    one around it, and a name in it comes first.
    """
    root = find_root(start if config is None else config.absolute().parent)
    own = root / FOLDER
    written = _written_name(root, config)
    package = "" if written else _package_name(root)
    # The name of a package that comes later does not take the store away from the runs in it.
    kept = "" if written else _kept_id(own)
    return Project(root, written or kept or package, bool(written or package), own / _STORE, written or package)


def find_root(start: Path) -> Path:
    """Finds the root of the project of a folder, without its name."""
    start = start.expanduser()
    folder = (start.parent if start.is_file() else start).resolve()
    return next((one for one in (folder, *folder.parents) if _is_root(one)), folder)


def checked_name(name: object, where: str) -> str:
    """Returns a project's name as it is written somewhere. Raises InvalidRequest if it is not valid."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where}: project is a name of at most 100 letters, digits, dots, dashes and underscores, not {name!r}"
        )
    return name


# -- the names ------------------------------------------------------------------------------------------------


def _is_root(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or _own_table(folder) is not None


def _written_name(root: Path, config: Path | None) -> str:
    """Returns the name that the environment, a config file or [tool.interlingua] gives to the project."""
    if os.environ.get(VARIABLE):
        return checked_name(os.environ[VARIABLE], VARIABLE)
    for file in (config or root / CONFIG, root / CONFIG):
        if "project" in (table := _read(file)):
            return checked_name(table["project"], str(file))
    if "project" in (table := _own_table(root) or {}):
        return checked_name(table["project"], str(root / PYPROJECT))
    return ""


def _package_name(root: Path) -> str:
    try:
        table = _read(root / PYPROJECT).get("project")
    except InvalidRequest:  # it is no file of this program, and does not name it
        return ""
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) and _NAME.fullmatch(name) else ""


def _own_table(folder: Path) -> dict[str, Any] | None:
    """[tool.interlingua] of the folder's pyproject.toml."""
    file = folder / PYPROJECT
    try:
        if b"interlingua" not in file.read_bytes():
            return None
    except OSError:
        return None
    tool = _read(file).get("tool")
    found = tool.get("interlingua") if isinstance(tool, dict) else None
    return found if isinstance(found, dict) else None


def _read(file: Path) -> dict[str, Any]:
    return toml_lines.read(file).tables if file.is_file() else {}


def _suggested(root: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("._-")[:100] or "my-project"


# -- the folder -----------------------------------------------------------------------------------------------


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o711, exist_ok=True)  # not to be listed; a database of `interlingua dev` is below it
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise InvalidRequest(f"the project's folder {folder} cannot be made: {error.strerror or error}") from error


def _kept_id(folder: Path) -> str:
    file = folder / _ID
    try:
        return checked_name(file.read_text(encoding="utf-8").strip(), str(file))
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _make_id(folder: Path) -> str:
    """Writes a random id, unless another process has just done so."""
    try:
        write_once(folder / _ID, f"{secrets.token_hex(8)}\n".encode())
    except OSError as error:
        raise InvalidRequest(f"the project's id cannot be kept in {folder}: {error.strerror or error}") from error
    return _kept_id(folder)

"""Reads the settings of `interlingua serve` in their order: flags before variables before the file before defaults.

Finds all mistakes in one pass and keeps them as problems; `settings` lists the settings, and `build` turns them into
values.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import msgspec

from ...model.errors import InvalidRequest
from ..stores import is_postgres, shown
from . import toml_lines
from .fields import Entries, Setting, Unsuitable, counted, json_of, listed, shortened
from .settings import ENTRIES, all_settings, sections, setting
from .toml_lines import NoVariable, Written, expanded, names_variables

HIDDEN = "***"


class Problem(msgspec.Struct, frozen=True):
    """A mistake in the config, or a warning."""

    where: str  # file and line, a variable, or a flag
    path: str
    message: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        named = f"{self.path}: " if self.path else ""
        return f"{self.where}: {named}{self.message}" if self.where else f"{named}{self.message}"


class Value(msgspec.Struct, frozen=True):
    value: Any
    origin: str = "default"
    written: Any = None  # before variables were put in

    def shown(self, setting: Setting) -> Any:
        """Returns the value in the form that people may see: a secret only as the name of its variable."""
        if self.written is not None and names_variables(self.written):
            return self.written
        if setting.kind == "path" and self.value is not None and is_postgres(self.value):
            return shown(self.value)
        return HIDDEN if setting.secret and self.value else self.value


class Entry(msgspec.Struct, frozen=True):
    values: dict[str, Value]  # the values of all members
    origin: str
    path: str  # the path of the entry: mounts[0]
    folder: Path  # relative paths are relative to this

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value


class WrongConfig(InvalidRequest):
    """The settings cannot be used. All that is wrong is in the message."""

    code = "invalid_config"

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = [one for one in problems if one.severity == "error"]
        super().__init__("\n".join(map(str, self.problems)))
        self.hint = "interlingua config check looks at everything" if len(self.problems) > 1 else ""


class Config:
    """Holds all settings, and the origin of each."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.values: dict[str, Value] = {one.path: Value(one.default) for one in all_settings()}
        self.entries: dict[str, list[Entry]] = {one.path: [] for one in ENTRIES}
        self.problems: list[Problem] = []

    def __getitem__(self, path: str) -> Any:
        return self.values[path].value

    def given(self, path: str) -> bool:
        return self.values[path].origin != "default"

    def wrong(self, where: str, path: str, message: str) -> None:
        self.problems.append(Problem(where, path, message))

    def place(self, path: str) -> str:
        """Returns the place where a setting is written. A setting of a section that has a file of defaults may stand in
        that file."""
        if not self.given(path):
            section = sections().get(path.rpartition(".")[0])
            files = [one.path for one in section.settings if one.defaults] if section is not None else []
            path = files[0] if files else path
        return self.values[path].origin if self.given(path) else ""

    def built(self, name: str) -> Any:
        """Returns the struct of a section. Raises InvalidRequest if its file of defaults cannot be read."""
        section = sections()[name]
        base = section.type()
        for one in section.settings:
            if one.defaults and self[one.path] is not None:
                base = resolve_name(one.defaults)(self[one.path])
        given = {one.field: self[one.path] for one in section.settings if self.given(one.path)}
        return msgspec.structs.replace(base, **given)

    def check(self) -> None:
        """Raises WrongConfig if something is wrong."""
        if any(one.severity == "error" for one in self.problems):
            raise WrongConfig(self.problems)


def read(
    file: Path | None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, *,
    store_from: Path | None = None,
) -> Config:  # fmt: skip
    """Reads all settings. Mistakes become `problems`; only a file that is not valid TOML raises. `store_from`: if
    no file is read and nothing else names the store, this file still names the store, and the bus beside it."""
    environ = os.environ if environ is None else environ
    flags = flags or {}
    config = Config(file)
    store = setting("store.path")
    if file is not None:
        _take_file(config, toml_lines.read(file), environ)
    elif store_from is not None and flags.get(store.parameter) is None and not environ.get(store.variable):
        written = toml_lines.read(store_from)
        _take_store(config, written, environ)
        _take_bus(config, written, environ)
    _take_variables(config, environ)
    _take_flags(config, flags)
    return config


def store_in(file: Path) -> Path | None:
    """Returns the store that a file names, whatever else is wrong in the file. Raises if the store cannot be read."""
    config = Config(file)
    _take_store(config, toml_lines.read(file), os.environ)
    config.check()
    store: Path | None = config["store.path"]
    return store


def bus_in(file: Path) -> dict[str, Any]:
    """Returns the bus settings of a file, whatever else is wrong in it. Raises if they cannot be read."""
    config = Config(file)
    _take_bus(config, toml_lines.read(file), os.environ)
    config.check()
    return {path.removeprefix("bus."): config[path] for path in config.values if config.given(path)}


# -- the file -------------------------------------------------------------------------------------------------


def _take_file(config: Config, written: Written, environ: Mapping[str, str]) -> None:
    folder = written.path.absolute().parent
    known = _tree()
    entries = {one.path: one for one in ENTRIES}

    def walk(table: Mapping[str, Any], inside: str) -> None:
        for key, value in table.items():
            path = f"{inside}.{key}" if inside else key
            where = written.place(path)
            if path in entries:
                _take_list(config, entries[path], value, path, folder, environ, written)
            elif path in known and isinstance(known[path], Setting):
                _take_written(config, known[path], value, where, folder, environ)
            elif path in known:
                if isinstance(value, dict):
                    walk(value, path)
                else:
                    config.wrong(where, path, f"must be a table, written [{path}], not {shortened(value)}")
            else:
                config.wrong(where, path, f"unknown setting{_near(path, [*known, *entries])}")

    walk(written.tables, "")


def _take_store(config: Config, written: Written, environ: Mapping[str, str]) -> None:
    """Takes only the path of the store from the table. Unknown names count too: one of them may be meant as the
    path."""
    table, known = written.tables.get("store", {}), _tree()
    if isinstance(table, dict):
        table = {key: value for key, value in table.items() if key == "path" or f"store.{key}" not in known}
    _take_file(config, msgspec.structs.replace(written, tables={"store": table}), environ)


def _take_bus(config: Config, written: Written, environ: Mapping[str, str]) -> None:
    if "bus" in written.tables:
        _take_file(config, msgspec.structs.replace(written, tables={"bus": written.tables["bus"]}), environ)


def _tree() -> dict[str, Any]:
    """Returns every known path: settings, and the tables around them."""
    known: dict[str, Any] = {one.path: one for one in all_settings()}
    for section in (*sections(), "doors"):
        known.setdefault(section, None)
    return known


def _take_written(
    config: Config, setting: Setting, value: Any, where: str, folder: Path, environ: Mapping[str, str]
) -> None:
    try:
        config.values[setting.path] = Value(_placed(setting, _put_in(setting, value, environ), folder), where, value)
    except Unsuitable as error:
        config.wrong(where, setting.path, str(error))


def _put_in(setting: Setting, value: Any, environ: Mapping[str, str] | None) -> Any:
    """Returns a value in the type of its setting, with variables put in. Raises Unsuitable."""
    try:
        text = value if environ is None else expanded(value, environ)
    except NoVariable as error:
        plural = len(error.names) > 1
        raise Unsuitable(f"{' and '.join(error.names)} {'are' if plural else 'is'} not in the environment") from None
    if environ is None or not names_variables(value):
        return setting.checked(text)
    try:
        return setting.parsed(text) if isinstance(text, str) else setting.checked(text)
    except Unsuitable:  # the value of a variable may be a secret
        message = f"must be {setting.allowed}, which {shortened(value)} is not with the values of these variables"
        raise Unsuitable(message) from None


def _placed(setting: Setting, value: Any, folder: Path) -> Any:
    if setting.kind != "path" or value is None:
        return value
    if is_postgres(value):  # the only path that is not a file
        return Path(value)
    return folder / Path(value).expanduser()


def _take_list(
    config: Config, entries: Entries, value: Any, path: str, folder: Path, environ: Mapping[str, str], written: Written
) -> None:
    if not isinstance(value, list):
        config.wrong(
            written.place(path), path, f"must be a list of tables, each written [[{path}]], not {shortened(value)}"
        )
        return
    for at, one in enumerate(value):
        inside = f"{path}[{at}]"
        _take_entry(config, entries, one, inside, folder, environ, written.place(inside), written)


def _take_entry(
    config: Config, entries: Entries, item: Any, path: str, folder: Path, environ: Mapping[str, str] | None,
    where: str, written: Written | None = None,
) -> None:  # fmt: skip
    """Takes an entry of the file, or (without `written`) of a variable or flag, in which a shell has replaced
    variables."""
    if isinstance(item, str):
        item = {entries.plain: item}
    if not isinstance(item, dict):
        config.wrong(where, path, f"must be a table or a text, not {shortened(item)}")
        return
    members = {one.path: one for one in entries.members}
    values = {name: Value(one.default) for name, one in members.items()}
    fine = True
    for name, value in item.items():
        inside = f"{path}.{name}"
        place = written.place(inside) if written is not None else where
        if name not in members:
            config.wrong(place, inside, f"unknown setting{_near(name, members)}")
            fine = False
            continue
        try:
            taken = _placed(members[name], _put_in(members[name], value, environ), folder)
            values[name] = Value(taken, place, value)
        except Unsuitable as error:
            config.wrong(place, inside, str(error))
            fine = False
    if fine and not values[entries.plain].value:
        config.wrong(where, path, f"needs {entries.plain}: {members[entries.plain].help}")
        fine = False
    if fine:
        config.entries[entries.path].append(Entry(values, where, path, folder))


# -- variables and flags --------------------------------------------------------------------------------------


def _take_variables(config: Config, environ: Mapping[str, str]) -> None:
    for one in all_settings():
        text = environ.get(one.variable)
        if text:
            try:
                config.values[one.path] = Value(_placed(one, one.parsed(text), Path()), one.variable)
            except Unsuitable as error:
                config.wrong(one.variable, one.path, str(error))
    for entries in ENTRIES:
        text = environ.get(entries.variable)
        if text:
            try:
                _take_texts(config, entries, listed(text), entries.variable)
            except Unsuitable as error:
                config.wrong(entries.variable, entries.path, str(error))


def _take_flags(config: Config, flags: Mapping[str, Any]) -> None:
    """Takes the values given on the command line, keyed by parameter name; None and empty lists were not given."""
    for one in all_settings():
        value = flags.get(one.parameter)
        if value is None or value in ([], ()):
            continue
        flag = one.flags
        if one.kind == "yes" and "/" in flag:
            flag = flag.partition("/")[0 if value else 2]
        try:
            checked = one.checked(_written(one, value), is_text=one.kind == "counts")
            config.values[one.path] = Value(_placed(one, checked, Path()), flag)
        except Unsuitable as error:
            config.wrong(flag, one.path, str(error))
    for entries in ENTRIES:
        _take_texts(config, entries, flags.get(entries.parameter) or [], entries.flag)


def _written(setting: Setting, value: Any) -> Any:
    """Returns the value of a flag in the form that a file has."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return counted(list(value)) if setting.kind == "counts" else list(value)
    return value


def _take_texts(config: Config, entries: Entries, texts: list[Any], origin: str) -> None:
    """Adds entries to those of the file. Each is a text, or an object in JSON."""
    for text in texts:
        item: Any = text
        if isinstance(text, str) and text.lstrip().startswith("{"):
            try:
                item = json_of(text)
            except Unsuitable as error:
                config.wrong(origin, entries.path, str(error))
                continue
        at = len(config.entries[entries.path])
        _take_entry(config, entries, item, f"{entries.path}[{at}]", Path(), None, origin)


def _near(name: str, known: Iterable[str]) -> str:
    """Suggests the setting that was perhaps meant: by its path, or by its own name in another table."""
    known, last = list(known), name.rpartition(".")[2]
    close = [path for path in known if path.rpartition(".")[2] == last]
    close = close or difflib.get_close_matches(name, known, 1, 0.75)
    return f"; did you mean {close[0]}?" if close else ""

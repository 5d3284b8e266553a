"""Where things are when nobody names them: the config file, the store and the bus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..bus.base import BusSettings
from .config_table import setting

NAME = "interlingua.toml"
VARIABLE = "INTERLINGUA_CONFIG"

_STORE = setting("store.path")


def find_file(named: Path | None, *, here: bool = True) -> Path | None:
    """The config file: the one that is named, else $INTERLINGUA_CONFIG, else (`here`) that of the current folder."""
    if named is None and os.environ.get(VARIABLE):
        named = Path(os.environ[VARIABLE])
    if named is not None:
        return named.expanduser()
    found = Path(NAME)
    return found if here and found.is_file() else None


def find_store(named: Path | None = None, *, here: bool = True) -> Path:
    """The store of a command, which is that of a server in the same folder: the one that is named, else
    $INTERLINGUA_STORE, else that of the config file, else a file of this user's own."""
    chosen = os.environ.get(_STORE.variable)
    if named is None and chosen:
        named = Path(chosen)
    if named is not None:
        return named.expanduser()
    file = find_file(None, here=here)
    if file is None:
        return own_file()
    from .config import store_in  # takes a while, and most have no file

    return store_in(file) or own_file()


def find_bus(named: Path | None = None, *, here: bool = True) -> BusSettings:
    """The bus beside the store of a command, which reaches it as its server does: what variables say, before the config
    file, where the store is that of the file."""
    given: dict[str, Any] = {}
    file = find_file(None, here=here) if named is None and not os.environ.get(_STORE.variable) else None
    if file is not None:
        from .config import bus_in

        given = bus_in(file)
    for name in BusSettings.__struct_fields__:
        one = setting(f"bus.{name}")
        chosen = os.environ.get(one.variable)
        if chosen:
            given[name] = Path(chosen).expanduser() if one.kind == "path" else chosen
    return BusSettings(**given)


def own_file() -> Path:
    """A private file of this user, under $XDG_DATA_HOME or ~/.local/share."""
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification tells to ignore relative paths.
    base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return base / "interlingua" / "interlingua.db"

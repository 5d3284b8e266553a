"""Where things are kept when nobody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..bus.base import BusSettings
from .config_table import setting


def default_store() -> Path:
    """$INTERLINGUA_STORE, else a private file of this user under $XDG_DATA_HOME or ~/.local/share."""
    chosen = os.environ.get("INTERLINGUA_STORE")
    if chosen:
        return Path(chosen).expanduser()
    return own_file()


def own_file() -> Path:
    """A private file of this user."""
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification tells to ignore relative paths.
    base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return base / "interlingua" / "interlingua.db"


def default_bus() -> BusSettings:
    """What variables say of the bus: commands beside a server reach it as the server does."""
    given: dict[str, Any] = {}
    for name in BusSettings.__struct_fields__:
        one = setting(f"bus.{name}")
        chosen = os.environ.get(one.variable)
        if chosen:
            given[name] = Path(chosen).expanduser() if one.kind == "path" else chosen
    return BusSettings(**given)

"""Where things are kept when nobody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path


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

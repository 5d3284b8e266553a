"""The settings of one mount, beside its address: credentials, variables, a folder, settings of its protocol.

Settings for all mounts are in the environment; the settings here take precedence.
"""

from __future__ import annotations

import difflib
from typing import Any

import msgspec

from ..model.errors import InvalidRequest
from ..model.pointers import pointer


class Access(msgspec.Struct, kw_only=True, frozen=True):
    key: str | None = None
    """An API key or a bearer token, where the mount is an address."""
    headers: dict[str, str] = {}
    """The headers of every request, where the mount is an address."""
    env: dict[str, str] = {}
    """Variables for the process, where the mount is a command."""
    directory: str | None = None
    """The directory in which a command runs."""
    settings: dict[str, Any] = {}
    """The settings of the protocol's mount."""

    def given(self, cls: type[msgspec.Struct]) -> dict[str, Any]:
        """Returns the settings of a mount, for the class that describes them. Raises where the class does not know one.

        Key and directory are among them where the class has them.
        """
        known = cls.__struct_fields__
        for name in self.settings:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                there = f"there are {', '.join(known)}" if known else "there is none"
                hint = f"did you mean {close[0]}?" if close else there
                raise InvalidRequest(f"such a mount has no setting {name!r}; {hint}", path=pointer("settings", name))
        own = {"key": self.key, "directory": self.directory}
        return {**self.settings, **{name: one for name, one in own.items() if one is not None and name in known}}


ORDINARY = Access()


class NoSettings(msgspec.Struct, frozen=True):
    """The settings of a mount that has none of its own."""

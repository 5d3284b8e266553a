"""The settings of one mount, beside its address: credentials, variables, a folder, settings of its protocol.

Settings for all mounts of a protocol are in the environment; the settings here take precedence.
"""

from __future__ import annotations

import difflib
import os
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ..model.errors import InvalidRequest
from ..model.pointers import pointer

S = TypeVar("S", bound="MountSettings")


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


ORDINARY = Access()


class MountSettings(msgspec.Struct, kw_only=True, frozen=True):
    """The settings of every mount. A protocol with more of them has a subclass in its `config.py`.

    Each can be given in the environment: as INTERLINGUA_, the name of the protocol, and its own name in capitals.
    """

    key: Annotated[
        str | None, Meta(description="An API key or a bearer token, for mounts at an address.", extra={"secret": True})
    ] = None


def variable(protocol: str, name: str) -> str:
    """Returns the variable of a setting."""
    return f"INTERLINGUA_{protocol.upper()}_{name.upper()}"


def read_settings(type_: type[S], protocol: str, access: Access = ORDINARY) -> S:
    """Returns the settings of a mount: those of its owner before those of the environment. Raises InvalidRequest."""
    written: dict[str, Any] = {}
    for name in type_.__struct_fields__:
        text = os.environ.get(variable(protocol, name))
        if text and name != "headers":  # these are in no variable: there are several
            written[name] = text
    _check_names(type_, access)
    written |= access.settings
    for name in ("key", "directory", "headers"):
        value = getattr(access, name)
        if value and name in type_.__struct_fields__:
            written[name] = value
    try:
        return msgspec.convert(written, type_, strict=False)
    except msgspec.ValidationError as error:
        about = f"a setting of the mount, or a variable {variable(protocol, '')}…, is wrong: {error}"
        raise InvalidRequest(about, path="/settings") from None


def _check_names(type_: type[MountSettings], access: Access) -> None:
    known = [name for name in type_.__struct_fields__ if name != "key"]
    for name in access.settings:
        if name not in type_.__struct_fields__:
            close = difflib.get_close_matches(name, known, 1)
            there = f"there are {', '.join(known)}" if known else "there is none"
            hint = f"did you mean {close[0]}?" if close else there
            raise InvalidRequest(f"such a mount has no setting {name!r}; {hint}", path=pointer("settings", name))

"""Describes a setting: its name in a file, as a flag and as a variable, its kind, default and limits."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["text", "whole", "number", "yes", "path", "texts", "numbers", "names", "counts", "anything"]
"""whole: an integer; yes: true or false; texts, numbers: lists; names: a table of texts; counts: a table of integers;
anything: any table."""

MIB = 1024 * 1024
PREFIX = "INTERLINGUA_"


class Setting(msgspec.Struct, frozen=True):
    path: str
    kind: Kind
    default: Any
    help: str
    flag: str = ""  # set if it is not the path with dashes, or has two forms (--x/--no-x)
    env: str = ""  # set if it is not the path in capitals
    metavar: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    secret: bool = False

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def flags(self) -> str:
        """The flag in the form of its declaration: `--max-x`, or `--x/--no-x`."""
        if self.flag:
            return self.flag
        plain = self.path.removeprefix("server.").removeprefix("doors.").replace(".", "-").replace("_", "-")
        return f"--{plain}/--no-{plain}" if self.kind == "yes" else f"--{plain}"

    @property
    def variable(self) -> str:
        return self.env or PREFIX + self.path.removeprefix("server.").replace(".", "_").upper()

    @property
    def parameter(self) -> str:
        """The name of the setting as a Python parameter."""
        return self.path.replace(".", "_")


class Entries(msgspec.Struct, frozen=True):
    """A list of tables, such as [[mounts]]. Where only one thing is to be said of an entry, a text will do."""

    path: str
    plain: str  # the member that a text stands for
    flag: str
    help: str
    members: tuple[Setting, ...]
    metavar: str = ""

    @property
    def variable(self) -> str:
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def parameter(self) -> str:
        return self.path.replace(".", "_")

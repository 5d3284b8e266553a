"""Addresses of stores, and the errors of those that cannot be opened."""

from __future__ import annotations

import re
from pathlib import Path

from ..model.errors import InvalidRequest

# One slash is enough: a Path has made one of several.
_POSTGRES = re.compile("(postgres(?:ql)?):/+")


class CannotOpen(InvalidRequest):
    """The place holds no store, and none can be created there."""

    def __init__(self, where: str | Path, why: object) -> None:
        super().__init__(f"the store {where} cannot be opened: {why}")
        self.hint = "choose another one with --store or INTERLINGUA_STORE"


class NoStore(CannotOpen):
    """The place holds nothing to read."""

    def __init__(self, where: str | Path) -> None:
        super().__init__(where, "there is no store")


def is_postgres(where: str | Path) -> bool:
    return _POSTGRES.match(str(where)) is not None


def shown(where: str | Path) -> str:
    """Returns an address without its password."""
    if not is_postgres(where):
        return str(where)
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1:***@", whole(where))


def whole(where: str | Path) -> str:
    return _POSTGRES.sub(r"\1://", str(where), count=1)

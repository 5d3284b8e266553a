"""The messages: a call, and the lines that answer it. The last one has the output, or an error."""

from __future__ import annotations

from typing import Any

import msgspec


class Call(msgspec.Struct):
    agent: str
    input: dict[str, Any] = {}


class Line(msgspec.Struct, omit_defaults=True):
    text: str | None = None  # more of the output, while the agent works
    output: Any = None
    error: str | None = None


class Listed(msgspec.Struct):
    name: str
    about: str


class Listing(msgspec.Struct):
    toy: int  # the version of the protocol
    agents: list[Listed]

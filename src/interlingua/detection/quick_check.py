"""Adds the mistakes of a server that show without running anything there, if a package is installed that finds some:
under the entry point `interlingua.quick_check`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pkgutil import resolve_name

from ..protocols.installed import entries
from ..protocols.probing import LOCKED, MOST, Spoken
from ..transports.process.child_process import words_of
from ..transports.raw_client import Endpoint
from .probes import is_installed

GROUP = "interlingua.quick_check"

_PATIENCE = 5.0  # seconds for an answer

Check = Callable[[str, Endpoint], Awaitable[tuple[list[str], str]]]
"""(protocol, server) → its mistakes, and why the checks did not come to their end, which is empty if they did."""


async def look(found: list[Spoken], headers: dict[str, str] | None = None) -> None:
    """Adds the mistakes of each server that speaks a protocol of Interlingua and lets this program in."""
    checks: list[Check] = [resolve_name(target) for target in entries(GROUP).values()]
    open_to_us = [spoken for spoken in found if is_installed(spoken) and LOCKED not in spoken.notes]
    await asyncio.gather(*(_look(check, spoken, headers) for check in checks for spoken in open_to_us))


async def _look(check: Check, spoken: Spoken, headers: dict[str, str] | None) -> None:
    if spoken.target is None:
        return
    mistakes, why = await check(spoken.protocol, _server(spoken.target, spoken.protocol, headers or {}))
    if why:
        spoken.notes.append(f"it could not be looked at to the end: {why}")
    spoken.wrong += mistakes


def _server(target: str, protocol: str, headers: dict[str, str]) -> Endpoint:
    if target.startswith(f"{protocol}+"):
        return Endpoint(address=target.partition("+")[2], headers=headers, patience=_PATIENCE, most=MOST)
    if target.startswith(f"{protocol}:"):
        return Endpoint(command=tuple(words_of(target.partition(":")[2], protocol)), patience=_PATIENCE, most=MOST)
    return Endpoint(address=target, headers=headers, patience=_PATIENCE, most=MOST)

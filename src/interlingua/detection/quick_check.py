"""Adds the mistakes of a server that show without running anything there."""

from __future__ import annotations

import asyncio

from interlingua_conform.quick_check import quick_check

from ..transports.process.child_process import words_of
from ..transports.raw_client import Endpoint
from .findings import LOCKED, MOST, OURS, Spoken

_PATIENCE = 5.0  # seconds for an answer


async def look(found: list[Spoken], headers: dict[str, str] | None = None) -> None:
    """Adds the mistakes of each server that speaks a protocol of Interlingua and lets this program in."""
    await asyncio.gather(
        *(_look(spoken, headers) for spoken in found if spoken.protocol in OURS and LOCKED not in spoken.notes)
    )


async def _look(spoken: Spoken, headers: dict[str, str] | None) -> None:
    if spoken.target is None:
        return
    mistakes, why = await quick_check(spoken.protocol, _server(spoken.target, spoken.protocol, headers or {}))
    if why:
        spoken.notes.append(f"it could not be looked at to the end: {why}")
    spoken.wrong += mistakes


def _server(target: str, protocol: str, headers: dict[str, str]) -> Endpoint:
    if target.startswith(f"{protocol}+"):
        return Endpoint(address=target.partition("+")[2], headers=headers, patience=_PATIENCE, most=MOST)
    if target.startswith(f"{protocol}:"):
        return Endpoint(command=tuple(words_of(target.partition(":")[2], protocol)), patience=_PATIENCE, most=MOST)
    return Endpoint(address=target, headers=headers, patience=_PATIENCE, most=MOST)

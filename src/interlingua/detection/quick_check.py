"""Finds mistakes of a server that show without running anything there: the calm part of `conform`."""

from __future__ import annotations

import asyncio

from interlingua_conform import suite
from interlingua_conform.base import Subject, conform

from ..model.errors import InterlinguaError
from ..transports.process.child_process import words_of
from .findings import LOCKED, MOST, OURS, Spoken

_PATIENCE = 5.0  # seconds for an answer
_AT_MOST = 30.0  # seconds for a protocol


async def look(found: list[Spoken], headers: dict[str, str] | None = None) -> None:
    """Adds the mistakes of each server that speaks a protocol of Interlingua and lets this program in."""
    await asyncio.gather(
        *(_look(spoken, headers) for spoken in found if spoken.protocol in OURS and LOCKED not in spoken.notes)
    )


async def _look(spoken: Spoken, headers: dict[str, str] | None) -> None:
    if spoken.target is None:
        return
    subject = _subject(spoken.target, spoken.protocol, headers or {})
    by_reason: dict[str, list[str]] = {}
    try:
        async with asyncio.timeout(_AT_MOST):
            async for finding in conform(suite(spoken.protocol), subject, calm=True):
                if finding.verdict == "fail":
                    by_reason.setdefault(finding.why, []).append(finding.id)
    except (InterlinguaError, TimeoutError) as error:
        said = getattr(error, "message", "") or f"it took more than {_AT_MOST:g} s"
        spoken.notes.append(f"it could not be looked at to the end: {said}")
    spoken.wrong += [f"{why} [{', '.join(ids)}]" for why, ids in by_reason.items()]


def _subject(target: str, protocol: str, headers: dict[str, str]) -> Subject:
    if target.startswith(f"{protocol}+"):
        return Subject(address=target.partition("+")[2], headers=headers, patience=_PATIENCE, most=MOST)
    if target.startswith(f"{protocol}:"):
        return Subject(command=tuple(words_of(target.partition(":")[2], protocol)), patience=_PATIENCE, most=MOST)
    return Subject(address=target, headers=headers, patience=_PATIENCE, most=MOST)

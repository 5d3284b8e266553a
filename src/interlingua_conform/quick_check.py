"""Finds the mistakes of a server that show without running or changing anything there.

It is the entry point `interlingua.quick_check`, for `interlingua inspect`.
"""

from __future__ import annotations

import asyncio

import msgspec

from interlingua.model.errors import InterlinguaError
from interlingua.transports.raw_client import Endpoint

from . import PROTOCOLS, suite
from .base import Subject, conform

_AT_MOST = 30.0  # seconds


async def quick_check(protocol: str, server: Endpoint) -> tuple[list[str], str]:
    """Returns the mistakes of a server, each with the ids of the requirements that it breaks; and why the checks did
    not come to their end, which is empty if they did. A protocol without checks has no mistakes."""
    if protocol not in PROTOCOLS:
        return [], ""
    by_reason: dict[str, list[str]] = {}
    why = ""
    try:
        async with asyncio.timeout(_AT_MOST):
            async for finding in conform(suite(protocol), Subject(**msgspec.structs.asdict(server)), calm=True):
                if finding.verdict == "fail":
                    by_reason.setdefault(finding.why, []).append(finding.id)
    except (InterlinguaError, TimeoutError) as error:
        why = getattr(error, "message", "") or f"it took more than {_AT_MOST:g} s"
    return [f"{reason} [{', '.join(ids)}]" for reason, ids in by_reason.items()], why

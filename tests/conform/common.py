"""Runs the checks of a protocol against a server, and says what came out. For the tests of every protocol's checks."""

from __future__ import annotations

from pathlib import Path

from interlingua_conform import suite
from interlingua_conform.base import Finding, Roles, Subject, conform

AGENTS = Path(__file__).parent / "agents.py"
ROLES = Roles(agent="echo", asking="careful", slow="slow", failing="broken")


async def findings(protocol: str, subject: Subject, only: list[str] | None = None) -> dict[str, Finding]:
    return {finding.id: finding async for finding in conform(suite(protocol), subject, only)}


def failures(found: dict[str, Finding]) -> dict[str, str]:
    """What failed, and why: for an assertion that tells all of it."""
    return {name: finding.why for name, finding in found.items() if finding.verdict == "fail"}

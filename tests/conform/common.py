"""Runs the checks of a protocol against a server. For the tests of every protocol's checks."""

from __future__ import annotations

from interlingua_conform import suite
from interlingua_conform.base import Finding, Subject, conform

from .looks import AGENTS, ROLES

__all__ = ["AGENTS", "ROLES", "failures", "findings", "not_applicable"]


async def findings(protocol: str, subject: Subject, only: list[str] | None = None) -> dict[str, Finding]:
    return {finding.id: finding async for finding in conform(suite(protocol), subject, only)}


def failures(found: dict[str, Finding]) -> dict[str, str]:
    """Returns the reasons of all failures: for an assertion that shows them."""
    return {name: finding.why for name, finding in found.items() if finding.verdict == "fail"}


def not_applicable(found: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.why for name, finding in found.items() if finding.verdict == "not applicable"}

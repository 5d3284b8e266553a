"""Our own doors pass the checks: as processes of their own, over HTTP and over pipes, and with teams that use all that
the protocol has."""

from __future__ import annotations

from pathlib import Path

import interlingua as il
from interlingua.server.app import ServeSettings, serving
from interlingua_conform.base import Finding, Roles, Subject
from interlingua_conform.cap import suite
from interlingua_conform.cap.checks import example
from tests.kit import warm_python
from tests.kit.engines import PATIENT

from .. import agents
from ..common import AGENTS, ROLES, failures, findings
from ..connect.test_ours import not_applicable, process
from . import crews

SALES = Path(__file__).parents[3] / "examples" / "sales-team"

EXAMPLE = {name for check in suite.checks if check.function.__module__ == example.__name__ for name in check.ids}
"""What is about the three agents of the document's example: seen with the team that plays it."""

LATE = {"cap.observability.signals-timeout", "cap.audit.error-example"}
"""What is about timeouts: seen with an agent that fails so."""

NEVER = {"cap.example-flow.inquiry-attachments"}
"""An inquiry of an agent of ours is its verdict, which has words and no attachments; what it attaches goes with a
message of its own (cap.oversight.inquiry-attachments)."""


async def team_findings(store: Path, roles: Roles, only: list[str] | None = None) -> dict[str, Finding]:
    plain = [agent for agent in vars(agents).values() if isinstance(agent, il.Agent)]
    teams = [crews.crew(), crews.shaky()] if roles.failing == "boss" else [crews.late()]
    async with serving(store, [*plain, *teams], ServeSettings(port=0, engine=PATIENT)) as server:
        return await findings("cap", Subject(address=server.address + "/cap", roles=roles), only)


async def test_our_server_passes_its_own_checks(tmp_path: Path) -> None:
    async with process(tmp_path) as address:
        found = await findings("cap", Subject(address=address + "/cap", roles=ROLES))
    assert failures(found) == {}
    assert set(found) == set(suite.ids)


async def test_our_command_passes_its_own_checks(tmp_path: Path) -> None:
    command = (
        "env",
        "INTERLINGUA_PROJECT=tests",
        warm_python.interlingua(),
        "stdio",
        "--as",
        "cap",
        str(AGENTS),
        "--store",
        str(tmp_path / "store.db"),
    )
    found = await findings("cap", Subject(command=command, roles=ROLES))
    assert failures(found) == {}
    assert sum(finding.verdict == "pass" for finding in found.values()) > 50


async def test_every_check_applies_to_some_team_of_ours(store: Path) -> None:
    found = await team_findings(store, Roles(agent="lead", asking="careful", slow="slow", failing="boss"))
    assert failures(found) == {}
    assert set(not_applicable(found)) == EXAMPLE | LATE | NEVER


async def test_what_times_out_is_told_with_its_number(store: Path) -> None:
    found = await team_findings(store, Roles(agent="echo", failing="waiter"), sorted(LATE))
    assert {name: (finding.verdict, finding.why) for name, finding in found.items()} == dict.fromkeys(
        LATE, ("pass", "")
    )


async def test_the_example_of_the_document_is_played_as_it_stands_there(tmp_path: Path) -> None:
    async with process(tmp_path, f"team:{SALES}") as address:
        found = await findings(
            "cap", Subject(address=address + "/cap", roles=Roles(agent="pm-1"), patience=60), sorted(EXAMPLE)
        )
    assert {name: (finding.verdict, finding.why) for name, finding in found.items()} == dict.fromkeys(
        EXAMPLE, ("pass", "")
    )

"""Our own door, looked at from outside: over all its wires, and with agents that show the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlingua.protocols.mcp.config import DoorSettings
from interlingua.protocols.mcp.door.http import WebDoor
from interlingua.server.app import Server, ServeSettings, serving
from interlingua_conform import suite
from interlingua_conform.base import Finding, Roles, Subject
from interlingua_conform.mcp.links import SseLink
from interlingua_conform.mcp.talk import is_answer
from tests.kit import warm_python
from tests.kit.engines import QUICK

from .. import agents as common
from ..common import AGENTS, ROLES, failures, findings
from . import agents as more

# What does not apply, in runs with an agent that only says again what it hears.
RULES = {name for name in suite("mcp").ids if name.startswith("mcp.delta.")}  # one delta holds all that it says
NO_GPA = {"mcp.listing.example-gpa", "mcp.running.example-howdy", "mcp.progress.example-howd"}
ONE_TEXT = {"mcp.running.schemas-unspecified"}  # it takes and gives what the document's example does
NO_TEMPLATES = {"mcp.door.templates", "mcp.door.list-changed"}  # no agent takes a config
ONE_PAGE = {"mcp.door.paging"}


def without_use(found: dict[str, Finding]) -> set[str]:
    return {name for name, finding in found.items() if finding.verdict == "not applicable"}


@asynccontextmanager
async def serve(store: Path, agents: list[object]) -> AsyncIterator[Server]:
    async with serving(store, agents, ServeSettings(port=0, engine=QUICK)) as server:
        yield server


COMMON = [common.echo, common.careful, common.slow, common.broken, common.adder]


@asynccontextmanager
async def reached(way: str, folder: Path) -> AsyncIterator[Subject]:
    if way == "stdio":
        command = (
            "env",
            "INTERLINGUA_PROJECT=tests",
            warm_python.interlingua(),
            "stdio",
            "--as",
            "mcp",
            "--store",
            str(folder / "store.db"),
            str(AGENTS),
        )
        yield Subject(command=command, roles=ROLES)
        return
    async with serve(folder / "store.db", COMMON) as server:
        yield Subject(address=server.address + ("/mcp" if way == "http" else "/mcp/sse"), roles=ROLES)


@pytest.mark.parametrize("way", ["stdio", "http", "sse"])
async def test_our_door_keeps_all_that_applies_over_every_wire(way: str, tmp_path: Path) -> None:
    async with reached(way, tmp_path) as subject:
        found = await findings("mcp", subject)
    assert failures(found) == {}
    assert without_use(found) == RULES | NO_GPA | ONE_TEXT | NO_TEMPLATES | ONE_PAGE


async def test_a_question_may_come_before_the_post_that_led_to_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the older pair, the stream and the answers to posts come over two connections, in any order."""
    post = SseLink.put

    async def answered_late(link: SseLink, message: Any, headers: dict[str, str] | None = None) -> None:
        before = len(link.messages)
        await post(link, message, headers)
        if "careful" in str(message.get("params")):
            await link.until(lambda news: "method" in news or is_answer(news), "a question, or the answer", before)

    monkeypatch.setattr(SseLink, "put", answered_late)
    async with reached("sse", tmp_path) as subject:
        found = await findings("mcp", subject, only=["mcp.door.question", "mcp.tools.questions"])
    assert failures(found) == {}
    assert found["mcp.door.question-asked"].verdict == found["mcp.tools.questions"].verdict == "pass"


async def test_our_door_keeps_what_other_agents_show(tmp_path: Path) -> None:
    """With these and small pages, there is nothing of the document that our door does not show."""
    shown: set[str] = set()
    async with serve(tmp_path / "store.db", more.AGENTS) as server:
        web = server.app.doors["mcp"][1].close_streams.__self__  # type: ignore[union-attr]
        assert isinstance(web, WebDoor)
        web.mcp.settings = DoorSettings(page=3)
        for agent in ("gpa", "story", "styled"):
            roles = Roles(agent=agent, asking="careful", slow="slow", failing="broken")
            found = await findings("mcp", Subject(address=server.address + "/mcp", roles=roles))
            assert failures(found) == {}
            shown |= set(found) - without_use(found)
    assert set(suite("mcp").ids) - shown == set()

"""The tool servers of the example team do what their names say, and the same each time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from interlingua.model.errors import ToolFailed
from interlingua.model.team.manifest import Server
from interlingua.tools.servers import McpServers

from .tool_common import words

pytestmark = pytest.mark.usefixtures("quick_tools")

TEAM = Path(__file__).parents[3] / "examples" / "sales-team"


class Team:
    def __init__(self, servers: McpServers, log: Path) -> None:
        self._servers = servers
        self._env = {"CALLS_LOG": str(log)}

    def server(self, name: str) -> tuple[str, Server]:
        return name, Server(
            command="python", args=(f"servers/{name.removesuffix('Server').lower()}.py",), env=self._env
        )

    async def tools(self, name: str) -> list[str]:
        return [tool.name for tool in await self._servers.list(*self.server(name))]

    async def call(self, name: str, tool: str, /, **given: Any) -> Any:
        return (await self._servers.call(*self.server(name), tool, given)).result


@contextlib.asynccontextmanager
async def team(log: Path) -> AsyncIterator[Team]:
    servers = McpServers(TEAM)
    try:
        yield Team(servers, log)
    finally:
        await servers.close()


async def test_documents_can_be_listed_read_and_summed_up(tmp_path: Path) -> None:
    async with team(tmp_path / "log") as sales:
        assert await sales.tools("DocsServer") == ["list_documents", "read_file", "create_summary"]
        listed = await sales.call("DocsServer", "list_documents")
        assert [one["name"] for one in listed["documents"]] == ["calendar.md", "client-notes.md", "project-spec.md"]
        spec = await sales.call("DocsServer", "read_file", name="project-spec.md")
        assert spec == (TEAM / "docs" / "project-spec.md").read_text()
        for word in ("ClientA", "ClientB", "December promotions", "launch of product X in October"):
            assert word in spec
        short = await sales.call("DocsServer", "create_summary", name="project-spec.md")
        assert short.startswith("Project: analyze last quarter's sales trends\nWhat we want to know: How much")
        assert len(short) < len(spec)


@pytest.mark.parametrize("name", ["../data/sales.csv", "/etc/passwd", "..", "", "nothing.md"])
async def test_only_documents_can_be_read(name: str, tmp_path: Path) -> None:
    async with team(tmp_path / "log") as sales:
        with pytest.raises(ToolFailed, match="there is no document"):
            await sales.call("DocsServer", "read_file", name=name)


async def test_sales_can_be_asked_for_by_filters(tmp_path: Path) -> None:
    async with team(tmp_path / "log") as sales:
        assert await sales.tools("DataServer") == ["query_data", "process_data"]
        lost = await sales.call("DataServer", "query_data", quarter="Q4", clients=["ClientA", "ClientB"])
        assert lost["count"] == len(lost["rows"]) > 0
        assert {row["month"] for row in lost["rows"]} == {"2025-10"}  # both have left after that
        assert lost["revenue"] == sum(row["revenue"] for row in lost["rows"])
        before = await sales.call("DataServer", "query_data", quarter="Q3", clients=["ClientA", "ClientB"])
        assert before["revenue"] > 5 * lost["revenue"]
        europe = await sales.call("DataServer", "query_data", regions=["Europe"], products=["Product X"])
        assert {(row["region"], row["product"]) for row in europe["rows"]} == {("Europe", "Product X")}
        unsold = await sales.call("DataServer", "query_data", status="open")
        assert {row["status"] for row in unsold["rows"]} == {"open"}


async def test_what_rose_and_fell_the_most_adds_up(tmp_path: Path) -> None:
    async with team(tmp_path / "log") as sales:
        found = await sales.call("DataServer", "process_data", by="product")
        assert found["risen"][0]["product"] == "Product X"
        changes = [line["change"] for line in found["fallen"]]
        assert changes == sorted(changes)
        assert all(change < 0 for change in changes)
        for quarter in ("Q3", "Q4"):
            asked = await sales.call("DataServer", "query_data", quarter=quarter)
            assert found["revenue"][quarter] == asked["revenue"] == sum(line[quarter] for line in found["totals"])
        regions = await sales.call("DataServer", "process_data", by="region", top=1)
        assert len(regions["risen"]) == len(regions["fallen"]) == 1
        assert regions == await sales.call("DataServer", "process_data", by="region", top=1)


async def test_summaries_are_made_and_calls_are_written_down(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with team(log) as sales:
        assert await sales.tools("SummaryServer") == ["create_summary"]
        made = await sales.call("SummaryServer", "create_summary", title="Q4", points=["one", "two"], verdict="Right.")
        assert made == "# Q4\n\n1. one\n2. two\n\n**Verdict:** Right."
        with pytest.raises(ToolFailed, match="at least one point"):
            await sales.call("SummaryServer", "create_summary", title="Q4", points=[])
    assert words(log) == ["SummaryServer", "create_summary"] * 2

"""SummaryServer: makes summaries that people can read, as an MCP server over stdio. Try it: `python summary.py`."""

from __future__ import annotations

import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("SummaryServer", log_level="WARNING")


@server.tool(structured_output=False)
def create_summary(title: str, points: list[str], verdict: str = "") -> str:
    """A short report in Markdown: a title, numbered points, and a verdict if there is one."""
    note("create_summary")
    if not points:
        raise ToolError("a summary needs at least one point")
    lines = [f"# {title}", "", *(f"{number}. {point}" for number, point in enumerate(points, 1))]
    return "\n".join([*lines, "", f"**Verdict:** {verdict}"] if verdict else lines)


def note(*words: str) -> None:
    """Write down that a tool was called, for whoever wants to count."""
    if log := os.environ.get("CALLS_LOG"):
        with Path(log).open("a") as file:
            file.write(" ".join(("SummaryServer", *words)) + "\n")


if __name__ == "__main__":
    server.run()

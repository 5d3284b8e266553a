"""DocsServer: the documents of the sales team, as an MCP server over stdio. Try it: `python docs.py`.

It reads the files in the folder `docs` of the team and changes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

DOCS = Path(__file__).resolve().parent.parent / "docs"

server = MCPServer("DocsServer", log_level="WARNING")


@server.tool()
def list_documents() -> dict[str, list[dict[str, str]]]:
    """All documents: their names, for read_file, and their titles."""
    note("list_documents")
    return {"documents": [{"name": path.name, "title": title(path)} for path in sorted(DOCS.glob("*.md"))]}


@server.tool(structured_output=False)
def read_file(name: str) -> str:
    """The whole text of one document."""
    note("read_file", name)
    return document(name).read_text()


@server.tool(structured_output=False)
def create_summary(name: str) -> str:
    """A document in short: its title, its headings, and the first sentence below each."""
    note("create_summary", name)
    lines = document(name).read_text().splitlines()
    told = [title(document(name))]
    for number, line in enumerate(lines):
        if line.startswith("## "):
            below = next((other for other in lines[number + 1 :] if other.strip()), "")
            told.append(f"{line.removeprefix('## ')}: {below.lstrip('-1. ')}")
    return "\n".join(told)


def document(name: str) -> Path:
    path = DOCS / name
    # Names come from models: one like ../../secrets must not lead out of the folder.
    if path.parent != DOCS or not path.is_file():
        raise ToolError(f"there is no document {name!r}; list_documents tells which there are")
    return path


def title(path: Path) -> str:
    return path.read_text().splitlines()[0].lstrip("# ")


def note(*words: str) -> None:
    """Write down that a tool was called, for whoever wants to count."""
    if log := os.environ.get("CALLS_LOG"):
        with Path(log).open("a") as file:
            file.write(" ".join(("DocsServer", *words)) + "\n")


if __name__ == "__main__":
    server.run()

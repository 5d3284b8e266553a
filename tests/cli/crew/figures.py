"""A tool server with real tools, over stdio."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("Figures", log_level="WARNING")


@server.tool()
def total(quarter: str) -> dict[str, int | str]:
    """What was sold in a quarter."""
    return {"quarter": quarter, "total": 42}


@server.tool()
def drop(table: str) -> str:
    """Drops a table."""
    return f"dropped {table}"


if __name__ == "__main__":
    server.run()

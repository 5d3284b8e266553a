"""Tool servers over MCP: how they are reached, their sessions and results."""

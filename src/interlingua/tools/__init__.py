"""Tool servers over MCP: connections, sessions and results."""

"""Agents over MCP."""

"""Agent Connect Protocol."""

"""Agents that a language model drives, through pydantic-ai."""

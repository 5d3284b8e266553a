"""Agents: their registry, codecs, origin and process pool."""

"""Runs agents: dispatch, context, durability, threads and questions. Nothing here names a protocol."""

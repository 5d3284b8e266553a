"""The log of a run: writing, reading and replay."""

"""Tells which protocols an address or a command speaks."""

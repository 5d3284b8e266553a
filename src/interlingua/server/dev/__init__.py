"""Servers on this machine for development and tests."""

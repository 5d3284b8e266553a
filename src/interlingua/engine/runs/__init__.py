"""Runs: admission, claims, execution and their end."""

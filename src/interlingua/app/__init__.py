"""Puts the parts together: where things are kept, and what a target means."""

"""Handlers of agents: what the context offers, one module for each concern."""

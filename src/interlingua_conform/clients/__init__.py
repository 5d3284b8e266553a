"""Clients that the checks of several protocols share."""

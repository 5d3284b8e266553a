"""Finds peers on the local network."""

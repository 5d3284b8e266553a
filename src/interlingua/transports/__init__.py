"""Holds the wire machinery that more than one protocol needs. Of this project, it knows only the model."""

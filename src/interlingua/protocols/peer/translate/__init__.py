"""Translates between the wire and the model: parts, skills, states, errors."""

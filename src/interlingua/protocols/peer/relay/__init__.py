"""The relay, at which peers that cannot reach each other exchange messages."""

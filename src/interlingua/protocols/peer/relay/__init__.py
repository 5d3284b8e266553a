"""The relay: where peers that cannot reach each other exchange messages."""

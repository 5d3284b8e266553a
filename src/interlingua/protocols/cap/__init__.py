"""CAP: agents that delegate to each other and oversee each other."""

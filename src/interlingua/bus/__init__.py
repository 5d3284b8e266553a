"""How news travels. `base` is the port, `local` serves one machine."""

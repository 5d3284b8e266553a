"""How news travels. `base` is the port, `local` serves one machine, `nats` many; `opening` finds the one by its name."""

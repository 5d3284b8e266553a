"""How news travels. `base` is the port, `local` serves one machine and `nats` many; `opening` finds the one meant."""

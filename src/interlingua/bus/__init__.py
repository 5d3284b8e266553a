"""The bus: hints that the store has changed. `port` is the port, `local` serves one process, `nats` several."""

"""Time, tasks and closing: what the engine, the store and the bus are built on."""

"""Observation: metrics, tracing, run logs and the watchdog of the event loop."""

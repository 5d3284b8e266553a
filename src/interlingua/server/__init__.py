"""The server process: HTTP, health, logs, configuration, mounts, replicas."""

"""HTTP for doors and mounts: bodies, event streams, routes, a client."""

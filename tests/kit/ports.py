"""Free ports for servers that are given their port before they listen, and that come back at the same one."""

from __future__ import annotations

import random
import socket

# Below the ports that systems give to outgoing connections: one of those could take a port before its server does.
_PORTS = range(20_000, 32_000)
_given = set[int]()  # in this process


def free_port() -> int:
    """Finds a port that nobody listens at. A port is given once, and other test processes hardly draw the same."""
    for port in random.SystemRandom().sample(_PORTS, 1000):
        if port in _given:
            continue
        with socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            try:
                probe.bind(("127.0.0.1", port))
                datagrams.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise OSError(f"no free port was found in {_PORTS}")

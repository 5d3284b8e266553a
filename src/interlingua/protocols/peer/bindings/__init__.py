"""The transports to a peer: HTTP, WebSocket, TCP lines, pipes, a relay."""

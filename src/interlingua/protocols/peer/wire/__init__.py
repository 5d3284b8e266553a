"""The wire format between peers: frames, links, cards, extensions, signatures."""

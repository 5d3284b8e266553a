"""What goes over the wire between peers: frames, links, cards, extensions, signatures."""

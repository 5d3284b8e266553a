"""Finding peers on the local network."""

"""The Python client: runs agents of a server, of a store, or of any target that can be mounted, in one way."""

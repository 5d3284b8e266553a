"""A server of ours inside somebody's ASGI app."""

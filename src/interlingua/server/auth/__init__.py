"""The keys and token issuers of a server."""

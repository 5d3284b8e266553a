"""Several servers on one store: requests are forwarded to the replica that has the session."""

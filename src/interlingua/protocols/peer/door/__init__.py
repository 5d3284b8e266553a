"""The door: our agents for clients of this protocol."""

"""The door: serves our agents to clients of this protocol."""

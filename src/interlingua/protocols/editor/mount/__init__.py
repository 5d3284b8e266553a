"""The mount: remote agents of this protocol as local ones."""

"""The mount: runs remote agents of this protocol as local ones."""

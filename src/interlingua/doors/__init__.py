"""The kit of all doors: the parts of serving a protocol that do not depend on its wire."""

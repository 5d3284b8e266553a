"""The kit of all doors: what serving a protocol needs, whatever its wire says."""

"""Raw clients of our doors: they send what a test says, and keep every message that comes."""

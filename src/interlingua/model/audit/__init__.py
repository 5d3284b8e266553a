"""The audit of a run: export, verification, and links between runs."""

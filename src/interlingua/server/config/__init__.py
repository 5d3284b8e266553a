"""The settings of the server: read from flags, variables and a file, checked, shown, and built into values."""

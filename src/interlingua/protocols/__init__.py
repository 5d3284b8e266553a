"""The protocols, one folder each with the same file names, and what every protocol declares."""

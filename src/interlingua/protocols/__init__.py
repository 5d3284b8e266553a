"""The protocols, one folder each with the same file names, and the parts that every protocol declares."""

"""The commands, one file or package each."""

"""The command line: the commands, and the loop that serves until somebody ends it."""

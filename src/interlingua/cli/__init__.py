"""Holds the command line: the commands, and the loop that serves until it is asked to end."""

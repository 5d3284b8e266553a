"""Loading agents: of files, of teams, of targets, and of all that the config names."""

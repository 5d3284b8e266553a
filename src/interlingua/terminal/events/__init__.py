"""Shows events of runs: as JSON, as lines of a log, as the activity of one run, and as the conversation of a team."""

"""One run in this process: its life, its inbox, its clock and its end."""

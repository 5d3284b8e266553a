"""Members of teams: delegation, conversation, review and oversight."""

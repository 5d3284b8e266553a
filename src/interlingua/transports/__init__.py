"""Wire machinery that more than one protocol needs. Knows nothing of ours but the model."""

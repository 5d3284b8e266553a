"""What all mounts do alike, shown with a remote side in memory."""

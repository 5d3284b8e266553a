"""Child processes and pipes as channels of lines."""

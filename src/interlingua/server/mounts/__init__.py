"""The mounts of a server: kept up, shown, tried again."""

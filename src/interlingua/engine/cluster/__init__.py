"""Several processes: membership, remote logs and work offers."""

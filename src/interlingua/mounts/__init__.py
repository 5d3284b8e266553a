"""What all mounts share: credentials and settings, connections that are kept while they are used."""

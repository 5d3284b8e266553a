"""The parts that all mounts share: credentials, settings, and connections that are kept while they are used."""

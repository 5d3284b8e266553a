"""Teams of agents: their manifests, authority, oversight and tools."""

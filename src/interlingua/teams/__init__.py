"""Teams of agents: read from files, drawn as graphs, loaded as agents."""

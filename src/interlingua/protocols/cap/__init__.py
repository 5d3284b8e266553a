"""CAP: agents that work as a team, with manifests, delegation and oversight."""

"""Agent Communication Protocol: nodes that reach each other by acp:// links."""

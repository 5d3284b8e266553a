"""Agent Client Protocol, versions 1 and 2: agents inside editors."""

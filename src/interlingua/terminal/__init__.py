"""The terminal: consoles, tables, events, questions and ids, printed and read."""

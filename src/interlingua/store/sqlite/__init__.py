"""SQLite: connection, dialect, writer, and locks of workers."""

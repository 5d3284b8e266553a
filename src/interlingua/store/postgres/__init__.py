"""PostgreSQL: connection, dialect, writer, and leases of workers."""

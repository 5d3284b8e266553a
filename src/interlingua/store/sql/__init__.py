"""The store's ports over SQL, for SQLite and for PostgreSQL."""

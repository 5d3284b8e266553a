"""The store: ten ports over one database, which is a SQLite file or a PostgreSQL schema."""

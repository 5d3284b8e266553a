-- What is to be told to an address when a run changes its status. One row per change; sent in order per run.
CREATE TABLE callbacks (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    run        TEXT NOT NULL,
    url        TEXT NOT NULL,
    format     TEXT NOT NULL,
    status     TEXT NOT NULL,
    time       INTEGER NOT NULL,
    state      TEXT NOT NULL,
    attempts   INTEGER NOT NULL DEFAULT 0,
    next_at    INTEGER NOT NULL,
    error      TEXT
);
CREATE INDEX callbacks_due ON callbacks (next_at) WHERE state = 'due';
CREATE INDEX callbacks_run ON callbacks (run, id);

-- An agent with a configuration, under an id of its own.
CREATE TABLE instances (
    id         TEXT PRIMARY KEY,
    agent      TEXT NOT NULL,
    version    TEXT NOT NULL,
    caller     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    instance   BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE api_keys (
    id     TEXT PRIMARY KEY,
    record BLOB NOT NULL
) WITHOUT ROWID;

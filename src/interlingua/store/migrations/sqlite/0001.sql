-- Runs are rows that can be found and claimed; what happened in them is in events.
CREATE TABLE runs (
    id         TEXT PRIMARY KEY,
    agent      TEXT NOT NULL,
    version    TEXT NOT NULL,
    status     TEXT NOT NULL,
    caller     TEXT NOT NULL,
    thread     TEXT,
    parent     TEXT,
    path       TEXT NOT NULL,
    metadata   BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    worker     TEXT,
    epoch      INTEGER NOT NULL,
    next_seq   INTEGER NOT NULL,
    head       BLOB NOT NULL,
    wake_at    INTEGER,
    crashes    INTEGER NOT NULL,
    ran        INTEGER NOT NULL,
    queued     INTEGER
) WITHOUT ROWID;

-- Small on purpose: each holds only the runs that somebody will look for by it.
CREATE INDEX runs_wake   ON runs (wake_at) WHERE worker IS NULL AND wake_at IS NOT NULL;
CREATE INDEX runs_worker ON runs (worker) WHERE worker IS NOT NULL;
CREATE INDEX runs_thread ON runs (thread, created_at) WHERE thread IS NOT NULL;
CREATE INDEX runs_parent ON runs (parent) WHERE parent IS NOT NULL;
CREATE INDEX runs_queue  ON runs (thread, queued) WHERE queued IS NOT NULL;

CREATE TABLE events (
    run    TEXT NOT NULL,
    seq    INTEGER NOT NULL,
    kind   TEXT NOT NULL,
    time   INTEGER NOT NULL,
    hash   BLOB NOT NULL,
    body   BLOB,
    erased BLOB,  -- the hash of a body that was erased: the chain still verifies
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;

-- What others want of a run; its owner moves it into the log.
CREATE TABLE inbox (
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    run  TEXT NOT NULL,
    kind TEXT NOT NULL,
    body BLOB NOT NULL,
    time INTEGER NOT NULL
);
CREATE INDEX inbox_run ON inbox (run);

CREATE TABLE questions (
    id       TEXT PRIMARY KEY,
    run      TEXT NOT NULL,
    path     TEXT NOT NULL,
    root     TEXT NOT NULL,
    state    TEXT NOT NULL,
    asked_at INTEGER NOT NULL,
    question BLOB NOT NULL,
    answer   BLOB,
    by       TEXT
) WITHOUT ROWID;
CREATE INDEX questions_open ON questions (asked_at) WHERE state = 'open';
CREATE INDEX questions_root ON questions (root);

CREATE TABLE threads (
    id         TEXT PRIMARY KEY,
    caller     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    checkpoint TEXT,
    state      BLOB NOT NULL,
    active     TEXT,
    failed     INTEGER NOT NULL DEFAULT 0,
    metadata   BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX threads_updated ON threads (updated_at);

CREATE TABLE checkpoints (
    id         TEXT PRIMARY KEY,
    thread     TEXT NOT NULL,
    version    INTEGER NOT NULL,
    state      BLOB NOT NULL,
    messages   INTEGER NOT NULL,
    run        TEXT,
    created_at INTEGER NOT NULL,
    metadata   BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX checkpoints_thread ON checkpoints (thread, version);

CREATE TABLE messages (
    thread  TEXT NOT NULL,
    n       INTEGER NOT NULL,
    run     TEXT,
    message BLOB NOT NULL,
    PRIMARY KEY (thread, n)
) WITHOUT ROWID;

CREATE TABLE keys (
    caller TEXT NOT NULL,
    key    TEXT NOT NULL,
    run    TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (caller, key)
) WITHOUT ROWID;
CREATE INDEX keys_run ON keys (run);

-- What a foreign id (a task, a session, a message of some protocol) means here.
CREATE TABLE links (
    kind       TEXT NOT NULL,
    foreign_id TEXT NOT NULL,
    target     TEXT NOT NULL,
    PRIMARY KEY (kind, foreign_id)
) WITHOUT ROWID;
CREATE INDEX links_target ON links (target);

CREATE TABLE workers (
    id         TEXT PRIMARY KEY,
    host       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    agents     BLOB NOT NULL
) WITHOUT ROWID;

-- So that a process can check a request for an agent whose code it does not have.
CREATE TABLE cards (
    name    TEXT NOT NULL,
    version TEXT NOT NULL,
    card    BLOB NOT NULL,
    PRIMARY KEY (name, version)
) WITHOUT ROWID;

-- What is left of a deleted run: that it was, and the hash at which its chain ended.
CREATE TABLE tombstones (
    run        TEXT PRIMARY KEY,
    agent      TEXT NOT NULL,
    status     TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    head       BLOB NOT NULL,
    deleted_at INTEGER NOT NULL
) WITHOUT ROWID;

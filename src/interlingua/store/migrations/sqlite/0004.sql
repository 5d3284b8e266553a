-- The last number that was given out, by what it counts: letters of a box, news of a feed, documents of a space.
CREATE TABLE counters (
    kind  TEXT NOT NULL,
    name  TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

CREATE TABLE documents (
    space      TEXT NOT NULL,
    place      INTEGER NOT NULL,  -- in the order in which the documents of a space were created
    id         TEXT NOT NULL,
    version    INTEGER NOT NULL,
    state      TEXT NOT NULL,
    topic      TEXT NOT NULL,
    owner      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    body       BLOB NOT NULL,
    PRIMARY KEY (space, place)
) WITHOUT ROWID;
CREATE UNIQUE INDEX documents_id ON documents (space, id);
CREATE INDEX documents_state ON documents (space, state, place);
CREATE INDEX documents_topic ON documents (space, topic, place) WHERE topic <> '';
CREATE INDEX documents_owner ON documents (space, owner, place) WHERE owner <> '';

CREATE TABLE letters (
    box    TEXT NOT NULL,
    number INTEGER NOT NULL,
    key    TEXT NOT NULL,
    rank   INTEGER NOT NULL,
    topic  TEXT NOT NULL,
    state  TEXT NOT NULL,
    owner  TEXT NOT NULL,
    time   INTEGER NOT NULL,
    body   BLOB NOT NULL,
    PRIMARY KEY (box, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX letters_key ON letters (box, key);
-- The order in which letters are taken, of all topics and of one.
CREATE INDEX letters_ranked ON letters (box, state, rank DESC, number);
CREATE INDEX letters_topic ON letters (box, topic, state, rank DESC, number) WHERE topic <> '';

CREATE TABLE told (
    feed  TEXT NOT NULL,
    seq   INTEGER NOT NULL,
    kind  TEXT NOT NULL,
    topic TEXT NOT NULL,
    time  INTEGER NOT NULL,
    body  BLOB NOT NULL,
    PRIMARY KEY (feed, seq)
) WITHOUT ROWID;
CREATE INDEX told_topic ON told (feed, topic, seq) WHERE topic <> '';

-- How far the log of a run has been told to a feed.
CREATE TABLE follows (
    feed       TEXT NOT NULL,
    run        TEXT NOT NULL,
    upto       INTEGER NOT NULL,
    ended      INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (feed, run)
) WITHOUT ROWID;
CREATE INDEX follows_open ON follows (feed, run, upto) WHERE ended = 0;
CREATE INDEX follows_ended ON follows (feed, updated_at) WHERE ended = 1;

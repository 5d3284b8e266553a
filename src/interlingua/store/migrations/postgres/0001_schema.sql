-- The same tables as in SQLite, where each is explained; what differs says why. Texts are ordered bytewise, as there:
-- everything that is read in the order of ids, labels or names counts on it.
CREATE TABLE project (
    id      TEXT COLLATE "C" PRIMARY KEY,
    root    TEXT COLLATE "C" NOT NULL,
    seen_at BIGINT NOT NULL
);

CREATE TABLE runs (
    id         TEXT COLLATE "C" PRIMARY KEY,
    agent      TEXT COLLATE "C" NOT NULL,
    version    TEXT COLLATE "C" NOT NULL,
    status     TEXT COLLATE "C" NOT NULL,
    caller     TEXT COLLATE "C" NOT NULL,
    thread     TEXT COLLATE "C",
    parent     TEXT COLLATE "C",
    path       TEXT COLLATE "C" NOT NULL,
    metadata   BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    worker     TEXT COLLATE "C",
    epoch      BIGINT NOT NULL,
    next_seq   BIGINT NOT NULL,
    head       BYTEA NOT NULL,
    wake_at    BIGINT,
    crashes    BIGINT NOT NULL,
    ran        BIGINT NOT NULL,
    queued     BIGINT,
    tag        TEXT COLLATE "C",
    sealed     INTEGER NOT NULL DEFAULT 0,
    turn       BIGINT NOT NULL DEFAULT 0,
    origin     TEXT COLLATE "C" NOT NULL DEFAULT '',
    queue      TEXT COLLATE "C" NOT NULL DEFAULT '',
    blocked    TEXT COLLATE "C",
    blocked_reason TEXT COLLATE "C",
    -- Hashes of the members of its metadata, so that an index leads to the few runs that may have what is looked for;
    -- NULL where there are none. What it contains is decided by the metadata.
    terms      BIGINT[]
) WITH (fillfactor = 80);  -- a row changes some times before its run ends, and then finds room on its page

-- Rare terms are to be known as rare: a search then goes by them, and by nothing else.
ALTER TABLE runs ALTER COLUMN terms SET STATISTICS 1000;

CREATE INDEX runs_line   ON runs (queue, turn, id) WHERE worker IS NULL AND wake_at = 0 AND blocked IS NULL;
-- Of those, the ones that are suspected of having ended a process: they execute one at a time.
CREATE INDEX runs_suspect ON runs (queue, turn, id)
    WHERE worker IS NULL AND wake_at = 0 AND blocked IS NULL AND crashes >= 2;
CREATE INDEX runs_stand  ON runs (caller, queue, (CASE status WHEN 'pending' THEN 0 ELSE 1 END), turn)
    WHERE worker IS NULL AND wake_at = 0 AND blocked IS NULL;
CREATE INDEX runs_wake   ON runs (queue, wake_at) WHERE worker IS NULL AND wake_at > 0 AND blocked IS NULL;
-- Unfinished runs that some code could not go on with: they stand in no line, and other code looks for them here.
CREATE INDEX runs_blocked ON runs (queue, blocked)
    WHERE blocked IS NOT NULL AND status NOT IN ('succeeded', 'failed', 'cancelled', 'timed_out');
CREATE INDEX runs_open   ON runs (queue) WHERE status NOT IN ('succeeded', 'failed', 'cancelled', 'timed_out');
CREATE INDEX runs_worker ON runs (worker) WHERE worker IS NOT NULL;
CREATE INDEX runs_thread ON runs (thread, id) WHERE thread IS NOT NULL;
CREATE INDEX runs_parent ON runs (parent, id) WHERE parent IS NOT NULL;
CREATE INDEX runs_path   ON runs (path) WHERE path <> '';
CREATE INDEX runs_queue  ON runs (thread, queued) WHERE queued IS NOT NULL;
CREATE INDEX runs_tag ON runs (caller, status, id) WHERE tag IS NOT NULL;
-- What is new is read from one end to the other by every search, until there is this much of it (kB).
CREATE INDEX runs_terms  ON runs USING gin (terms) WITH (gin_pending_list_limit = 256) WHERE terms IS NOT NULL;
-- By id and not by time: a column that every write changes would make every write of a row one of all its indexes. Ids
-- rise with time.
CREATE INDEX runs_ended  ON runs (id)
    WHERE parent IS NULL AND status IN ('succeeded', 'failed', 'cancelled', 'timed_out');
-- For searches, newest first. Those without a status ask for each status, and take the newest of all.
CREATE INDEX runs_caller ON runs (caller, status, id);
CREATE INDEX runs_agent  ON runs (agent, status, id);
CREATE INDEX runs_both   ON runs (caller, agent, status, id);

CREATE TABLE events (
    run    TEXT COLLATE "C" NOT NULL,
    seq    BIGINT NOT NULL,
    kind   TEXT COLLATE "C" NOT NULL,
    time   BIGINT NOT NULL,
    hash   BYTEA NOT NULL,
    body   BYTEA,
    erased BYTEA,
    PRIMARY KEY (run, seq)
);

CREATE TABLE inbox (
    id   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run  TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    body BYTEA NOT NULL,
    time BIGINT NOT NULL
);
CREATE INDEX inbox_run ON inbox (run, id);

CREATE TABLE questions (
    id          TEXT COLLATE "C" PRIMARY KEY,
    run         TEXT COLLATE "C" NOT NULL,
    path        TEXT COLLATE "C" NOT NULL,
    root        TEXT COLLATE "C" NOT NULL,
    state       TEXT COLLATE "C" NOT NULL,
    asked_at    BIGINT NOT NULL,
    question    BYTEA NOT NULL,
    answer      BYTEA,
    by          TEXT COLLATE "C",
    door        TEXT COLLATE "C",
    closed_at   BIGINT,
    reason      TEXT COLLATE "C",
    remind      BYTEA,
    reminded    BIGINT NOT NULL DEFAULT 0,
    reminded_at BIGINT,
    remind_at   BIGINT,
    change      BIGINT NOT NULL DEFAULT 0,
    answerer    TEXT COLLATE "C",
    caller      TEXT COLLATE "C" NOT NULL DEFAULT ''
);
CREATE INDEX questions_open   ON questions (asked_at, id) WHERE state = 'open';
CREATE INDEX questions_caller ON questions (caller, asked_at, id) WHERE state = 'open';
CREATE INDEX questions_run    ON questions (run);
CREATE INDEX questions_root   ON questions (root);
CREATE INDEX questions_remind ON questions (remind_at) WHERE state = 'open' AND remind_at IS NOT NULL;
CREATE INDEX questions_change ON questions (change);

CREATE TABLE threads (
    id         TEXT COLLATE "C" PRIMARY KEY,
    caller     TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    version    BIGINT NOT NULL,
    checkpoint TEXT COLLATE "C",
    state      BYTEA NOT NULL,
    active     TEXT COLLATE "C",
    failed     BOOLEAN NOT NULL DEFAULT false,
    metadata   BYTEA NOT NULL,
    terms      BIGINT[],  -- of its metadata, as those of a run
    described  BIGINT[]   -- of its values
);
ALTER TABLE threads ALTER COLUMN terms SET STATISTICS 1000;
ALTER TABLE threads ALTER COLUMN described SET STATISTICS 1000;
CREATE INDEX threads_updated   ON threads (updated_at);
CREATE INDEX threads_caller    ON threads (caller, id);
CREATE INDEX threads_active    ON threads (id) WHERE active IS NOT NULL;
CREATE INDEX threads_of_active ON threads (caller, id) WHERE active IS NOT NULL;
CREATE INDEX threads_failed    ON threads (id) WHERE failed;
CREATE INDEX threads_of_failed ON threads (caller, id) WHERE failed;
CREATE INDEX threads_terms     ON threads USING gin (terms) WITH (gin_pending_list_limit = 256) WHERE terms IS NOT NULL;
CREATE INDEX threads_described ON threads USING gin (described) WITH (gin_pending_list_limit = 256)
    WHERE described IS NOT NULL;

CREATE TABLE checkpoints (
    id         TEXT COLLATE "C" PRIMARY KEY,
    thread     TEXT COLLATE "C" NOT NULL,
    version    BIGINT NOT NULL,
    state      BYTEA NOT NULL,
    messages   BIGINT NOT NULL,
    run        TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    metadata   BYTEA NOT NULL
);
CREATE INDEX checkpoints_thread ON checkpoints (thread, version);

CREATE TABLE messages (
    thread  TEXT COLLATE "C" NOT NULL,
    n       BIGINT NOT NULL,
    run     TEXT COLLATE "C",
    message BYTEA NOT NULL,
    PRIMARY KEY (thread, n)
);

CREATE TABLE keys (
    caller TEXT COLLATE "C" NOT NULL,
    key    TEXT COLLATE "C" NOT NULL,
    run    TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (caller, key)
);
CREATE INDEX keys_run ON keys (run);

CREATE TABLE links (
    kind       TEXT COLLATE "C" NOT NULL,
    foreign_id TEXT COLLATE "C" NOT NULL,
    target     TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, foreign_id)
);
CREATE INDEX links_target ON links (target);

CREATE TABLE workers (
    id          TEXT COLLATE "C" PRIMARY KEY,
    host        TEXT COLLATE "C" NOT NULL,
    pid         BIGINT NOT NULL,
    started_at  BIGINT NOT NULL,
    queues      BYTEA NOT NULL,  -- whose runs it claims
    lease_until TIMESTAMPTZ NOT NULL  -- by the clock of the database, which is one for all
);

-- One row per process that writes: which of its transactions was the last to be committed. Who lost its connection while
-- it committed looks here for what became of it. Raising the generation keeps out what is still on its way.
CREATE TABLE writers (
    id         TEXT COLLATE "C" PRIMARY KEY,
    generation BIGINT NOT NULL,
    batch      BIGINT NOT NULL,
    seen_at    TIMESTAMPTZ NOT NULL DEFAULT now()
) WITH (fillfactor = 20);

CREATE TABLE cards (
    name    TEXT COLLATE "C" NOT NULL,
    version TEXT COLLATE "C" NOT NULL,
    origin  TEXT COLLATE "C" NOT NULL,
    card    BYTEA NOT NULL,
    PRIMARY KEY (name, version, origin)
);

CREATE TABLE tombstones (
    run        TEXT COLLATE "C" PRIMARY KEY,
    agent      TEXT COLLATE "C" NOT NULL,
    status     TEXT COLLATE "C" NOT NULL,
    seq        BIGINT NOT NULL,
    head       BYTEA NOT NULL,
    deleted_at BIGINT NOT NULL
);

CREATE TABLE callbacks (
    id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run      TEXT COLLATE "C" NOT NULL,
    url      TEXT COLLATE "C" NOT NULL,
    format   TEXT COLLATE "C" NOT NULL,
    status   TEXT COLLATE "C" NOT NULL,
    time     BIGINT NOT NULL,
    state    TEXT COLLATE "C" NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    next_at  BIGINT NOT NULL,
    error    TEXT COLLATE "C",
    receiver TEXT COLLATE "C" NOT NULL DEFAULT '',
    first    INTEGER NOT NULL DEFAULT 0,
    kept     BYTEA
);
CREATE INDEX callbacks_run    ON callbacks (run, id);
CREATE INDEX callbacks_due    ON callbacks (receiver, next_at, id) WHERE state = 'due' AND first = 1;
CREATE INDEX callbacks_order  ON callbacks (run, id) WHERE state = 'due';
CREATE INDEX callbacks_failed ON callbacks (id) WHERE state = 'failed' OR (state = 'due' AND attempts > 0);
CREATE INDEX callbacks_told   ON callbacks (time) WHERE state <> 'due';

CREATE TABLE receivers (
    receiver   TEXT COLLATE "C" PRIMARY KEY,
    standing   TEXT COLLATE "C" NOT NULL,
    failures   BIGINT NOT NULL,
    rest_until BIGINT NOT NULL,
    due_at     BIGINT,
    seen_at    BIGINT NOT NULL
);
CREATE INDEX receivers_due ON receivers (standing, due_at);

CREATE TABLE instances (
    id         TEXT COLLATE "C" PRIMARY KEY,
    agent      TEXT COLLATE "C" NOT NULL,
    version    TEXT COLLATE "C" NOT NULL,
    caller     TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    instance   BYTEA NOT NULL
);

CREATE TABLE api_keys (
    id     TEXT COLLATE "C" PRIMARY KEY,
    record BYTEA NOT NULL
);

CREATE TABLE counters (
    kind  TEXT COLLATE "C" NOT NULL,
    name  TEXT COLLATE "C" NOT NULL,
    value BIGINT NOT NULL,
    PRIMARY KEY (kind, name)
) WITH (fillfactor = 50);

CREATE TABLE documents (
    space      TEXT COLLATE "C" NOT NULL,
    place      BIGINT NOT NULL,
    id         TEXT COLLATE "C" NOT NULL,
    version    BIGINT NOT NULL,
    state      TEXT COLLATE "C" NOT NULL,
    topic      TEXT COLLATE "C" NOT NULL,
    owner      TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    body       BYTEA NOT NULL,
    PRIMARY KEY (space, place)
);
CREATE UNIQUE INDEX documents_id ON documents (space, id);
CREATE INDEX documents_state ON documents (space, state, place);
CREATE INDEX documents_topic ON documents (space, topic, place) WHERE topic <> '';
CREATE INDEX documents_owner ON documents (space, owner, place) WHERE owner <> '';

CREATE TABLE letters (
    box    TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    key    TEXT COLLATE "C" NOT NULL,
    rank   BIGINT NOT NULL,
    topic  TEXT COLLATE "C" NOT NULL,
    state  TEXT COLLATE "C" NOT NULL,
    owner  TEXT COLLATE "C" NOT NULL,
    time   BIGINT NOT NULL,
    body   BYTEA NOT NULL,
    PRIMARY KEY (box, number)
);
CREATE UNIQUE INDEX letters_key ON letters (box, key);
CREATE INDEX letters_ranked ON letters (box, state, rank DESC, number);
CREATE INDEX letters_topic ON letters (box, topic, state, rank DESC, number) WHERE topic <> '';

CREATE TABLE feed_entries (
    feed  TEXT COLLATE "C" NOT NULL,
    seq   BIGINT NOT NULL,
    kind  TEXT COLLATE "C" NOT NULL,
    topic TEXT COLLATE "C" NOT NULL,
    time  BIGINT NOT NULL,
    body  BYTEA NOT NULL,
    PRIMARY KEY (feed, seq)
);
CREATE INDEX feed_entries_topic ON feed_entries (feed, topic, seq) WHERE topic <> '';

CREATE TABLE follows (
    feed       TEXT COLLATE "C" NOT NULL,
    run        TEXT COLLATE "C" NOT NULL,
    upto       BIGINT NOT NULL,
    ended      INTEGER NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (feed, run)
);
CREATE INDEX follows_open ON follows (feed, run, upto) WHERE ended = 0;
CREATE INDEX follows_ended ON follows (feed, updated_at) WHERE ended = 1;

CREATE TABLE delegations (
    run      TEXT COLLATE "C" PRIMARY KEY,
    task     TEXT COLLATE "C" NOT NULL,
    path     TEXT COLLATE "C" NOT NULL,
    agent    TEXT COLLATE "C" NOT NULL,
    instance BIGINT NOT NULL,
    label    TEXT COLLATE "C" NOT NULL DEFAULT '',
    review   INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX delegations_task ON delegations (task);
CREATE INDEX delegations_label ON delegations (label);

CREATE TABLE task_numbers (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run    TEXT COLLATE "C" NOT NULL UNIQUE
);

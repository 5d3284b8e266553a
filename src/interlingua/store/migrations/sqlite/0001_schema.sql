-- The one project that this store belongs to.
CREATE TABLE project (
    id      TEXT PRIMARY KEY,
    root    TEXT NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;

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
    queued     INTEGER,
    tag        TEXT,                        -- by the door that submitted it, for its own searches
    sealed     INTEGER NOT NULL DEFAULT 0,  -- of an overseen agent, or called by one
    turn       INTEGER NOT NULL DEFAULT 0,  -- place in its line, of a run that is due; 0: before all others
    origin     TEXT NOT NULL DEFAULT '',    -- project and source of the code that began it
    queue      TEXT NOT NULL DEFAULT '',    -- origin, agent and version: the line in which workers find it
    blocked    TEXT,                        -- digests of the code that could not go on with it; NULL: not blocked
    blocked_reason TEXT                     -- why, as JSON
) WITHOUT ROWID;

-- Small on purpose: each holds only the runs that somebody will look for by it.
CREATE INDEX runs_worker ON runs (worker) WHERE worker IS NOT NULL;
CREATE INDEX runs_thread ON runs (thread, created_at) WHERE thread IS NOT NULL;
CREATE INDEX runs_parent ON runs (parent) WHERE parent IS NOT NULL;
CREATE INDEX runs_queue  ON runs (thread, queued) WHERE queued IS NOT NULL;
-- The line of a queue, where in it a caller stands (with runs that have begun, and with new ones), and which runs join
-- it at some time. Callers take turns.
CREATE INDEX runs_line   ON runs (queue, turn, id) WHERE worker IS NULL AND wake_at = 0 AND blocked IS NULL;
-- Of those, the ones that are suspected of having ended a process: they execute one at a time.
CREATE INDEX runs_suspect ON runs (queue, turn, id)
    WHERE worker IS NULL AND wake_at = 0 AND blocked IS NULL AND crashes >= 2;
CREATE INDEX runs_stand  ON runs (caller, queue, CASE status WHEN 'pending' THEN 0 ELSE 1 END, turn)
    WHERE worker IS NULL AND wake_at = 0 AND blocked IS NULL;
CREATE INDEX runs_wake   ON runs (queue, wake_at) WHERE worker IS NULL AND wake_at > 0 AND blocked IS NULL;
-- Unfinished runs that some code could not go on with: they stand in no line, and other code looks for them here.
CREATE INDEX runs_blocked ON runs (queue, blocked)
    WHERE blocked IS NOT NULL AND status NOT IN ('succeeded', 'failed', 'cancelled', 'timed_out');
-- Unfinished runs by queue: those that no worker serves are found here, and those of a status without reading them.
CREATE INDEX runs_open   ON runs (queue, status, caller, agent)
    WHERE status NOT IN ('succeeded', 'failed', 'cancelled', 'timed_out');
-- Runs in the order of their ids, by what never changes: a run is written there once.
CREATE INDEX runs_caller ON runs (caller, id);
CREATE INDEX runs_agent  ON runs (agent, id);
CREATE INDEX runs_both   ON runs (caller, agent, id);
CREATE INDEX runs_path   ON runs (path) WHERE path <> '';
-- Runs by status. Most succeed, and cost nothing here. A search says `status='failed'` alone, which follows from one
-- side of OR; from IN it would not follow.
CREATE INDEX runs_unmet        ON runs (status, id)
    WHERE status = 'failed' OR status = 'cancelled' OR status = 'timed_out';
CREATE INDEX runs_unmet_caller ON runs (caller, status, id)
    WHERE status = 'failed' OR status = 'cancelled' OR status = 'timed_out';
CREATE INDEX runs_unmet_agent  ON runs (agent, status, id)
    WHERE status = 'failed' OR status = 'cancelled' OR status = 'timed_out';
CREATE INDEX runs_unmet_both   ON runs (caller, agent, status, id)
    WHERE status = 'failed' OR status = 'cancelled' OR status = 'timed_out';
-- The same for the searches of a door, which finds its own runs alone, however many others there are.
CREATE INDEX runs_tag        ON runs (id) WHERE tag IS NOT NULL;
CREATE INDEX runs_tag_caller ON runs (caller, id) WHERE tag IS NOT NULL;
CREATE INDEX runs_tag_agent  ON runs (agent, id) WHERE tag IS NOT NULL;
CREATE INDEX runs_tag_both   ON runs (caller, agent, id) WHERE tag IS NOT NULL;
CREATE INDEX runs_tag_unmet        ON runs (status, id)
    WHERE tag IS NOT NULL AND (status = 'failed' OR status = 'cancelled' OR status = 'timed_out');
CREATE INDEX runs_tag_unmet_caller ON runs (caller, status, id)
    WHERE tag IS NOT NULL AND (status = 'failed' OR status = 'cancelled' OR status = 'timed_out');
CREATE INDEX runs_tag_unmet_agent  ON runs (agent, status, id)
    WHERE tag IS NOT NULL AND (status = 'failed' OR status = 'cancelled' OR status = 'timed_out');
CREATE INDEX runs_tag_unmet_both   ON runs (caller, agent, status, id)
    WHERE tag IS NOT NULL AND (status = 'failed' OR status = 'cancelled' OR status = 'timed_out');

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
    by       TEXT,
    door        TEXT,     -- through which it was answered
    closed_at   INTEGER,
    reason      TEXT,     -- why it was withdrawn
    remind      BLOB,     -- when somebody is to be reminded of it (a list of times)
    reminded    INTEGER NOT NULL DEFAULT 0,
    reminded_at INTEGER,
    remind_at   INTEGER,
    change      INTEGER NOT NULL DEFAULT 0,  -- counted up with every change of any question, so that one can follow all
    answerer    TEXT,     -- who alone may answer it
    caller      TEXT NOT NULL DEFAULT ''     -- of the run that all began with
) WITHOUT ROWID;
CREATE INDEX questions_open ON questions (asked_at) WHERE state = 'open';
CREATE INDEX questions_root ON questions (root);
CREATE INDEX questions_caller ON questions (caller, asked_at, id) WHERE state = 'open';
CREATE INDEX questions_remind ON questions (remind_at) WHERE state = 'open' AND remind_at IS NOT NULL;
CREATE INDEX questions_change ON questions (change);

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
CREATE INDEX threads_caller ON threads (caller);
CREATE INDEX threads_active ON threads (caller, id) WHERE active IS NOT NULL;
CREATE INDEX threads_failed ON threads (caller, id) WHERE failed;

-- Searches by metadata and by values find runs and threads by these: hashes of their members.
CREATE TABLE terms (
    term INTEGER NOT NULL,
    id   TEXT NOT NULL,  -- of a run or of a thread; the hash tells which
    PRIMARY KEY (term, id)
) WITHOUT ROWID;

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
    queues     BLOB NOT NULL  -- whose runs it claims
) WITHOUT ROWID;

-- So that a process can check a request for an agent whose code it does not have, and knows the queue of its runs.
CREATE TABLE cards (
    name    TEXT NOT NULL,
    version TEXT NOT NULL,
    origin  TEXT NOT NULL,
    card    BLOB NOT NULL,
    PRIMARY KEY (name, version, origin)
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
    error      TEXT,
    receiver   TEXT NOT NULL DEFAULT '',    -- callbacks are taken per receiver: a dead one costs the others nothing
    first      INTEGER NOT NULL DEFAULT 0,  -- whether no earlier one of its run is still due: they go in order
    kept       BLOB                         -- of a run that was deleted since: what is to be told, until that is done
);
CREATE INDEX callbacks_run ON callbacks (run, id);
CREATE INDEX callbacks_due ON callbacks (receiver, next_at) WHERE state = 'due' AND first = 1;
CREATE INDEX callbacks_order ON callbacks (run, id) WHERE state = 'due';

CREATE TABLE receivers (
    receiver   TEXT PRIMARY KEY,
    standing   TEXT NOT NULL,     -- good, new (it has not answered well yet), failing
    failures   INTEGER NOT NULL,  -- in a row
    rest_until INTEGER NOT NULL,  -- nothing is sent to it before: it failed, or gets as much as it may already
    due_at     INTEGER,           -- when something is to be sent to it; NULL: there is nothing
    seen_at    INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX receivers_due ON receivers (standing, due_at);

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

CREATE TABLE feed_entries (
    feed  TEXT NOT NULL,
    seq   INTEGER NOT NULL,
    kind  TEXT NOT NULL,
    topic TEXT NOT NULL,
    time  INTEGER NOT NULL,
    body  BLOB NOT NULL,
    PRIMARY KEY (feed, seq)
) WITHOUT ROWID;
CREATE INDEX feed_entries_topic ON feed_entries (feed, topic, seq) WHERE topic <> '';

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

-- Runs that members of a team have started, by the task that they count for. They outlive the runs: deleting one gives
-- no budget back.
CREATE TABLE delegations (
    run      TEXT PRIMARY KEY,
    task     TEXT NOT NULL,
    path     TEXT NOT NULL,
    agent    TEXT NOT NULL,
    instance INTEGER NOT NULL,
    label    TEXT NOT NULL DEFAULT '',   -- T1, and T1.1 for what is handed over within it
    review   INTEGER NOT NULL DEFAULT 0  -- 1: it only judges, and counts for no budget
) WITHOUT ROWID;
CREATE INDEX delegations_task ON delegations (task);
CREATE INDEX delegations_label ON delegations (label);

-- Numbers of whole tasks. None is used twice, also when the task is forgotten.
CREATE TABLE task_numbers (number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL UNIQUE);

-- alone: older processes would write runs and threads that searches by metadata do not find
-- Runs in the order of their ids, by what never changes: a run is written there once.
DROP INDEX runs_marked;
CREATE INDEX runs_marked ON runs (caller, id) WHERE marked IS NOT NULL;
CREATE INDEX runs_caller ON runs (caller, id);
CREATE INDEX runs_agent  ON runs (agent, id);
CREATE INDEX runs_both   ON runs (caller, agent, id);
CREATE INDEX runs_path   ON runs (path) WHERE path <> '';
-- Runs by status. Most succeed, and cost nothing here.
CREATE INDEX runs_unmet        ON runs (status, id) WHERE status IN ('failed', 'cancelled', 'timed_out');
CREATE INDEX runs_unmet_caller ON runs (caller, status, id) WHERE status IN ('failed', 'cancelled', 'timed_out');
CREATE INDEX runs_unmet_agent  ON runs (agent, status, id) WHERE status IN ('failed', 'cancelled', 'timed_out');
CREATE INDEX runs_unmet_both   ON runs (caller, agent, status, id)
    WHERE status IN ('failed', 'cancelled', 'timed_out');
-- Unfinished runs by queue: those that no worker serves are found here, and those of a status without reading them.
DROP INDEX runs_open;
CREATE INDEX runs_open ON runs (queue, status, caller, agent)
    WHERE status NOT IN ('succeeded', 'failed', 'cancelled', 'timed_out');

CREATE INDEX threads_active ON threads (caller, id) WHERE active IS NOT NULL;
CREATE INDEX threads_failed ON threads (caller, id) WHERE failed;

-- What searches by metadata and by values find runs and threads by: hashes of their members.
CREATE TABLE terms (
    term INTEGER NOT NULL,
    id   TEXT NOT NULL,  -- of a run or of a thread; the hash tells which
    PRIMARY KEY (term, id)
) WITHOUT ROWID;
INSERT INTO terms SELECT one.value, runs.id FROM runs, json_each(terms_of('runs.metadata', metadata, caller)) AS one
    WHERE metadata NOT IN (CAST('{}' AS BLOB), CAST('null' AS BLOB));
INSERT INTO terms SELECT one.value, threads.id FROM threads,
    json_each(terms_of('threads.metadata', metadata, caller)) AS one
    WHERE metadata NOT IN (CAST('{}' AS BLOB), CAST('null' AS BLOB));
INSERT INTO terms SELECT one.value, threads.id FROM threads, json_each(terms_of('threads.state', state, caller)) AS one
    WHERE state NOT IN (CAST('{}' AS BLOB), CAST('null' AS BLOB));

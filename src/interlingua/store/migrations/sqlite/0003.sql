-- alone: an older process would note callbacks that nobody sends
-- Callbacks are taken per receiver: how many wait for one that is dead costs nobody anything.
ALTER TABLE callbacks ADD COLUMN receiver TEXT NOT NULL DEFAULT '';
-- In order per run: whether no earlier one of its run is still due.
ALTER TABLE callbacks ADD COLUMN first INTEGER NOT NULL DEFAULT 0;
-- What is to be told of a run that was deleted since, until that is done.
ALTER TABLE callbacks ADD COLUMN kept BLOB;
UPDATE callbacks SET receiver = receiver_of(url);
UPDATE callbacks SET first = 1 WHERE state = 'due' AND id IN (
    SELECT MIN(id) FROM callbacks WHERE state = 'due' GROUP BY run
);
DROP INDEX callbacks_due;
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
INSERT INTO receivers (receiver, standing, failures, rest_until, due_at, seen_at)
    SELECT receiver, 'new', 0, 0, MIN(next_at), MAX(time) FROM callbacks WHERE state = 'due' AND first = 1
    GROUP BY receiver;

-- By the door that submitted it, for its own searches.
ALTER TABLE runs ADD COLUMN marked TEXT;
UPDATE runs SET marked = 'stateless' WHERE id IN (
    SELECT run FROM events WHERE seq = 1 AND json_extract(CAST(body AS TEXT), '$.request.extra.stateless')
);
-- The status is there so that looking for a rare one need not read the runs.
CREATE INDEX runs_marked ON runs (caller, id, status) WHERE marked IS NOT NULL;
CREATE INDEX threads_caller ON threads (caller);

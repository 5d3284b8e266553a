-- alone: older processes name the indexes of runs by status with terms that these do not have
-- A search says `status='failed'` alone, which follows from one side of OR: SQLite has no other term to follow instead.
DROP INDEX runs_unmet;
DROP INDEX runs_unmet_caller;
DROP INDEX runs_unmet_agent;
DROP INDEX runs_unmet_both;
CREATE INDEX runs_unmet        ON runs (status, id)
    WHERE status = 'failed' OR status = 'cancelled' OR status = 'timed_out';
CREATE INDEX runs_unmet_caller ON runs (caller, status, id)
    WHERE status = 'failed' OR status = 'cancelled' OR status = 'timed_out';
CREATE INDEX runs_unmet_agent  ON runs (agent, status, id)
    WHERE status = 'failed' OR status = 'cancelled' OR status = 'timed_out';
CREATE INDEX runs_unmet_both   ON runs (caller, agent, status, id)
    WHERE status = 'failed' OR status = 'cancelled' OR status = 'timed_out';

-- The same for the searches of a door, which finds its own runs alone, however many others there are.
DROP INDEX runs_marked;
CREATE INDEX runs_marked        ON runs (id) WHERE marked IS NOT NULL;
CREATE INDEX runs_marked_caller ON runs (caller, id) WHERE marked IS NOT NULL;
CREATE INDEX runs_marked_agent  ON runs (agent, id) WHERE marked IS NOT NULL;
CREATE INDEX runs_marked_both   ON runs (caller, agent, id) WHERE marked IS NOT NULL;
CREATE INDEX runs_marked_unmet        ON runs (status, id)
    WHERE marked IS NOT NULL AND (status = 'failed' OR status = 'cancelled' OR status = 'timed_out');
CREATE INDEX runs_marked_unmet_caller ON runs (caller, status, id)
    WHERE marked IS NOT NULL AND (status = 'failed' OR status = 'cancelled' OR status = 'timed_out');
CREATE INDEX runs_marked_unmet_agent  ON runs (agent, status, id)
    WHERE marked IS NOT NULL AND (status = 'failed' OR status = 'cancelled' OR status = 'timed_out');
CREATE INDEX runs_marked_unmet_both   ON runs (caller, agent, status, id)
    WHERE marked IS NOT NULL AND (status = 'failed' OR status = 'cancelled' OR status = 'timed_out');

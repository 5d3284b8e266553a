-- Whose turn it is among the runs that are due: callers take turns, in one line per agent. 0: before all others.
ALTER TABLE runs ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
DROP INDEX runs_wake;
-- The line of an agent, where in it a caller stands (with runs that have begun, and with new ones), and who gets into it
-- at some time.
CREATE INDEX runs_line   ON runs (agent || '@' || version, turn, id) WHERE worker IS NULL AND wake_at = 0;
CREATE INDEX runs_stand  ON runs (caller, agent || '@' || version, CASE status WHEN 'pending' THEN 0 ELSE 1 END, turn)
    WHERE worker IS NULL AND wake_at = 0;
CREATE INDEX runs_wake   ON runs (agent || '@' || version, wake_at) WHERE worker IS NULL AND wake_at > 0;

-- Whose turn it is among the runs that are due, as in SQLite.
ALTER TABLE runs ADD COLUMN turn BIGINT NOT NULL DEFAULT 0;
DROP INDEX runs_wake;
CREATE INDEX runs_line  ON runs ((agent || '@' || version), turn, id) WHERE worker IS NULL AND wake_at = 0;
CREATE INDEX runs_stand ON runs
    (caller, (agent || '@' || version), (CASE status WHEN 'pending' THEN 0 ELSE 1 END), turn)
    WHERE worker IS NULL AND wake_at = 0;
CREATE INDEX runs_wake  ON runs ((agent || '@' || version), wake_at) WHERE worker IS NULL AND wake_at > 0;

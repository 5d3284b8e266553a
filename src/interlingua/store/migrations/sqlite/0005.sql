-- Of an overseen agent, or called by one: only its overseer and the owner may read it.
ALTER TABLE runs ADD COLUMN sealed INTEGER NOT NULL DEFAULT 0;

-- Runs that members of a team have started, by the task that they count for. They outlive the runs: deleting one gives
-- no budget back.
CREATE TABLE delegations (
    run      TEXT PRIMARY KEY,
    task     TEXT NOT NULL,
    path     TEXT NOT NULL,
    agent    TEXT NOT NULL,
    instance INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX delegations_task ON delegations (task);

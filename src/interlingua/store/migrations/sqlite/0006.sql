-- alone: an older process would begin tasks without a label
-- What a task is called: T1, and T1.1 for what is handed over within it. A review is part of one, and counts for no budget.
ALTER TABLE delegations ADD COLUMN label TEXT NOT NULL DEFAULT '';
ALTER TABLE delegations ADD COLUMN review INTEGER NOT NULL DEFAULT 0;
CREATE INDEX delegations_label ON delegations (label);

-- Numbers of whole tasks. None is used twice, also when the task is forgotten.
CREATE TABLE task_numbers (number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL UNIQUE);

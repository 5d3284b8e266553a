-- How a question ended: through which door it was answered, when it was closed, and why it was withdrawn.
ALTER TABLE questions ADD COLUMN door TEXT;
ALTER TABLE questions ADD COLUMN closed_at INTEGER;
ALTER TABLE questions ADD COLUMN reason TEXT;

-- When somebody is to be reminded of it (a list of times), how many of those have been, the last and the next of them.
ALTER TABLE questions ADD COLUMN remind BLOB;
ALTER TABLE questions ADD COLUMN reminded INTEGER NOT NULL DEFAULT 0;
ALTER TABLE questions ADD COLUMN reminded_at INTEGER;
ALTER TABLE questions ADD COLUMN remind_at INTEGER;
CREATE INDEX questions_remind ON questions (remind_at) WHERE state = 'open' AND remind_at IS NOT NULL;

-- Counted up with every change of any question, so that one can follow them all.
ALTER TABLE questions ADD COLUMN change INTEGER NOT NULL DEFAULT 0;
CREATE INDEX questions_change ON questions (change);

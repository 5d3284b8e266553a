-- Whose question it is: the caller of the run that all began with. So looking for somebody's need not read everybody's.
ALTER TABLE questions ADD COLUMN caller TEXT NOT NULL DEFAULT '';
UPDATE questions SET caller = COALESCE((SELECT caller FROM runs WHERE runs.id = questions.root), '');
CREATE INDEX questions_caller ON questions (caller, asked_at, id) WHERE state = 'open';

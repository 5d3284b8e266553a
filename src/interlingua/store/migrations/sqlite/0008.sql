-- alone: an older process would ask questions that whoever may answer them does not find
-- Who alone may answer it, so that looking for those of somebody need not take every question apart.
ALTER TABLE questions ADD COLUMN answerer TEXT;
UPDATE questions SET answerer = json_extract(CAST(question AS TEXT), '$.answerer');

"""Services of the engine for doors: threads, questions, callbacks and reminders."""

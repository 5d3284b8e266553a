"""Where truth lives: runs, logs, inboxes, questions and threads. `base` is the port, `sqlite` the default."""

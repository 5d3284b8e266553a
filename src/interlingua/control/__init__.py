"""The control API: everything that owners and their programs do with runs, questions and threads, over HTTP."""

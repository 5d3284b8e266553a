"""The neutral language: cards, content, events, runs, threads, questions and errors.

Pure data and pure functions. No module here does I/O, reads a clock or knows the name of a protocol.
"""

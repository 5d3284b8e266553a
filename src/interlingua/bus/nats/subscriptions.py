"""The readers of runs: in this process, whose events are received, and in others, to which events are sent.

NATS does not tell a sender if there are subscribers. So processes announce the runs that they read, at intervals; a
run that no process announced for a while has no readers.
"""

from __future__ import annotations

import msgspec

READER_TTL = 12.0  # seconds for which an announced reader counts
ANNOUNCE_EVERY = 4.0
LINGER = 5.0  # seconds for which events of a run are still received after its last reader left
_MAX_RUNS = 200_000  # runs read elsewhere; beyond that everything is sent


class Watch(msgspec.Struct, array_like=True):
    reader: str  # the process that reads
    new: list[str]  # the owners answer with the length of the log
    still: list[str] = []


class LocalReaders:
    """The runs that are read in this process."""

    def __init__(self) -> None:
        self._readers: dict[str, int] = {}
        self._idle: dict[str, float] = {}  # by run: the time when the last reader left

    def __contains__(self, run: str) -> bool:
        return run in self._readers

    def add(self, run: str) -> bool:
        """Adds a reader. True if events of the run were not received before."""
        known = self._readers.get(run)
        self._readers[run] = (known or 0) + 1
        if known == 0:
            del self._idle[run]
        return known is None

    def remove(self, run: str, time: float) -> None:
        self._readers[run] -= 1
        if not self._readers[run]:
            self._idle[run] = time

    def drop_idle(self, time: float) -> list[str]:
        """Drops and returns the runs without readers for a while."""
        expired = []
        for run, since in self._idle.items():  # in the order in which the readers left
            if time - since < LINGER:
                break
            expired.append(run)
        for run in expired:
            del self._idle[run], self._readers[run]
        return expired

    def all(self) -> list[str]:
        return list(self._readers)


class RemoteReaders:
    """The runs that other processes read, and these processes, as they announced it."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}  # by run and reader
        self._readers: dict[str, tuple[str, ...]] = {}  # by run
        self._all_until: dict[str, float] = {}  # readers of so many runs that they receive everything

    def __contains__(self, run: str) -> bool:
        return run in self._readers or bool(self._all_until)

    def readers(self, run: str) -> tuple[str, ...]:
        readers = self._readers.get(run, ())
        return readers if not self._all_until else tuple({*readers, *self._all_until})

    def add(self, reader: str, runs: list[str], time: float) -> None:
        for run in runs:
            pair = run, reader
            if self._until.pop(pair, None) is None:  # the newest are at the end
                self._readers[run] = (*self._readers.get(run, ()), reader)
            self._until[pair] = time + READER_TTL
        if len(self._until) > _MAX_RUNS:
            self._all_until = dict.fromkeys({reader for _, reader in self._until}, time + READER_TTL)
            self._until.clear()
            self._readers.clear()

    def drop_expired(self, time: float) -> None:
        if self._all_until:
            self._all_until = {reader: until for reader, until in self._all_until.items() if until >= time}
        expired = []
        for pair, until in self._until.items():
            if until > time:
                break
            expired.append(pair)
        for run, reader in expired:
            del self._until[run, reader]
            if left := tuple(other for other in self._readers[run] if other != reader):
                self._readers[run] = left
            else:
                del self._readers[run]

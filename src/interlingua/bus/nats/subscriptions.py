"""Who reads which runs: here, so that only those are listened to, and elsewhere, so that nothing else is sent.

A bus does not tell a sender whether anybody listens. So processes say what they read, again and again while they do;
what nobody has claimed for a while is read by nobody.
"""

from __future__ import annotations

import msgspec

KEPT = 12.0  # seconds for which somebody who reads a run counts, without saying so again
SAID_EVERY = 4.0
LINGER = 5.0  # seconds for which a run is listened to after the last reader: readers come and go
_MOST = 200_000  # runs that others may read before it is simpler to send everything


class Watch(msgspec.Struct, array_like=True):
    reader: str  # which process it is that reads
    fresh: list[str]  # whose owner is to say how far it is
    still: list[str] = []


class Here:
    """The runs that somebody in this process reads."""

    def __init__(self) -> None:
        self._readers: dict[str, int] = {}
        self._idle: dict[str, float] = {}  # since when

    def __contains__(self, run: str) -> bool:
        return run in self._readers

    def add(self, run: str) -> bool:
        """Whether the run was not listened to before."""
        known = self._readers.get(run)
        self._readers[run] = (known or 0) + 1
        if known == 0:
            del self._idle[run]
        return known is None

    def remove(self, run: str, time: float) -> None:
        self._readers[run] -= 1
        if not self._readers[run]:
            self._idle[run] = time

    def left(self, time: float) -> list[str]:
        """Runs that nobody has read for a while. They are forgotten with this."""
        gone = []
        for run, since in self._idle.items():  # in the order in which they were left
            if time - since < LINGER:
                break
            gone.append(run)
        for run in gone:
            del self._idle[run], self._readers[run]
        return gone

    def all(self) -> list[str]:
        return list(self._readers)


class Elsewhere:
    """The runs that other processes read, and which processes these are, as far as they said so."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}  # by run and reader
        self._readers: dict[str, tuple[str, ...]] = {}  # by run
        self._all_until: dict[str, float] = {}  # readers of so many that they are sent everything

    def __contains__(self, run: str) -> bool:
        return run in self._readers or bool(self._all_until)

    def readers(self, run: str) -> tuple[str, ...]:
        found = self._readers.get(run, ())
        return found if not self._all_until else tuple({*found, *self._all_until})

    def add(self, reader: str, runs: list[str], time: float) -> None:
        for run in runs:
            known = run, reader
            if self._until.pop(known, None) is None:  # the newest are at the end
                self._readers[run] = (*self._readers.get(run, ()), reader)
            self._until[known] = time + KEPT
        if len(self._until) > _MOST:
            self._all_until = dict.fromkeys({reader for _, reader in self._until}, time + KEPT)
            self._until.clear()
            self._readers.clear()

    def forget(self, time: float) -> None:
        if self._all_until:
            self._all_until = {reader: until for reader, until in self._all_until.items() if until >= time}
        gone = []
        for known, until in self._until.items():
            if until > time:
                break
            gone.append(known)
        for run, reader in gone:
            del self._until[run, reader]
            if left := tuple(one for one in self._readers[run] if one != reader):
                self._readers[run] = left
            else:
                del self._readers[run]

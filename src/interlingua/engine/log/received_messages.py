"""The messages to a run, in the order of its log. Few are in memory; the store has the rest."""

from __future__ import annotations

from typing import Literal

import msgspec

from ...model.content import Message
from ..settings import Settings

PASSED = "passed"
"""The member of a message's metadata that says which message of which run it was, where that passed it on."""

MailKind = Literal["message", "told", "passed"]
"""How a message comes: from another run or some caller; from a participant without a run; or passed on to the run that
does the work of another."""


class Letter(msgspec.Struct):
    """A message to a run."""

    seq: int  # of its event
    sender: str | None
    passed: str | None  # which message of which run it was, where that passed it on
    size: int
    message: Message | None  # None: it is in the store


class ReceivedMessages:
    """Keeps the messages that come next in memory, up to `most_bytes`; a handler that reads another one waits for the
    store."""

    def __init__(self, most_bytes: int = Settings().keep_live_bytes) -> None:
        self._most_bytes = most_bytes
        self._letters: list[Letter] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._letters)

    def __getitem__(self, place: int) -> Letter:
        return self._letters[place]

    @property
    def bytes(self) -> int:
        """Bytes of the messages that are in memory."""
        return self._bytes

    def add(self, message: Message, seq: int, size: int) -> None:
        fits = self._bytes + size <= self._most_bytes
        passed = message.metadata.get(PASSED)
        sent_on = None if passed is None else str(passed)
        self._letters.append(Letter(seq, message.sender, sent_on, size, message if fits else None))
        if fits:
            self._bytes += size

    def bound(self, most_bytes: int) -> None:
        """Set the limit. The messages that come last are forgotten first."""
        self._most_bytes = most_bytes
        for place in reversed(range(len(self._letters))):
            if self._bytes <= most_bytes:
                return
            self.take(place)

    def passed_on(self) -> set[str]:
        """The marks of all messages that were passed on to this run."""
        return {letter.passed for letter in self._letters if letter.passed is not None}

    def take(self, place: int) -> Message | None:
        """Takes the message at a place out of memory; None if it must be read from the store."""
        letter = self._letters[place]
        message, letter.message = letter.message, None
        if message is not None:
            self._bytes -= letter.size
        return message

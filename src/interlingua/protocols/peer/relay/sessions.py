"""The sessions of a relay, each a short log of messages in memory, and the limits on all of them. Without HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import OrderedDict, deque
from typing import Any

import msgspec

_MINUTE = 60.0
_ADDRESSES = 10_000  # that are remembered

_encode = msgspec.json.Encoder().encode


class RelaySettings(msgspec.Struct, kw_only=True, frozen=True):
    sessions: int = 500
    sessions_per_address: int = 50
    new_per_minute: int = 30
    """Sessions that one address may begin in a minute."""
    wrong_per_minute: int = 60
    """Wrong tokens after which an address is not answered for a while."""
    ttl: float = 3600.0
    """Seconds that a session lives after it was last used."""
    unused_ttl: float = 300.0
    """The same, for a session that no peer has joined or left a message in."""
    messages: int = 200
    session_bytes: int = 8 * 1024 * 1024
    total_bytes: int = 512 * 1024 * 1024
    message_bytes: int = 3 * 1024 * 1024
    agents: int = 64
    wait: float = 25.0
    """Seconds that a poll may wait for news."""
    waiting: int = 64
    """Polls that may wait in one session."""
    reader_seconds: float = 60.0
    """The time for which a reader counts after its last poll."""
    announce_ttl: float = 30.0
    public_host: str | None = None
    """HOST[:PORT] for links, where it differs from the request's."""


class WriteResult(msgspec.Struct, frozen=True):
    seq: int
    id: str
    ms: int
    body: bytes


class Session:
    def __init__(self, owner: str) -> None:
        self.owner = owner  # the address that began it
        self.agents: dict[str, int] = {}
        self.log: deque[WriteResult] = deque()
        self.ids: dict[str, int] = {}
        self.size = 0
        self.seq = 0
        self.readers: dict[str, tuple[int, float]] = {}  # id → the reader's position, and the time of its last poll
        self.waiting: set[asyncio.Future[None]] = set()
        self.created = self.active = time.time()
        self.expires = 0.0  # monotonic

    def wake(self) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_result(None)


class Full(Exception):
    """Raised where the log is full of messages that a reader still needs."""


class Rate:
    """Counts the actions of each address in the last minute."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def over(self, address: str) -> bool:
        begun, count = self._windows.get(address, (0.0, 0))
        return count >= self._most and time.monotonic() - begun < _MINUTE

    def count(self, address: str) -> None:
        begun, count = self._windows.get(address, (0.0, 0))
        now = time.monotonic()
        if now - begun >= _MINUTE:
            begun, count = now, 0
        self._windows[address] = (begun, count + 1)
        self._windows.move_to_end(address)
        if len(self._windows) > _ADDRESSES:
            self._windows.popitem(last=False)


class Refused(Exception):
    def __init__(self, status: int, error: str, hint: str | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.hint = status, error, hint


def gone() -> Refused:
    """Returns the answer to every wrong token."""
    return Refused(403, "invalid_token", "Session not found or expired")


class Sessions:
    """All sessions, and the limits that protect them from each other, and the machine from them."""

    def __init__(self, settings: RelaySettings) -> None:
        self.settings = settings
        # By the hash of its token: the time of a lookup reveals nothing of other tokens.
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()  # the one used last is last
        self.size = 0
        self._owned: dict[str, int] = {}
        self._begun = Rate(settings.new_per_minute)
        self._wrong = Rate(settings.wrong_per_minute)

    def find(self, token: str, address: str) -> Session:
        """Returns the session of a token, and counts that as a use."""
        self.check(address)
        key = key_of(token)
        session = self.living(key)
        if session is None:
            self.wrong(address)
            raise gone()
        self.used(key, session)
        return session

    def check(self, address: str) -> None:
        """Raises Refused where an address has tried too many tokens."""
        if self._wrong.over(address):
            raise Refused(429, "too_many_wrong_tokens")

    def wrong(self, address: str) -> None:
        """Counts a wrong token."""
        self._wrong.count(address)

    def used(self, key: bytes, session: Session) -> None:
        known = self.settings.ttl if session.seq else self.settings.unused_ttl
        session.active = time.time()
        session.expires = time.monotonic() + known
        self._sessions.move_to_end(key)

    def living(self, wanted: bytes) -> Session | None:
        """Returns a session by its key. Removes expired sessions: this one, and a few of the oldest."""
        now = time.monotonic()
        for key in (wanted, *itertools.islice(self._sessions, 8)):
            session = self._sessions.get(key)
            if session is not None and session.expires < now and not session.waiting:
                self.end(key, session)
        return self._sessions.get(wanted)

    def end(self, key: bytes, session: Session) -> None:
        del self._sessions[key]
        self.size -= session.size
        left = self._owned.get(session.owner, 1) - 1
        if left:
            self._owned[session.owner] = left
        else:
            self._owned.pop(session.owner, None)
        session.wake()

    def begin(self, key: bytes, address: str) -> Session:
        if self._begun.over(address) or self._owned.get(address, 0) >= self.settings.sessions_per_address:
            raise Refused(429, "too_many_sessions")
        self._begun.count(address)
        while len(self._sessions) >= self.settings.sessions:
            self._make_room()
        session = self._sessions[key] = Session(address)
        self._owned[address] = self._owned.get(address, 0) + 1
        return session

    def _make_room(self) -> None:
        now = time.monotonic()
        for key, session in self._sessions.items():
            if not session.waiting and (session.expires < now or not session.seq):
                self.end(key, session)
                return
        raise Refused(503, "full")

    def append(self, session: Session, identity: str, message: dict[str, Any]) -> WriteResult:
        ms = int(time.time() * 1000)
        kept = WriteResult(
            session.seq + 1, identity, ms, _encode({**message, "id": identity, "seq": session.seq + 1, "ts": ms})
        )
        size = len(kept.body)
        settings = self.settings
        while session.log and (
            len(session.log) >= settings.messages or session.size + size > max(settings.session_bytes, size)
        ):
            self._forget(session)
        if self.size + size > settings.total_bytes:
            raise Full
        session.seq += 1
        session.log.append(kept)
        session.ids[identity] = kept.seq
        session.size += size
        self.size += size
        session.expires = time.monotonic() + settings.ttl
        session.wake()
        return kept

    def came(self, session: Session, reader: str, read: int) -> None:
        """Notes a reader, and its position."""
        if reader not in session.readers and len(session.readers) >= self.settings.agents:
            self._readers(session)
            if len(session.readers) >= self.settings.agents:
                return
        session.readers[reader] = (read, time.monotonic())

    def _readers(self, session: Session) -> list[int]:
        """Returns the positions of the active readers."""
        before = time.monotonic() - self.settings.reader_seconds
        session.readers = {reader: (read, came) for reader, (read, came) in session.readers.items() if came > before}
        return [read for read, _ in session.readers.values()]

    def _forget(self, session: Session) -> None:
        """Drops the oldest message, unless an active reader has not seen it."""
        oldest = session.log[0]
        if any(read < oldest.seq for read in self._readers(session)):
            raise Full
        session.log.popleft()
        session.ids.pop(oldest.id, None)
        session.size -= len(oldest.body)
        self.size -= len(oldest.body)


def after_of(session: Session, after: str | None, since: float) -> list[WriteResult]:
    """Returns the messages after a cursor. A message that is no longer in the log counts as before all others."""
    log = session.log
    if after is None:
        return [message for message in log if message.ms > since]
    seq = session.ids.get(after)
    if not log or seq == log[-1].seq:
        return []
    if seq is None:
        return list(log)
    return [log[place] for place in range(seq - log[0].seq + 1, len(log))]


def key_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

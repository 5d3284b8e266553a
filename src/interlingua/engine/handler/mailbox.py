"""The mailbox of a run: messages that were sent to it, and which of them its handler has taken."""

from __future__ import annotations

import asyncio

from ...model.content import Message
from ...model.events import MessageReceived, Recorded
from ...store.changes import Change, DropInbox
from ..log.received_messages import PASSED, MailKind
from ..log.run_log import encode
from .calls import Calls
from .run_data import RunData
from .waits import Waits


class Mailbox:
    __slots__ = ("_calls", "_data", "_passed_on", "_received", "_replay", "_taken", "_untaken", "_waiting", "_waits")

    def __init__(self, data: RunData, waits: Waits, calls: Calls) -> None:
        self._data = data
        self._replay = data.replay
        self._received = data.replay.received
        self._waits = waits
        self._calls = calls
        self._waiting: list[asyncio.Future[None]] | None = None
        self._taken: set[int] | None = None  # messages that the handler has had, by their number in the mailbox
        self._untaken = 0  # the first message that the handler has not had
        self._passed_on: set[str] | None = None  # messages that were passed on to this run; None: not looked yet

    def resume(self) -> None:
        """Reserve the messages that some call has taken: they are for no other one."""
        for key, (_, record) in self._replay.records.items():
            if key.endswith(":taken"):
                self._take(int(record.value))

    def _take(self, number: int) -> None:
        if self._taken is None:
            self._taken = set()
        self._taken.add(number)
        while self._untaken in self._taken:
            self._untaken += 1

    @property
    def has_mail(self) -> bool:
        """True while there are messages that the handler has not taken."""
        return self._untaken < len(self._received)

    # -- what comes from the inbox ------------------------------------------------------------------------

    def take_message(self, message: Message, drop: DropInbox, kind: MailKind) -> None:
        """A message for this run. What somebody outside says is told to the team here, for they have no log."""
        log, changes = self._data.log, list[Change]()
        if kind == "passed" and not self._is_new(message):
            log.touch(drop)
            return
        if kind != "passed":
            message.metadata.pop(PASSED, None)  # only we say so
        if self._data.team is not None:
            changes = self._data.team.received(message, kind)
        body = MessageReceived(message)
        encoded = encode(body)
        seq = log.append(body, drop, *changes, encoded=encoded)
        if not seq:
            return  # the run is over, or the store refused its log
        self._received.add(message, seq, len(encoded))
        for future in self._waiting or ():
            if not future.done():
                future.set_result(None)

    def _is_new(self, message: Message) -> bool:
        """Tells whether a message that was passed on comes for the first time: after a crash it is passed on again."""
        mark = message.metadata.get(PASSED)
        if self._passed_on is None:
            self._passed_on = self._received.passed_on()
        new = str(mark) not in self._passed_on
        self._passed_on.add(str(mark))
        return new

    # -- what the handler takes ---------------------------------------------------------------------------

    async def receive(self, timeout: float | None, sender: str | None = None) -> Message:
        """The next message for the handler."""
        waits = self._waits
        waits.check_open()
        place = self._calls.place("receive", sender or "", None)
        number = self.taken_before(place)
        if number is not None:
            await waits.turn(self._replay.records[f"{place}:taken"][0])
        else:
            number = await self.next(timeout, sender, place)
            if (seq := self._received[number].seq) <= self._replay.last_seq:
                await waits.turn(seq)
            if waits.branches.here() is not waits.branches.root:  # else the order of the messages says it
                self.record_taken(place, number)
        return await self.read(number)

    async def read(self, number: int) -> Message:
        """The message with this number: from memory, or from the store."""
        message = self._received.take(number)
        if message is not None:
            return message
        seq = self._received[number].seq
        try:
            with self._waits.busy():
                await self._data.log.flush()
                body = await self._calls.body_at(seq)
        except BaseException:
            self.put_back(number)
            raise
        assert isinstance(body, MessageReceived)
        return body.message

    def taken_before(self, place: str) -> int | None:
        """The message that this call took, where the history says it."""
        past = self._replay.records.get(f"{place}:taken")
        if past is None:
            return None
        self._calls.passed(past[0])
        return int(past[1].value)

    def record_taken(self, place: str, number: int) -> None:
        self._calls.add(Recorded(f"{place}:taken", number))

    async def next(self, timeout: float | None = None, sender: str | None = None, place: str = "") -> int:
        """Take the next message, and return its number. `place`: of the call that has a timeout."""
        waits, calls = self._waits, self._calls
        waits.check_open()
        deadline, late = None, f"{place}:late"
        if timeout is not None:
            deadline = calls.deadline_at(place, timeout)
            if late in self._replay.records:  # what has come since then is for whoever waited later
                await waits.turn(self._replay.records[late][0])
                calls.passed(self._replay.records[late][0])
                raise TimeoutError
        while True:
            if (number := self._next_of(sender)) is not None:
                self._take(number)
                return number
            future: asyncio.Future[None] = waits.loop.create_future()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(future)
            try:
                await waits.wait(future, deadline)
            except TimeoutError:
                waits.check_open()
                calls.add(Recorded(late))
                raise
            finally:
                self._waiting.remove(future)

    def _next_of(self, sender: str | None) -> int | None:
        for number in range(self._untaken, len(self._received)):
            if number not in (self._taken or ()) and sender in (None, self._received[number].sender):
                return number
        return None

    def put_back(self, number: int) -> None:
        """A message that was taken is for somebody else."""
        if self._taken is not None:
            self._taken.discard(number)
        self._untaken = min(self._untaken, number)

"""Reminders of unanswered questions: in the program's log, and at the run's callback.

The times are stored with the question. A server claims due reminders, and the callback is a row of the same
transaction: so none is lost over restarts, and none is sent twice by several processes. A reminder does not wake the
run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from ...model.errors import InterlinguaError
from ...runtime.job_group import JobGroup
from ...store.ports import Store
from ...store.rows import Reminder

if TYPE_CHECKING:
    from .callbacks import Callbacks

log = logging.getLogger("interlingua.engine")

_AT_ONCE = 100
_LOOK_ANYWAY = 5.0  # seconds: other processes ask too
_AFTER_TROUBLE = 1.0


class Reminders:
    def __init__(self, store: Store, callbacks: Callbacks) -> None:
        self._store = store
        self._callbacks = callbacks
        self.serves = False  # set by the app: of several processes on a store, those remind that serve
        self.sent = 0
        self._wake = asyncio.Event()
        self._jobs = JobGroup("reminders")

    def start(self) -> None:
        if self.serves and not self._jobs:
            self._jobs.spawn(self._loop())

    async def stop(self) -> None:
        await self._jobs.close()

    def hint(self) -> None:
        """Wakes the loop after a new question, whose reminder may be due sooner."""
        self._wake.set()

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause = await self._remind()
            except InterlinguaError as error:
                log.error("could not remind of questions: %s", error)
                pause = _AFTER_TROUBLE
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _remind(self) -> float:
        """Sends due reminders, and returns the seconds until the next one."""
        due = await self._store.questions.next_reminder()  # a read: most of the time there is nothing to claim
        if due is None:
            return _LOOK_ANYWAY
        time = self._store.clock.now()
        if due > time:
            return min(_LOOK_ANYWAY, (due - time) / 1e6 + 0.001)
        for reminder in await self._store.questions.claim_reminders(time, _AT_ONCE, list(self._callbacks.formats)):
            self._tell(reminder)
        self._callbacks.hint()
        return 0.0

    def _tell(self, reminder: Reminder) -> None:
        """Nothing of what is asked stands in the log: it may be nobody's business who reads that."""
        self.sent += 1
        question = reminder.record.question
        fields = {
            "question": question.id, "run": question.run, "root": reminder.record.runs[0], "agent": reminder.agent,
            "type": question.type, "reminder": reminder.number, "of": reminder.of,
        }  # fmt: skip
        log.warning(
            "question %s of %s has waited for an answer for %s (reminder %d of %d)", question.id, reminder.agent,
            _span(self._store.clock.now() - question.asked_at), reminder.number, reminder.of, extra={"fields": fields},
        )  # fmt: skip


def _span(microseconds: int) -> str:
    seconds = max(0, microseconds) // 1_000_000
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"

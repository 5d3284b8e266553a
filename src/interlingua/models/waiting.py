"""The waits of a model: for delegated tasks, verdicts on its proposals, replies of others, and mail.

A wait ends when a message for the agent comes: its sender may be waiting for an answer, and the awaited work may depend
on that. The end of each wait is recorded, and so are the messages that the model was shown: on replay the agent goes
the same way, whatever has arrived since. While the model thinks, nothing waits in the background, except proposals,
which keep their inquiries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from ..engine.handler.context import Context
from ..engine.handler.handler_run import OnInquiry
from ..model.content import Message, Part
from ..model.events import Said
from ..model.team.oversight import ReviewVerdict

Start = Callable[[], Coroutine[Any, Any, Any]]

_A_MOMENT = 0.02  # seconds between looks whether a task has begun
_LOOKS = 100


class Heard(msgspec.Struct, omit_defaults=True):
    """The end of a wait: the awaited event, an inquiry, or a message, also one from the awaited sender."""

    ended: bool = False
    inquiry: bool = False
    message: int | None = None  # its place in the mailbox
    task: str = ""
    who: str = ""

    @property
    def is_news(self) -> bool:
        """Tells if the wait ended with news of the awaited work."""
        return self.ended or self.inquiry


class Wakefulness:
    """Decides if a run may be parked: only while all of its active calls wait for others.

    The engine takes a run for idle when any part of it waits. Here one part may wait (for a verdict, or in another call
    of the same turn) while the model thinks, or while another part has just been woken and comes to its next step only
    some turns of the event loop later. So this class reports to the engine when the run is busy.
    """

    def __init__(self, ctx: Context[Any, Any]) -> None:
        self._run = ctx._run
        self._awake = 0  # calls that do something
        self._asleep = 0  # calls that wait
        self._busy: AbstractContextManager[None] | None = None
        self._tell(busy=True)

    def _tell(self, *, busy: bool) -> None:
        if busy and self._busy is None:
            self._busy = self._run.waits.busy()
            self._busy.__enter__()
        elif not busy and self._busy is not None:
            told, self._busy = self._busy, None
            told.__exit__(None, None, None)

    def _count(self, awake: int, asleep: int) -> None:
        self._awake += awake
        self._asleep += asleep
        self._tell(busy=self._awake > 0 or self._asleep == 0)

    def begin_call(self) -> None:
        self._count(1, 0)

    def end_call(self) -> None:
        self._count(-1, 0)

    def sleep(self) -> Callable[[], None]:
        """Marks this call as waiting, until the returned function is called for the first time."""
        slept = True
        self._count(-1, 1)

        def wake() -> None:
            nonlocal slept
            if slept:
                slept = False
                self._count(1, -1)

        return wake

    def close(self) -> None:
        self._tell(busy=False)


class Mailbox:
    """The messages for a run, in the order of their arrival, and which of them the model was shown."""

    def __init__(self, ctx: Context[Any, Any]) -> None:
        self._ctx = ctx
        self._came: list[Message] = []
        self._shown: set[int] = set()
        self._reading: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []

    def unseen(self) -> list[int]:
        return [place for place in range(len(self._came)) if place not in self._shown]

    def sender(self, place: int) -> str | None:
        return self._came[place].sender

    async def look(self) -> None:
        """Takes in the messages that are there, without waiting. Only within a step: replay does not find the same
        again."""
        run = self._ctx._run
        await run.pull_inbox()
        while len(self._came) < len(run.data.replay.received):
            self._came.append(await self._take())

    async def _take(self) -> Message:
        """Takes the next message. This is not recorded, because the messages that the model was shown are."""
        mailbox = self._ctx._run.mailbox
        return await mailbox.read(await mailbox.next())

    async def show(self, place: int) -> Message:
        """Returns a message that the model is shown now, or was shown the last time."""
        while len(self._came) <= place:
            self._came.append(await self._take())
        self._shown.add(place)
        return self._came[place]

    def listen(self, told: Callable[[], None]) -> None:
        """Calls `told` in the moment when an unseen message comes. One reader serves all listeners."""
        if self.unseen():
            told()
            return
        self._listeners.append(told)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())

    def leave(self, told: Callable[[], None]) -> None:
        if told in self._listeners:
            self._listeners.remove(told)
        if not self._listeners and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read(self) -> None:
        try:
            self._came.append(await self._take())
        finally:
            if self._reading is asyncio.current_task():
                self._reading = None
                listeners, self._listeners = self._listeners, []
                for told in listeners:
                    told()


class Waiting:
    """The waits of one run."""

    def __init__(self, ctx: Context[Any, Any], mailbox: Mailbox, wakefulness: Wakefulness) -> None:
        self._ctx = ctx
        self.mailbox = mailbox
        self._wakefulness = wakefulness
        self.interrupted = False  # a message came: the other calls of this turn do not wait any longer

    def _notices(self, key: str) -> list[Said]:
        """Returns the notices of a delegation: each attempt has one, with the name and the agent of its task."""
        said = self._ctx._run.data.replay.said.items()
        return [body for place, (_, body) in said if place.startswith(f"call:{key}:") and place.endswith(":notice")]

    def notice(self, key: str) -> Said | None:
        """Returns the notice of a delegation's last attempt."""
        return next(reversed(self._notices(key)), None)

    def names(self, key: str) -> set[str]:
        """Returns the names that a delegation may have: its key, its task, or its agent."""
        return {key, *(name for notice in self._notices(key) for name in (notice.task, notice.recipient))}

    async def task(self, key: str, of: str, start: Start) -> tuple[Heard, Any]:
        """Waits for the delegation with the key `of`, and returns its end. `key` is the key of the wait.

        The delegation goes on by itself when a message ends the wait; the next wait finds it again by its key.
        """
        return await self._wait(key, start, of=of)

    async def message(self, key: str, sender: str, patience: float) -> Heard:
        """Waits for a message of a participant, for as long as `patience` lasts."""

        async def sleep() -> None:
            await self._ctx.sleep(patience, key=f"{key}:patience")

        heard, _ = await self._wait(key, sleep, sender=sender)
        return heard

    async def _wait(self, key: str, start: Start, *, of: str | None = None, sender: str = "") -> tuple[Heard, Any]:
        past = await self._past(key)
        if past is not None:
            return past, await start() if past.ended else None
        work = Work(start)
        try:
            if of is not None:
                await self._begin(work, of)
            await self._listen(work)
            await work.stop()
            heard = await self._record(key, work, of=of, sender=sender)
            return heard, await work.task if heard.ended else None
        finally:
            await work.stop()

    async def proposal(self, key: str, of: str, proposal: Proposal) -> Heard:
        """Waits for a verdict, or for an inquiry. The proposal goes on when a message ends the wait."""
        await self._begin(proposal, of)
        past = await self._past(key, proposal)
        if past is None:
            await self._listen(proposal)
            past = await self._record(key, proposal, of=of)
        return past

    async def _begin(self, work: Work, of: str) -> None:
        """Waits for a delegation to begin: a run that was parked before the other run exists would never be woken.

        The delegation may never begin: its last attempt may have failed while a question about it is open or a retry is
        due.
        """
        run = self._ctx._run
        await asyncio.sleep(0)  # the events of a proposal come before all that follow
        for _ in range(_LOOKS):
            known = [one for place, one in run.data.replay.children.items() if f"{place}:".startswith(f"call:{of}:")]
            if known and known[-1][1] is None and await run.engine.runs.exists(known[-1][0].run):
                return
            if work.has_news:
                return
            await asyncio.wait([work.task], timeout=_A_MOMENT)

    async def _listen(self, work: Work) -> None:
        """Waits for news of the work, or for a message."""
        if work.has_news or self.interrupted:
            return
        woken = asyncio.Event()
        wake = self._wakefulness.sleep()

        def news() -> None:
            wake()
            woken.set()

        work.on_news = news
        self.mailbox.listen(news)
        try:
            await woken.wait()
        finally:
            wake()
            work.on_news = _ignore
            self.mailbox.leave(news)

    async def _past(self, key: str, proposal: Proposal | None = None) -> Heard | None:
        """Returns the recorded end of this wait. A proposal comes to its end by itself, before that."""
        place = f"{key}:heard"
        known = self._ctx._run.data.replay.records.get(f"step:{place}")
        if known is None:
            return None
        if proposal is not None and msgspec.convert(known[1].value, Heard).is_news:
            await proposal.until_news()
        heard = await self._ctx.step("heard", _nothing, key=place)
        if heard.message is not None:
            await self.mailbox.show(heard.message)
        return heard

    async def _record(self, key: str, work: Work, *, of: str | None = None, sender: str = "") -> Heard:
        notice = self.notice(of) if of is not None else None
        task, who = ("", sender) if notice is None else (notice.task, notice.recipient)

        async def heard() -> Heard:
            if work.task.done() and not work.task.cancelled():
                return Heard(ended=True, task=task, who=who)
            if work.has_news and not work.task.done():
                return Heard(inquiry=True, task=task, who=who)
            found = (place for place in self.mailbox.unseen() if self.mailbox.sender(place) == who)
            return Heard(message=next(found, None), task=task, who=who)

        given = await self._ctx.step("heard", heard, key=f"{key}:heard")
        if given.message is not None:
            await self.mailbox.show(given.message)
        self.interrupted = self.interrupted or not given.is_news
        return given


class Work:
    """Work that a model waits for. `on_news` is called in the moment when it is done."""

    def __init__(self, start: Start) -> None:
        self.on_news: Callable[[], None] = _ignore
        self.task = asyncio.create_task(self._run(start))

    async def _run(self, start: Start) -> Any:
        try:
            return await start()
        finally:
            self.on_news()

    @property
    def has_news(self) -> bool:
        return self.task.done()

    async def stop(self) -> None:
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.exception()  # it was looked at


class Proposal(Work):
    """A result that was proposed to the overseer: its review goes on over several turns of the model."""

    def __init__(self, propose: Callable[[OnInquiry], Coroutine[Any, Any, Any]], output: str) -> None:
        super().__init__(lambda: propose(self._ask))
        self.output = output
        self.inquired = asyncio.Event()
        self.inquiry = ""
        self.attached: list[Part] = []  # the attachments of its inquiry
        self._reply: asyncio.Future[str] | None = None

    @property
    def has_news(self) -> bool:
        return self.task.done() or self.inquired.is_set()

    async def _ask(self, verdict: ReviewVerdict) -> str:
        self.inquiry, self.attached = verdict.text, verdict.attachments
        self._reply = asyncio.get_running_loop().create_future()
        self.inquired.set()
        self.on_news()
        return await self._reply

    async def until_news(self) -> None:
        while not self.has_news:
            woken = asyncio.Event()
            self.on_news = woken.set
            await woken.wait()
            await asyncio.sleep(0)  # it is called before the task counts as done

    def answer(self, reply: str) -> bool:
        """Answers the overseer's inquiry. Returns False where there is none."""
        if self._reply is None or self._reply.done():
            return False
        self.inquired.clear()
        self._reply.set_result(reply)
        return True


async def _nothing() -> Heard:
    return Heard()


def _ignore() -> None:
    pass

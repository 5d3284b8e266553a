"""What others want of a run (answers, messages, cancels, news of children), moved into its log by its owner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from ...model.content import Message
from ...model.errors import ErrorInfo
from ...model.events import (
    Body,
    CancelRequested,
    ChildEnded,
    DelegationRefused,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    Said,
    Warned,
    body_decoder,
)
from ...model.run import Answer, Question
from ...model.status import Status
from ...store.changes import Change, DropInbox, PutInbox
from ...store.rows import PAGE_ITEMS, InboxItem, is_last_page
from ..log.replay import LATE
from ..log.run_log import encode

if TYPE_CHECKING:
    from ..log.replay import Replay
    from ..log.run_log import LiveLog
    from .worker import Worker


class _Answer(msgspec.Struct):
    question: str
    answer: Answer


class _Cancel(msgspec.Struct):
    by: str = ""
    reason: str = ""
    rollback: bool = False


class _Ended(msgspec.Struct):
    run: str
    status: Status
    head: str
    output: Any = None
    error: ErrorInfo | None = None


_answers = msgspec.json.Decoder(_Answer)
_cancels = msgspec.json.Decoder(_Cancel)
_endings = msgspec.json.Decoder(_Ended)
_messages = msgspec.json.Decoder(Message)


class Inbox:
    """The part of an Execution that reads its inbox, and what the handler waits for from there."""

    worker: Worker
    log: LiveLog
    replay: Replay
    loop: asyncio.AbstractEventLoop
    over: bool
    cancelling: bool
    rollback: bool
    news = 0  # how often something came in that the handler may wait for
    leaving: Any = None
    _entered: bool
    _pulling: asyncio.Task[None] | None = None
    _pull_again = False

    def __init__(self) -> None:
        self.open_questions: dict[str, Question] = {}
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._children: dict[str, asyncio.Future[ChildEnded]] = {}  # by run
        self._child_keys: dict[str, str] = {}
        self._mail: list[asyncio.Future[None]] = []
        self._seen: set[int] = set()  # items that are in the log, or on their way there

    if TYPE_CHECKING:

        def leave(self, how: Any) -> None: ...
        def relay(self, body: Body) -> list[Change]: ...
        def take_message(self, message: Message, drop: DropInbox, kind: str) -> None: ...

    async def _pull(self) -> None:
        """Move what others want of this run into its log.

        The work is a task of the worker's, so that a handler which gives up waiting for it does not stop it.
        """
        await asyncio.shield(self.pull_soon())

    def pull_soon(self) -> asyncio.Task[None]:
        if self._pulling is None or self._pulling.done():
            self._pulling = self.worker.spawn(self._pull_all())
        else:
            self._pull_again = True
        return self._pulling

    def take(self, item: InboxItem) -> bool:
        """Move something into the log that was just put into the inbox. False: look there.

        Nothing overtakes what came before it: where the inbox is being read, this is read with the rest.
        """
        if (
            not self._entered
            or self.leaving == "full"
            or self.log.heavy
            or (self._pulling is not None and not self._pulling.done())
        ):
            return False
        if item.id not in self._seen:
            self._seen.add(item.id)
            try:
                self._take_in(item)
            except Exception:
                self._seen.discard(item.id)
                return False
        return True

    async def _pull_all(self) -> None:
        while True:
            self._pull_again = False
            after, last = 0, False
            while not last:
                items = await self.worker.store.runs.inbox(self.log.row.id, after)
                last = is_last_page([len(item.body) for item in items], PAGE_ITEMS)
                for item in items:
                    after = item.id
                    if item.id in self._seen or self.over or self.leaving == "full":
                        continue
                    self._seen.add(item.id)
                    try:
                        self._take_in(item)
                    except Exception:
                        self._seen.discard(item.id)  # the next look tries again
                        raise
                if self.log.heavy:
                    await self.log.flush()
            if not self._pull_again:
                return

    async def pull(self) -> None:
        if not self.over:
            await self._pull()

    def _take_in(self, item: InboxItem) -> None:
        drop = DropInbox([item.id])
        if item.kind != "relay":
            self.news += 1
        match item.kind:
            case "answer":
                self._take_answer(_answers.decode(item.body), drop)
            case "message" | "told" | "passed":
                self.take_message(_messages.decode(item.body), drop, item.kind)
            case "cancel":
                cancel = _cancels.decode(item.body)
                self.rollback = self.rollback or cancel.rollback
                self.log.append(CancelRequested(cancel.by, cancel.reason, cancel.rollback), drop)
                self.cancelling = True
                self.leave("cancel")
            case "child_ended":
                self._take_ending(_endings.decode(item.body), drop)
            case "relay":
                self._take_relay(body_decoder.decode(item.body), drop)

    def _take_answer(self, given: _Answer, drop: DropInbox) -> None:
        question = self.open_questions.pop(given.question, None)
        if question is None:
            # It was withdrawn while the answer was on its way: that is on record, and does not count.
            by = f" (by {given.answer.by})" if given.answer.by else ""
            said = f"the answer given here{by} came too late: the question had been withdrawn before"
            self.log.append(Warned(said, {"question": given.question}, f"{LATE}{given.question}"), drop)
            return
        still_open = bool(self.open_questions or self.replay.relayed)
        body = QuestionAnswered(given.question, given.answer, still_open)
        self.log.append(body, drop, *self.relay(body))
        past = self.replay.questions.get(question.key)
        if past is not None and past.question.id == question.id:
            past.open, past.answer = False, given.answer
        future = self._answers.setdefault(given.question, self.loop.create_future())
        if not future.done():
            future.set_result(given.answer)

    def _take_ending(self, news: _Ended, drop: DropInbox) -> None:
        key = self._child_keys.pop(news.run, None)
        if key is None:
            self.log.touch(drop)
            return
        ended = ChildEnded(key, news.run, news.status, news.head, news.output, news.error)
        self.log.append(ended, drop)
        if key in self.replay.children:
            called, _, seq = self.replay.children[key]
            self.replay.children[key] = (called, ended, seq)
        future = self._children.setdefault(news.run, self.loop.create_future())
        if not future.done():
            future.set_result(ended)

    def _take_relay(self, body: Body, drop: DropInbox) -> None:
        relayed = self.replay.relayed
        if isinstance(body, Said | DelegationRefused):
            self.log.append(body, drop)
            return
        if isinstance(body, Warned):  # of a run below that is blocked
            parent = self.log.row.parent
            self.log.append(body, drop, *([PutInbox(parent, "relay", encode(body))] if parent is not None else []))
            return
        if isinstance(body, QuestionAsked):
            relayed[body.question.id] = body.run or ""
            if self.cancelling:
                self.log.touch(drop)
                return
        elif isinstance(body, QuestionAnswered | QuestionWithdrawn):
            if relayed.pop(body.question, None) is None:
                self.log.touch(drop)
                return
            body.still_open = bool(self.open_questions or relayed)
        self.log.append(body, drop, *self.relay(body))

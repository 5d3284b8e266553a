"""The inbox of a run: answers, messages, cancels and news of children, moved into its log by its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ...model.content import Message
from ...model.errors import ErrorInfo
from ...model.events import (
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
from ...model.run import Answer
from ...model.status import Status
from ...store.changes import DropInbox, PutInbox
from ...store.rows import PAGE_ITEMS, InboxItem, is_last_page
from ..handler.child_runs import ChildRuns
from ..handler.mailbox import Mailbox
from ..handler.questions import Questions
from ..handler.run_data import RunData
from ..handler.waits import Waits
from ..log.received_messages import MailKind
from ..log.run_log import encode


class _Answer(msgspec.Struct):
    question: str
    answer: Answer


class _Withdrawal(msgspec.Struct):
    question: str
    reason: str
    by: str


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
_withdrawals = msgspec.json.Decoder(_Withdrawal)
_cancels = msgspec.json.Decoder(_Cancel)
_endings = msgspec.json.Decoder(_Ended)
_messages = msgspec.json.Decoder(Message)


class Inbox:
    """Moves what is put into the inbox of a run into its log, and hands it to the part of the run that it is for."""

    __slots__ = ("_children", "_data", "_mailbox", "_pull_again", "_pulling", "_questions", "_seen", "_waits", "news")

    def __init__(
        self, data: RunData, waits: Waits, questions: Questions, mailbox: Mailbox, children: ChildRuns
    ) -> None:
        self._data = data
        self._waits = waits
        self._questions = questions
        self._mailbox = mailbox
        self._children = children
        self._seen: set[int] | None = None  # items that are in the log, or on their way there
        self._pulling: asyncio.Task[None] | None = None
        self._pull_again = False
        self.news = 0  # how often something came in that the handler may wait for

    async def pull(self) -> None:
        """Move all of it into the log.

        The work is a task of the worker's, so that a handler which gives up waiting for it does not stop it.
        """
        await asyncio.shield(self.pull_soon())

    def pull_soon(self) -> asyncio.Task[None]:
        if self._pulling is None or self._pulling.done():
            self._pulling = self._data.host.spawn(self._pull_all())
        else:
            self._pull_again = True
        return self._pulling

    def take(self, item: InboxItem) -> bool:
        """Move something into the log that was just put into the inbox. False: look there.

        Nothing overtakes what came before it: where the inbox is being read, this is read with the rest.
        """
        if (
            not self._waits.entered
            or self._waits.leaving == "full"
            or self._data.log.heavy
            or (self._pulling is not None and not self._pulling.done())
        ):
            return False
        try:
            self.take_in(item)
        except Exception:
            return False
        return True

    def take_in(self, item: InboxItem) -> None:
        """Move one item into the log, once."""
        if self._seen is None:
            self._seen = set()
        if item.id in self._seen:
            return
        self._seen.add(item.id)
        try:
            if item.kind != "relay":
                self.news += 1
            if (take := _KINDS.get(item.kind)) is not None:
                take(self, item, DropInbox([item.id]))
        except Exception:
            self._seen.discard(item.id)  # the next look tries again
            raise

    async def _pull_all(self) -> None:
        log, waits = self._data.log, self._waits
        while True:
            self._pull_again = False
            after, last = 0, False
            while not last:
                items = await self._data.host.store.runs.inbox(self._data.row.id, after)
                last = is_last_page([len(item.body) for item in items], PAGE_ITEMS)
                for item in items:
                    after = item.id
                    if not waits.over and waits.leaving != "full":
                        self.take_in(item)
                if log.heavy:
                    await log.flush()
            if not self._pull_again:
                return

    # -- by kind ------------------------------------------------------------------------------------------

    def _take_answer(self, item: InboxItem, drop: DropInbox) -> None:
        answer = _answers.decode(item.body)
        self._questions.take_answer(answer.question, answer.answer, drop)

    def _take_withdrawal(self, item: InboxItem, drop: DropInbox) -> None:
        withdrawal = _withdrawals.decode(item.body)
        self._questions.take_withdrawal(withdrawal.question, withdrawal.reason, withdrawal.by, drop)

    def _take_message(self, item: InboxItem, drop: DropInbox) -> None:
        kind: MailKind = "told" if item.kind == "told" else "passed" if item.kind == "passed" else "message"
        self._mailbox.take_message(_messages.decode(item.body), drop, kind)

    def _take_cancel(self, item: InboxItem, drop: DropInbox) -> None:
        cancel, data = _cancels.decode(item.body), self._data
        data.rollback = data.rollback or cancel.rollback
        data.log.append(CancelRequested(cancel.by, cancel.reason, cancel.rollback), drop)
        data.cancelling = True
        self._waits.leave("cancel")

    def _take_ending(self, item: InboxItem, drop: DropInbox) -> None:
        news = _endings.decode(item.body)
        self._children.take_ending(ChildEnded("", news.run, news.status, news.head, news.output, news.error), drop)

    def _take_relay(self, item: InboxItem, drop: DropInbox) -> None:
        body, log = body_decoder.decode(item.body), self._data.log
        if isinstance(body, QuestionAsked | QuestionAnswered | QuestionWithdrawn):
            self._questions.take_relayed(body, drop)
        elif isinstance(body, Warned):  # of a run below that is blocked
            parent = self._data.row.parent
            log.append(body, drop, *([PutInbox(parent, "relay", encode(body))] if parent is not None else []))
        elif isinstance(body, Said | DelegationRefused):
            log.append(body, drop)
        else:
            log.append(body, drop, *self._questions.relay(body))


_KINDS: dict[str, Callable[[Inbox, InboxItem, DropInbox], None]] = {
    "answer": Inbox._take_answer,
    "withdraw": Inbox._take_withdrawal,
    "message": Inbox._take_message,
    "told": Inbox._take_message,
    "passed": Inbox._take_message,
    "cancel": Inbox._take_cancel,
    "child_ended": Inbox._take_ending,
    "relay": Inbox._take_relay,
}

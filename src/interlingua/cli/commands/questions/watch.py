"""`interlingua questions watch`: questions as they are asked, answered, withdrawn, expired and reminded of.

Follows the store, so the process that writes to it does not matter: no change between two looks is left out.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from rich.text import Text

from ....model.filters import QuestionFilter
from ....model.run import QuestionRecord
from ....terminal import inbox, times
from ....terminal.console import as_json, clean, console, note
from ....terminal.errors import ExitCode
from ....terminal.keyboard import Interrupts
from ....terminal.short_ids import short

if TYPE_CHECKING:
    from ....engine.reading import AnyEngine
    from ....model.run import Caller

News = Literal["open", "asked", "reminded", "answered", "withdrawn", "expired"]

_PAGE = 1000
_STYLES = {"answered": "green", "withdrawn": "dim", "expired": "red", "reminded": "yellow"}


async def watch(engine: AnyEngine, where: QuestionFilter, caller: Caller | None, *, json: bool) -> ExitCode:
    """Prints the news of questions until Ctrl-C."""
    async with Interrupts() as interrupts:
        watching = asyncio.ensure_future(Watch(engine, where, caller, json).run())
        stop = asyncio.ensure_future(interrupts.pressed.wait())
        await asyncio.wait({watching, stop}, return_when=asyncio.FIRST_COMPLETED)
        for task in (watching, stop):
            task.cancel()
        await asyncio.gather(watching, stop, return_exceptions=True)
        if not watching.cancelled():
            watching.result()
    return ExitCode.CANCELLED


class Watch:
    def __init__(self, engine: AnyEngine, where: QuestionFilter, caller: Caller | None, json: bool) -> None:
        self._engine = engine
        self._where = where
        self._caller = caller
        self._json = json
        self._known: dict[str, int] = {}  # open questions, and the number of reminders sent for each

    async def run(self) -> None:
        cursor = await self._engine.questions.last_change()
        for record in await self._records(state="open", after=None):
            await self._tell("open", record)
            self._known[record.question.id] = record.reminded
        if not self._known and not self._json:
            note("Nothing waits for an answer. Ctrl-C ends the watch.")
        while True:
            hint = self._engine.runs.next_hint("questions")
            try:
                for record in await self._records(state=None, after=cursor):
                    cursor = record.change
                    await self._changed(record)
                await hint
            finally:
                hint.cancel()

    async def _records(self, *, state: str | None, after: int | None) -> list[QuestionRecord]:
        where = msgspec.structs.replace(self._where, state=state, after=after, limit=_PAGE)
        return await self._engine.questions.search(where)

    async def _changed(self, record: QuestionRecord) -> None:
        id_ = record.question.id
        if id_ not in self._known:
            # Questions that were open before, and that the caller may not see, are unknown here: their end stays out.
            await self._tell("asked", record)
            self._known[id_] = 0
        if record.reminded > self._known[id_]:
            self._known[id_] = record.reminded
            await self._tell("reminded", record)
        if record.state != "open":
            del self._known[id_]
            await self._tell(record.state, record)

    async def _tell(self, news: News, record: QuestionRecord) -> None:
        (entry,) = await inbox.entries(self._engine, [record])
        if self._caller is not None and not inbox.is_for(entry, self._caller):
            return
        if self._json:
            told: dict[str, Any] = {"event": news, "time": times.iso(_when(news, record)), **inbox.plain(entry)}
            sys.stdout.write(as_json(told, pretty=False) + "\n")
        else:
            console().print(line(news, entry), soft_wrap=True)
        sys.stdout.flush()


def _when(news: News, record: QuestionRecord) -> int:
    """Returns the time at which the news happened."""
    times = {"open": None, "asked": None, "reminded": record.reminded_at}
    return times.get(news, record.closed_at) or record.question.asked_at


def line(news: News, entry: inbox.Entry) -> Text:
    record = entry.record
    question, answer = record.question, record.answer
    head = Text.assemble(
        (f"{times.iso(_when(news, record))[11:19]} ", "dim"), (f"{short(question.id)} ", "cyan"),
        (f"{news:<9} ", _STYLES.get(news, "bold magenta")),
    )  # fmt: skip
    match news:
        case "answered" if answer is not None:
            through = f" through {answer.door}" if answer.door else ""
            head.append(
                clean(f"by {entry.name(answer.by) or 'somebody'}{through}: {as_json(answer.value, pretty=False)}")
            )
        case "withdrawn" | "expired":
            head.append(clean(record.reason or "nobody answered in time"))
        case "reminded":
            head.append(f"{record.reminded} of {record.reminders}; it has waited since ")
            head.append(times.ago(question.asked_at, time.time_ns() // 1000))
        case _:
            head.append(clean(f"{entry.way}: {question.prompt or question.type}"))
            if question.deadline is not None:
                head.append(f"  ({times.until(question.deadline, time.time_ns() // 1000)})", "yellow")
    return head

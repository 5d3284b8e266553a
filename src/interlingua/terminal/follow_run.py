"""Follows a run to its end: shows what happens, asks its questions, and passes on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..model.delta import ABSENT, Joiner
from ..model.errors import AlreadyAnswered, Conflict, InvalidAnswer, NotFound
from ..model.events import (
    OutputDelta,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    RunBlocked,
    RunFinished,
    RunRestarted,
)
from ..model.run import OWNER, Question
from .ask import Asker
from .errors import OF_STATUS, ExitCode
from .events.views import View
from .keyboard import Interrupts
from .short_ids import short
from .typed_answers import example_of

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..engine.reading import AnyEngine

_PAGE = 1000
_RETRY = "interlingua runs retry"

T = TypeVar("T")


class Watch:
    """Follows a run and shows it on a view, until the run ends or the watch does.

    asker: answers questions; None: questions are not answered here.
    leave_waiting: without an asker, a question ends the watch, and the run waits.
    owned: Ctrl-C cancels the run, also one that came before the watch began; None: it only ends the watch.
    how: describes how to answer an open question later.

    A read-only engine is enough if there is no asker and the run is not owned.
    """

    def __init__(
        self, engine: AnyEngine, run: str, view: View, *, asker: Asker | None, leave_waiting: bool,
        owned: Interrupts | None, how: Callable[[Question], str] | None = None,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._how = how or how_to_answer
        self._run = run
        self._view = view
        self._asker = asker
        self._leave_waiting = leave_waiting
        self._owned = owned
        self._open: dict[str, Question] = {}  # asked, and not known to be closed; oldest first
        self._changed = asyncio.Event()
        self._asking: asyncio.Task[Any] | None = None
        self._asking_id = ""
        self._mine: set[str] = set()  # answered here
        self._cancelling = False

    @property
    def _acting(self) -> Engine:
        from ..engine.engine import Engine

        assert isinstance(self._engine, Engine), "it is open for reading"
        return self._engine

    async def follow(self, *, after: int = 0) -> ExitCode:
        """Returns how it ended, as an exit code."""
        if after:
            self._view.begin(await _output_at(self._engine, self._run, after))
        async with contextlib.nullcontext(self._owned) if self._owned is not None else Interrupts() as interrupts:
            jobs = [self._read(after), self._obey(interrupts)]
            if self._asker is not None:
                jobs.append(self._ask_all(self._asker))
            return await first(jobs)

    # -- the log ------------------------------------------------------------------------------------------

    async def _read(self, after: int) -> ExitCode:
        async with contextlib.aclosing(self._engine.runs.events(self._run, after=after)) as events:  # type: ignore[type-var]
            async for event in events:
                self._view.event(event)
                match event.body:
                    case QuestionAsked(question=question):
                        if await self._asked(question):
                            return ExitCode.WAITING
                    case QuestionAnswered(question=id_, answer=answer):
                        where = f"through {answer.door}" if answer.door else "elsewhere"
                        self._closed(id_, f"answered by {answer.by or 'somebody'} {where}")
                    case QuestionWithdrawn(question=id_, reason=reason):
                        self._closed(id_, f"the question is gone: {reason}")
                    case RunRestarted():
                        self._view.restarted(await _output_at(self._engine, self._run, event.seq))
                    case RunBlocked() if self._owned is not None and await self._is_blocked():
                        self._view.aside(f"it goes on with other code, or after: {_RETRY} {short(self._run)}")
                        return ExitCode.WAITING
                    case RunFinished(status=status):
                        return OF_STATUS[status]
        self._view.aside("the run was deleted")
        return ExitCode.NOT_FOUND

    async def _is_blocked(self) -> bool:
        return (await self._engine.runs.get(self._run, sealed=True)).blocked is not None

    async def _asked(self, question: Question) -> bool:
        """Takes a question of the run. Returns whether it ends the watch."""
        if self._cancelling or not await self._is_open(question):
            return False
        if self._asker is not None and question.answerer in (None, OWNER.id):
            self._open[question.id] = question
            self._changed.set()
            return False
        leave = self._leave_waiting and self._asker is None
        waiting = await self._engine.questions.open(run=self._run) if leave else [question]
        self._view.waits(waiting, "\n".join(dict.fromkeys(map(self._how, waiting))))
        return leave

    async def _is_open(self, question: Question) -> bool:
        try:
            return (await self._engine.questions.get(question.id)).state == "open"
        except NotFound:
            return False

    def _closed(self, id_: str, why: str) -> None:
        self._open.pop(id_, None)
        if id_ == self._asking_id and self._asking is not None and id_ not in self._mine:
            self._asking.cancel()
            self._view.aside(why)

    # -- asking -------------------------------------------------------------------------------------------

    async def _ask_all(self, asker: Asker) -> ExitCode:
        while True:
            question = next(iter(self._open.values()), None)
            if question is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            self._asking_id = question.id
            self._asking = asyncio.create_task(self._ask_one(asker, question))
            try:
                await asyncio.wait([self._asking])
            finally:
                self._asking.cancel()
            if not self._asking.cancelled() and isinstance(self._asking.exception(), EOFError):
                if self._owned is not None and self._owned.terminal_went_away():
                    self._open.clear()
                    continue  # until the run has ended
                self._view.waits([], self._how(question))
                return ExitCode.WAITING
            if not self._asking.cancelled():
                self._asking.result()
            self._open.pop(question.id, None)

    async def _ask_one(self, asker: Asker, question: Question) -> None:
        if not await self._is_open(question):
            return
        while True:
            self._view.make_room()
            answer = await asker.ask(question)
            self._mine.add(question.id)
            try:
                await self._acting.questions.answer(question.id, answer, door="cli")
            except InvalidAnswer as error:
                self._mine.discard(question.id)
                self._view.aside(error.message)
                continue
            except AlreadyAnswered as error:
                self._view.aside(f"somebody else was first: {error.message}")
            return

    # -- Ctrl-C -------------------------------------------------------------------------------------------

    async def _obey(self, interrupts: Interrupts) -> ExitCode:
        await interrupts.pressed.wait()
        if self._owned is None:
            self._view.aside("stopped following; the run goes on")
            return ExitCode.CANCELLED
        self._cancelling = True
        self._open.clear()
        if self._asking is not None:
            self._asking.cancel()
        with contextlib.suppress(Conflict, NotFound):  # it has just ended by itself
            await self._acting.runs.cancel(self._run, reason=interrupts.name)
        await asyncio.Event().wait()  # until the log says that it has ended
        raise AssertionError


async def first(jobs: Sequence[Coroutine[Any, Any, T]]) -> T:
    """The result of whichever is done first; the others are ended."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _output_at(engine: AnyEngine, run: str, seq: int) -> Any:
    """Returns the output as it stands at an event, without the parts that restarts made void."""
    deltas: list[tuple[int, Any]] = []
    after = 0
    while after < seq:
        page = await engine.runs.page(run, after, min(_PAGE, seq - after))
        if not page:
            break
        for event in page:
            if isinstance(event.body, OutputDelta):
                deltas.append((event.seq, event.body.delta))
            elif isinstance(event.body, RunRestarted):
                deltas = [(at, delta) for at, delta in deltas if at <= event.body.keep]
        after = page[-1].seq
    joined = Joiner()
    for _, delta in deltas:
        joined.add(delta)
    return {} if joined.value is ABSENT else joined.value


def how_to_answer(question: Question) -> str:
    if question.answerer not in (None, OWNER.id):
        return f"run {short(question.run)} waits for {question.answerer}"
    example = example_of(question.answer_schema, question.options)
    return f"run {short(question.run)} waits; answer with: interlingua questions answer {question.id} {example}"

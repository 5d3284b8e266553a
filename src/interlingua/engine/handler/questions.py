"""Questions of a run: asked, answered, closed, and told to the run that called this one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...model import json_values
from ...model.content import Part
from ...model.errors import InvalidAnswer, InvalidQuestion, QuestionExpired
from ...model.events import Body, QuestionAnswered, QuestionAsked, QuestionWithdrawn, Warned, body_encoder
from ...model.run import Answer, Question
from ...model.schemas import Validator
from ...store.changes import Change, CloseQuestion, DropInbox, PutInbox, PutQuestion
from ..agents.question_types import EXPIRED, Gone, answer_schema, deadline_at, remind_at
from ..ids import new_id
from ..log.record_keys import Arguments, show
from ..log.replay import LATE, PastQuestion
from ..log.replay_order import AFTER_ALL
from .calls import Calls
from .run_data import RunData
from .waits import Waits

if TYPE_CHECKING:
    from ..agents.question_types import QuestionCodec


class Questions:
    __slots__ = ("_answers", "_calls", "_data", "_replay", "_waits", "open")

    def __init__(self, data: RunData, waits: Waits, calls: Calls) -> None:
        self._data = data
        self._replay = data.replay
        self._waits = waits
        self._calls = calls
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self.open: dict[str, Question] = {}

    def resume(self) -> None:
        """Open again what was open when the run was left."""
        for past in self._replay.questions.values():
            if past.open:
                self.open[past.question.id] = past.question

    # -- asking -------------------------------------------------------------------------------------------

    async def ask(
        self, question: Any, deadline: float | None, key: str | None, codec: QuestionCodec | None = None, *,
        answerer: str | None = None, attachments: Iterable[Part | str] = (), remind: Iterable[float] | None = None,
        remote: bool = False,
    ) -> Any:  # fmt: skip
        """`remote`: a remote agent asks, which is free to ask something else by the same key."""
        self._waits.check_open()
        codec = codec or self._codec_of(question)
        payload = codec.payload.encode(question)
        Validator(codec.payload.schema, what=f"question {codec.type}").check(payload, InvalidQuestion)
        digest = json_values.digest([codec.type, payload])
        place = self._calls.place("ask", codec.type, key, Arguments(digest, show(payload)))
        past = self._replay.questions.get(place)
        asked = None
        if remote and past is not None and past.question.digest != digest:
            if past.open:
                past.open = False
                self.withdraw(past.question.id, "the agent asks something else now")
        elif past is not None:
            asked = past.question
            answer = await self._past_answer(past, place, codec)
            if answer is not None:
                return self._answer_of(answer, codec, recalled=not remote)
        if asked is None:
            asked = self._new(question, codec, payload, digest, deadline, place, answerer)
            self._put(asked, remind)
            if not remote:  # another branch may ask by the same key meanwhile
                self._replay.questions[place] = PastQuestion(asked)
        if self._data.team is not None:
            self._data.team.asked(place, asked, attachments)
        answer = await self._await_answer(asked)
        self._tell_answer(place, asked, answer)
        known = self._replay.questions.setdefault(place, PastQuestion(asked))  # the same key again: the same answer
        known.question, known.answer, known.open = asked, answer, False
        return self._answer_of(answer, codec, recalled=past is not None and not remote)

    def _codec_of(self, question: Any) -> QuestionCodec:
        agent = self._data.agent
        assert agent is not None
        codec = agent.questions.get(type(question))
        if codec is None:
            name = type(question).__name__
            raise InvalidQuestion(
                f"agent {agent.card.name} asked {name}, which it does not declare; add it: asks=[{name}]"
            )
        return codec

    async def _past_answer(self, past: PastQuestion, place: str, codec: QuestionCodec) -> Answer | None:
        """The answer that the history has; None where the question is open still. Raises where nobody answered."""
        if past.answer is None and past.open:
            return None
        await self._waits.turn(past.seq or AFTER_ALL)
        self._calls.passed(past.seq)
        if past.answer is not None:
            self._tell_answer(place, past.question, past.answer)
            return past.answer
        if past.withdrawn_by:
            raise _withdrawn(past.withdrawn_by, past.reason)
        if past.reason not in ("", EXPIRED):
            raise Gone(past.reason)
        raise QuestionExpired(f"nobody answered {codec.type} in time")

    def _new(
        self, question: Any, codec: QuestionCodec, payload: Any, digest: str, deadline: float | None, place: str,
        answerer: str | None,
    ) -> Question:  # fmt: skip
        time, settings = self._data.clock.now(), self._data.host.settings
        return Question(
            new_id(), self._data.row.id, codec.type, payload, answer_schema(question, codec), time,
            prompt=question.__prompt__(), options=question.__options__(),
            deadline=deadline_at(settings.question_deadline if deadline is None else deadline, time),
            key=place, digest=digest, answerer=answerer,
        )  # fmt: skip

    def _put(self, asked: Question, remind: Iterable[float] | None) -> None:
        host = self._data.host
        times = remind_at(host.settings.remind_after if remind is None else remind, asked.asked_at)
        self.open[asked.id] = asked
        body = QuestionAsked(asked)
        self._data.log.append(body, PutQuestion(asked, self._data.row.path_below, times), *self.relay(body))

    def _tell_answer(self, place: str, asked: Question, answer: Answer) -> None:
        if self._data.team is not None:
            self._data.team.answered(place, asked, answer)

    def _answer_of(self, answer: Answer, codec: QuestionCodec, *, recalled: bool) -> Any:
        def read() -> Any:
            return codec.answer.decode(answer.value, InvalidAnswer)

        return self._calls.recalled(f"the answer to {codec.type}", read) if recalled else read()

    async def _await_answer(self, question: Question) -> Answer:
        future = self._answers.get(question.id)
        if future is None:
            future = self._answers[question.id] = self._waits.loop.create_future()
        deadline = question.deadline
        while True:
            try:
                answer: Answer = await self._waits.wait(asyncio.shield(future), deadline, behind=future)
                return answer
            except TimeoutError:
                if future.done():
                    return future.result()
            with self._waits.busy():
                if await self.close(question, "expired", EXPIRED):
                    self._forget(question)
                    raise QuestionExpired(f"nobody answered {question.type} in time")
                deadline = None  # an answer was first, and is on its way
                await self._waits.pull_inbox()

    def _forget(self, question: Question) -> None:
        """Nobody answered in time: the same key again is another question."""
        known = self._replay.questions.get(question.key)
        if known is not None and known.question is question and not self._waits.branches.engine_code:
            del self._replay.questions[question.key]

    # -- closing ------------------------------------------------------------------------------------------

    async def close(self, question: Question, state: Literal["withdrawn", "expired"], reason: str) -> bool:
        """Close a question without an answer. False where an answer was first, and is on its way."""
        store = self._data.host.store
        await store.questions.close(question.id, state, self._data.clock.now(), reason)
        stored = await store.questions.get(question.id)
        if stored is not None and stored.state == "answered":
            return False
        self._waits.check_open()
        if self.open.pop(question.id, None) is not None:
            body = QuestionWithdrawn(question.id, reason, self._some_open)
            self._data.log.append(body, *self.relay(body))
        return True

    def withdraw(self, question: str, reason: str) -> None:
        del self.open[question]
        body = QuestionWithdrawn(question, reason, self._some_open)
        self._data.log.append(body, CloseQuestion(question, "withdrawn", reason), *self.relay(body))

    def withdraw_all(self, reason: str) -> None:
        if self._waits.over:
            return
        for question in list(self.open):
            self.withdraw(question, reason)

    def withdraw_relayed(self) -> None:
        """The run ends: nobody need answer what the runs below it have asked through it."""
        relayed = self._replay.relayed
        for question, run in list(relayed.items()):
            del relayed[question]
            body = QuestionWithdrawn(question, "the run that called for it is over", bool(relayed), run)
            self._data.log.append(body, *self.relay(body))

    @property
    def _some_open(self) -> bool:
        return bool(self.open or self._replay.relayed)

    # -- what comes from the inbox ------------------------------------------------------------------------

    def take_answer(self, question: str, answer: Answer, drop: DropInbox) -> None:
        asked = self.open.pop(question, None)
        if asked is None:
            # It was withdrawn while the answer was on its way: that is on record, and does not count.
            by = f" (by {answer.by})" if answer.by else ""
            message = f"the answer given here{by} came too late: the question had been withdrawn before"
            self._data.log.append(Warned(message, {"question": question}, f"{LATE}{question}"), drop)
            return
        body = QuestionAnswered(question, answer, self._some_open)
        self._data.log.append(body, drop, *self.relay(body))
        past = self._replay.questions.get(asked.key)
        if past is not None and past.question.id == asked.id:
            past.open, past.answer = False, answer
        future = self._answers.setdefault(question, self._waits.loop.create_future())
        if not future.done():
            future.set_result(answer)

    def take_withdrawal(self, question: str, reason: str, by: str, drop: DropInbox) -> None:
        """A caller has withdrawn a question: the handler goes on without an answer."""
        asked = self.open.pop(question, None)
        if asked is None:  # the agent has withdrawn it meanwhile
            self._data.log.touch(drop)
            return
        body = QuestionWithdrawn(question, reason, self._some_open, by=by)
        self._data.log.append(body, drop, *self.relay(body))
        past = self._replay.questions.get(asked.key)
        if past is not None and past.question.id == asked.id:
            past.open, past.reason, past.withdrawn_by = False, reason, by
        future = self._answers.setdefault(question, self._waits.loop.create_future())
        if not future.done():
            future.set_exception(_withdrawn(by, reason))
            future.exception()  # nobody may be waiting for it

    def take_relayed(self, body: QuestionAsked | QuestionAnswered | QuestionWithdrawn, drop: DropInbox) -> None:
        """News of a question that a run below this one has asked."""
        relayed = self._replay.relayed
        if isinstance(body, QuestionAsked):
            relayed[body.question.id] = body.run or ""
            if self._data.cancelling:
                self._data.log.touch(drop)
                return
        elif relayed.pop(body.question, None) is None:
            self._data.log.touch(drop)
            return
        else:
            body.still_open = self._some_open
        self._data.log.append(body, drop, *self.relay(body))

    def relay(self, body: Body) -> list[Change]:
        """News of a question, for the run that called this one."""
        row = self._data.row
        if row.parent is None:
            return []
        relayed = msgspec.structs.replace(body, run=getattr(body, "run", None) or row.id)
        return [PutInbox(row.parent, "relay", body_encoder.encode(relayed))]


def _withdrawn(by: str, reason: str) -> QuestionExpired:
    return QuestionExpired(f"{by} withdrew the question" + (f": {reason}" if reason else ""))

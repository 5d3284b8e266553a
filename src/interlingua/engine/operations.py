"""What a handler may do through its context, on the event loop: ask, step, receive, sleep, show (and call: `calling`).

Every operation that is recorded has a key: `key=`, or its kind, its name and the how-manieth use of that name it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import msgspec

from ..model import values
from ..model.content import Artifact, Message, Part
from ..model.delta import ABSENT, Joiner
from ..model.errors import (
    AgentError,
    ErrorInfo,
    Invalid,
    InvalidAnswer,
    InvalidOutput,
    InvalidQuestion,
    InvalidRequest,
    QuestionExpired,
    StepFailed,
)
from ..model.events import (
    ArtifactAdded,
    Body,
    Emission,
    MessageSent,
    OutputDelta,
    QuestionAsked,
    QuestionWithdrawn,
    Recorded,
    RunRestarted,
    body_encoder,
)
from ..model.run import Answer, Question
from ..model.schemas import Validator
from ..store.base import Change, PutInbox, PutQuestion
from .codec import Codec
from .crash import describe
from .ids import new_id, now
from .questions import EXPIRED, Gone, answer_schema, deadline_at, remind_at
from .replay import PastQuestion
from .tooling import Tooling

if TYPE_CHECKING:
    from .execution import Execution
    from .questions import QuestionCodec


class Unwound(BaseException):
    """Raised in an agent's thread when its run is left. Not an Exception, so that `except Exception` lets it pass."""


class Operations(Tooling):
    """The half of an Execution that the context speaks to."""

    leaving: Any
    blocked = 0  # operations that only wait
    active = 0  # steps that are being done

    def __init__(self) -> None:
        super().__init__()
        self.blocking: set[Future[Any]] = set()  # what an agent's own thread waits for
        self._uses: dict[str, int] = {}
        self._deadlines: dict[str, int] = {}
        self._awaited: dict[asyncio.Future[Any], asyncio.Future[Any]] = {}  # what branches of the handler wait for

    if TYPE_CHECKING:

        def _tick(self) -> None: ...
        def _stir(self) -> None: ...
        def emit(self, body: Emission) -> None: ...
        def _restart(self, keep: int | None) -> None: ...
        def put(self, body: Emission) -> None: ...
        def withdraw(self, question: str, reason: str) -> None: ...
        def block(self, work: Any) -> Any: ...

    # -- keys and waiting ---------------------------------------------------------------------------------

    def _key(self, kind: str, name: str, key: str | None) -> str:
        if key is not None:
            return f"{kind}:{key}"
        use = f"{kind}:{name}"
        count = self._uses[use] = self._uses.get(use, 0) + 1
        return f"{use}:{count}"

    def _check_alive(self) -> None:
        if self.over or self.leaving is not None:
            raise asyncio.CancelledError

    async def _wait(
        self, future: asyncio.Future[Any], deadline: int | None = None, mark: str = "", *,
        behind: asyncio.Future[Any] | None = None,
    ) -> Any:  # fmt: skip
        """Wait for something that may take a month. `behind` is what is done first, where the future shields it."""
        self._check_alive()
        if deadline is not None:
            if deadline <= now() and not future.done():
                raise TimeoutError
            self._deadlines[mark] = deadline
        self.blocked += 1
        self._awaited[future] = behind or future
        self._tick()
        try:
            if deadline is None:
                return await future
            async with asyncio.timeout(max(0.0, (deadline - now()) / 1e6)):
                return await future
        finally:
            self.blocked -= 1
            self._awaited.pop(future, None)
            if self.blocked:
                self._stir()  # this branch of the handler goes on, while another waits
            if self.leaving is None:  # else: its deadlines are what the run is set aside with
                self._deadlines.pop(mark, None)
            self._tick()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Something is done that must not be cut short by parking, though the handler only waits."""
        self.active += 1
        self._tick()
        try:
            yield
        finally:
            self.active -= 1
            self._tick()

    def release_waits(self) -> None:
        for future in list(self.blocking):
            future.cancel()

    def next_deadline(self) -> int | None:
        authority = self.request.authority
        last = [] if authority is None or authority.deadline is None else [authority.deadline]
        return min([*self._deadlines.values(), *last], default=None)

    def _passed(self, seq: int) -> None:
        held, keep = self.replay.passed(seq)
        self._restart(keep)
        for body in held:
            self.put(body)

    def _resume_waits(self) -> None:
        """What was open when the run was left is open again."""
        for past in self.replay.questions.values():
            if past.open:
                self.open_questions[past.question.id] = past.question
        for called, ended, _ in self.replay.children.values():
            if ended is None:
                self._child_keys[called.run] = called.key

    @property
    def running_children(self) -> list[str]:
        return list(self._child_keys)

    # -- asking -------------------------------------------------------------------------------------------

    async def ask(
        self, question: Any, deadline: float | None, key: str | None, codec: QuestionCodec | None = None, *,
        answerer: str | None = None, attachments: Iterable[Part | str] = (), remind: Iterable[float] | None = None,
    ) -> Any:  # fmt: skip
        self._check_alive()
        agent = self.agent
        assert agent is not None
        codec = codec or agent.questions.get(type(question))
        if codec is None:
            name = type(question).__name__
            raise InvalidQuestion(
                f"agent {agent.card.name} asked {name}, which it does not declare; add it: asks=[{name}]"
            )
        payload = codec.payload.encode(question)
        Validator(codec.payload.schema, what=f"question {codec.type}").check(payload, InvalidQuestion)
        digest = values.digest([codec.type, payload])
        place = self._key("ask", codec.type, key)
        past = self.replay.questions.get(place)
        asked = None
        if past is not None and past.question.digest == digest:
            asked = past.question
            if past.answer is not None:
                self._passed(past.seq)
                self.tell_answer(place, asked, past.answer)
                return codec.answer.decode(past.answer.value, InvalidAnswer)
            if not past.open:
                self._passed(past.seq)
                if past.reason not in ("", EXPIRED):
                    raise Gone(past.reason)
                raise QuestionExpired(f"nobody answered {codec.type} in time")
        elif past is not None and past.open:
            past.open = False
            self.withdraw(past.question.id, "the agent asks something else now")
        if asked is None:
            time, settings = now(), self.worker.settings
            asked = Question(
                new_id(), self.log.row.id, codec.type, payload, answer_schema(question, codec), time,
                prompt=question.__prompt__(), options=question.__options__(),
                deadline=deadline_at(settings.question_deadline if deadline is None else deadline, time),
                key=place, digest=digest, answerer=answerer,
            )  # fmt: skip
            times = remind_at(settings.remind_after if remind is None else remind, time)
            self.open_questions[asked.id] = asked
            body = QuestionAsked(asked)
            self.log.append(body, PutQuestion(asked, self.worker.path_of(self.log.row), times), *self.relay(body))
        self.tell_question(place, asked, attachments)
        answer = await self._await_answer(asked)
        self.tell_answer(place, asked, answer)
        known = self.replay.questions.setdefault(place, PastQuestion(asked))  # the same key again: the same answer
        known.question, known.answer, known.open = asked, answer, False
        return codec.answer.decode(answer.value, InvalidAnswer)

    async def _await_answer(self, question: Question) -> Answer:
        future = self._answers.get(question.id)
        if future is None:
            future = self._answers[question.id] = self.loop.create_future()
        deadline = question.deadline
        while True:
            try:
                answer: Answer = await self._wait(asyncio.shield(future), deadline, question.id, behind=future)
                return answer
            except TimeoutError:
                if future.done():
                    return future.result()
            with self.busy():
                if await self._expire(question):
                    raise QuestionExpired(f"nobody answered {question.type} in time")
                deadline = None  # an answer was first, and is on its way
                await self._pull()

    async def _expire(self, question: Question) -> bool:
        """Close a question whose time is over. False where an answer was first."""
        return await self.close(question, "expired", EXPIRED)

    async def close(self, question: Question, state: Literal["withdrawn", "expired"], reason: str) -> bool:
        """Close a question without an answer. False where an answer was first, and is on its way."""
        store = self.worker.store
        await store.close_question(question.id, state, now(), reason)
        found = await store.question(question.id)
        if found is not None and found.state == "answered":
            return False
        self._check_alive()
        if self.open_questions.pop(question.id, None) is not None:
            still_open = bool(self.open_questions or self.replay.relayed)
            body = QuestionWithdrawn(question.id, reason, still_open)
            self.log.append(body, *self.relay(body))
        return True

    def relay(self, body: Body) -> list[Change]:
        """News of a question, for the run that called this one."""
        row = self.log.row
        if row.parent is None:
            return []
        relayed = msgspec.structs.replace(body, run=getattr(body, "run", None) or row.id)
        return [PutInbox(row.parent, "relay", body_encoder.encode(relayed))]

    # -- steps --------------------------------------------------------------------------------------------

    def recorded(self, name: str, make: Callable[[], Any]) -> Any:
        """A value that is made once."""
        import threading

        if threading.get_ident() != self._thread_id:  # type: ignore[attr-defined]
            return self.block(self._recorded(name, make))
        return self._record_now(name, make)

    async def _recorded(self, name: str, make: Callable[[], Any]) -> Any:
        return self._record_now(name, make)

    def _record_now(self, name: str, make: Callable[[], Any]) -> Any:
        self._check_alive()
        key = self._key(name, "", None)
        found = self.replay.records.get(key)
        if found is not None:
            self._passed(found[0])
            return found[1].value
        value = make()
        self.log.append(Recorded(key, value))
        return value

    async def step(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None,
        retries: int, backoff: float, timeout: float | None,
    ) -> Any:  # fmt: skip
        self._check_alive()
        place = self._key("step", name, key)
        codec = _result_codec(fn, name)
        found = self.replay.records.get(place)
        if found is not None:
            seq, record = found
            self._passed(seq)
            for body in self.replay.standing_of_step(place):
                self.note(body)
            for body in self.replay.emissions_of_step(place):
                self.emit(body)
            return self._step_result(name, record, codec)
        self.active += 1
        self._tick()
        try:
            await self.log.flush()
            undo = self._undo_point() if retries else None
            for attempt in range(retries + 1):
                try:
                    async with asyncio.timeout(timeout):
                        value = await self._do(fn, args, kwargs, place)
                    record = Recorded(place, self._as_json(name, value, codec))
                    break
                except Exception as error:
                    if attempt == retries:
                        cause, record = error, Recorded(place, error=_storable(describe(error)))
                        break
                    if undo is not None:
                        undo()
                    await asyncio.sleep(min(backoff * 2**attempt, 60.0))
        finally:
            self.active -= 1
            self._tick()
        self._check_alive()
        self.log.append(record)
        self.replay.records[place] = (0, record)  # the same key again: the same result
        try:
            return self._step_result(name, record, codec)
        except (StepFailed, AgentError) as failure:
            raise failure from cause

    def _undo_point(self) -> Callable[[], None]:
        """What takes back the output of an attempt that failed, before the next one. Everything is committed now."""
        output, sent, keep = self.replay.output.value, len(self.replay.sent), self.log.committed_seq

        def undo() -> None:
            if self.replay.output.value is output and len(self.replay.sent) == sent:
                return
            self.replay.output = Joiner(output)
            del self.replay.sent[sent:]
            self.log.append(RunRestarted(keep, "a step is tried again"))

        return undo

    async def _do(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: str) -> Any:
        from . import invoke

        run: Execution = self  # type: ignore[assignment]
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            return await self._do_generator(fn, args, kwargs, place)
        if inspect.iscoroutinefunction(fn):
            return await fn(*args, **kwargs)
        result = await invoke.in_thread(run, lambda: fn(*args, **kwargs))
        return await result if inspect.isawaitable(result) else result

    async def _do_generator(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: str
    ) -> Any:
        from . import invoke

        run: Execution = self  # type: ignore[assignment]
        joined = Joiner()
        generator = fn(*args, **kwargs)
        if inspect.isasyncgen(generator):
            try:
                async for item in generator:
                    delta = invoke.delta_of(run, item)
                    joined.add(delta)
                    self.emit(OutputDelta(delta, place))
                    await self.log.breathe()
            finally:
                await generator.aclose()
        else:
            result = await invoke.in_thread(run, lambda: invoke.drain_in_thread(run, generator, place, joined))
            if result is not None:
                return result
        return None if joined.value is ABSENT else joined.value

    def _as_json(self, name: str, value: Any, codec: Codec | None) -> Any:
        try:
            encoded = codec.encode(value) if codec is not None else msgspec.to_builtins(value)
            values.check(encoded, InvalidOutput, what=f"the result of step {name}")
        except (TypeError, ValueError, Invalid) as error:
            raise InvalidOutput(
                f"step {name} gave {type(value).__name__}, which cannot be recorded as JSON: {error}"
            ) from error
        return encoded

    def _step_result(self, name: str, record: Recorded, codec: Codec | None) -> Any:
        if record.error is not None:
            own = self.agent.errors.get(record.error.code) if self.agent is not None else None
            if own is not None:
                error = own(record.error.message, details=record.error.details)
                error.transient = record.error.transient  # this one's, whatever is usual for its class
                raise error
            raise StepFailed(name, record.error)
        return values.copy(record.value) if codec is None else codec.decode(record.value, InvalidOutput)

    # -- messages and sleep -------------------------------------------------------------------------------

    def _deadline_of(self, kind: str, seconds: float, key: str | None = None) -> int:
        """A moment that stays the same when the agent is entered again."""
        place = self._key(kind, "", key)
        found = self.replay.records.get(place)
        if found is not None:
            self._passed(found[0])
            return int(found[1].value)
        moment = now() + int(seconds * 1e6)
        self.log.append(Recorded(place, moment))
        return moment

    async def sleep(self, seconds: float, key: str | None) -> None:
        self._check_alive()
        deadline = self._deadline_of("sleep", seconds, key)
        if deadline > now():
            with contextlib.suppress(TimeoutError):
                await self._wait(self.loop.create_future(), deadline, f"sleep:{deadline}")

    # -- showing ------------------------------------------------------------------------------------------

    async def emit_output(self, item: Any) -> None:
        from . import invoke

        self._check_alive()
        self.emit(OutputDelta(invoke.delta_of(self, item)))  # type: ignore[arg-type]
        await self.log.breathe()

    async def say(self, message: Message) -> None:
        values.check(msgspec.to_builtins(message), InvalidOutput, what="message")
        if self.authority is not None:
            message.parts = self.attached(message.parts)
        message.id = message.id or f"{self.log.row.id}/{self._key('message', '', None)}"
        await self.show(MessageSent(message))

    async def add_artifact(self, artifact: Artifact) -> None:
        if self.authority is not None:
            artifact.parts = self.attached(artifact.parts)
        artifact.id = artifact.id or self._key("artifact", "", None)
        await self.show(ArtifactAdded(artifact))

    async def show(self, body: Emission) -> None:
        self._check_alive()
        try:
            values.check(msgspec.to_builtins(body), InvalidOutput, what=type(body).__name__.lower())
        except TypeError as error:
            raise InvalidOutput(f"{type(body).__name__.lower()}: {error}") from error
        self.emit(body)
        await self.log.breathe()


_codecs: WeakKeyDictionary[Any, Codec | None] = WeakKeyDictionary()  # a lambda is new in every run


def _result_codec(fn: Callable[..., Any], name: str) -> Codec | None:
    """By the function's annotation: a step's result is typed, also when it comes out of the log."""
    fn = getattr(fn, "__func__", fn)  # a bound method is new each time that it is named
    try:
        return _codecs[fn]
    except (KeyError, TypeError):
        pass
    try:
        hint = typing.get_type_hints(fn, include_extras=True).get("return")
    except (NameError, TypeError, AttributeError):
        hint = None
    generator = inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn)
    codec = None if hint is None or hint is Any or generator else Codec(hint, what=f"the result of step {name}")
    with contextlib.suppress(TypeError):
        _codecs[fn] = codec
    return codec


def _storable(error: ErrorInfo) -> ErrorInfo:
    try:
        values.check(error.details)
        error.message.encode()
    except (Invalid, UnicodeEncodeError, InvalidRequest):
        return ErrorInfo(error.code, error.message.encode(errors="replace").decode(), error.transient)
    return error

"""What a handler may do through its context, on the event loop: ask, step, receive, sleep, show (and call: `calling`).

Every operation that is recorded has a key: see `record_keys`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import logging
import threading
import typing
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from ...extras import MissingExtra
from ...model import json_values
from ...model.content import Artifact, Message, Part
from ...model.delta import ABSENT, Joiner
from ...model.errors import (
    AgentError,
    ErrorInfo,
    InterlinguaError,
    Invalid,
    InvalidAnswer,
    InvalidOutput,
    InvalidQuestion,
    InvalidRequest,
    QuestionExpired,
    StepFailed,
)
from ...model.events import (
    ArtifactAdded,
    BlockReason,
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
from ...model.run import Answer, Question
from ...model.schemas import Validator
from ...model.whole_text import whole
from ...store.changes import Change, PutInbox, PutQuestion
from ..agents.codec import Codec
from ..agents.question_types import EXPIRED, Gone, answer_schema, deadline_at, remind_at
from ..error_text import describe as describe_error
from ..ids import new_id, now
from ..log.record_keys import NO_ARGUMENTS, UNKNOWN_ARGUMENTS, Arguments, Place, arguments, describe, place_of, show
from ..log.replay import PastCall, PastQuestion
from ..teams.tool_calls import Tooling
from .branches import Branch, Branches, Step, engine_works, inside
from .replay_order import AFTER_ALL, Turns
from .step_attempts import Attempt, Attempts
from .suspension import SUSPENDING, Suspended

if TYPE_CHECKING:
    from ..agents.question_types import QuestionCodec
    from ..runs.execution import Execution


log = logging.getLogger("interlingua.engine")

T = TypeVar("T")


class Operations(Tooling):
    """The half of an Execution that the context speaks to."""

    leaving: Any
    _thread_id: int  # of the event loop
    _process_ends: bool
    blocked = 0  # operations that only wait
    active = 0  # steps that are being done
    waited = False  # the handler has come to something that it waits for
    called = False  # it has come to a call
    engine_code = False
    """Whether the handler belongs to the engine, as of mounts: its records depend on what the remote side says, it
    knows itself when it may be set aside, and it is cancelled for that."""

    def __init__(self) -> None:
        super().__init__()
        self.blocking: set[Future[Any]] = set()  # what an agent's own thread waits for
        self.branches = Branches(self._branch_ended)
        self._attempts = Attempts()
        self._patches: dict[str, bool] = {}
        self._turns = Turns(asyncio.get_running_loop())
        self._deadlines: dict[asyncio.Future[Any], int] = {}
        self._awaited: dict[asyncio.Future[Any], asyncio.Future[Any]] = {}  # what branches of the handler wait for

    if TYPE_CHECKING:

        def _tick(self, waits: asyncio.Task[Any] | None = None) -> None: ...
        def _stir(self) -> None: ...
        def emit(self, body: Emission) -> None: ...
        def _write_again(self, bodies: list[Emission], keep: int | None) -> None: ...
        def put(self, body: Emission, *, again: bool = False) -> None: ...
        def withdraw(self, question: str, reason: str) -> None: ...
        def block(self, work: Any) -> Any: ...
        def block_run(self, reason: BlockReason, message: str, details: Any = None) -> NoReturn: ...
        def _branch_ended(self, branch: Branch, task: asyncio.Task[Any]) -> None: ...

    # -- keys and waiting ---------------------------------------------------------------------------------

    def place(self, kind: str, name: str, key: str | None, called_with: Arguments = UNKNOWN_ARGUMENTS) -> str:
        """The key of the record of a call. The run is blocked where the history has another call there."""
        self.called = True
        if key is not None:
            place = f"{kind}:{key}"
        else:
            branch = self.branches.here()
            at = Place(branch.path, branch.next_position(), kind, name)
            place = at.key
            past = self.replay.call_at(at.branch, at.position)
            if past is not None and (past.key != place or past.arguments.differs(called_with.digest)):
                self.mismatch(past, describe(kind, name, called_with.shown))
        self.replay.reach(place)
        return place

    def recalled(self, what: str, read: Callable[[], T]) -> T:
        """Read a value of the history. The run is blocked where the code cannot read it."""
        try:
            return read()
        except Invalid as error:
            if not self.replay.started:
                raise
            why = f"the code cannot read {what}, which is in its history: {error.message}"
            self.block_run("failed_on_resume", why, {"error": msgspec.to_builtins(error.info())})

    def mismatch(self, past: PastCall | str, called: str | None) -> NoReturn:
        """Block the run: its history has one call, and the code makes another, or (None) no more."""
        said = f"the code calls {called}" if called is not None else "the code ended"
        branch = self.branches.here().path
        details = {"history": str(past), "code": called, **({"branch": branch} if branch else {})}
        self.block_run("history_mismatch", f"the history has {past} here; {said}", details)

    def check_used(self, branch: Branch | None = None) -> None:
        """Block the run where the handler has ended, or one branch of it, and its history has more."""
        if self.engine_code or self.replay.caught_up:
            return
        for past in self.replay.unused(branch.path if branch is not None else None):
            place = place_of(past.key)
            if branch is not None or place is None or not self.branches.is_excused(place.branch):
                self.mismatch(past, None)

    def _number(self, kind: str) -> str:
        """An id for what has no record: it stays the same when the handler is replayed."""
        step = self._step_here()
        if step is not None:
            return f"{kind}:{step.place}:{step.number(kind)}"
        branch = self.branches.here()
        return f"{kind}:{branch.path}:{branch.number(kind)}"

    def _step_here(self) -> Step | None:
        """The step that executes now. Connections of mounts outlive the step that opened them."""
        return None if self.engine_code else self.branches.step()

    def emitting_branch(self) -> str | None:
        """The branch that what is emitted now belongs to; None: the handler itself."""
        if self.engine_code or not self.branches.living:
            return None
        return self.branches.here().path or None

    def left(self) -> BaseException:
        """What is raised in a handler that is left: it is cancelled, or only suspended."""
        return Suspended() if self.suspending else asyncio.CancelledError()

    @property
    def suspending(self) -> bool:
        """Whether the handler is left, and the run goes on later."""
        return self.leaving in SUSPENDING and not self.engine_code

    def _check_alive(self) -> None:
        if self.over or self.leaving is not None or self._process_ends:
            raise self.left()

    async def _wait(
        self, future: asyncio.Future[Any], deadline: int | None = None, *,
        behind: asyncio.Future[Any] | None = None,
    ) -> Any:  # fmt: skip
        """Wait for something that may take a month. `behind` is what is done first, where the future shields it."""
        self._check_alive()
        self.waited = True
        if deadline is not None:
            if deadline <= now() and not future.done():
                raise TimeoutError
            self._deadlines[future] = deadline
        self.blocked += 1
        self._awaited[future] = behind or future
        self._tick(asyncio.current_task())
        try:
            if deadline is None:
                result = await future
            else:
                async with self.worker.clock.until(deadline):
                    result = await future
            if self._turns:
                await self.turn(AFTER_ALL)
            return result
        except TimeoutError:
            if self._turns:
                await self.turn(AFTER_ALL)
            raise
        finally:
            self.blocked -= 1
            self._awaited.pop(future, None)
            if self.blocked:
                self._stir()  # this branch of the handler goes on, while another waits
            if self.leaving is None:  # else: its deadlines are what the run is set aside with
                self._deadlines.pop(future, None)
            self._tick()

    async def turn(self, seq: int) -> None:
        """Wait until other branches have got what the history has for them before this."""
        if self.branches.living and not self.engine_code:
            await self._turns.wait(seq)
            self._check_alive()

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
        self._write_again(*self.replay.emissions.passed(seq, self.emitting_branch()))

    def _resume_waits(self) -> None:
        """What was open when the run was left is open again."""
        for past in self.replay.questions.values():
            if past.open:
                self.open_questions[past.question.id] = past.question
        for called, ended, _ in self.replay.children.values():
            if ended is None and self.replay.never_began(called.key) is None:
                self._child_keys[called.run] = called.key
        self.reserve_taken()

    @property
    def running_children(self) -> list[str]:
        return list(self._child_keys)

    # -- the doors ----------------------------------------------------------------------------------------

    async def operate(self, what: str, work: Coroutine[Any, Any, T], *, records: bool = True) -> T:
        """Do something for the handler, in a task of its own."""
        try:
            self._check_use(what, records=records)
        except BaseException:
            work.close()
            raise
        with engine_works():
            return await work

    def checked(self, what: str, make: Callable[[], T], *, records: bool = False) -> T:
        self._check_use(what, records=records)
        return make()

    def _check_use(self, what: str, *, records: bool) -> None:
        if threading.get_ident() != self._thread_id:
            raise InvalidRequest(f"ctx.{what} was called in another thread than its handler; call it in the handler")
        if self.engine_code:
            return
        self._check_step(what, records=records)
        if (why := self.branches.misuse()) is not None:
            raise InvalidRequest(f"ctx.{what} cannot be used here: {why}")

    def _check_step(self, what: str, *, records: bool) -> None:
        step = self._step_here()
        if records and step is not None:
            raise InvalidRequest(
                f"ctx.{what} was called inside step '{step.name}': a step is one record, and cannot hold others. Call "
                "it before the step, or after it"
            )

    def operate_from_thread(self, what: str, work: Coroutine[Any, Any, T], *, records: bool = True) -> T:
        """Do something for the handler, which is a plain function and waits for it."""
        try:
            self._check_step(what, records=records)
        except BaseException:
            work.close()
            raise
        result: T = self.block(work)
        return result

    # -- asking -------------------------------------------------------------------------------------------

    async def ask(
        self, question: Any, deadline: float | None, key: str | None, codec: QuestionCodec | None = None, *,
        answerer: str | None = None, attachments: Iterable[Part | str] = (), remind: Iterable[float] | None = None,
        remote: bool = False,
    ) -> Any:  # fmt: skip
        """`remote`: a remote agent asks, which is free to ask something else by the same key."""
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
        digest = json_values.digest([codec.type, payload])
        place = self.place("ask", codec.type, key, Arguments(digest, show(payload)))
        past = self.replay.questions.get(place)
        asked = None
        if remote and past is not None and past.question.digest != digest:
            if past.open:
                past.open = False
                self.withdraw(past.question.id, "the agent asks something else now")
        elif past is not None:
            asked = past.question
            if past.answer is not None or not past.open:
                await self.turn(past.seq or AFTER_ALL)
            if past.answer is not None:
                self._passed(past.seq)
                self.tell_answer(place, asked, past.answer)
                return self._answer_of(past.answer, codec, recalled=not remote)
            if not past.open:
                self._passed(past.seq)
                if past.reason not in ("", EXPIRED):
                    raise Gone(past.reason)
                raise QuestionExpired(f"nobody answered {codec.type} in time")
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
            if not remote:  # another branch may ask by the same key meanwhile
                self.replay.questions[place] = PastQuestion(asked)
        self.tell_question(place, asked, attachments)
        answer = await self._await_answer(asked)
        self.tell_answer(place, asked, answer)
        known = self.replay.questions.setdefault(place, PastQuestion(asked))  # the same key again: the same answer
        known.question, known.answer, known.open = asked, answer, False
        return self._answer_of(answer, codec, recalled=past is not None and not remote)

    def _answer_of(self, answer: Answer, codec: QuestionCodec, *, recalled: bool) -> Any:
        def read() -> Any:
            return codec.answer.decode(answer.value, InvalidAnswer)

        return self.recalled(f"the answer to {codec.type}", read) if recalled else read()

    async def _await_answer(self, question: Question) -> Answer:
        future = self._answers.get(question.id)
        if future is None:
            future = self._answers[question.id] = self.loop.create_future()
        deadline = question.deadline
        while True:
            try:
                answer: Answer = await self._wait(asyncio.shield(future), deadline, behind=future)
                return answer
            except TimeoutError:
                if future.done():
                    return future.result()
            with self.busy():
                if await self._expire(question):
                    known = self.replay.questions.get(question.key)
                    if known is not None and known.question is question and not self.engine_code:
                        del self.replay.questions[question.key]  # the same key again: another question
                    raise QuestionExpired(f"nobody answered {question.type} in time")
                deadline = None  # an answer was first, and is on its way
                await self._pull()

    async def _expire(self, question: Question) -> bool:
        """Close a question whose time is over. False where an answer was first."""
        return await self.close(question, "expired", EXPIRED)

    async def close(self, question: Question, state: Literal["withdrawn", "expired"], reason: str) -> bool:
        """Close a question without an answer. False where an answer was first, and is on its way."""
        store = self.worker.store
        await store.questions.close(question.id, state, now(), reason)
        found = await store.questions.get(question.id)
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

    def patched(self, name: str) -> bool:
        """Whether the run executes the new code: it has done so before, or is past its history."""
        return self._at_once("patched", lambda: self._patched(name))

    def deprecate_patch(self, name: str) -> None:
        self._at_once("deprecate_patch", lambda: self.replay.reach(f"patch:{name}"))

    def _patched(self, name: str) -> bool:
        place = f"patch:{name}"
        self.replay.reach(place)
        past = self.replay.records.get(place)
        if past is not None:
            self._passed(past[0])
            return True
        is_new = self._patches.setdefault(name, self.replay.caught_up)  # the same answer for all of this entry
        if is_new:
            self._record_once(place, lambda: True)
        return is_new

    def _at_once(self, what: str, make: Callable[[], T]) -> T:
        """Do something for the handler that waits for nothing, in its thread or on the event loop."""
        self._check_step(what, records=True)
        if threading.get_ident() == self._thread_id:
            return self.checked(what, make, records=True)

        async def later() -> T:
            return make()

        result: T = self.block(later())
        return result

    def recorded(self, kind: str, make: Callable[[], Any]) -> Any:
        """A value that is made once."""
        if threading.get_ident() == self._thread_id:
            return self.checked(kind, lambda: self._record_now(kind, make))
        return self.block(self._recorded(kind, make))

    async def _recorded(self, kind: str, make: Callable[[], Any]) -> Any:
        return self._record_now(kind, make)

    def _record_now(self, kind: str, make: Callable[[], Any]) -> Any:
        self._check_alive()
        step = self._step_here()
        if step is None:
            return self._record_once(self.place(kind, "", None, NO_ARGUMENTS), make)
        number = step.number(kind)
        if kind == "now":
            return self._record_once(f"now:{step.place}:{number}", make)
        # Made of the place of the step, and not recorded: an attempt that a crash cut short leaves no record behind.
        # The run that continues a failed one makes the same, so that what happened outside is not done twice.
        created = self.replay.created
        run = created.continues.first if created is not None and created.continues is not None else self.log.row.id
        seed = hashlib.sha256(f"{run}\n{step.place}\n{kind}\n{number}".encode()).digest()
        if kind == "uuid":
            return str(uuid.UUID(bytes=seed[:16], version=4))
        return (int.from_bytes(seed[:8]) >> 11) / 2**53

    def _record_once(self, place: str, make: Callable[[], Any]) -> Any:
        past = self.replay.records.get(place)
        if past is not None:
            self._passed(past[0])
            return past[1].value
        record = Recorded(place, make())
        self.replay.records[place] = (0, record)
        self.log.append(record)
        return record.value

    async def step(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None,
        retries: int, backoff: float, timeout: float | None,
    ) -> Any:  # fmt: skip
        self._check_alive()
        called_with = arguments(args, kwargs)
        place = self.place("step", name, key, called_with)
        return await self.step_at(place, name, fn, args, kwargs, called_with, retries, backoff, timeout)

    async def step_at(
        self, place: str, name: str, fn: Callable[..., Any], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None, called_with: Arguments = UNKNOWN_ARGUMENTS, retries: int = 0,
        backoff: float = 1.0, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """A step with a record of this key."""
        self.replay.reach(place)
        codec = _result_codec(fn, name)
        while (over := self._attempts.steps.get(place)) is not None:  # another branch executes it, by the same key
            await self._wait(asyncio.shield(over), behind=over)
        past = self.replay.records.get(place)
        if past is not None:
            seq, record = past
            if seq:
                await self.turn(seq)
            if place in self.replay.in_store:
                found = await self.recorded_at(seq)
                assert isinstance(found, Recorded)
                record = found
            self.replay.forget(place)
            self._passed(seq)
            standing, void = self.replay.emissions.of_step(place)
            for body in standing:
                self.note(body)
            for body in void:
                self.emit(body)
            return self.recalled(f"the result of step '{name}'", lambda: self._step_result(name, record, codec))
        with self._attempts.executing(place, self.loop):
            self.active += 1
            self._tick()
            cause: Exception | None = None
            begun: Attempt | None = None
            threads = set[asyncio.Future[None]]()
            try:
                await self.log.flush()
                begun = await self._begin_attempt(place) if retries else None
                for attempt in range(retries + 1):
                    try:
                        async with asyncio.timeout(timeout):
                            step = Step(self.branches, name, place)
                            value = await self._do(fn, args, kwargs or {}, step, threads)
                        record = Recorded(place, self._as_json(name, value, codec))
                        break
                    except Exception as error:
                        if attempt == retries or isinstance(error, MissingExtra):
                            cause, record = error, Recorded(place, error=_storable(describe_error(error)))
                            break
                        await self._outlive_threads(name, threads)
                        if begun is not None:
                            self._take_back(begun)
                        await asyncio.sleep(min(backoff * 2**attempt, 60.0))
            finally:
                self.active -= 1
                if begun is not None:
                    self._attempts.end(begun)
                self._tick()
            self._check_alive()
            record.digest, record.args = called_with
            self._write_again(*self.replay.emissions.step_ended(place))
            self.log.append(record)
            self.replay.records[place] = (0, record)  # the same key again: the same result
            self.replay.forget(place)
        try:
            return self._step_result(name, record, codec)
        except (StepFailed, AgentError) as failure:
            raise failure from cause

    async def recorded_at(self, seq: int) -> Body | None:
        """A record of the history whose value is not in memory. The branch that has the turn keeps it meanwhile."""
        with self._turns.held():
            return await self.body_at(seq)

    async def body_at(self, seq: int) -> Body | None:
        """An event of the log, from the store. A store that is away is waited for: no run ends because of that."""
        with self.busy():
            while True:
                try:
                    (event,) = await self.worker.store.runs.events(self.log.row.id, seq - 1, 1)
                except InterlinguaError as error:
                    if not error.transient:
                        raise
                    await asyncio.sleep(self.worker.settings.sweep_every)
                    self._check_alive()
                else:
                    self._check_alive()
                    return event.body

    async def _begin_attempt(self, place: str) -> Attempt:
        """Remember how the run stands before a step that may be tried again."""
        self._write_again(*self.replay.emissions.step_ended(place))  # an attempt that a crash cut short
        while not self.log.settled:
            await self.log.flush()
        self._check_alive()
        emissions = self.replay.emissions
        attempt = Attempt(place, self.log.committed_seq, emissions.output.value, len(emissions.sent))
        self._attempts.begin(attempt)
        return attempt

    def _take_back(self, attempt: Attempt) -> None:
        """Void what an attempt has shown. What others have shown meanwhile stands."""
        if not attempt.own:
            return
        self._check_alive()
        if self.given is not None:
            void = {id(body) for body in attempt.own}
            self.given = [body for body in self.given if id(body) not in void]
        self.replay.emissions.taken_back(attempt.place)
        again = self._attempts.take_back(attempt)
        self.replay.emissions.output = Joiner(attempt.output)
        del self.replay.emissions.sent[attempt.sent :]
        self.log.append(RunRestarted(attempt.keep, "a step is tried again"))
        for body in again:
            self.put(body, again=True)

    async def _outlive_threads(self, name: str, threads: set[asyncio.Future[None]]) -> None:
        """Wait for the threads of an attempt that took too long: a step never runs twice at the same time."""
        if threads:
            log.warning(
                "step %s of agent %s took too long and still runs; it is tried again when it has returned (run %s)",
                name, self.log.row.agent, self.log.row.id,
            )  # fmt: skip
            await asyncio.wait(threads)
            self._check_alive()

    async def _do(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], step: Step,
        threads: set[asyncio.Future[None]],
    ) -> Any:  # fmt: skip
        from . import handler_call

        run: Execution = self  # type: ignore[assignment]
        with inside(step):
            if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
                return await self._do_generator(fn, args, kwargs, step.place, threads)
            if inspect.iscoroutinefunction(fn):
                return await fn(*args, **kwargs)
            result = await handler_call.in_thread(run, lambda: fn(*args, **kwargs), threads)
            return await result if inspect.isawaitable(result) else result

    async def _do_generator(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], place: str,
        threads: set[asyncio.Future[None]],
    ) -> Any:  # fmt: skip
        from . import handler_call

        run: Execution = self  # type: ignore[assignment]
        joined = Joiner()
        generator = fn(*args, **kwargs)
        if inspect.isasyncgen(generator):
            try:
                async for item in generator:
                    delta = handler_call.delta_of(run, item)
                    joined.add(delta)
                    self.emit(OutputDelta(delta, place))
                    await self.log.breathe()
            finally:
                await generator.aclose()
        else:
            result = await handler_call.in_thread(
                run, lambda: handler_call.drain_in_thread(run, generator, place, joined), threads
            )
            if result is not None:
                return result
        run.end_pieces(place)
        return None if joined.value is ABSENT else joined.value

    def _as_json(self, name: str, value: Any, codec: Codec | None) -> Any:
        try:
            encoded = json_values.listed(codec.encode(value) if codec is not None else msgspec.to_builtins(value))
            encoded = json_values.clean(encoded, InvalidOutput, what=f"the result of step {name}")
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
        return json_values.copy(record.value) if codec is None else codec.decode(record.value, InvalidOutput)

    # -- messages and sleep -------------------------------------------------------------------------------

    def _deadline_at(self, place: str, seconds: float) -> int:
        """A moment that stays the same when the handler is replayed."""
        return int(self._record_once(place, lambda: now() + int(seconds * 1e6)))

    async def sleep(self, seconds: float, key: str | None) -> None:
        self._check_alive()
        place = self.place("sleep", "", key)
        deadline, over = self._deadline_at(place, seconds), f"{place}:over"
        past = self.replay.records.get(over)
        if past is not None:
            await self.turn(past[0] or AFTER_ALL)
            self._passed(past[0])
            return
        if deadline > now():
            with contextlib.suppress(TimeoutError):
                await self._wait(self.loop.create_future(), deadline)
        elif self._turns:
            await self.turn(AFTER_ALL)
        if self.branches.living and not self.engine_code:  # else nothing else could have come before or after
            self._record_once(over, lambda: None)

    # -- showing ------------------------------------------------------------------------------------------

    async def emit_output(self, item: Any) -> None:
        from . import handler_call

        self._check_alive()
        step = self._step_here()
        self.emit(OutputDelta(handler_call.delta_of(self, item), step.place if step is not None else None))  # type: ignore[arg-type]
        await self.log.breathe()

    async def say(self, message: Message) -> None:
        json_values.check(msgspec.to_builtins(message), InvalidOutput, what="message", halves=True)
        if self.authority is not None:
            message.parts = self.attached(message.parts)
        message.id = message.id or f"{self.log.row.id}/{self._number('message')}"
        await self.show(MessageSent(message))

    async def add_artifact(self, artifact: Artifact) -> None:
        if self.authority is not None:
            artifact.parts = self.attached(artifact.parts)
        artifact.id = artifact.id or self._number("artifact")
        await self.show(ArtifactAdded(artifact))

    async def show(self, body: Emission) -> None:
        self._check_alive()
        try:
            told = msgspec.to_builtins(body)
            if json_values.check(told, InvalidOutput, what=type(body).__name__.lower(), halves=True):
                self.join_pieces()  # type: ignore[attr-defined]
            msgspec.convert(told, type(body))  # what cannot be read back would stop the log
        except (TypeError, msgspec.MsgspecError) as error:
            raise InvalidOutput(f"{type(body).__name__.lower()}: {error}") from error
        step = self._step_here()
        if step is not None and body.step is None:
            body.step = step.place
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
        return ErrorInfo(error.code, whole(error.message), error.transient, json_values.clean(error.details))
    except (Invalid, InvalidRequest):
        return ErrorInfo(error.code, whole(error.message), error.transient)

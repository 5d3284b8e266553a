"""Steps of a handler: what it does once, and what else it makes once (sleeps, times, ids, random numbers, patches)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import logging
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from ...extras import MissingExtra
from ...model import json_values
from ...model.delta import ABSENT, Joiner
from ...model.errors import AgentError, ErrorInfo, Invalid, InvalidOutput, InvalidRequest, StepFailed
from ...model.events import Recorded
from ...model.whole_text import whole
from ...runtime.clock import sleep
from ..agents.codec import Codec
from ..error_text import describe as describe_error
from ..log.record_keys import NO_ARGUMENTS, UNKNOWN_ARGUMENTS, Arguments, arguments
from ..log.replay_order import AFTER_ALL
from ..log.step_attempts import Attempt
from .branches import Step, inside
from .calls import Calls
from .generators import ThreadDrain, drain
from .output import Output
from .run_data import RunData
from .threads import HandlerThreads
from .waits import Waits

log = logging.getLogger("interlingua.engine")


class StepCall(msgspec.Struct):
    """A function that a step calls."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    called_with: Arguments = UNKNOWN_ARGUMENTS
    retries: int = 0
    backoff: float = 1.0
    timeout: float | None = None


class Steps:
    __slots__ = ("_calls", "_data", "_executing", "_output", "_patches", "_replay", "_threads", "_waits")

    def __init__(self, data: RunData, waits: Waits, calls: Calls, output: Output, threads: HandlerThreads) -> None:
        self._data = data
        self._replay = data.replay
        self._waits = waits
        self._calls = calls
        self._output = output
        self._threads = threads
        self._patches: dict[str, bool] | None = None
        self._executing: dict[
            str, asyncio.Future[None]
        ] = {}  # steps that are executed, by key: done when they are over

    # -- steps --------------------------------------------------------------------------------------------

    async def step(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None,
        retries: int, backoff: float, timeout: float | None,
    ) -> Any:  # fmt: skip
        self._waits.check_open()
        called_with = arguments(args, kwargs)
        place = self._calls.place("step", name, key, called_with)
        return await self.step_at(place, StepCall(name, fn, args, kwargs, called_with, retries, backoff, timeout))

    async def step_at(self, place: str, call: StepCall) -> Any:
        """A step with a record of this key."""
        self._replay.reach(place)
        codec = _result_codec(call.fn, call.name)
        while (over := self._executing.get(place)) is not None:  # another branch executes it, by the same key
            await self._waits.wait(asyncio.shield(over), behind=over)
        past = self._replay.records.get(place)
        if past is not None:
            return await self._recalled(place, call.name, codec, *past)
        with self._in_execution(place):
            record, cause = await self._attempt(place, call, codec)
            self._waits.check_open()
            record.digest, record.args = call.called_with
            self._output.step_ended(place)
            self._calls.add(record)  # the same key again: the same result
            self._replay.forget(place)
        try:
            return self._result(call.name, record, codec)
        except (StepFailed, AgentError) as failure:
            raise failure from cause

    @contextlib.contextmanager
    def _in_execution(self, place: str) -> Iterator[None]:
        """Execute a step. Another branch that comes to it by the same key waits for the end."""
        over = self._executing[place] = self._waits.loop.create_future()
        try:
            yield
        finally:
            del self._executing[place]
            over.set_result(None)

    async def _recalled(self, place: str, name: str, codec: Codec | None, seq: int, record: Recorded) -> Any:
        """The result that the history has."""
        if seq:
            await self._waits.turn(seq)
        if place in self._replay.in_store:
            stored = await self._calls.recorded_at(seq)
            assert isinstance(stored, Recorded)
            record = stored
        self._replay.forget(place)
        self._calls.passed(seq)
        self._output.step_passed(place)
        return self._calls.recalled(f"the result of step '{name}'", lambda: self._result(name, record, codec))

    async def _attempt(self, place: str, call: StepCall, codec: Codec | None) -> tuple[Recorded, Exception | None]:
        """Do it, as often as it takes. Returns its record, and the error of the last attempt."""
        waits, output = self._waits, self._output
        begun: Attempt | None = None
        threads = set[asyncio.Future[None]]()
        waits.active += 1
        waits.tick()
        try:
            await self._data.log.flush()
            begun = await output.begin_attempt(place) if call.retries else None
            for attempt in range(call.retries + 1):
                try:
                    async with asyncio.timeout(call.timeout):
                        value = await self._do(call, Step(waits.branches, call.name, place), threads)
                    return Recorded(place, _as_json(call.name, value, codec)), None
                except Exception as error:
                    if attempt == call.retries or isinstance(error, MissingExtra):
                        return Recorded(place, error=_storable(describe_error(error))), error
                    await self._outlive_threads(call.name, threads)
                    if begun is not None:
                        output.take_back(begun)
                    await sleep(self._data.clock, min(call.backoff * 2**attempt, 60.0))
            raise AssertionError("no attempt was made")
        finally:
            waits.active -= 1
            if begun is not None:
                output.end_attempt(begun)
            waits.tick()

    async def _outlive_threads(self, name: str, threads: set[asyncio.Future[None]]) -> None:
        """Wait for the threads of an attempt that took too long: a step never runs twice at the same time."""
        if threads:
            log.warning(
                "step %s of agent %s took too long and still runs; it is tried again when it has returned (run %s)",
                name, self._data.row.agent, self._data.row.id,
            )  # fmt: skip
            await asyncio.wait(threads)
            self._waits.check_open()

    async def _do(self, call: StepCall, step: Step, threads: set[asyncio.Future[None]]) -> Any:
        fn = call.fn
        with inside(step):
            if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
                return await self._do_generator(call, step.place, threads)
            if inspect.iscoroutinefunction(fn):
                return await fn(*call.args, **call.kwargs)
            result = await self._threads.call(lambda: fn(*call.args, **call.kwargs), threads)
            return await result if inspect.isawaitable(result) else result

    async def _do_generator(self, call: StepCall, place: str, threads: set[asyncio.Future[None]]) -> Any:
        joined = Joiner()
        generator = call.fn(*call.args, **call.kwargs)
        if inspect.isasyncgen(generator):
            await drain(self._data, self._output, generator, place, joined)
        else:
            draining = ThreadDrain(self._data, self._waits, self._output, self._threads, place, joined)
            result = await self._threads.call(lambda: draining.run(generator), threads)
            if result is not None:
                return result
        self._output.end_pieces(place)
        return None if joined.value is ABSENT else joined.value

    def _result(self, name: str, record: Recorded, codec: Codec | None) -> Any:
        if record.error is not None:
            agent = self._data.agent
            own = agent.errors.get(record.error.code) if agent is not None else None
            if own is not None:
                error = own(record.error.message, details=record.error.details)
                error.transient = record.error.transient  # this one's, whatever is usual for its class
                raise error
            raise StepFailed(name, record.error)
        return json_values.copy(record.value) if codec is None else codec.decode(record.value, InvalidOutput)

    # -- sleeping -----------------------------------------------------------------------------------------

    async def sleep(self, seconds: float, key: str | None) -> None:
        waits, calls = self._waits, self._calls
        waits.check_open()
        place = calls.place("sleep", "", key)
        deadline, over = calls.deadline_at(place, seconds), f"{place}:over"
        past = self._replay.records.get(over)
        if past is not None:
            await waits.turn(past[0] or AFTER_ALL)
            calls.passed(past[0])
            return
        if deadline > self._data.clock.now():
            with contextlib.suppress(TimeoutError):
                await waits.wait(waits.loop.create_future(), deadline)
        else:
            await waits.turn_of_new()
        if waits.branches.living and not waits.branches.engine_code:
            calls.once(over, lambda: None)  # else nothing else could have come before or after

    # -- values that are made once ------------------------------------------------------------------------

    def made_once(self, kind: str, make: Callable[[], Any]) -> Any:
        """A time, an id or a random number."""
        self._waits.check_open()
        step = self._waits.branches.step()
        if step is None:
            return self._calls.once(self._calls.place(kind, "", None, NO_ARGUMENTS), make)
        number = step.number(kind)
        if kind == "now":
            return self._calls.once(f"now:{step.place}:{number}", make)
        # Made of the place of the step, and not recorded: an attempt that a crash cut short leaves no record behind.
        # The run that continues a failed one makes the same, so that what happened outside is not done twice.
        created = self._replay.created
        run = created.continues.first if created is not None and created.continues is not None else self._data.row.id
        seed = hashlib.sha256(f"{run}\n{step.place}\n{kind}\n{number}".encode()).digest()
        if kind == "uuid":
            return str(uuid.UUID(bytes=seed[:16], version=4))
        return (int.from_bytes(seed[:8]) >> 11) / 2**53

    def patched(self, name: str) -> bool:
        """Tells whether the run executes the new code: it has done so before, or is past its history."""
        place = f"patch:{name}"
        self._replay.reach(place)
        past = self._replay.records.get(place)
        if past is not None:
            self._calls.passed(past[0])
            return True
        if self._patches is None:
            self._patches = {}
        is_new = self._patches.setdefault(name, self._replay.caught_up)  # the same answer for all of this entry
        if is_new:
            self._calls.once(place, lambda: True)
        return is_new

    def deprecate_patch(self, name: str) -> None:
        self._replay.reach(f"patch:{name}")


def _as_json(name: str, value: Any, codec: Codec | None) -> Any:
    try:
        encoded = json_values.listed(codec.encode(value) if codec is not None else msgspec.to_builtins(value))
        encoded = json_values.clean(encoded, InvalidOutput, what=f"the result of step {name}")
    except (TypeError, ValueError, Invalid) as error:
        raise InvalidOutput(
            f"step {name} gave {type(value).__name__}, which cannot be recorded as JSON: {error}"
        ) from error
    return encoded


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

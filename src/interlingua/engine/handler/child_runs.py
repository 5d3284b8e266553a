"""Children of a run: other agents that its handler calls, found in its history or started, and awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import msgspec

from ...model import json_values, trace_context
from ...model.card import AgentCard
from ...model.content import Message
from ...model.errors import (
    ChildFailed,
    ErrorInfo,
    InterlinguaError,
    Invalid,
    InvalidInput,
    InvalidOutput,
    StoreError,
    from_info,
)
from ...model.events import ChildCalled, ChildEnded, Notice, Recorded
from ...model.run import RunRequest
from ...model.status import Status
from ...model.team import carried_scope
from ...store.changes import CountDelegation, DropInbox
from ...store.rows import RunRow
from ..ids import new_id
from ..log.received_messages import MailKind
from ..log.record_keys import Arguments, is_named, name_of, show
from ..log.replay import NEVER_BEGAN
from ..log.replay_order import AFTER_ALL
from ..observe import tracing
from .calls import Calls
from .run_data import RunData
from .waits import Waits

if TYPE_CHECKING:
    from ..agents.agent import Agent

Prepare = Callable[[str], Awaitable[RunRequest]]
"""Makes the request of a child, given its id."""


class Submitter(Protocol):
    """Starts runs, as a run needs it that calls others."""

    async def exists(self, run: str) -> bool: ...
    async def submit(self, request: RunRequest, *, parent: RunRow | None, run: str | None) -> object: ...
    async def send(self, run: str, message: Message, *, sealed: bool, kind: MailKind) -> None: ...


class Cards(Protocol):
    """Finds the cards of agents."""

    async def card(self, name: str, version: str | None = None) -> AgentCard: ...


class ChildCall(msgspec.Struct):
    """A call for a child. `digest` tells one input from another; `shown` shows it to readers."""

    place: str
    digest: str
    name: str
    prepare: Prepare
    shown: str = ""
    notice: Notice | None = None  # of a delegation
    proposal: str | None = None  # the hash of the result that is to be judged
    count: CountDelegation | None = None  # written with the call
    inner: bool = False  # part of how this run does its own work: its input stays the same, whatever its key
    beside: Callable[[str], Coroutine[Any, Any, None]] | None = None  # done while the child executes, given its id
    is_told: Callable[[], bool] | None = None  # whether the team knows of it; else it is prepared again


class ChildRuns:
    __slots__ = ("_calls", "_cards", "_data", "_ends", "_keys", "_replay", "_submitter", "_waits")

    def __init__(self, data: RunData, waits: Waits, calls: Calls, submitter: Submitter, cards: Cards) -> None:
        self._data = data
        self._replay = data.replay
        self._waits = waits
        self._calls = calls
        self._submitter = submitter
        self._cards = cards
        self._ends: dict[str, asyncio.Future[ChildEnded]] = {}  # by run
        self._keys: dict[str, str] = {}  # of those that have not ended, by run

    def resume(self) -> None:
        """Wait again for those that had not ended when the run was left."""
        for called, ended, _ in self._replay.children.values():
            if ended is None and self._replay.never_began(called.key) is None:
                self._keys[called.run] = called.key

    @property
    def running(self) -> list[str]:
        return list(self._keys)

    def take_ending(self, ended: ChildEnded, drop: DropInbox) -> None:
        """A child has ended. `ended` has no key yet."""
        key = self._keys.pop(ended.run, None)
        if key is None:
            self._data.log.touch(drop)
            return
        ended.key = key
        self._data.log.append(ended, drop)
        children = self._replay.children
        if key in children:
            called, _, seq = children[key]
            children[key] = (called, ended, seq)
        future = self._ends.setdefault(ended.run, self._waits.loop.create_future())
        if not future.done():
            future.set_result(ended)

    # -- calling ------------------------------------------------------------------------------------------

    async def call(
        self, agent: Agent[..., Any] | str, input_: Any, inputs: dict[str, Any], version: str | None, config: Any,
        thread: str | None, timeout: float | None, key: str | None,
    ) -> Any:  # fmt: skip
        """The output of another agent."""
        self._waits.check_open()
        name = agent if isinstance(agent, str) else agent.card.name
        version = version if isinstance(agent, str) else agent.card.version
        if isinstance(input_, str):
            input_ = as_text(name, (await self._cards.card(name, version)).input_text, input_)
        payload = {**(input_ or {}), **json_values.to_plain(inputs)}
        payload = json_values.clean(payload, InvalidInput, what="input")
        digest = json_values.digest([name, version, payload, config])
        shown = show(payload)

        async def prepare(_: str) -> RunRequest:
            return self.request(name, version, payload, config, thread=thread, timeout=timeout)

        place = self._calls.place("call", name, key, Arguments(digest, shown))
        past = place in self._replay.children
        ended = await self.run_child(ChildCall(place, digest, name, prepare, shown))
        self._replay.forget_end(place)
        if not is_named(place):
            self._ends.pop(ended.run, None)  # it has the result too
        if past:
            return self._calls.recalled(f"the result of agent {name}", lambda: child_result(agent, ended))
        return child_result(agent, ended)

    async def pass_on(self, child: str, message: Message) -> None:
        """Pass a message of this run's mailbox on to a child."""
        await self._submitter.send(child, message, sealed=True, kind="passed")

    def request(self, name: str, version: str | None, payload: Any, config: Any, **more: Any) -> RunRequest:
        """The request of a child of this run."""
        mine = self._data.request
        trace = tracing.current(mine.trace)
        if mine.authority is None:  # else the child's authority says how much time is left
            since = self._data.clock.now() - self._data.row.created_at
            trace = carried_scope.deduct_seconds(trace_context.read(trace), since / 1e6)
        return RunRequest(name, version, payload, config, caller=mine.caller, trace=trace, **more)

    async def run_child(self, call: ChildCall) -> ChildEnded:
        """Call for a child and wait for its end, or find both in the log."""
        place = call.place
        self._replay.reach(place)
        known = self._replay.children.get(place)
        if known is not None and known[0].input != call.digest and (not is_named(place) or call.inner):
            self.other_input(place)
        await self._raise_refusal(place)
        if known is not None:
            ended = await self._past_end(place, *known)
            if ended is not None:
                return ended
        future = await self._start(call, known[0] if known is not None else None)
        return await self._await_end(call, future)

    async def _raise_refusal(self, place: str) -> None:
        """Raise what a child was refused with when it was submitted."""
        if (never_began := self._replay.never_began(place)) is not None:
            seq, record = never_began
            await self._waits.turn(seq or AFTER_ALL)
            self._calls.passed(seq)
            assert record.error is not None
            raise from_info(record.error)

    async def _past_end(self, place: str, called: ChildCalled, ended: ChildEnded | None, seq: int) -> ChildEnded | None:
        """The end that the history has, or that came a moment ago; None where the child executes still."""
        if ended is None and called.run in self._ends and self._ends[called.run].done():
            ended = self._ends[called.run].result()
        if ended is None:
            return None
        at = self._replay.ended_at.get(place, AFTER_ALL)
        await self._waits.turn(at)
        if place in self._replay.in_store:
            stored = await self._calls.recorded_at(at)
            assert isinstance(stored, ChildEnded)
            ended = stored
        self._calls.passed(seq)
        return ended

    async def _start(self, call: ChildCall, called: ChildCalled | None) -> asyncio.Future[ChildEnded]:
        """Submit a child, where that is not done yet. Returns what is done when it ends."""
        log, place, waits = self._data.log, call.place, self._waits
        new = called is None
        if called is None:
            called = ChildCalled(place, new_id(), call.name, call.digest, call.notice, call.proposal, call.shown)
            self._replay.children[place] = (called, None, 0)
            changes = [msgspec.structs.replace(call.count, run=called.run)] if call.count is not None else []
            log.append(called, *changes)
        child = called.run
        with waits.busy():  # another branch of the handler may wait
            await log.flush()
            self._keys[child] = place
            future = self._ends.setdefault(child, waits.loop.create_future())
            if new or not await self._submitter.exists(child):
                await self._submit(call, child)
            elif call.is_told is not None and not call.is_told():
                await call.prepare(child)  # it was written, and its notice to the team was not
            if not new:
                await waits.pull_inbox()  # its end may have come long ago; that of a new one will come
        return future

    async def _submit(self, call: ChildCall, child: str) -> None:
        try:
            await self._submitter.submit(await call.prepare(child), parent=self._data.row, run=child)
        except Exception as error:
            self._keys.pop(child, None)
            if call.notice is not None and isinstance(error, Invalid):
                await self._data.host.store.delegations.uncount(child)  # it never came to be, and counts for nothing
            if isinstance(error, InterlinguaError) and not isinstance(error, StoreError):
                self._never_began(call.place, error)
            raise

    async def _await_end(self, call: ChildCall, future: asyncio.Future[ChildEnded]) -> ChildEnded:
        over = asyncio.shield(future)
        async with self._beside(call, over):
            ended = await self._waits.wait(over, behind=future)
        assert isinstance(ended, ChildEnded)
        return ended

    @contextlib.asynccontextmanager
    async def _beside(self, call: ChildCall, over: asyncio.Future[ChildEnded]) -> AsyncIterator[None]:
        """Do what is to be done while the child executes. Where that fails, the wait for the child fails."""
        if call.beside is None:
            yield
            return
        child = self._replay.children[call.place][0].run
        task = self._waits.loop.create_task(call.beside(child))

        def failed(answering: asyncio.Task[None]) -> None:
            """Fail the wait, as answering the child has failed: the child may wait for that answer for ever."""
            error = None if answering.cancelled() else answering.exception()
            if error is not None and not over.done():
                over.set_exception(error)
                self._waits.stir()  # no time to park

        task.add_done_callback(failed)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            task.result()

    def _never_began(self, place: str, error: InterlinguaError) -> None:
        """Record why a child was refused when it was submitted. A refusal of the gate is in the log already."""
        self._waits.check_open()
        if place not in self._replay.refused:
            self._calls.add(Recorded(place + NEVER_BEGAN, error=error.info()))

    def other_input(self, place: str) -> NoReturn:
        """Block the run: the history has this call with another input. That is for the log of the child's own run."""
        call = f"call '{name_of(place)}'"
        self._calls.mismatch(call, f"{call} with another input")


def as_text(name: str, field: str | None, text: str) -> dict[str, Any]:
    """A text as the input of an agent."""
    if field is None:
        raise InvalidInput(f"agent {name} has no text field; call it with its input's members")
    return {field: text}


def child_result(agent: Agent[..., Any] | str, ended: ChildEnded) -> Any:
    """The output of a child; raises where it did not succeed."""
    if ended.status is not Status.SUCCEEDED:
        error = ended.error or ErrorInfo("run_failed", f"it {ended.status.value}")
        name = agent if isinstance(agent, str) else agent.card.name
        raise ChildFailed(f"agent {name}: {error.message}", error=error, run=ended.run)
    output = ended.output
    codec = None if isinstance(agent, str) else agent.output
    if codec is None or codec.codec is None:
        return output
    return codec.codec.decode(output if codec.wrap is None else output.get(codec.wrap), InvalidOutput)

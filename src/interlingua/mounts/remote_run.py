"""One run of a mounted agent: everything that all mounts do alike, from the handle of the remote run to its result.

A handle is recorded before anything is sent that cannot be repeated. Then the remote run is followed to its end, over
any number of connections; what it wants on the way is acted on. Where a wire has cursors, each stretch between two
requests is a recorded step: a run that is resumed reads nothing twice. Elsewhere the whole run is one stretch that is
never recorded, and that shows again first what it has shown.

A protocol implements `RemoteRun`; `run` drives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import Any, ClassVar

import msgspec

from ..engine.handler.context import Context
from ..engine.handler.mounted_run import Gone, MountedRun
from ..model.errors import (
    InterlinguaError,
    Invalid,
    InvalidOutput,
    QuestionExpired,
    RunError,
    RunLost,
    StepFailed,
    Unavailable,
)
from ..model.schemas import Validator
from ..model.trace_context import Carrier
from .errors import remote_error
from .remote_output import RemoteOutput
from .remote_questions import Asked, RemoteQuestions

log = logging.getLogger("interlingua.mounts")

ENDED, FAILED, ASKED = "ended", "failed", "asked"
"""Kinds of stretches that all wires have. A run goes on after all others."""

_LATE = "late"  # the step of warnings about answers that nobody wanted


class Stretch(msgspec.Struct):
    """The end of a stretch of a remote run: of the run, or at a request that has to be acted on."""

    kind: str
    data: Any = None
    cursor: str | None = None  # the last update that was taken in
    shown: Any = None  # the output as it has been shown, where the run goes on from here
    more: Any = None  # what else the protocol has to know to go on


class Disconnected(Exception):
    """The remote run cannot be followed any more over this connection. It is followed again over the next one."""


class Patience:
    """Limits the time for which a server is tried that cannot be reached, and pauses between the tries."""

    def __init__(self, where: str, seconds: float, gives_up: type[InterlinguaError] = Unavailable) -> None:
        self._where = where
        self._seconds = seconds
        self._gives_up = gives_up
        self._since: float | None = None
        self._tries = 0

    def reset(self) -> None:
        """Notes that the server is there."""
        self._since, self._tries = None, 0

    async def spend(self, lost: Exception) -> None:
        """Waits before the next try. Raises an error with the words of `lost` when that takes too long."""
        time = asyncio.get_running_loop().time()
        self._since = time if self._since is None else self._since
        if time - self._since > self._seconds:
            raise self._gives_up(f"{self._where} {lost}") from lost
        await self.pause()

    async def pause(self) -> None:
        self._tries += 1
        await asyncio.sleep(min(0.02 * 2 ** min(self._tries, 8), 5.0))


class RemoteRun:
    """A local run, and the remote run that does its work. A protocol says how its wire does it."""

    handle_key: ClassVar[str] = "start"
    """The step in which the handle is recorded."""
    step: ClassVar[str] = "follow"
    """The step of all output where a wire has no cursors, and no stretch is recorded."""
    has_cursors: ClassVar[bool] = False
    expires_there = True
    """The remote side ends its question at the deadline that it gave, and goes on."""
    cancel_within = 10.0
    """Seconds for telling the remote side that the run is over."""

    def __init__(
        self, ctx: Context[Any, Any], input_: dict[str, Any], where: str, *, patience: float,
        answer_within: float | None = None,
    ) -> None:  # fmt: skip
        """`where` names the server in messages, without secrets. `patience` are the seconds for which it is tried."""
        self.ctx = ctx
        self.input = input_
        self.where = where
        self.mounted = MountedRun(ctx)
        self.output = RemoteOutput(self.mounted)
        self.questions = RemoteQuestions(self.mounted, answer_within)
        self.patience = Patience(where, patience)
        self.resources = contextlib.AsyncExitStack()
        """Closed when the run is left."""
        self.resumed = self.mounted.recorded(self.handle_key)

    @cached_property
    def trace(self) -> Carrier:
        """The trace of this run, for the request that begins the remote one. Raises where it must not go there."""
        return self.mounted.onward()

    # -- what a protocol says -----------------------------------------------------------------------------

    async def enter(self) -> None:
        """Opens what the run needs, and leaves it to `resources`."""

    async def handle_at_hand(self) -> Any:
        """Returns the handle where nothing has to be waited for; else None. Saves a commit."""
        return None

    @property
    def begins_with_its_stream(self) -> bool:
        """Tells that no handle is needed to find the run again: to follow it begins it, or finds it."""
        return False

    async def open(self) -> Any:
        """Returns the handle: what has to be known to find the remote run again, or to know that it cannot be found.
        Here only requests are sent that may be repeated, or whose loss leaves nothing behind."""
        return None

    def opened(self, handle: Any, shown: list[Any]) -> None:
        """Takes the handle, new or recorded; and what a stretch without cursor has shown before."""

    def lost(self) -> str | None:
        """Returns the reason why this run could not be resumed; None where it could."""
        return None

    async def begin(self) -> None:
        """Begins the remote run, or finds it again, where that is not a part of following it."""

    async def follow(self) -> Stretch:
        """Begins the remote run, or finds it again, and shows its updates until it ends or wants something. Raises
        Disconnected where the connection was lost."""
        raise NotImplementedError

    def go_on_from(self, stretch: Stretch) -> None:
        """Goes on after a stretch, which was followed now or comes out of the log."""

    async def act(self, stretch: Stretch, number: int) -> None:
        """Does what a stretch ended with: asks its question, for instance."""
        raise NotImplementedError(stretch.kind)

    async def finish(self, data: Any) -> dict[str, Any]:
        """Returns the output of a run that has ended, and shows what belongs to the end."""
        return data if isinstance(data, dict) else {} if data is None else {"value": data}

    def failure(self, data: Any) -> RunError:
        """Returns the error of a run that has failed."""
        raise NotImplementedError

    def notes(self) -> list[tuple[str, Any]]:
        """Returns warnings about oddities of the server, with details."""
        return []

    async def cancel(self) -> None:
        """Tells the remote side that the run is over."""

    async def leave(self) -> None:
        """Ends what goes on beside the run, when the run is over or parked."""

    # -- for a protocol -----------------------------------------------------------------------------------

    async def put_question(
        self, asked: Asked, number: int, *, moved_on: Callable[[], Awaitable[None]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Asks a question here for as long as the remote run waits for its answer, which is until `moved_on` returns.
        The answer is sent in a step; `send` may raise Disconnected and TooLate."""
        try:
            answer = await self.questions.ask_while(asked, moved_on)
        except Gone:
            return  # another client answered
        except QuestionExpired:
            if asked.until is None or not self.expires_there:
                raise
            return  # the remote side says how it goes on
        step = f"answer-{number}"
        await self.ctx.step("answer", partial(self._deliver, asked, send), answer, step, key=step)

    async def _deliver(self, asked: Asked, send: Callable[[Any], Awaitable[None]], answer: Any, step: str) -> None:
        while True:
            try:
                return await self.questions.deliver(asked, step, partial(send, answer))
            except Disconnected as lost:
                await self.patience.spend(lost)


async def run(remote: RemoteRun, schema: Validator | None = None) -> dict[str, Any]:
    """Carries out a run, and returns its output. Where it does not fit the schema, there is a warning."""
    async with remote.resources:
        await remote.enter()
        try:
            output = await _run_to_end(remote)
        except StepFailed as failure:
            raise remote_error(failure.error) from failure
        except QuestionExpired:
            await _cancel(remote)  # there it would wait for ever
            raise
        except asyncio.CancelledError:
            if remote.mounted.leaving_for_good or remote.lost() is not None:
                await _cancel(remote)
            else:
                remote.questions.silent = True  # it goes on later, and is found again by its handle
            raise
        finally:
            await remote.questions.settle()
            await remote.leave()
    if schema is not None:
        try:
            schema.check(output, InvalidOutput)
        except Invalid as error:
            warning = f"the output does not fit the schema that the remote side tells: {error.message}"
            await remote.output.warn_once(warning)
    for message, details in remote.notes():
        await remote.output.warn_once(message, details)
    return output


async def _run_to_end(remote: RemoteRun) -> dict[str, Any]:
    try:
        output = await _run(remote)
    except InterlinguaError:
        await _tell_unused_answers(remote)
        raise
    await _tell_unused_answers(remote)
    return output


async def _run(remote: RemoteRun) -> dict[str, Any]:
    stretches = _Stretches(remote)
    await stretches.begin()
    number = 0
    while True:
        number += 1
        stretch = await stretches.next(number)
        if stretch.kind == ENDED:
            return await remote.finish(stretch.data)
        if stretch.kind == FAILED:
            raise remote.failure(stretch.data)
        await remote.act(stretch, number)


class _Stretches:
    def __init__(self, remote: RemoteRun) -> None:
        self._remote = remote
        self._mounted = remote.mounted
        self._from_log = False

    async def begin(self) -> None:
        """Records the handle, before the remote run begins."""
        remote = self._remote
        handle: Any = None
        if remote.resumed or not remote.begins_with_its_stream:
            if not remote.resumed and (handle := await remote.handle_at_hand()) is not None:
                self._mounted.record(remote.handle_key, handle)
            else:
                handle = await remote.ctx.step(remote.handle_key, remote.open, key=remote.handle_key)
        shown = [] if remote.has_cursors else await remote.output.begin(remote.step)
        remote.opened(handle, shown)
        if remote.resumed and (why := remote.lost()) is not None:
            raise RunLost(why)
        await self._mounted.committed()
        await remote.begin()

    async def next(self, number: int) -> Stretch:
        remote = self._remote
        if not remote.has_cursors:
            return await self._follow()
        self._from_log = True
        key = f"follow-{number}"
        stretch: Stretch = await remote.ctx.step("follow", self._step, key, key=key)
        remote.output.step_recorded(stretch.shown, from_log=self._from_log)
        remote.go_on_from(stretch)
        return stretch

    async def _step(self, key: str) -> Stretch:
        self._from_log = False
        await self._remote.output.begin(key)
        return await self._follow()

    async def _follow(self) -> Stretch:
        remote = self._remote
        remote.patience.reset()
        while True:
            await self._mounted.committed()  # nothing goes to the remote side before
            try:
                stretch = await remote.follow()
            except Disconnected as lost:
                await remote.patience.spend(lost)
                continue
            if stretch.kind not in (ENDED, FAILED):
                stretch.shown = remote.output.shown
            return stretch


async def _tell_unused_answers(remote: RemoteRun) -> None:
    """Warns of answers that were given here and never went to the remote side, which has gone on without them."""
    step = remote.step
    if remote.has_cursors:
        step = _LATE
        await remote.mounted.shown_again(step)
    for warning in remote.questions.unused(step):
        await remote.mounted.show(warning)


async def _cancel(remote: RemoteRun) -> None:
    try:
        async with asyncio.timeout(remote.cancel_within):
            await remote.cancel()
    except TimeoutError:
        log.warning("%s could not be told in time that a run is over", remote.where)
    except (InterlinguaError, Disconnected, OSError) as error:
        log.warning("%s could not be told that a run is over: %s", remote.where, error)

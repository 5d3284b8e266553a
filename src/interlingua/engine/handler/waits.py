"""Waits of a handler: for answers, children, messages and moments, and for its turn among several branches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

from ...model.events import BlockReason
from ..log.replay_order import AFTER_ALL, Turns
from .branches import Branch, Branches
from .run_data import RunData
from .suspension import SUSPENDING, Leaving, Suspended


class Control(Protocol):
    """The run as a whole, as its parts need it."""

    def leave(self, how: Leaving) -> None:
        """Ask the handler to stop."""
        ...

    def block_run(self, reason: BlockReason, message: str, details: Any = None) -> NoReturn:
        """Stop the handler because its code cannot go on with the run."""
        ...

    async def pull_inbox(self) -> None:
        """Move what is in the inbox of the run into its log."""
        ...


class Activity(Protocol):
    """Notes whether the handler does something or only waits."""

    def tick(self, waits: asyncio.Task[Any] | None = None) -> None:
        """Note that the handler begins to wait or goes on. `waits`: the task that is about to wait."""
        ...

    def stir(self) -> None:
        """Note that the handler does something while one of its branches waits."""
        ...


class Waits:
    """The waits of all branches of a handler. They also say whether the handler may still do anything."""

    __slots__ = (
        "_control", "_data", "_deadlines", "_turns", "active", "activity", "awaited", "blocked", "branches", "entered",
        "leaving", "loop", "over", "waited",
    )  # fmt: skip

    def __init__(self, data: RunData, branches: Branches, control: Control, loop: asyncio.AbstractEventLoop) -> None:
        self._data = data
        self._control: Control | None = control  # None: the handler has ended
        self.activity: Activity | None = None  # made after this; None, too, when the handler has ended
        self._turns = Turns(loop)
        self._deadlines: dict[asyncio.Future[Any], int] = {}
        self.branches = branches
        self.loop = loop
        self.awaited: dict[asyncio.Future[Any], asyncio.Future[Any]] = {}  # what each wait shields, or itself
        self.blocked = 0  # operations that only wait
        self.active = 0  # operations that must not be cut short by parking
        self.waited = False  # the handler has come to something that it waits for
        self.entered = False  # the handler was called
        self.leaving: Leaving | None = None
        self.over = False  # nothing that the handler does counts any more

    def close(self) -> None:
        """Forget the run as a whole, whose handler has ended."""
        self._control = self.activity = None

    # -- whether the handler may go on --------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise where the handler is left."""
        if self.over or self.leaving is not None or self.process_ends:
            raise self.left()

    def left(self) -> BaseException:
        """The error that is raised in a handler that is left: it is cancelled, or only suspended."""
        return Suspended() if self.suspending else asyncio.CancelledError()

    @property
    def suspending(self) -> bool:
        """True when the handler is left, and the run goes on later."""
        return self.leaving in SUSPENDING and not self.branches.engine_code

    @property
    def process_ends(self) -> bool:
        """True when the task was cancelled with the process, or the event loop, and not by us or by the agent."""
        task = self.branches.root.task
        return self.leaving is None and task is not None and task.cancelling() > 0 and self._data.host.is_ending

    def leave(self, how: Leaving) -> None:
        if self._control is not None:
            self._control.leave(how)

    def block_run(self, reason: BlockReason, message: str, details: Any = None) -> NoReturn:
        """Stop here because the code cannot go on with this run. Other code of its origin may."""
        if self._control is None:
            raise Suspended
        self._control.block_run(reason, message, details)

    def suspend(self) -> None:
        """Raise Suspended where the handler waits. Its tasks that do something else can only be cancelled."""
        here = asyncio.current_task()
        busy: list[Branch] = []
        if not self._data.in_thread:
            busy = self.branches.busy(self.awaited)
            self.branches.suspend(busy)
        for future in list(self.awaited):
            if not future.done():
                future.set_exception(Suspended())
        for branch in busy:
            if branch.task is not None and branch.task is not here:
                branch.task.cancel()

    async def pull_inbox(self) -> None:
        if self._control is not None:
            await self._control.pull_inbox()

    # -- waiting ------------------------------------------------------------------------------------------

    def tick(self, waits: asyncio.Task[Any] | None = None) -> None:
        if self.activity is not None:
            self.activity.tick(waits)

    def stir(self) -> None:
        if self.activity is not None:
            self.activity.stir()

    async def wait(
        self, future: asyncio.Future[Any], deadline: int | None = None, *, behind: asyncio.Future[Any] | None = None
    ) -> Any:
        """Wait for something that may take a month. `behind` is what is done first, where the future shields it."""
        self.check_open()
        self.waited = True
        if deadline is not None:
            if deadline <= self._data.clock.now() and not future.done():
                raise TimeoutError
            self._deadlines[future] = deadline
        self.blocked += 1
        self.awaited[future] = behind or future
        self.tick(asyncio.current_task())
        try:
            if deadline is None:
                result = await future
            else:
                async with self._data.clock.until(deadline):
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
            self.awaited.pop(future, None)
            if self.blocked:
                self.stir()  # this branch of the handler goes on, while another waits
            if self.leaving is None:  # else: its deadlines are what the run is suspended with
                self._deadlines.pop(future, None)
            self.tick()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Do something that must not be cut short by parking, though the handler only waits."""
        self.active += 1
        self.tick()
        try:
            yield
        finally:
            self.active -= 1
            self.tick()

    async def turn(self, seq: int) -> None:
        """Wait until other branches have got what the history has for them before this."""
        if self.branches.living and not self.branches.engine_code:
            await self._turns.wait(seq)
            self.check_open()

    async def turn_of_new(self) -> None:
        """Let branches go first that wait for something of the history."""
        if self._turns:
            await self.turn(AFTER_ALL)

    def hold_turn(self) -> contextlib.AbstractContextManager[None]:
        """Keep the turn while the store is read."""
        return self._turns.held()

    # -- how it stands ------------------------------------------------------------------------------------

    @property
    def only_waiting(self) -> bool:
        """True when the handler does nothing but wait."""
        return self.blocked > 0 and self.active == 0

    @property
    def goes_on(self) -> bool:
        """True when a branch is about to go on, because what it waited for has come."""
        return any(one.done() for one in self.awaited.values())

    @property
    def at_rest(self) -> bool:
        """True when only somebody else can wake the run: not time, and not what has come in already."""
        return self.only_waiting and not self.goes_on and self.next_deadline() is None

    def busy_branches(self) -> list[Branch]:
        """Branches that do something else than to wait here."""
        return self.branches.busy(self.awaited)

    def next_deadline(self) -> int | None:
        authority = self._data.request.authority
        last = [] if authority is None or authority.deadline is None else [authority.deadline]
        return min([*self._deadlines.values(), *last], default=None)

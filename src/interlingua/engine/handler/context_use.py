"""Checks that a context is used where its handler runs, and does there what the handler asks for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ...model.errors import InvalidRequest
from .branches import engine_works
from .threads import HandlerThreads
from .waits import Waits

T = TypeVar("T")


class ContextUse:
    __slots__ = ("_threads", "_waits")

    def __init__(self, waits: Waits, threads: HandlerThreads) -> None:
        self._waits = waits
        self._threads = threads

    async def operate(self, what: str, work: Coroutine[Any, Any, T], *, records: bool = True) -> T:
        """Do something for a handler on the event loop. `records`: it leaves records, which a step cannot hold."""
        try:
            self._check(what, records=records)
        except BaseException:
            work.close()
            raise
        with engine_works():
            return await work

    def operate_from_thread(self, what: str, work: Coroutine[Any, Any, T], *, records: bool = True) -> T:
        """Do something for a handler that is a plain function and waits for it."""
        try:
            self._check_step(what, records=records)
        except BaseException:
            work.close()
            raise
        return self._threads.block(work)

    def at_once(self, what: str, make: Callable[[], T], *, records: bool = True) -> T:
        """Do something for a handler that waits for nothing, in its thread or on the event loop."""
        self._check_step(what, records=records)
        if self._threads.on_loop:
            self._check(what, records=records)
            return make()

        async def later() -> T:
            return make()

        return self._threads.block(later())

    def _check(self, what: str, *, records: bool) -> None:
        if not self._threads.on_loop:
            raise InvalidRequest(f"ctx.{what} was called in another thread than its handler; call it in the handler")
        branches = self._waits.branches
        if branches.engine_code:
            return
        self._check_step(what, records=records)
        if (why := branches.misuse()) is not None:
            raise InvalidRequest(f"ctx.{what} cannot be used here: {why}")

    def _check_step(self, what: str, *, records: bool) -> None:
        step = self._waits.branches.step()
        if records and step is not None:
            raise InvalidRequest(
                f"ctx.{what} was called inside step '{step.name}': a step is one record, and cannot hold others. Call "
                "it before the step, or after it"
            )

"""Code of agents that tries to end the process: it ends its own run, and nothing else.

asyncio lets SystemExit and KeyboardInterrupt pass out of any task and stop the event loop, and with it every run. So
they are caught within the task: that of the handler, and each that the handler creates.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import opcode
import signal
import weakref
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from ...model.errors import AgentCrashed, describe
from . import branches

T = TypeVar("T")

EXITS = (SystemExit, KeyboardInterrupt)
_RAISES = {opcode.opmap["RAISE_VARARGS"], opcode.opmap["RERAISE"]}


class Run(Protocol):
    """The run of a handler, as its tasks need it."""

    def exit(self, error: BaseException) -> None:
        """Fail the run with this error."""
        ...


_current: contextvars.ContextVar[weakref.ref[Run] | None] = contextvars.ContextVar("interlingua_run", default=None)
"""The run whose handler has created the current task, or runs in it. Connections outlive it in this context."""


def contain(run: Run | None) -> None:
    """Let the tasks that are created in this context fail this run, where they would end the process."""
    _current.set(None if run is None else weakref.ref(run))


def is_signal(error: BaseException | None) -> bool:
    """Tells whether this is Ctrl-C at the process, which only happened to arrive while code of an agent was executing.

    Python raises it between two instructions of whatever executes, or a handler of the signal does (that of asyncio
    among them); an agent that raises KeyboardInterrupt does so with a statement of its own.
    """
    if not isinstance(error, KeyboardInterrupt) or error.__traceback__ is None:
        return False
    at = error.__traceback__
    while at.tb_next is not None:
        at = at.tb_next
    code = at.tb_frame.f_code
    return code is _code_of(signal.getsignal(signal.SIGINT)) or code.co_code[at.tb_lasti] not in _RAISES


def _code_of(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return getattr(handler, "__code__", None)


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Contain what tasks of handlers raise on this loop. Another task factory goes on making the tasks."""
    before = loop.get_task_factory()
    if not isinstance(before, _TaskFactory):
        loop.set_task_factory(_TaskFactory(before))


class _TaskFactory:
    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Any, *, context: contextvars.Context | None = None, **more: Any
    ) -> Any:
        current = _current.get() if context is None else context.get(_current)
        run = None if current is None else current()
        branch = branches.fork(context, coro)
        if run is not None and asyncio.iscoroutine(coro):
            coro = Contained(run, coro)
        if branch is not None:
            context = branch.context
        if context is not None:
            more["context"] = context
        make = self._before if self._before is not None else _make_task
        task = make(loop, coro, **more)
        if branch is not None:
            branch.began(task, coro)
        return task


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> Any:
    return asyncio.Task(coro, loop=loop, **more)


class Contained(branches.Watched[T]):
    """A coroutine of a handler's task. Where it would end the process, it fails the run instead."""

    def __init__(self, run: Run, work: Coroutine[Any, Any, T]) -> None:
        super().__init__(work)
        self._run = run

    def send(self, value: Any) -> Any:
        try:
            return super().send(value)
        except EXITS as error:
            if is_signal(error):
                raise
            raise self._failed(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return super().throw(*error)
        except EXITS as exit_:
            if is_signal(exit_):
                raise
            raise self._failed(exit_) from exit_
        finally:
            del error  # its traceback holds this frame

    def _failed(self, error: BaseException) -> AgentCrashed:
        self._run.exit(error)
        return AgentCrashed(describe(error).message)

"""Branches of a handler: each of its asyncio tasks has a path that is the same whenever the handler is replayed.

The handler itself is the branch "". Its second task is the branch "2", and the first task of that one is "2.1". The
calls within a branch are numbered, so a record is matched by its branch and its position there.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
import types
import weakref
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator
from typing import Any, TypeVar

from .suspension import Suspended

T = TypeVar("T")

_ENGINE = "engine"

_branch: contextvars.ContextVar[Branch | None] = contextvars.ContextVar("interlingua_branch", default=None)
_inside: contextvars.ContextVar[Step | str | None] = contextvars.ContextVar("interlingua_inside", default=None)
"""The step that is executed here, or _ENGINE while the engine works for the handler. Their tasks are no branches."""


async def _no_items() -> Any:
    yield


_closing = _no_items().aclose()
_CLOSING: type = type(_closing)  # tasks in which the event loop closes abandoned generators: no code of the handler
_closing.close()


class Watched(Coroutine[Any, Any, T]):
    """A coroutine of a task, with what it waits for.

    No coroutine around the other one: a task that is cancelled before it starts would leave that unawaited.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.work = work
        self.awaits: Any = None
        self._suspend = False

    def suspend(self) -> None:
        """Raise Suspended where it waits, as soon as it is resumed: it may be because others were suspended."""
        self._suspend = True

    def resume(self) -> None:
        """Cancel it where it is cancelled: the run does not go on."""
        self._suspend = False

    def _ends_a_group(self) -> bool:
        """Tells whether it waits for the tasks of a group, which ends well when it is cancelled and they were
        suspended."""
        return any(frame.f_code.co_name == "__aexit__" for frame in _waiting_frames(self.work))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)  # its name, its frame and its code, for those who show tasks

    def __await__(self) -> Generator[Any, Any, T]:
        return self.work.__await__()

    def send(self, value: Any) -> Any:
        if self._suspend:
            return self.throw(Suspended())
        self.awaits = None
        self.awaits = self.work.send(value)
        return self.awaits

    def throw(self, *error: Any) -> Any:
        if self._suspend and _cancels(error[0]) and not self._ends_a_group():
            error = (Suspended(),)  # a group cancels all its tasks when the first of them is suspended
        self.awaits, self._suspend = None, False
        try:
            self.awaits = self.work.throw(*error)
        finally:
            del error  # an error that holds this frame by its traceback must not be held by it
        return self.awaits

    def close(self) -> None:
        self.work.close()


class Branch:
    """One task of a handler."""

    __slots__ = ("_numbers", "_position", "_tasks", "context", "path", "run", "task", "work")

    def __init__(self, run: Branches, path: str) -> None:
        self.run: Branches | None = run  # None: the handler has ended
        self.path = path
        self.task: asyncio.Task[Any] | None = None
        self.work: Watched[Any] | None = None
        self.context: contextvars.Context | None = None
        self._tasks = 0
        self._position = 0
        self._numbers: dict[str, int] = {}

    def next_position(self) -> int:
        self._position += 1
        return self._position

    def number(self, kind: str) -> int:
        """Count things that have ids and no records."""
        number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return number

    def fork(self) -> Branch | None:
        if self.run is None:
            return None
        self._tasks += 1
        return Branch(self.run, f"{self.path}.{self._tasks}" if self.path else str(self._tasks))

    def began(self, task: asyncio.Task[Any], work: Any) -> None:
        assert self.run is not None
        self.task, self.context = task, None
        self.work = work if isinstance(work, Watched) else None
        self.run.living[self] = task
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.task = self.work = None  # the task holds its context, and that holds this branch
        if self.run is not None:
            self.run.ended(self, task)


class Step:
    """An attempt of a step, as the code in it sees it."""

    __slots__ = ("_numbers", "name", "place", "run")

    def __init__(self, run: Branches, name: str, place: str) -> None:
        self.run = run
        self.name = name
        self.place = place
        self._numbers: dict[str, int] = {}

    def number(self, kind: str) -> int:
        number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return number


class Branches:
    """The branches of one entry of a handler."""

    __slots__ = ("_on_end", "engine_code", "gone", "living", "root")

    def __init__(self, on_end: Callable[[Branch, asyncio.Task[Any]], None]) -> None:
        self.root = Branch(self, "")
        self.living: dict[Branch, asyncio.Task[Any]] = {}  # but the root
        self.gone: list[str] = []  # paths of those that were cancelled: their history need not be used up
        self.engine_code = False
        """Whether the handler belongs to the engine, as of mounts: its records depend on what the remote side says, it
        knows itself when it may be suspended, and it is cancelled for that."""
        self._on_end: Callable[[Branch, asyncio.Task[Any]], None] | None = on_end

    def ended(self, branch: Branch, task: asyncio.Task[Any]) -> None:
        self.living.pop(branch, None)
        if task.cancelled():
            self.gone.append(branch.path)
        if self._on_end is not None:
            self._on_end(branch, task)

    def close(self) -> None:
        """Let go of the run, whose handler has ended."""
        self.root.task = self.root.work = self.root.run = self._on_end = None

    def here(self) -> Branch:
        """The branch that executes now."""
        branch = _branch.get()
        return branch if branch is not None and branch.run is self else self.root

    def emitting(self) -> str | None:
        """The path of the branch that what is emitted now belongs to; None: the handler itself."""
        if self.engine_code or not self.living:
            return None
        return self.here().path or None

    def number(self, kind: str) -> str:
        """An id for what has no record: it stays the same when the handler is replayed."""
        step = self.step()
        if step is not None:
            return f"{kind}:{step.place}:{step.number(kind)}"
        branch = self.here()
        return f"{kind}:{branch.path}:{branch.number(kind)}"

    def step(self) -> Step | None:
        """The step that executes now. Connections of mounts outlive the step that opened them."""
        if self.engine_code:
            return None
        inside = _inside.get()
        return inside if isinstance(inside, Step) and inside.run is self else None

    def busy(self, waits: Collection[asyncio.Future[Any]]) -> list[Branch]:
        """Branches that wait neither for one of these, nor for a task of the same handler."""
        tasks = set(self.living.values())
        return [branch for branch in self._all() if not _is_waiting(branch.work, waits, tasks)]

    def suspend(self, busy: Collection[Branch]) -> None:
        """Suspend all branches but those."""
        for branch in self._all():
            if branch.work is not None and branch not in busy:
                branch.work.suspend()

    def resume(self) -> None:
        """Suspend no branch any more."""
        for branch in self._all():
            if branch.work is not None:
                branch.work.resume()

    def _all(self) -> list[Branch]:
        return [one for one in (self.root, *self.living) if one.task is not None and not one.task.done()]

    def is_excused(self, path: str) -> bool:
        """Tells whether a branch, or one that it comes from, was cancelled, or is still alive."""
        excused = (*self.gone, *(branch.path for branch in self.living))
        return any(path == one or path.startswith(f"{one}.") for one in excused)

    def misuse(self) -> str | None:
        """Why the context of the run must not be used by the current task."""
        branch = _branch.get()
        if branch is None or branch.run is not self:
            return "it belongs to another run"
        task = asyncio.current_task()
        if branch is not self.root and branch.task is None:
            branch.task = task  # it began within the call that made it
        owner = self.root.task if branch is self.root else branch.task
        if _inside.get() is None and owner is not None and owner is not task:
            return "this task was not made by asyncio.create_task, so its records cannot be told apart"
        return None


def _cancels(error: Any) -> bool:
    return isinstance(error, asyncio.CancelledError) or error is asyncio.CancelledError


def _is_waiting(
    work: Watched[Any] | None, waits: Collection[asyncio.Future[Any]], tasks: Collection[asyncio.Task[Any]]
) -> bool:
    if work is None or not isinstance(work.awaits, asyncio.Future) or work.awaits.done():
        return False
    if work.awaits in waits:
        return True
    if not tasks:
        return False
    return _refers(work.awaits, tasks) or any(_refers(frame.f_locals, tasks) for frame in _waiting_frames(work.work))


def _waiting_frames(work: Any) -> list[types.FrameType]:
    """The frames in which a coroutine is suspended, as far as they are in asyncio or anyio: asyncio.wait, or the end of
    a group."""
    frames: list[types.FrameType] = []
    while work is not None:
        if isinstance(work, Watched):
            work = work.work
        frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None) or getattr(work, "ag_frame", None)
        if frame is not None:
            frames.append(frame)
        inner = next((getattr(work, name) for name in _INNER if hasattr(work, name)), None)
        if inner is None and frame is None:  # the next item of an asynchronous generator
            inner = next((one for one in gc.get_referents(work) if isinstance(one, types.AsyncGeneratorType)), None)
        work = inner
    waiting: list[types.FrameType] = []
    for frame in reversed(frames):
        if not str(frame.f_globals.get("__name__", "")).startswith(("asyncio.", "anyio.")):
            break
        waiting.append(frame)
    return waiting


_INNER = ("cr_await", "gi_yieldfrom", "ag_await")


def _refers(value: Any, tasks: Collection[asyncio.Task[Any]], depth: int = 4) -> bool:
    """Tells whether something holds one of the tasks, as a group of tasks does."""
    if isinstance(value, asyncio.Task):
        return value in tasks
    if depth == 0 or isinstance(value, asyncio.AbstractEventLoop):
        return False
    if isinstance(value, dict):
        return any(_refers(one, tasks, depth - 1) for one in list(value.values()))
    if isinstance(value, list | tuple | set | frozenset | weakref.WeakSet):
        return any(_refers(one, tasks, depth - 1) for one in list(value))
    if isinstance(value, asyncio.Future):  # as of asyncio.gather; its members cannot be named
        return any(_refers(one, tasks, depth - 1) for one in gc.get_referents(value) if isinstance(one, dict))
    members = getattr(value, "__dict__", None)
    return isinstance(members, dict) and _refers(members, tasks, depth - 1)


def fork(context: contextvars.Context | None, work: Any) -> Branch | None:
    """The branch that a new task is, with its context; None where the task is not of a handler."""
    if context is None:
        parent, inside = _branch.get(), _inside.get()
    else:
        parent, inside = context.get(_branch), context.get(_inside)
    if parent is None or inside is not None or isinstance(work, _CLOSING):
        return None
    branch = parent.fork()
    if branch is None:
        return None
    branch.context = contextvars.copy_context() if context is None else context.copy()
    branch.context.run(_branch.set, branch)
    return branch


def no_branch() -> contextvars.Context:
    """A context for tasks of the engine, wherever they are made."""
    context = contextvars.copy_context()
    context.run(_branch.set, None)
    context.run(_inside.set, None)
    return context


def enter(branch: Branch) -> None:
    """Go on as this branch, in this task."""
    _branch.set(branch)
    _inside.set(None)


@contextlib.contextmanager
def inside(what: Step | str | None) -> Iterator[None]:
    """While a step is executed, or the engine works, or calls code of the handler's (None)."""
    before = _inside.get()
    _inside.set(what)
    try:
        yield
    finally:
        _inside.set(before)


def engine_works() -> contextlib.AbstractContextManager[None]:
    """While the engine works for the handler. A step stays known: what it shows belongs to it."""
    return inside(_inside.get() or _ENGINE)


# -- threads --------------------------------------------------------------------------------------------------


class _Thread(threading.local):
    run: Branches | None = None


_thread = _Thread()


@contextlib.contextmanager
def thread_of(run: Branches) -> Iterator[None]:
    """While this thread executes a function of the handler for the engine."""
    _thread.run = run
    try:
        yield
    finally:
        _thread.run = None


def is_thread_of(run: Branches) -> bool:
    return _thread.run is run

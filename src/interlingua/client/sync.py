"""The blocking client. Written by tools/sync_client.py from `client.py` and `handles.py`; change those."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

import httpx2

from ..control import wire
from ..engine.engine import Engine
from ..model.card import AgentCard
from ..model.content import Message
from ..model.events import Event
from ..model.run import WhenBusy
from . import client, handles
from .loop_thread import LoopThread

T = TypeVar("T")
R = TypeVar("R")

SyncOnQuestion = Callable[["SyncOpenQuestion"], Any]
"""Gets a question, and returns the answer. It runs in a thread of its own, so it may block."""


def _same(value: T) -> T:
    return value


def _plain(value: Any) -> Any:
    """Returns the asynchronous object behind a handle; any other value as it is."""
    return getattr(value, "_async", value)


class _Wrapped:
    """A handle whose methods block."""

    def __init__(self, loop: LoopThread, wrapped: Any) -> None:
        self._loop = loop
        self._async = wrapped

    def __repr__(self) -> str:
        return f"<Sync{repr(self._async)[1:]}"

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.call(work)
        except (handles.RunFailed, handles.Waiting) as error:
            raise self._blocking(error) from error.__cause__

    def _iterate(self, items: AsyncIterator[T], wrap: Callable[[T], R]) -> Iterator[R]:
        try:
            yield from self._loop.iterate(items, wrap)
        except handles.RunFailed as error:
            raise self._blocking(error) from error.__cause__

    def _blocking(self, error: handles.RunFailed | handles.Waiting) -> Exception:
        """Returns an error whose handles block."""
        error.run = self._run(error.run)
        if isinstance(error, handles.Waiting):
            error.questions = self._questions(error.questions)
        return error

    def _handler(self, on_question: SyncOnQuestion | None) -> handles.OnQuestion | None:
        if on_question is None:
            return None

        async def ask(question: handles.OpenQuestion) -> Any:
            return await asyncio.to_thread(on_question, SyncOpenQuestion(self._loop, question))

        return ask

    def _run(self, run: handles.RunHandle) -> SyncRunHandle:
        return SyncRunHandle(self._loop, run)

    def _thread(self, thread: handles.ThreadHandle) -> SyncThreadHandle:
        return SyncThreadHandle(self._loop, thread)

    def _question(self, question: handles.OpenQuestion) -> SyncOpenQuestion:
        return SyncOpenQuestion(self._loop, question)

    def _questions(self, questions: list[handles.OpenQuestion]) -> list[SyncOpenQuestion]:
        return [SyncOpenQuestion(self._loop, question) for question in questions]


class SyncOpenQuestion(_Wrapped):
    """A question of a run. Its fields are those of the control API."""

    _async: handles.OpenQuestion

    @property
    def id(self) -> str:
        return self._async.id

    @property
    def run(self) -> str:
        """The id of the run that asks."""
        return self._async.run

    @property
    def type(self) -> str:
        return self._async.type

    @property
    def prompt(self) -> str:
        return self._async.prompt

    @property
    def payload(self) -> Any:
        return self._async.payload

    def answer(self, value: Any = None, **members: Any) -> None:
        """Answers: with a value, or with the members of an object. The first valid answer wins."""
        return self._call(self._async.answer(value, **members))

    def withdraw(self, reason: str = "") -> None:
        """Closes the question without an answer: the agent gets QuestionExpired."""
        return self._call(self._async.withdraw(reason))


class SyncRunHandle(_Wrapped):
    """One run. It goes on whether or not anybody holds a handle."""

    _async: handles.RunHandle

    @property
    def id(self) -> str:
        return self._async.id

    def get(self) -> wire.Run:
        """Returns the run as it is now."""
        return self._call(self._async.get())

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yields the log after event `after`, and on as it grows, to its end. A lost connection is taken up again."""
        return self._iterate(self._async.events(after), _same)

    def text(self, after: int = 0) -> Iterator[str]:
        """Yields the words of the output as they come. Of an agent that does not stream, the whole text at its end."""
        return self._iterate(self._async.text(after), _same)

    @overload
    def result(self, *, timeout: float | None = None, on_question: SyncOnQuestion | None = None) -> Any: ...

    @overload
    def result(
        self, *, output: type[T], timeout: float | None = None, on_question: SyncOnQuestion | None = None
    ) -> T: ...

    def result(
        self, *, output: Any = None, timeout: float | None = None, on_question: SyncOnQuestion | None = None
    ) -> Any:
        """Waits for the output. `output`: the type to decode it to. Raises RunFailed where the run did not succeed,
        Waiting where it asks and there is no `on_question`, and TimeoutError."""
        return self._call(self._async.result(output=output, timeout=timeout, on_question=self._handler(on_question)))

    def wait(self, *, timeout: float | None = None, settled: bool = False) -> wire.Run:
        """Waits until the run has ended (`settled`: or waits for an answer), and returns it. Raises TimeoutError."""
        return self._call(self._async.wait(timeout=timeout, settled=settled))

    def questions(self) -> list[SyncOpenQuestion]:
        """Returns the open questions of the run and of all that it called, oldest first."""
        return self._questions(self._call(self._async.questions()))

    def answer(self, question: str | SyncOpenQuestion, value: Any = None, **members: Any) -> None:
        """Answers a question of the run: with a value, or with the members of an object."""
        return self._call(self._async.answer(_plain(question), value, **members))

    def send(self, message: Message | str) -> None:
        """Puts a message into the run's mailbox. It is not sent twice where the connection is lost."""
        return self._call(self._async.send(message))

    def cancel(self, reason: str = "", *, rollback: bool = False) -> None:
        """Asks the run to stop. Returns when that is on disk, not when the run has stopped."""
        return self._call(self._async.cancel(reason, rollback=rollback))

    def retry(self) -> SyncRunHandle:
        """Lets a blocked run go on, or continues a failed one. Returns the run that goes on."""
        return self._run(self._call(self._async.retry()))

    def delete(self) -> None:
        """Cancels the run if need be, and forgets it."""
        return self._call(self._async.delete())


class SyncThreadHandle(_Wrapped):
    """State that lasts over several runs."""

    _async: handles.ThreadHandle

    @property
    def id(self) -> str:
        return self._async.id

    def get(self) -> wire.Thread:
        return self._call(self._async.get())

    def history(self, *, before: str | None = None, limit: int = 50) -> list[wire.Checkpoint]:
        """Returns the checkpoints, newest first."""
        return self._call(self._async.history(before=before, limit=limit))

    def messages(self) -> list[Message]:
        return self._call(self._async.messages())

    def update(
        self,
        values: dict[str, Any] | None = None,
        *,
        metadata: dict[str, Any] | None = None,
        checkpoint: str | None = None,
    ) -> wire.Thread:
        """Merges values into the state, that of `checkpoint` or the newest, and metadata into the metadata."""
        return self._call(self._async.update(values, metadata=metadata, checkpoint=checkpoint))

    def copy(self) -> SyncThreadHandle:
        return self._thread(self._call(self._async.copy()))

    def delete(self) -> None:
        return self._call(self._async.delete())


class SyncClient(_Wrapped):
    """Runs agents of a target.

        with il.SyncClient("http://127.0.0.1:8000", key=...) as client:
            print(client.run("echo", text="hello"))

    `target`: the address of a server, any target that can be mounted, a file of agents, the path of a store, an
    `Engine`, or an ASGI app; without one, `$INTERLINGUA_URL`. `key`: an API key of the server; without one,
    `$INTERLINGUA_KEY`. `prefix`: the path below which a server or an app has its doors. `timeout`: seconds for a
    connection. `retries`: how often a request is repeated where the server is busy or away; nothing is done twice.
    """

    def __init__(
        self,
        target: str | Path | Engine | Any = None,
        *,
        key: str | None = None,
        prefix: str = "",
        timeout: float = 5.0,
        retries: int = 5,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        super().__init__(
            LoopThread(), client.Client(target, key=key, prefix=prefix, timeout=timeout, retries=retries, http=http)
        )

    def __enter__(self) -> SyncClient:
        self._loop.start()
        try:
            self._loop.call(self._async.__aenter__())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Runs at a server go on; those of a mounted target end with it."""
        try:
            self._loop.call(self._async.close())
        finally:
            self._loop.stop()

    def agents(self) -> list[AgentCard]:
        """Returns the cards of the agents that there are."""
        return self._call(self._async.agents())

    @overload
    def run(
        self,
        agent: str,
        input: dict[str, Any] | str | None = None,
        *,
        output: type[T],
        version: str | None = None,
        config: Any = None,
        metadata: dict[str, Any] | None = None,
        thread: str | SyncThreadHandle | None = None,
        when_busy: WhenBusy = "reject",
        timeout: float | None = None,
        idempotency_key: str | None = None,
        on_question: SyncOnQuestion | None = None,
        **inputs: Any,
    ) -> T: ...

    @overload
    def run(
        self,
        agent: str,
        input: dict[str, Any] | str | None = None,
        *,
        version: str | None = None,
        config: Any = None,
        metadata: dict[str, Any] | None = None,
        thread: str | SyncThreadHandle | None = None,
        when_busy: WhenBusy = "reject",
        timeout: float | None = None,
        idempotency_key: str | None = None,
        on_question: SyncOnQuestion | None = None,
        **inputs: Any,
    ) -> Any: ...

    def run(
        self,
        agent: str,
        input: dict[str, Any] | str | None = None,
        *,
        output: Any = None,
        version: str | None = None,
        config: Any = None,
        metadata: dict[str, Any] | None = None,
        thread: str | SyncThreadHandle | None = None,
        when_busy: WhenBusy = "reject",
        timeout: float | None = None,
        idempotency_key: str | None = None,
        on_question: SyncOnQuestion | None = None,
        **inputs: Any,
    ) -> Any:
        """Runs an agent and returns its output.

        `output`: the type to decode it to. `on_question`: answers what the run asks; without it a question raises
        `Waiting`, whose `run` is the handle. Raises `RunFailed` where the run does not succeed. Parameters of the agent
        may be given by name.
        """
        return self._call(
            self._async.run(
                agent,
                input,
                output=output,
                version=version,
                config=config,
                metadata=metadata,
                thread=_plain(thread),
                when_busy=when_busy,
                timeout=timeout,
                idempotency_key=idempotency_key,
                on_question=self._handler(on_question),
                **inputs,
            )
        )

    def start(
        self,
        agent: str,
        input: dict[str, Any] | str | None = None,
        *,
        version: str | None = None,
        config: Any = None,
        metadata: dict[str, Any] | None = None,
        thread: str | SyncThreadHandle | None = None,
        when_busy: WhenBusy = "reject",
        delay: float = 0.0,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        **inputs: Any,
    ) -> SyncRunHandle:
        """Starts a run and returns its handle at once. The run is on disk then, and ends whatever happens here.

        `idempotency_key`: the same key is the same run; one is made where none is given, so that a request which was
        lost on its way is repeated without harm. `timeout`: seconds of execution.
        """
        return self._run(
            self._call(
                self._async.start(
                    agent,
                    input,
                    version=version,
                    config=config,
                    metadata=metadata,
                    thread=_plain(thread),
                    when_busy=when_busy,
                    delay=delay,
                    timeout=timeout,
                    idempotency_key=idempotency_key,
                    **inputs,
                )
            )
        )

    def handle(self, run: str) -> SyncRunHandle:
        """Returns the handle of a run by its id, which another process may have started."""
        return self._run(self._async.handle(run))

    def runs(self, **filters: Any) -> Iterator[wire.Run]:
        """Yields runs, newest first. Filters are those of the control API: status, agent, thread, since, text, …"""
        return self._iterate(self._async.runs(**filters), _same)

    def questions(self, *, run: str | None = None, follow: bool = False) -> Iterator[SyncOpenQuestion]:
        """Yields the open questions, and with `follow` those that are asked from now on."""
        return self._iterate(self._async.questions(run=run, follow=follow), self._question)

    def create_thread(self, *, metadata: dict[str, Any] | None = None) -> SyncThreadHandle:
        """Makes a thread."""
        return self._thread(self._call(self._async.create_thread(metadata=metadata)))

    def thread(self, thread: str) -> SyncThreadHandle:
        """Returns the handle of a thread by its id."""
        return self._thread(self._async.thread(_plain(thread)))


__all__ = ["SyncClient", "SyncOpenQuestion", "SyncRunHandle", "SyncThreadHandle"]

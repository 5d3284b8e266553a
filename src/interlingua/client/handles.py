"""Handles of runs, questions and threads: everything that a program does with one of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from inspect import isawaitable
from typing import Any, TypeVar, overload

import msgspec

from ..control import wire
from ..control.views import microseconds
from ..model.content import Message
from ..model.errors import AlreadyAnswered, ErrorInfo, InvalidOutput, RunError, from_info
from ..model.events import Event, OutputDelta, RunFinished
from ..model.status import Status
from .http_api import HttpApi

T = TypeVar("T")

_LONGEST_WAIT = 30.0  # seconds of one request; a longer wait is several

OnQuestion = Callable[["OpenQuestion"], Any]
"""Gets a question, and returns the answer, or an awaitable of it."""


class RunFailed(RunError):
    """The run has not succeeded. `error` is what the agent said, `run` the handle."""

    code = "run_failed"

    def __init__(self, message: str, *, run: RunHandle, status: Status, error: ErrorInfo | None) -> None:
        super().__init__(message, details=error.details if error is not None else None)
        self.run: Any = run  # of a client that blocks: its own handle
        self.status = status
        self.error = error
        self.transient = error is not None and error.transient


class Waiting(RunError):
    """The run asks, and nobody here answers: pass `on_question`, or answer by the handle. It goes on when answered."""

    code = "waiting"

    def __init__(self, run: RunHandle, questions: list[OpenQuestion]) -> None:
        prompts = "; ".join(question.prompt or question.type for question in questions)
        super().__init__(f"run {run.id} waits for an answer: {prompts}")
        self.run: Any = run  # of a client that blocks: its own handle
        self.questions: list[Any] = list(questions)


class OpenQuestion:
    """A question of a run. Its fields are those of the control API."""

    def __init__(self, api: HttpApi, question: wire.Question) -> None:
        self._api = api
        self.question = question

    def __repr__(self) -> str:
        return f"<OpenQuestion {self.id} {self.prompt or self.type!r}>"

    @property
    def id(self) -> str:
        return self.question.id

    @property
    def run(self) -> str:
        """The id of the run that asks."""
        return self.question.run

    @property
    def type(self) -> str:
        return self.question.type

    @property
    def prompt(self) -> str:
        return self.question.prompt

    @property
    def payload(self) -> Any:
        return self.question.payload

    async def answer(self, value: Any = None, **members: Any) -> None:
        """Answers: with a value, or with the members of an object. The first valid answer wins."""
        value = msgspec.to_builtins(value) if value is not None else members
        try:
            await self._api.call("POST", f"/questions/{self.id}/answer", wire.Question, wire.GiveAnswer(value=value))
        except AlreadyAnswered:
            # Where the answer to this very request was lost on its way, it counts all the same.
            stored = await self._api.get(f"/questions/{self.id}", wire.Question)
            if stored.state != "answered" or stored.answer != value:
                raise

    async def withdraw(self, reason: str = "") -> None:
        """Closes the question without an answer: the agent gets QuestionExpired."""
        await self._api.call("POST", f"/questions/{self.id}/withdraw", wire.Question, wire.Withdraw(reason=reason))


class RunHandle:
    """One run. It goes on whether or not anybody holds a handle."""

    def __init__(self, api: HttpApi, run: str, *, text_field: str | None = None) -> None:
        self._api = api
        self._text_field = text_field
        self.id = run

    def __repr__(self) -> str:
        return f"<RunHandle {self.id}>"

    async def get(self) -> wire.Run:
        """Returns the run as it is now."""
        return await self._api.get(f"/runs/{self.id}", wire.Run)

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yields the log after event `after`, and on as it grows, to its end. A lost connection is taken up again."""
        async for received in self._api.stream(f"/runs/{self.id}/events", after):
            if received.event in ("end", "deleted"):
                return
            event = msgspec.json.decode(received.data, type=wire.Event)
            yield Event(
                event.run, event.seq, microseconds(event.time), bytes.fromhex(event.hash), event.body, event.first
            )

    async def text(self, after: int = 0) -> AsyncIterator[str]:
        """Yields the words of the output as they come. Of an agent that does not stream, the whole text at its end."""
        name, said = await self._field(), False
        async for event in self.events(after):
            body = event.body
            if isinstance(body, OutputDelta) and isinstance(body.delta, dict):
                piece = body.delta.get(name)
                if isinstance(piece, str) and piece:
                    said = True
                    yield piece
            elif isinstance(body, RunFinished):
                if body.status is not Status.SUCCEEDED:
                    raise self._failed(body.status, body.error)
                if not said and isinstance(body.output, dict) and isinstance(text := body.output.get(name), str):
                    yield text

    async def _field(self) -> str:
        if self._text_field is None:
            run = await self.get()
            agent = await self._api.get(f"/agents/{run.agent}@{run.version}", wire.Agent)
            self._text_field = agent.card.output_text or "text"
        return self._text_field

    @overload
    async def result(self, *, timeout: float | None = None, on_question: OnQuestion | None = None) -> Any: ...
    @overload
    async def result(
        self, *, output: type[T], timeout: float | None = None, on_question: OnQuestion | None = None
    ) -> T: ...
    async def result(
        self, *, output: Any = None, timeout: float | None = None, on_question: OnQuestion | None = None
    ) -> Any:
        """Waits for the output. `output`: the type to decode it to. Raises RunFailed where the run did not succeed,
        Waiting where it asks and there is no `on_question`, and TimeoutError."""
        seen: set[str] = set()
        async with asyncio.timeout(timeout):
            while True:
                run = await self._api.get(
                    f"/runs/{self.id}/wait", wire.Run, {"timeout": _LONGEST_WAIT, "settled": True}
                )
                if run.status.final:
                    return self._output(run, output)
                questions = [OpenQuestion(self._api, question) for question in run.questions]
                if questions and on_question is None:
                    raise Waiting(self, questions)
                for question in questions:
                    if question.id not in seen and on_question is not None:
                        seen.add(question.id)
                        await _ask(question, on_question)

    def _output(self, run: wire.Run, type_: Any) -> Any:
        if run.status is not Status.SUCCEEDED:
            raise self._failed(run.status, run.error)
        if type_ is None:
            return run.output
        return decoded(run.output, type_)

    def _failed(self, status: Status, error: ErrorInfo | None) -> RunFailed:
        said = f": {error.message}" if error is not None and error.message else ""
        failed = RunFailed(
            f"run {self.id} {status.value.replace('_', ' ')}{said}", run=self, status=status, error=error
        )
        if error is not None:
            failed.__cause__ = from_info(error)
        return failed

    async def wait(self, *, timeout: float | None = None, settled: bool = False) -> wire.Run:
        """Waits until the run has ended (`settled`: or waits for an answer), and returns it. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while True:
                run = await self._api.get(
                    f"/runs/{self.id}/wait", wire.Run, {"timeout": _LONGEST_WAIT, "settled": settled}
                )
                if run.status.final or (settled and run.questions):
                    return run

    async def questions(self) -> list[OpenQuestion]:
        """Returns the open questions of the run and of all that it called, oldest first."""
        run = await self.get()
        return [OpenQuestion(self._api, question) for question in run.questions]

    async def answer(self, question: str | OpenQuestion, value: Any = None, **members: Any) -> None:
        """Answers a question of the run: with a value, or with the members of an object."""
        if not isinstance(question, OpenQuestion):
            question = OpenQuestion(self._api, await self._api.get(f"/questions/{question}", wire.Question))
        await question.answer(value, **members)

    async def send(self, message: Message | str) -> None:
        """Puts a message into the run's mailbox. It is not sent twice where the connection is lost."""
        await self._api.call("POST", f"/runs/{self.id}/send", None, wire.Send(message=message), repeat=False)

    async def cancel(self, reason: str = "", *, rollback: bool = False) -> None:
        """Asks the run to stop. Returns when that is on disk, not when the run has stopped."""
        await self._api.call("POST", f"/runs/{self.id}/cancel", wire.Run, wire.Cancel(reason=reason, rollback=rollback))

    async def retry(self) -> RunHandle:
        """Lets a blocked run go on, or continues a failed one. Returns the run that goes on."""
        run = await self._api.call("POST", f"/runs/{self.id}/retry", wire.Run, repeat=False)
        return RunHandle(self._api, run.id, text_field=self._text_field)

    async def delete(self) -> None:
        """Cancels the run if need be, and forgets it."""
        await self._api.call("DELETE", f"/runs/{self.id}", None)


class ThreadHandle:
    """State that lasts over several runs."""

    def __init__(self, api: HttpApi, thread: str) -> None:
        self._api = api
        self.id = thread

    def __repr__(self) -> str:
        return f"<ThreadHandle {self.id}>"

    async def get(self) -> wire.Thread:
        return await self._api.get(f"/threads/{self.id}", wire.Thread)

    async def history(self, *, before: str | None = None, limit: int = 50) -> list[wire.Checkpoint]:
        """Returns the checkpoints, newest first."""
        page = await self._api.get(f"/threads/{self.id}/history", wire.History, {"before": before, "limit": limit})
        return page.checkpoints

    async def messages(self) -> list[Message]:
        return (await self._api.get(f"/threads/{self.id}/messages", wire.Messages)).messages

    async def update(
        self, values: dict[str, Any] | None = None, *, metadata: dict[str, Any] | None = None,
        checkpoint: str | None = None,
    ) -> wire.Thread:  # fmt: skip
        """Merges values into the state, that of `checkpoint` or the newest, and metadata into the metadata."""
        change = wire.ThreadChange(
            values=msgspec.UNSET if values is None else values, metadata=metadata, checkpoint=checkpoint
        )
        return await self._api.call("PATCH", f"/threads/{self.id}", wire.Thread, change, repeat=False)

    async def copy(self) -> ThreadHandle:
        thread = await self._api.call("POST", f"/threads/{self.id}/copy", wire.Thread, repeat=False)
        return ThreadHandle(self._api, thread.id)

    async def delete(self) -> None:
        await self._api.call("DELETE", f"/threads/{self.id}", None)


def decoded(value: Any, type_: Any) -> Any:
    """Returns an output as a value of a type. A type that is no object gets the only member of the output."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        if isinstance(value, dict) and len(value) == 1:
            with contextlib.suppress(msgspec.ValidationError):
                return msgspec.convert(next(iter(value.values())), type_)
        raise InvalidOutput(f"the output is no {getattr(type_, '__name__', type_)}: {error}") from error


async def _ask(question: OpenQuestion, on_question: OnQuestion) -> None:
    value = on_question(question)
    if isawaitable(value):
        value = await value
    with contextlib.suppress(AlreadyAnswered):  # somebody else was first
        await question.answer(value)


__all__ = ["OnQuestion", "OpenQuestion", "RunFailed", "RunHandle", "ThreadHandle", "Waiting"]

"""What the tests of the matrix do through every door, in the same words for all of them.

A client speaks one door's wire by hand. Nothing of ours is imported in these modules: a mistake that a door and a mount
share would not be seen by a client that shares it too.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2

PATIENCE = 60.0  # seconds, for a machine that is busy; nothing here should take one

Json = dict[str, Any]
Status = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class Listed:
    name: str
    description: str


@dataclass(frozen=True)
class File:
    name: str
    media_type: str
    data: bytes = b""
    url: str = ""  # where the bytes are, for wires that carry addresses alone


@dataclass(frozen=True)
class Asked:
    kind: Literal["choose", "form", "ask"]
    prompt: str
    options: tuple[str, ...] = ()
    members: tuple[str, ...] = ()  # of a form
    schema: Json = field(default_factory=dict)  # of the answer, where it is no choice


@dataclass(frozen=True)
class Failed:
    code: str
    message: str
    transient: bool
    details: Any = None


@dataclass
class Ended:
    status: Status
    text: str = ""
    output: Any = None  # where the agent gives structure
    data: list[Any] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    error: Failed | None = None


class Turn(abc.ABC):
    """One run, as its client sees it. What comes on the wire is sorted into pieces of output, questions and the end."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[Any] = asyncio.Queue()
        self._questions: asyncio.Queue[Asked] = asyncio.Queue()
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._reading: asyncio.Task[None] | None = None
        self.so_far = Ended("succeeded")

    def read(self, work: Coroutine[Any, Any, None]) -> None:
        """Read the wire until the run is over."""

        async def watched() -> None:
            try:
                await work
            except Exception as error:
                self.broke(error)
                raise
            self.broke(AssertionError("the wire ended before the run did"))

        self._reading = asyncio.ensure_future(watched())
        self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._ended.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def leave(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    # -- for the wires ------------------------------------------------------------------------------------

    def broke(self, error: Exception) -> None:
        """What came makes no sense."""
        if not self._ended.done():
            self._ended.set_exception(error)

    def piece(self, delta: Any) -> None:
        self._pieces.put_nowait(delta)

    def asked(self, question: Asked) -> None:
        self._questions.put_nowait(question)

    def over(self, status: Status, error: Failed | None = None) -> None:
        self.so_far.status, self.so_far.error = status, error
        if not self._ended.done():
            self._ended.set_result(self.so_far)

    # -- for the tests ------------------------------------------------------------------------------------

    async def delta(self) -> Any:
        """The next piece of the output, as it arrives: text, or a part of an object."""
        return await self._first(self._pieces, "piece of output")

    def pieces(self) -> list[Any]:
        """All pieces that came and that nobody has looked at."""
        return [self._pieces.get_nowait() for _ in range(self._pieces.qsize())]

    async def question(self) -> Asked:
        found: Asked = await self._first(self._questions, "question")
        return found

    async def _first(self, queue: asyncio.Queue[Any], what: str) -> Any:
        getting = asyncio.ensure_future(queue.get())
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.wait({getting, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                raise AssertionError(f"the run ended without a {what}: {self._ended.result()}")
            return getting.result()
        finally:
            getting.cancel()

    async def end(self) -> Ended:
        async with asyncio.timeout(PATIENCE):
            return await asyncio.shield(self._ended)

    @abc.abstractmethod
    async def answer(self, value: Any) -> None:
        """Answer what was asked last: the id of a choice, the members of a form, or text."""

    @abc.abstractmethod
    async def cancel(self) -> None: ...


class DoorClient(abc.ABC):
    """One client of one door."""

    door: str
    names_threads = True  # a run can be given a thread

    def __init__(self, address: str) -> None:
        self.address = address
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=10)
        self.http = httpx2.AsyncClient(limits=limits, timeout=PATIENCE, verify=False)
        self.turns: list[Turn] = []

    @abc.abstractmethod
    async def list(self) -> list[Listed]: ...

    @abc.abstractmethod
    async def start(
        self, agent: str, text: str = "", *, data: Any = None, files: Sequence[File] = (), parts: Sequence[Any] = (),
        thread: str | None = None, metadata: Json | None = None, trace: dict[str, str] | None = None,
    ) -> Turn:  # fmt: skip
        """Run an agent. `data` is structured input, `parts` are values that go along with the text."""

    @abc.abstractmethod
    async def new_thread(self) -> str:
        """A thread for runs that share their state."""

    async def body(self, file: File) -> bytes:
        """What is in a file, which may be somewhere else."""
        return file.data or (await self.http.get(file.url)).raise_for_status().content

    async def close(self) -> None:
        for turn in self.turns:
            await turn.leave()
        await self.http.aclose()

    # -- HTTP ---------------------------------------------------------------------------------------------

    async def post(self, path: str, body: Any, **headers: str) -> Any:
        answer = await self.http.post(self.address + path, json=body, headers=headers)
        assert answer.status_code < 300, (path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def get(self, path: str) -> Any:
        answer = await self.http.get(self.address + path)
        assert answer.status_code < 300, (path, answer.status_code, answer.text)
        return answer.json()

    @contextlib.asynccontextmanager
    async def events(self, path: str, **headers: str) -> AsyncIterator[AsyncIterator[Event]]:
        request = self.http.build_request("GET", self.address + path, headers=headers, timeout=None)
        answer = await self.http.send(request, stream=True)
        try:
            assert answer.status_code == 200, (path, answer.status_code, await answer.aread())
            yield events(answer)
        finally:
            await answer.aclose()


# -- event streams --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    id: str
    kind: str
    data: Any


async def events(answer: httpx2.Response) -> AsyncIterator[Event]:
    """Server-sent events with JSON in them. Lines end in a newline on every wire here."""
    told: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            if name:
                told[name] = value.removeprefix(" ")
            continue
        if told.get("data"):
            yield Event(told.get("id", ""), told.get("event", "message"), json.loads(told["data"]))
        told = {}


# -- questions ------------------------------------------------------------------------------------------------


def question(prompt: str, schema: Json, options: list[Json] | None = None) -> Asked:
    """A question by the schema of its answer, as wires tell it that are not made for people to look at."""
    members = schema.get("properties", {})
    if options:
        return Asked("choose", prompt, tuple(option["id"] for option in options))
    if len(members) == 1:
        ((_, only),) = members.items()
        if "enum" in only:
            return Asked("choose", prompt, tuple(only["enum"]))
        if "oneOf" in only:
            return Asked("choose", prompt, tuple(option["const"] for option in only["oneOf"]))
        if only.get("type") == "string":
            return Asked("ask", prompt, schema=schema)
    return Asked("form", prompt, members=tuple(members), schema=schema)


def fitted(schema: Json, value: Any) -> Any:
    """An answer in the shape that the schema wants: a word becomes the only member of an object."""
    if isinstance(value, dict) or schema.get("type") in ("string", "array"):
        return value
    (member,) = schema["required"]
    return {member: value}

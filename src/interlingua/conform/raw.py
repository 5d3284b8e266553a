"""The bare wires: HTTP with event streams, and lines of JSON over the pipes of a command.

They send what they are given, however wrong, and keep what comes. Whatever is waited for has a time: a server that says
nothing is `Gone`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import msgspec

from ..model.errors import Unavailable
from ..transports import sse
from ..transports.children import environment
from .base import Broken, Gone, Subject, shown

log = logging.getLogger("interlingua.conform")


class Answer(msgspec.Struct):
    """An HTTP answer that came whole."""

    status: int
    headers: httpx2.Headers
    body: bytes

    @property
    def media_type(self) -> str:
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise Broken(f"an answer with status {self.status} is no JSON: {self.body[:100]!r}") from None


class Http:
    """Requests to one server, relative to the address that was given."""

    def __init__(self, subject: Subject) -> None:
        assert subject.address is not None
        self.base = subject.address.rstrip("/")
        self.subject = subject
        # To load the authorities of the system takes longer than many checks, and is for nothing where nothing is
        # encrypted.
        self._client = httpx2.AsyncClient(
            timeout=subject.patience, trust_env=False, follow_redirects=False, verify=self.base.startswith("https:")
        )

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    def url(self, path: str) -> str:
        return path if "://" in path else self.base + path

    def _told(self, headers: dict[str, str] | None) -> dict[str, str]:
        return {**self.subject.headers, **(headers or {})}

    async def ask(
        self, method: str, path: str, body: Any = None, *, content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:  # fmt: skip
        """One request; `body` is sent as JSON, `content` as it is."""
        if body is not None:
            content = json.dumps(body).encode()
            headers = {"content-type": "application/json", **(headers or {})}
        try:
            answer = await self._client.request(
                method, self.url(path), content=content, headers=self._told(headers)
            )  # fmt: skip
        except httpx2.TimeoutException:
            raise Gone(f"{method} {path} was not answered within {self.subject.patience:g} s") from None
        except httpx2.ConnectError as error:
            raise Unavailable(f"nothing answers at {self.base}: {error}") from error
        except httpx2.HTTPError as error:
            raise Gone(f"{method} {path}: {type(error).__name__}: {error}") from error
        except (httpx2.InvalidURL, ValueError) as error:  # an id of the server's may be part of it
            raise Broken(f"{shown(path)} is no path that can be asked for: {error}") from error
        return Answer(answer.status_code, answer.headers, answer.content)

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> AsyncIterator[Stream]:  # fmt: skip
        """A request whose answer is read as it comes."""
        content = None if body is None else json.dumps(body).encode()
        told = {"accept": "text/event-stream", **({"content-type": "application/json"} if content else {})}
        try:
            async with self._client.stream(
                method, self.url(path), content=content, headers=self._told({**told, **(headers or {})})
            ) as answer:  # fmt: skip
                yield Stream(answer, self.subject.patience)
        except httpx2.ConnectError as error:
            raise Unavailable(f"nothing answers at {self.base}: {error}") from error
        except httpx2.HTTPError as error:
            raise Gone(f"{method} {path}: {type(error).__name__}: {error}") from error


class Stream:
    """An answer that is an event stream."""

    def __init__(self, answer: httpx2.Response, patience: float) -> None:
        self._answer = answer
        self._patience = patience
        self.status = answer.status_code
        self.headers = answer.headers
        self._events = sse.read(answer.aiter_bytes())

    @property
    def media_type(self) -> str:
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    async def body(self) -> Answer:
        """The rest as one answer, for a server that does not stream."""
        return Answer(self.status, self.headers, await self._answer.aread())

    async def next(self) -> sse.Received | None:
        """The next event; None at the end of the stream."""
        try:
            async with asyncio.timeout(self._patience):
                return await anext(self._events, None)
        except TimeoutError:
            raise Gone(f"no event came within {self._patience:g} s") from None

    async def rest(self) -> list[sse.Received]:
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


class Pipes:
    """A command that speaks lines of JSON. Every line that came is in `lines`, every JSON object in `messages`."""

    def __init__(self, process: asyncio.subprocess.Process, patience: float, quiet: float) -> None:
        self._process = process
        self._patience = patience
        self.quiet = quiet
        self.lines: list[bytes] = []
        self.messages: list[dict[str, Any]] = []
        self.noise: list[bytes] = []  # lines that are no JSON objects or arrays
        self.ended = False
        self._news = asyncio.Condition()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, subject: Subject) -> AsyncIterator[Pipes]:
        """Start the command, and end it and its whole group in the end."""
        try:
            process = await asyncio.create_subprocess_exec(
                *subject.command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, env=environment(os.environ), start_new_session=True,
                limit=64 * 1024 * 1024,
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"{subject.command[0]} cannot be started: {error.strerror}", transient=False) from error
        pipes = cls(process, subject.patience, subject.quiet)
        try:
            yield pipes
        finally:
            await pipes.close()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            async with self._news:
                self.lines.append(line)
                try:
                    value = json.loads(line)
                except ValueError:
                    value = None
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, dict):
                        self.messages.append(one)
                    else:
                        self.noise.append(line)
                self._news.notify_all()
        async with self._news:
            self.ended = True
            self._news.notify_all()

    def send(self, message: Any) -> None:
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def until(self, wanted: Callable[[dict[str, Any]], bool], what: str, start: int = 0) -> dict[str, Any]:
        """The first message from `start` on that is wanted; `what` is it in words."""
        at = start
        async with self._news:
            try:
                async with asyncio.timeout(self._patience):
                    while True:
                        while at < len(self.messages):
                            if wanted(self.messages[at]):
                                return self.messages[at]
                            at += 1
                        if self.ended:
                            raise Gone(f"the process ended before {what} came{self._last()}")
                        await self._news.wait()
            except TimeoutError:
                raise Gone(f"{what} did not come within {self._patience:g} s{self._last()}") from None

    async def exit_code(self) -> int:
        """How it ended by itself."""
        try:
            async with asyncio.timeout(self._patience):
                return await self._process.wait()
        except TimeoutError:
            raise Gone(f"the process did not end within {self._patience:g} s") from None

    async def silent(self, wanted: Callable[[dict[str, Any]], bool], start: int = 0) -> bool:
        """Whether no such message comes for a moment."""
        with contextlib.suppress(TimeoutError):
            async with self._news, asyncio.timeout(self.quiet):
                while not self.ended:
                    if any(wanted(message) for message in self.messages[start:]):
                        return False
                    await self._news.wait()
        return not any(wanted(message) for message in self.messages[start:])

    def _last(self) -> str:
        return f"; the last line: {shown(self.lines[-1].decode(errors='replace').strip(), 120)}" if self.lines else ""

    async def close(self) -> None:
        self.end_input()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 9)
        await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

"""Provides bare wires: HTTP with event streams, and lines of JSON over the pipes of a command.

They send what they are given, however wrong, and keep what comes. Every wait has a time limit: a server that says
nothing is `Gone`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any, Self

import httpx2
import msgspec

from interlingua_conform.base import Broken, Gone, Subject, expect, shown

from ..model.errors import Unavailable
from .http import sse
from .process.child_process import environment

log = logging.getLogger("interlingua_conform")

_SAID = 4  # times what one answer may have: what a command may say in all
_LIGHT = 1024  # bytes that a line counts for at least: short ones take more memory than they have letters
_UNKNOWN_ISSUERS = (18, 19, 20, 21)  # of OpenSSL: self-signed, or by an unknown issuer
_PIECE = 64 * 1024  # bytes that are read at once; what waits beyond them is left to the command
_STDERR = 64 * 1024  # bytes of what a command says on stderr that are kept


LONG_HEADERS = "headers that are too long to be read"


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
        except (ValueError, RecursionError):
            raise Broken(f"an answer with status {self.status} is no JSON: {self.body[:100]!r}") from None


@cache
def authorities() -> ssl.SSLContext:
    return ssl.create_default_context()  # of the system, or of SSL_CERT_FILE, as in all calls of the program


def trusted(address: str) -> ssl.SSLContext | bool:
    """Returns the certificate authorities to trust, or False without TLS. Loading them takes longer than many checks,
    and is useless where nothing is encrypted."""
    return authorities() if address.startswith("https:") else False


def megabytes(size: int) -> str:
    return f"{size / (1024 * 1024):g} MB"


def unreached(base: str, error: Exception) -> Unavailable:
    """Returns the error for a server that cannot be reached, with the reason."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return Unavailable(f"nothing answers at {base}: {error}")
    said = f"the certificate of {base} is not trusted: {cause.verify_message}"
    if cause.verify_code in _UNKNOWN_ISSUERS:
        said += "; if it is yours, name a file that has it: SSL_CERT_FILE=certificate.pem interlingua …"
    return Unavailable(said, transient=False)


class Http:
    """Requests to one server, relative to the address that was given."""

    def __init__(self, subject: Subject) -> None:
        assert subject.address is not None
        self.base = subject.address.rstrip("/")
        self.subject = subject
        self._client = httpx2.AsyncClient(
            timeout=subject.patience, trust_env=False, follow_redirects=False, verify=trusted(self.base)
        )
        self.overlong: list[str] = []  # requests whose answer was longer than the limit

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
        """Sends a request and returns its answer; `body` is sent as JSON, `content` as it is."""
        if body is not None:
            content = json.dumps(body).encode()
            headers = {"content-type": "application/json", **(headers or {})}
        patience = self.subject.patience
        try:
            # The client's own time is that of each piece: an answer that comes letter by letter would never be late.
            async with (
                asyncio.timeout(2 * patience),
                self._client.stream(method, self.url(path), content=content, headers=self._told(headers)) as answer,
            ):
                received = bytearray()
                async for piece in answer.aiter_bytes():
                    received += piece
                    if len(received) > self.subject.most:
                        self.overlong.append(f"{method} {self.url(path)}")
                        raise Gone(f"{method} {path} was answered with more than {megabytes(self.subject.most)}")
        except httpx2.TimeoutException:
            raise Gone(f"{method} {path} was not answered within {patience:g} s") from None
        except TimeoutError:
            raise Gone(f"{method} {path} was not answered to the end within {2 * patience:g} s") from None
        except httpx2.ConnectError as error:
            raise unreached(self.base, error) from error
        except httpx2.HTTPError as error:
            raise self._gone(f"{method} {path or self.base}", error) from error
        except (httpx2.InvalidURL, ValueError) as error:  # an id of the server's may be part of it
            raise Broken(f"{shown(path)} is no path that can be asked for: {error}") from error
        return Answer(answer.status_code, answer.headers, bytes(received))

    def _gone(self, what: str, error: httpx2.HTTPError) -> Gone:
        if "Receive buffer too long" in str(error):  # as h11 says it
            return Gone(f"{what} is answered with {LONG_HEADERS}")
        return Gone(f"{what}: {type(error).__name__}: {error}")

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> AsyncIterator[Stream]:  # fmt: skip
        """A request whose answer is read as it comes. It may be silent for as long as it likes."""
        content = None if body is None else json.dumps(body).encode()
        told = {"accept": "text/event-stream", **({"content-type": "application/json"} if content else {})}
        request = self._client.build_request(
            method, self.url(path), content=content, headers=self._told({**told, **(headers or {})}),
            timeout=httpx2.Timeout(self.subject.patience, read=None),
        )  # fmt: skip
        answer = None
        try:
            async with asyncio.timeout(self.subject.patience):
                answer = await self._client.send(request, stream=True)
            yield Stream(answer, self.subject)
        except TimeoutError:
            if answer is not None:
                raise
            raise Gone(f"{method} {path} was not answered within {self.subject.patience:g} s") from None
        except httpx2.ConnectError as error:
            raise unreached(self.base, error) from error
        except httpx2.HTTPError as error:
            raise self._gone(f"{method} {path or self.base}", error) from error
        finally:
            if answer is not None:
                await answer.aclose()


class Stream:
    """An answer that is an event stream."""

    def __init__(self, answer: httpx2.Response, subject: Subject) -> None:
        self._answer = answer
        self._patience = subject.patience
        self._most = subject.most
        self.status = answer.status_code
        self.headers = answer.headers
        self.received = bytearray()  # the bytes so far, as they came
        self.commented = False  # true if a comment came, as streams are kept open with
        self.events = sse.read(self._pieces())

    @property
    def media_type(self) -> str:
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    async def _pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._answer.aiter_bytes():
            self.received += piece
            if len(self.received) > self._most:
                raise Gone(f"the stream has more than {megabytes(self._most)}")
            self.commented = self.commented or piece.startswith(b":") or b"\n:" in piece
            yield piece

    async def body(self) -> Answer:
        """The rest as one answer, for a server that does not stream."""
        rest = bytearray()
        try:
            async with asyncio.timeout(2 * self._patience):
                async for piece in self._answer.aiter_bytes():
                    rest += piece
                    if len(rest) > self._most:
                        raise Gone(f"the answer has more than {megabytes(self._most)}")
        except TimeoutError:
            raise Gone(f"the answer did not come to its end within {2 * self._patience:g} s") from None
        return Answer(self.status, self.headers, bytes(rest))

    async def next(self) -> sse.Received | None:
        """The next event; None at the end of the stream."""
        try:
            async with asyncio.timeout(self._patience):
                return await anext(self.events, None)
        except TimeoutError:
            raise Gone(f"no event came within {self._patience:g} s") from None
        except ValueError as error:
            raise Broken(str(error)) from None

    async def rest(self) -> list[sse.Received]:
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


class Heard:
    """Collects what comes over a wire that carries JSON messages: every line (or frame) in `lines`, its value in
    `frames`, every JSON object in `messages`, with arrays unpacked. `noise` are lines that hold something else;
    `doubled` are answers with both a result and an error, of which the null one was removed."""

    def __init__(self, patience: float, quiet: float) -> None:
        self._patience = patience
        self.quiet = quiet
        self.lines: list[bytes] = []
        self.frames: list[Any] = []
        self.messages: list[dict[str, Any]] = []
        self.noise: list[bytes] = []  # lines that are no JSON objects or arrays
        self.doubled: list[bytes] = []
        self.ended = False
        self._news = asyncio.Condition()

    async def take(self, line: bytes) -> None:
        """Takes a line or frame that came."""
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        async with self._news:
            self.lines.append(line)
            self.frames.append(value)
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, dict):
                    if _undoubled(one):
                        self.doubled.append(line)
                    self.messages.append(one)
                    self.came(one)
                else:
                    self.noise.append(line)
            self._news.notify_all()

    def came(self, message: dict[str, Any]) -> None:
        """Handles a message that was added to `messages`: overridden by classes that answer at once."""

    async def end(self) -> None:
        """Notes that nothing more will come."""
        async with self._news:
            self.ended = True
            self._news.notify_all()

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
                            raise Gone(f"{self.gone()} before {what} came{self._last()}")
                        await self._news.wait()
            except TimeoutError:
                raise Gone(f"{what} did not come within {self._patience:g} s{self._last()}") from None

    async def silent(
        self, wanted: Callable[[dict[str, Any]], bool], start: int = 0, within: float | None = None
    ) -> bool:  # fmt: skip
        """Returns whether no such message comes for a moment, or `within` so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with self._news, asyncio.timeout(self.quiet if within is None else within):
                while not self.ended:
                    if any(wanted(message) for message in self.messages[start:]):
                        return False
                    await self._news.wait()
        return not any(wanted(message) for message in self.messages[start:])

    def gone(self) -> str:
        """Returns the message for a wire that has ended."""
        return "the connection ended"

    def _last(self) -> str:
        return f"; the last line: {shown(self.lines[-1].decode(errors='replace').strip(), 120)}" if self.lines else ""


def _undoubled(message: dict[str, Any]) -> bool:
    """Removes the null from an answer that has both a result and an error, as JSON-RPC 1.0 had them: the other one
    counts. Version 2.0 forbids this, but that is one mistake, and not one for every answer."""
    if not {"jsonrpc", "result", "error"} <= set(message) or None not in (message["result"], message["error"]):
        return False
    del message["error" if message["error"] is None else "result"]
    return True


def only_one(heard: Heard) -> None:
    """Raises Broken if an answer had both a result and an error."""
    said = shown(heard.doubled[0].decode(errors="replace").strip()) if heard.doubled else ""
    expect(
        not said, f"an answer has both result and error, of which JSON-RPC 2.0 allows one, also if it is null: {said}"
    )


def last_words(stderr: str) -> str:
    """The last line that says something: tracebacks of groups of exceptions end with lines that are only drawn."""
    lines = (line.strip(" |+-\t") for line in reversed(stderr.splitlines()))
    return next((line for line in lines if any(map(str.isalpha, line))), "")


class Pipes(Heard):
    """A command that speaks lines of JSON. What it says on stderr is in `stderr`, the last of it."""

    def __init__(self, process: asyncio.subprocess.Process, subject: Subject) -> None:
        super().__init__(subject.patience, subject.quiet)
        self._process = process
        self._most = subject.most
        self.stderr = b""
        self._said = 0  # bytes
        loop = asyncio.get_running_loop()
        self._reading = [loop.create_task(self._read()), loop.create_task(self._read_stderr())]

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, subject: Subject) -> AsyncIterator[Self]:
        """Starts the command, and in the end ends it with its whole group."""
        pipe = asyncio.subprocess.PIPE
        pipes = cls(await started(subject, stdin=pipe, stdout=pipe, stderr=pipe), subject)
        try:
            yield pipes
        finally:
            await pipes.close()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        part = bytearray()  # the bytes of a line that has not ended
        while data := await self._process.stdout.read(_PIECE):
            self._said += len(data)
            *ended, rest = data.split(b"\n")
            for line in ended:
                part += line + b"\n"
                await self.take(bytes(part))
                part.clear()
            part += rest
            if len(part) > self._most or self._too_much():
                end_group(self._process)  # it does not stop by itself
                part.clear()
                break
        if part:
            await self.take(bytes(part))
        await self.end()
        while await self._process.stdout.read(_PIECE):
            pass  # as long as something waits to be read, asyncio takes the process not to have ended

    def _too_much(self) -> bool:
        return max(self._said, _LIGHT * len(self.lines)) > _SAID * self._most

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(65536):  # always read, or the process would wait for a reader
            self.stderr = (self.stderr + data)[-_STDERR:]

    def send(self, message: Any) -> None:
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def exit_code(self) -> int:
        """Waits until the process ends by itself, and returns its exit code. Its output is read by then."""
        try:
            async with asyncio.timeout(self._patience):
                code = await self._process.wait()
                await asyncio.wait(self._reading, timeout=1.0)  # its children may keep the pipes open
                return code
        except TimeoutError:
            raise Gone(f"the process did not end within {self._patience:g} s") from None

    def gone(self) -> str:
        if self._too_much():
            return f"the process says too much ({len(self.lines)} lines)"
        said = last_words(self.stderr.decode(errors="replace"))
        return f"the process ended (on stderr: {shown(said, 120)})" if said else "the process ended"

    async def close(self) -> None:
        self.end_input()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        end_group(self._process)
        await self._process.wait()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)


async def started(subject: Subject, **streams: Any) -> asyncio.subprocess.Process:
    """The command as a process with these streams, in a group of its own."""
    try:
        return await asyncio.create_subprocess_exec(
            *subject.command, **streams, env=environment(os.environ), start_new_session=True, limit=_PIECE
        )
    except OSError as error:
        raise Unavailable(f"{subject.command[0]} cannot be started: {error.strerror}", transient=False) from error


def end_group(process: asyncio.subprocess.Process) -> None:
    """Ends a process that `started` returned, and all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)

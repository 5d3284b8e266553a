"""A raw JSON-RPC client over pipes: it sends bytes, keeps every message that comes, and never waits without an end.

`start` runs a real command as whoever uses agents would; `pipes` is for a door that is served in this process, without
the half second that a process needs to start. What a protocol's usual messages are is for its own tests to add.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from interlingua.transports.process.pipes import PipeChannel
from tests.kit.wait_for import PATIENCE

INTERLINGUA = str(Path(sys.executable).parent / "interlingua")

Message = dict[str, Any]
ProcessType = TypeVar("ProcessType", bound="Process")


class Refused(Exception):
    """The error that a request was answered with."""

    def __init__(self, error: Message) -> None:
        super().__init__(f"{error['message']} ({error['code']})")
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class Client:
    """Lines out, lines in. Everything that came is in `frames` (batches as lists) and `messages` (batches unpacked)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._next = 0
        self._arrived = asyncio.Condition()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._handlers: dict[str, Callable[[Any], Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: dict[Any, Message] = {}
        self.keep = True  # False counts messages and forgets them, for tests that measure
        self.frames: list[Any] = []
        self.messages: list[Message] = []
        self.count = 0
        self.bytes = 0
        self.ended = False
        self.broken: BaseException | None = None  # what made a line of the agent unreadable
        self.reading = asyncio.create_task(self._read())

    # -- sending ------------------------------------------------------------------------------------------

    async def raw(self, data: bytes) -> None:
        """Bytes as they are; the newline is the caller's."""
        self._writer.write(data)
        async with asyncio.timeout(PATIENCE):
            await self._writer.drain()

    async def line(self, message: Any) -> None:
        await self.raw(json.dumps(message).encode() + b"\n")

    def message(self, method: str, params: Any = None, *, id_: Any = None) -> Message:
        """A request with a new id, to be sent alone or in a batch."""
        if id_ is None:
            self._next += 1
            id_ = self._next
        return {"jsonrpc": "2.0", "id": id_, "method": method, "params": {} if params is None else params}

    async def send(self, method: str, params: Any = None, *, id_: Any = None) -> Any:
        """Send a request, and give its id for `answer`."""
        message = self.message(method, params, id_=id_)
        await self.line(message)
        return message["id"]

    async def notify(self, method: str, params: Any = None) -> None:
        await self.line({"jsonrpc": "2.0", "method": method, "params": {} if params is None else params})

    async def respond(self, request: Message, result: Any) -> None:
        await self.line({"jsonrpc": "2.0", "id": request["id"], "result": result})

    async def call(self, method: str, params: Any = None, *, timeout: float = PATIENCE) -> Message:
        """Send a request and wait for its answer, a result or an error."""
        return await self.answer(await self.send(method, params), timeout=timeout)

    async def ask(self, method: str, params: Any = None, *, timeout: float = PATIENCE) -> Any:
        """Send a request and wait for its result; an error is raised as `Refused`."""
        return result_of(await self.call(method, params, timeout=timeout))

    def on(self, method: str, handler: Callable[[Any], Any]) -> None:
        """Answer requests of the agent: the handler gets the params, and gives the result (or an awaitable of it)."""
        self._handlers[method] = handler

    async def end_input(self) -> None:
        """Close the agent's stdin."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    # -- receiving ----------------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        self._may_read.clear()

    def read_on(self) -> None:
        self._may_read.set()

    async def wait_for(
        self, matches: Callable[[Message], Any], *, after: int = 0, timeout: float = PATIENCE
    ) -> Message:
        """The first message that matches, among those that came (from number `after` on) and those that will."""
        seen = after

        def found() -> Message | None:
            nonlocal seen
            while seen < len(self.messages):
                message = self.messages[seen]
                seen += 1
                if matches(message):
                    return message
            return None

        return await self._until(found, "no such message came", timeout)

    async def answer(self, id_: Any, *, timeout: float = PATIENCE) -> Message:
        """The answer to a request."""
        return await self._until(lambda: self._answers.get(id_), f"no answer to {id_!r} came", timeout)

    async def request(self, method: str, *, after: int = 0, timeout: float = PATIENCE) -> Message:
        """A request of the agent."""
        return await self.wait_for(lambda m: m.get("method") == method and "id" in m, after=after, timeout=timeout)

    async def frame(self, matches: Callable[[Any], Any] = lambda _: True, *, timeout: float = PATIENCE) -> Any:
        """The first line that matches, with a batch as the list that it is."""
        return await self._until(
            lambda: next(([f] for f in self.frames if matches(f)), None), "no such line came", timeout
        )

    async def end(self, *, timeout: float = PATIENCE) -> None:
        """Wait until the agent has closed its stdout."""
        await self._until(lambda: self.ended or None, "the agent did not end", timeout)

    async def _until(self, found: Callable[[], Any], problem: str, timeout: float) -> Any:
        result: Any = None

        def look() -> bool:
            nonlocal result
            result = found()
            return result is not None or self.ended

        try:
            async with self._arrived, asyncio.timeout(timeout):
                await self._arrived.wait_for(look)
        except TimeoutError:
            raise AssertionError(f"{problem}; the last messages: {self.messages[-5:]}") from None
        if self.broken is not None:
            raise AssertionError(f"a line of the agent is no message: {self.broken!r}") from self.broken
        assert result is not None, f"{problem} before the end; the last messages: {self.messages[-5:]}"
        return result[0] if type(result) is list else result

    async def _read(self) -> None:
        rest = bytearray()
        try:
            while True:
                await self._may_read.wait()
                data = await self._reader.read(1 << 18)
                if not data:
                    break
                self.bytes += len(data)
                lines = data.split(b"\n")
                if len(lines) > 1:
                    lines[0] = bytes(rest) + lines[0]
                    rest = bytearray()
                rest += lines.pop()
                for line in lines:
                    self._take(json.loads(line))
                async with self._arrived:
                    self._arrived.notify_all()
            assert not rest, f"the agent's last line has no end: {bytes(rest[:200])!r}"
        except (AssertionError, ValueError, OSError) as error:
            self.broken = error
        finally:
            self.ended = True
            async with self._arrived:
                self._arrived.notify_all()

    def _take(self, frame: Any) -> None:
        check_frame(frame)
        if self.keep:
            self.frames.append(frame)
        for message in frame if type(frame) is list else [frame]:
            self.count += 1
            if self.keep:
                self.messages.append(message)
            if "method" not in message:
                if message["id"] is not None:
                    self._answers[message["id"]] = message
            elif "id" in message and message["method"] in self._handlers:
                task = asyncio.create_task(self._handle(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _handle(self, request: Message) -> None:
        result = self._handlers[request["method"]](request["params"])
        if isinstance(result, Awaitable):
            result = await result
        await self.respond(request, result)

    async def stop(self) -> None:
        for task in [*self._tasks, self.reading]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class Process(Client):
    """The client of a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: Path) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        super().__init__(process.stdout, process.stdin)
        self.process = process
        self._stderr = stderr

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def memory(self) -> int:
        """Bytes that the process holds now, without files that are mapped."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) * 1024

    async def wait(self, timeout: float = PATIENCE) -> int:
        """The exit code."""
        async with asyncio.timeout(timeout):
            return await self.process.wait()


def result_of(answer: Message) -> Any:
    if "error" in answer:
        raise Refused(answer["error"])
    return answer["result"]


def check_frame(frame: Any) -> None:
    """Nothing but what JSON-RPC allows: a message, or a batch of answers or calls that is not empty."""
    if type(frame) is list:
        assert frame, "an empty batch"
        for message in frame:
            assert type(message) is dict, f"{message!r} inside of a batch"
            check_frame(message)
        return
    assert type(frame) is dict, f"{frame!r} is no message"
    assert frame.get("jsonrpc") == "2.0", f"{frame!r} has no version"
    if "method" in frame:
        assert type(frame["method"]) is str
        assert set(frame) <= {"jsonrpc", "id", "method", "params"}, f"{frame!r} has members too many"
        assert type(frame.get("id", 0)) in (int, str)
        assert type(frame.get("params", {})) in (dict, list)
        return
    assert ("result" in frame) != ("error" in frame), f"{frame!r} is not one of result and error"
    assert "id" in frame, f"{frame!r} has no id"
    assert frame.keys() <= {"jsonrpc", "id", "result", "error"}, f"{frame!r} has members too many"
    if "error" in frame:
        error = frame["error"]
        assert type(error["code"]) is int, f"{frame!r}"
        assert type(error["message"]) is str, f"{frame!r}"
    else:
        assert frame["id"] is not None, f"{frame!r} is a result for nobody"


@contextlib.asynccontextmanager
async def start(
    kind: type[ProcessType], command: list[str], stderr: Path, env: dict[str, str] | None = None
) -> AsyncIterator[ProcessType]:
    """A command, with a client at its stdin and stdout. At the end it is killed, if it has not ended by itself."""
    with stderr.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
    client = kind(process, stderr)
    try:
        yield client
    finally:
        client.read_on()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        await client.end_input()
        await process.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(client.reading), 10)  # to the end, or its pipe is not closed
        await client.stop()


async def pipes() -> tuple[PipeChannel, asyncio.StreamReader, asyncio.StreamWriter]:
    """A channel, and the two streams of whoever is at its other end."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    channel = PipeChannel(to_read, from_write)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_read, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(to_write, "wb", 0)
    )
    return channel, reader, asyncio.StreamWriter(transport, protocol, None, loop)

"""Checks of the process that a client starts: how it ends, and on what it reads and writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from interlingua.transports.raw_client.pipes import end_group, started

from ...base import Broken, Gone, NotApplicable, applies, expect, shown
from ..driver import INFO, Driver, check
from ..links import Message, StdioLink
from ..reading import flaw, is_error, is_response
from ..talk import PING, Client

_INITIALIZE: Message = {
    "jsonrpc": "2.0", "id": 0, "method": "initialize",
    "params": {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": INFO},
}  # fmt: skip
_LONG = "x" * 1000
_UNREAD = 400  # requests with answers of a kilobyte: more than any pipe holds


async def _own(driver: Driver) -> tuple[Client, StdioLink]:
    """A process that may be ended."""
    applies(driver.stdio, "the server is no command, but at an address")
    client = await driver.spare()
    assert isinstance(client.link, StdioLink)
    return client, client.link


@check("editor.input.random")
async def random_bytes_never_end_the_process(driver: Driver) -> None:
    client, link = await _own(driver)
    dice = random.Random(4)
    before = len(link.lines)
    link.send_bytes(dice.randbytes(100_000) + b"\n" + bytes(dice.choices(b'[]{}",:01e\\nu \n', k=50_000)) + b"\n")
    try:
        await client.ping()
    except Gone as error:
        raise Broken(f"after random bytes it does not answer any more: {error}") from error
    for line in link.lines[before:]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise Broken(f"random bytes are answered with what is no JSON: {shown(repr(line))}") from None
        for message in value if isinstance(value, list) else [value]:
            expect(not flaw(message), f"random bytes are answered with no message, {flaw(message)}: {shown(message)}")
    driver.keep(client)


@check("editor.batch.end-inside")
async def a_batch_without_its_newline_is_dropped(driver: Driver) -> None:
    client, link = await _own(driver)
    before = client.now
    link.send_bytes(b'[{"jsonrpc":"2.0","id":"inside","method":"_interlingua/ping"},')
    link.end_input()
    await link.exit_code()
    came = [m for m in link.messages[before:] if is_response(m)]
    expect(
        all(is_error(message, -32700) for message in came) and len(came) < 2,
        f"a batch that was cut off by the end of the input was answered with {shown(came)}",
    )


@check("editor.stdio.ends-with-input")
async def the_process_ends_with_its_input(driver: Driver) -> None:
    client, link = await _own(driver)
    with contextlib.suppress(NotApplicable):  # something runs then, where there is an agent for that
        await (await (await client.slow()).begin()).begun()
    link.end_input()
    await link.exit_code()


@check("editor.stdio.signals")
async def a_signal_ends_the_process_without_a_traceback(driver: Driver) -> None:
    _, link = await _own(driver)
    link.signal(signal.SIGTERM)
    await link.exit_code()
    said = link.stderr.decode(errors="replace")
    expect("Traceback (most recent call last)" not in said, f"SIGTERM ends it with a traceback: {shown(said[-150:])}")


@check("editor.stdio.closed-stdout")
async def a_client_that_closes_its_output_does_not_keep_the_process(driver: Driver) -> None:
    applies(driver.stdio, "the server is no command, but at an address")
    pipe = asyncio.subprocess.PIPE
    reading, writing = os.pipe()
    process = await started(driver.subject, stdin=pipe, stdout=writing, stderr=asyncio.subprocess.DEVNULL)
    os.close(writing)
    os.close(reading)
    async with _given_up(process):
        assert process.stdin is not None
        process.stdin.write(b"".join(_line(message) for message in [_INITIALIZE, *_pings(20)]))
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()
        process.stdin.close()
        await _ended(process, driver.subject.patience, "whose output nobody reads")


async def _ended(process: asyncio.subprocess.Process, patience: float, which: str) -> None:
    try:
        async with asyncio.timeout(patience):
            await process.wait()
    except TimeoutError:
        raise Gone(f"a process {which} did not end within {patience:g} s after its input did") from None


@check("editor.stdio.files-and-sockets")
async def files_serve_as_stdin_and_stdout(driver: Driver) -> None:
    applies(driver.stdio, "the server is no command, but at an address")
    given, taken = Path(driver.folder) / "in", Path(driver.folder) / "out"
    given.write_bytes(b"".join(_line(message) for message in [_INITIALIZE, *_pings(5)]))
    with given.open("rb") as reading, taken.open("wb") as writing:
        process = await started(driver.subject, stdin=reading, stdout=writing, stderr=asyncio.subprocess.DEVNULL)
        async with _given_up(process):
            await _ended(process, driver.subject.patience, "that reads a file")
    _all_there(taken.read_bytes(), 5, "a file")


@check("editor.stdio.files-and-sockets")
async def a_socket_serves_as_stdin_and_stdout(driver: Driver) -> None:
    applies(driver.stdio, "the server is no command, but at an address")
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours:
        with theirs:
            process = await started(
                driver.subject, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=asyncio.subprocess.DEVNULL
            )
        async with _given_up(process):
            await loop.sock_sendall(ours, b"".join(_line(message) for message in [_INITIALIZE, *_pings(5)]))
            came = await _until_all(driver, 6, lambda: loop.sock_recv(ours, 1 << 20))
    _all_there(came, 5, "a socket")


@check("editor.stdio.non-blocking")
async def a_pipe_that_does_not_block_and_is_read_late_loses_nothing(driver: Driver) -> None:
    applies(driver.stdio, "the server is no command, but at an address")
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb", 0) as late:
        with os.fdopen(writing, "wb", 0) as taken:
            process = await started(
                driver.subject, stdin=asyncio.subprocess.PIPE, stdout=taken, stderr=asyncio.subprocess.DEVNULL
            )
        async with _given_up(process):
            assert process.stdin is not None
            process.stdin.write(b"".join(_line(message) for message in [_INITIALIZE, *_pings(_UNREAD, _LONG)]))
            with contextlib.suppress(TimeoutError, ConnectionError):  # until it can write no more
                async with asyncio.timeout(driver.subject.quiet):
                    await process.wait()
            came = await _until_all(driver, _UNREAD + 1, lambda: asyncio.to_thread(late.read, 1 << 20))
    _all_there(came, _UNREAD, "a pipe that does not block")


@contextlib.asynccontextmanager
async def _given_up(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """A process that is ended, however it is left."""
    try:
        yield
    finally:
        end_group(process)
        await process.wait()


async def _until_all(driver: Driver, lines: int, read: Callable[[], Awaitable[bytes | None]]) -> bytes:
    """Reads so many lines, or as many as come."""
    came = b""
    with contextlib.suppress(TimeoutError, ConnectionError):  # later checks miss the lines that have not come
        async with asyncio.timeout(driver.subject.patience):
            while came.count(b"\n") < lines and (data := await read()):
                came += data
    return came


def _all_there(data: bytes, count: int, what: str) -> None:
    """The first answer is that to initialize, and then those to all requests."""
    found: list[Any] = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):  # another check reports its other output
            found.append(json.loads(line))
    ids = [message.get("id") for message in found if isinstance(message, dict) and "method" not in message]
    wanted = [0, *(ping["id"] for ping in _pings(count, _LONG if count == _UNREAD else ""))]
    expect(
        ids[:1] == [0], f"with {what} for stdin and stdout the first answer is not that to initialize: {shown(ids[:1])}"
    )
    missing = [id_ for id_ in wanted if id_ not in ids]
    expect(not missing, f"of {len(wanted)} requests {len(missing)} are not answered with {what} for stdin and stdout")


def _pings(count: int, long: str = "") -> list[Message]:
    return [{"jsonrpc": "2.0", "id": f"{number} {long}", "method": PING, "params": {}} for number in range(count)]


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"

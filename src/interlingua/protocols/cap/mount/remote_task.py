"""Connections to a remote participant: a server at an address, or a process that speaks over its pipes.

Both carry one task, and return its updates as (kind, data): messages, and from Interlingua servers also changes of
status and pieces of output. A server keeps the task, which is found again by its id; the task of a process is lost with
the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import httpx2
import msgspec

from ....model import json_values
from ....model.errors import Denied, InterlinguaError, InvalidRequest, RunLost, Unavailable
from ....model.team.manifest import USER
from ....model.trace_context import Carrier
from ....mounts.errors import RemoteError, no_such_run
from ....mounts.settings import ORDINARY, Access
from ....security.redaction import redact_text
from ....transports import json_text, wire_tap
from ....transports.http import plain_client
from ....transports.http.sse import Received, read
from ....transports.process.child_process import Child, QuietChannel, environment
from .. import translate, wire

log = logging.getLogger("interlingua.cap.agent")

KEY_VARIABLE = "INTERLINGUA_CAP_KEY"
PATIENCE = 60.0
"""Seconds for which a server that cannot be reached is tried again before the run fails as transient."""
STAYS = 2.0
"""Seconds for which a program that has nothing to do is watched: one that is broken has ended by then."""
_SILENCE = 60.0  # seconds without a byte after which a connection counts as dead; ours sends one every 15
_TIMEOUT = httpx2.Timeout(_SILENCE, connect=10.0, write=30.0)
_REACHED_WITHIN = 10.0  # seconds in which a server that has been silent says that it is there
_TRANSIENT = frozenset({408, 425, 429, 502, 503, 504})
_GONE_WITHIN = 10.0

Update = tuple[str, dict[str, Any]]


class Way(Protocol):
    """The connection to one task that is worked on elsewhere."""

    name: str  # for messages, without secrets
    again: bool  # whether the task can be found again from another process
    noise: tuple[int, str]  # lines that were no messages: how many, and the first
    cursor: str | None  # the last update that was given
    begun: asyncio.Event  # the task is there: messages to it arrive

    async def begin(self, notice: wire.DelegationNotice, trace: Carrier) -> None:
        """Begins the task, or takes it up: where it can be found again, together with the first read of it."""

    async def next(self) -> Update: ...
    async def send(self, message: wire.AnyMessage) -> Refused | None:
        """Sends a message. Returns the refusal of an answer that came too late."""
        ...

    async def cancel(self, back: wire.ErrorResponse) -> None: ...
    async def moved_on(self, question: Any) -> None:
        """Waits until the last question that was returned needs no answer any more."""
        ...

    def settled(self, question: str) -> None:
        """Notes that the task itself reported a question as settled."""
        ...

    async def close(self) -> None: ...


class Refused(RemoteError):
    """The server answered with an error."""

    def __init__(self, message: str, status: int, code: str | None, transient: bool) -> None:
        super().__init__(message, code=code, transient=transient, details={"status": status})
        self.status = status
        self.again = False  # it was sent more than once, and may have been taken the first time


# -- an address -----------------------------------------------------------------------------------------------


def open_client(base: str, key: str | None, more: Mapping[str, str] = {}) -> httpx2.AsyncClient:
    headers = {**({"x-api-key": key} if key else {}), **more}
    return httpx2.AsyncClient(
        base_url=base, headers=headers, timeout=_TIMEOUT, verify=_tls(), event_hooks=wire_tap.hooks(),
        transport=plain_client.transport(_tls()),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # once: reading the certificates takes longer than a request


def json_of(response: httpx2.Response) -> Any:
    """Returns the body of an answer, or raises the refusal in it."""
    try:
        body = json_text.decode(response.content)
    except json_text.Unreadable as unreadable:
        if response.is_success and response.content:
            raise RemoteError(f"the answer of {response.request.url} cannot be read: {unreadable}") from None
        body = None
    if response.is_success:
        return body
    status, host = response.status_code, response.request.url.host
    code, text, transient = None, response.reason_phrase or "no reason given", status in _TRANSIENT
    if isinstance(body, dict) and body.get("type") == "error_response":
        with contextlib.suppress(InvalidRequest):
            told = wire.read(body)
            assert isinstance(told, wire.ErrorResponse)
            error = translate.error_in(told)
            code, text, transient = error.code, error.message, error.transient
    elif isinstance(body, str):
        text = body
    if status in (401, 403):
        raise Denied(f"{host} refused: {text}" + (f"; put the API key into {KEY_VARIABLE}" if status == 401 else ""))
    raise Refused(f"{host} answered {status}: {text}", status, code, transient)


class Address:
    """A task at a server."""

    again = True
    noise = (0, "")

    def __init__(
        self, base: str, http: httpx2.AsyncClient, task: str, *, existing: bool = False,
        found: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        """`existing`: the server already has the task. `found` is called with the id of its run at the server."""
        self.name = redact_text(base)
        self.cursor: str | None = None
        self._base = base
        self._task = task
        self._existing = existing
        self._found = found
        self._path = f"/tasks/{quote(task, safe='')}"
        self._http = http
        self._stream: AsyncGenerator[tuple[str | None, str, dict[str, Any]], None] | None = None
        self._opening: tuple[Any, Carrier] | None = None
        self.begun = asyncio.Event()
        self._lost_at: float | None = None
        self._tries = 0

    async def begin(self, notice: wire.DelegationNotice, trace: Carrier) -> None:
        """Begins the task. The same notice again is the same task, so it can be sent until it is answered."""
        if not self._existing:
            self._opening = wire.write(notice), trace
            return
        try:
            await self._look()
        except Refused as error:
            if error.status == 404:
                raise no_such_run(self._task, self.name) from None
            raise
        if self._found is not None:
            self._found(self._task)

    async def send(self, message: wire.AnyMessage) -> Refused | None:
        try:
            await self._post("/messages", wire.write(message))
            return None
        except Refused as error:
            told = message.metadata or {}
            answers = not ("question" in told and told["question"] is None)
            if not answers or error.status not in (404, 409):
                raise
            # It was answered already, by this run before a crash or by another client.
            log.info("%s took no message: %s", self.name, error.message)
            return error

    async def cancel(self, back: wire.ErrorResponse | None = None) -> None:
        try:
            await self._post(f"{self._path}/cancel", None)
        except Refused as error:
            if error.status not in (404, 409):  # it never began, or has ended by itself
                raise

    async def asks(self, question: Any) -> bool:
        """Tells if the task now waits for the answer to a question."""
        told = await self._look()
        asked = told.get("questions") if isinstance(told, dict) else None
        return any(one.get("question") == question for one in asked or () if isinstance(one, dict))

    async def _look(self) -> Any:
        """Returns the task as it is now."""
        while True:
            try:
                response = await self._http.get(self._path, timeout=_TIMEOUT)
            except httpx2.TransportError as error:
                await self._wait(error)
                continue
            self._reached()
            return json_of(response)

    async def moved_on(self, question: Any) -> None:
        """Reads ahead on a connection of its own, until the task needs no answer; updates are kept for later."""
        ahead = Address(self._base, self._http, self._task)
        ahead.cursor = self.cursor
        try:
            while not _goes_on(*await ahead.next(), question):
                pass
        finally:
            await ahead.close()

    async def _post(self, path: str, body: Any, trace: Carrier | None = None) -> Any:
        again = False
        while True:
            try:
                response = await self._http.post(path, json=body, headers=trace)
            except httpx2.TransportError as error:
                await self._wait(error)
                again = True
                continue
            if response.status_code in (502, 503, 504) and response.headers.get("content-type") != "application/json":
                await self._wait(Unavailable(f"it answered {response.status_code}"))  # a proxy before it
                again = True
                continue
            self._reached()
            try:
                return json_of(response)
            except Refused as error:
                error.again = again
                raise

    def _reached(self) -> None:
        self._lost_at, self._tries = None, 0

    async def _wait(self, error: Exception) -> None:
        time = asyncio.get_running_loop().time()
        self._lost_at = time if self._lost_at is None else self._lost_at
        if time - self._lost_at > PATIENCE:
            raise Unavailable(f"{self.name} cannot be reached: {str(error) or type(error).__name__}") from error
        self._tries += 1
        await asyncio.sleep(min(0.02 * 2 ** min(self._tries, 8), 5.0))

    async def next(self) -> Update:
        while True:
            if self._stream is None:
                self._stream = self._updates()
            try:
                id_, kind, data = await anext(self._stream)
            except StopAsyncIteration:
                self._stream = None
                ended = await self._looked_up()
                if ended is not None:
                    return ended
                await self._wait(Unavailable("its stream ended"))
                continue
            except httpx2.TransportError as error:
                self._stream = None
                if isinstance(error, httpx2.ReadTimeout) and self._opening is None:
                    await self._looked_up(quiet=True)  # should it have ended by now, its stream tells all of it
                await self._wait(error)
                continue
            self._reached()
            self.cursor = id_ or self.cursor
            return kind, data

    async def _updates(self) -> AsyncGenerator[tuple[str | None, str, dict[str, Any]], None]:
        if self._opening is not None and self.cursor is None:
            async with contextlib.aclosing(self._begun(*self._opening)) as updates:
                async for update in updates:
                    yield update
                if self._opening is None:
                    return
            self._opening = None
        self.begun.set()  # a task that is read on from a cursor has begun before
        headers = {"accept": "text/event-stream", **({"last-event-id": self.cursor} if self.cursor else {})}
        async with self._http.stream("GET", f"{self._path}/events", headers=headers) as response:
            if not response.is_success:
                await response.aread()
                if response.status_code in _TRANSIENT:
                    return
                json_of(response)
            if "text/event-stream" not in response.headers.get("content-type", ""):
                raise RemoteError(f"{self.name} has no stream of the task: it does not speak CAP")
            async with contextlib.aclosing(_read(response)) as updates:
                async for update in updates:
                    yield update

    async def _begun(
        self, notice: Any, trace: Carrier
    ) -> AsyncGenerator[tuple[str | None, str, dict[str, Any]], None]:  # fmt: skip
        """Begins the task with one request instead of two, where the server answers a notice with the stream of its
        task."""
        headers = {**trace, "accept": "text/event-stream, application/json"}
        async with self._http.stream("POST", "/messages", json=notice, headers=headers) as response:
            kind = response.headers.get("content-type", "")
            if not response.is_success or "text/event-stream" not in kind:
                await response.aread()
                if response.status_code in (502, 503, 504) and kind != "application/json":
                    raise httpx2.RemoteProtocolError(f"it answered {response.status_code}")  # a proxy before it
                taken = json_of(response)
                if self._found is not None and isinstance(taken, dict) and isinstance(taken.get("run_id"), str):
                    self._found(taken["run_id"])
                self.begun.set()
                return
            run = response.headers.get("content-location", "").rpartition("/")[2]
            if self._found is not None and run:
                self._found(run)
            self._opening = None
            self.begun.set()
            async with contextlib.aclosing(_read(response)) as updates:
                async for update in updates:
                    yield update

    async def _looked_up(self, *, quiet: bool = False) -> Update | None:
        """Returns how the task ended, where its stream ended without a final status. `quiet` means that the stream has
        been silent for too long, perhaps because there is nothing to say; the answer shows if the server is still
        there."""
        try:
            within = httpx2.Timeout(_REACHED_WITHIN) if quiet else _TIMEOUT
            told = json_of(await self._http.get(self._path, timeout=within))
        except httpx2.TransportError:
            return None
        except Refused as error:  # a proxy before it, for instance: it is tried again, like the stream
            if not error.transient and not quiet:
                raise
            return None
        if isinstance(told, dict) and told.get("status") in ("succeeded", "failed", "cancelled", "timed_out"):
            return "status", {**told, "final": True}
        if quiet:
            self._reached()
        return None

    def settled(self, question: str) -> None:
        pass  # `moved_on` reads ahead

    async def close(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(RuntimeError, httpx2.HTTPError):
                await self._stream.aclose()


async def _read(response: httpx2.Response) -> AsyncGenerator[tuple[str | None, str, dict[str, Any]], None]:
    async with contextlib.aclosing(_events(response)) as events:
        async for event in events:
            wire_tap.event(event.data)
            try:
                data = _decoded(event.data, pieces=event.event in _PIECES)
            except InvalidRequest as error:
                yield event.id, "broken", {"error": error.message, "answers": event.event in (None, *_ANSWERS)}
                continue
            if isinstance(data, dict):
                if data.get("final") is True and event.event == "status":
                    plain_client.let_end(response)
                yield event.id, event.event or "message", data


async def _events(response: httpx2.Response) -> AsyncGenerator[Received, None]:
    try:
        async with contextlib.aclosing(read(response.aiter_bytes())) as events:  # type: ignore[type-var]
            async for event in events:
                yield event
    except json_text.Unreadable as error:
        raise RemoteError(f"the answer of {response.request.url} cannot be read: {error}") from None


def _goes_on(kind: str, data: dict[str, Any], question: Any) -> bool:
    """Tells if an update shows that a question was answered, or that the task no longer waits for its answer."""
    if kind == "status":
        return data.get("status") != "waiting"
    told = data.get("metadata")
    named = told.get("question") if isinstance(told, dict) else None
    over = data.get("sender_id") == USER or (isinstance(told, dict) and "withdrawn" in told)
    return kind == "message" and over and named == question


async def cancel_left(base: str, http: httpx2.AsyncClient, task: str) -> None:
    """Cancels a task whose run is not in memory here, as long as there is time for it."""
    way = Address(base, http, task)
    try:
        await way.cancel()
    finally:
        await way.close()


# -- a process ------------------------------------------------------------------------------------------------


_PIECES = ("delta", "activity")
_ANSWERS = ("status", "message", "error_response")
"""An unreadable message of these kinds may be the awaited answer."""


class _Lines(QuietChannel):
    """Skips lines that are no JSON objects, because a program may print."""

    def _is_message(self, frame: bytes) -> bool:
        if frame.lstrip()[:1] == b"{":
            return True
        if frame.strip():
            self.noise += 1
            self.first_noise = self.first_noise or self._clean(frame[:500].decode(errors="replace"))[:200]
        return False


class _Program(Child):
    def __init__(self, process: Any, pipes: Any, stderr: Any, guard: Any, clean: Any, log: Any) -> None:
        super().__init__(process, pipes, stderr, guard, clean, log)
        self.channel = _Lines(pipes, clean)


async def _started(command: list[str], access: Access) -> Child:
    folder, env = access.directory or str(Path.cwd()), {**environment(os.environ), **access.env}
    return await _Program.start(command, folder, env, clean=redact_text, log=log)


async def try_out(command: list[str], name: str, access: Access = ORDINARY) -> None:
    """Starts a program and stops it again. Raises where it cannot be started, or ends before it gets any message.

    A test can show no more: a program that waits for a task has nothing to say, and need not know any other message.
    """
    child = await _started(command, access)
    try:
        async with asyncio.timeout(STAYS):
            while await child.channel.receive():
                pass  # it may print
        raise Unavailable(f"{name} ended at once: {await child.how_it_ended()}", transient=False)
    except TimeoutError:
        pass  # it waits
    finally:
        await child.end()


class Program:
    """A task in a process of its own."""

    again = False
    cursor: str | None = None

    def __init__(self, command: list[str], name: str, access: Access = ORDINARY) -> None:
        self.name = name
        self._access = access
        self.noise = (0, "")
        self._command = command
        self._child: Child | None = None
        self.begun = asyncio.Event()
        self._frames: list[bytes] = []
        self._settled: set[str] = set()  # questions that need no answer any more
        self._news = asyncio.Event()

    async def begin(self, notice: wire.DelegationNotice, trace: Carrier) -> None:
        self._child = await _started(self._command, self._access)
        # A line has no headers: the metadata is where its sender says more of it.
        await self.send(msgspec.structs.replace(notice, metadata={**(notice.metadata or {}), **trace}))
        self.begun.set()

    async def next(self) -> Update:
        assert self._child is not None
        while True:
            if not self._frames:
                self._frames = await self._child.channel.receive()
                self.noise = (self._child.channel.noise, self._child.channel.first_noise)
                if not self._frames:
                    why = await self._child.how_it_ended()
                    raise RunLost(f"{self.name} is gone, in the middle of a task: {why}")
            frame = self._frames.pop(0)
            _tapped(frame, sent=False)
            seen = json_text.members(frame, "type")
            try:
                told = _decoded(frame, pieces=seen.get("type") in _PIECES)
            except InvalidRequest as error:
                return "broken", {"error": error.message, "answers": seen.get("type") in _ANSWERS}
            kind = told.get("type")
            return (kind if kind in ("status", "delta", "reset", "activity") else "message"), told

    async def send(self, message: wire.AnyMessage) -> None:
        """Sends a message. The program does not report if it took it."""
        if self._child is not None:
            frame = json_values.encode(wire.write(message))
            _tapped(frame, sent=True)
            self._child.channel.send(frame)
            await self._child.channel.drain()

    async def cancel(self, back: wire.ErrorResponse) -> None:
        with contextlib.suppress(InterlinguaError):
            await self.send(back)

    async def moved_on(self, question: Any) -> None:
        while question not in self._settled:
            self._news.clear()
            await self._news.wait()

    def settled(self, question: str) -> None:
        self._settled.add(question)
        self._news.set()

    async def close(self) -> None:
        if self._child is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GONE_WITHIN):
                    await self._child.end()


def _decoded(given: bytes | str, *, pieces: bool) -> Any:
    """Returns a decoded message of the other side. Only values that our log can hold pass. `pieces` means pieces of a
    stream, whose halves of characters are joined where they are shown."""
    try:
        told = json_text.decode_pieces(given, lambda _: pieces)
        json_values.check(told, InvalidRequest, what="what it says", halves=pieces)
    except json_text.Unreadable as error:
        raise InvalidRequest(str(error)) from None
    except InterlinguaError as error:  # nested too deep
        raise InvalidRequest(error.message) from None
    return told


def _tapped(frame: bytes, *, sent: bool) -> None:
    if wire_tap.current is not None:
        (wire_tap.current.sent if sent else wire_tap.current.received)(frame)

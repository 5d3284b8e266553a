"""A task at a server, which keeps it: it is found again by its id, from another process too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any
from urllib.parse import quote

import httpx2

from ....model.errors import InvalidRequest
from ....model.team.manifest import USER
from ....model.trace_context import Carrier
from ....mounts.errors import RemoteError, no_such_run
from ....mounts.http import TRANSIENT, HttpAddress, Refusal, Refused, read_json, words_of
from ....mounts.remote_questions import TooLate
from ....mounts.remote_run import Disconnected, Patience
from ....security.redaction import redact_text
from ....transports import json_text, wire_tap
from ....transports.http import plain_client
from ....transports.http.sse import Received, read
from .. import translate, wire
from .remote_task import ANSWERS, PIECES, Update, decoded, log

KEY_VARIABLE = "INTERLINGUA_CAP_KEY"
_REACHED_WITHIN = 10.0  # seconds in which a server that has been silent says that it is there
_OF_PROXIES = frozenset({502, 503, 504})


def json_of(response: httpx2.Response) -> Any:
    """Returns the body of an answer, or raises the refusal in it."""
    return read_json(response, _refusal, KEY_VARIABLE)


def _refusal(body: Any, response: httpx2.Response) -> Refusal:
    if isinstance(body, dict) and body.get("type") == "error_response":
        with contextlib.suppress(InvalidRequest):
            message = wire.read(body)
            assert isinstance(message, wire.ErrorResponse)
            error = translate.error_in(message)
            return Refusal(error.message, error.code, error.transient)
    return Refusal(body if isinstance(body, str) else "")


class ServerTask:
    """A task at a server."""

    again = True
    noise = (0, "")

    def __init__(
        self, base: str, http: httpx2.AsyncClient, task: str, patience: Patience, *, existing: bool = False,
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
        self._patience = patience

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

    async def send(self, message: wire.AnyMessage) -> None:
        metadata = message.metadata or {}
        answers = not ("question" in metadata and metadata["question"] is None)
        again = False
        while True:
            try:
                await self._post_once("/messages", wire.write(message))
                return
            except Disconnected as lost:
                await self._patience.spend(lost)
                again = True
            except Refused as error:
                if not answers or error.status not in (404, 409):
                    raise
                # It was answered already, by this run before a crash or by another client.
                log.info("%s took no message: %s", self.name, error.message)
                if again:
                    return  # it may have been taken the first time
                raise TooLate(answered=error.status == 409, told=error.message) from error

    async def cancel(self, back: wire.ErrorResponse | None = None) -> None:
        try:
            await self._post(f"{self._path}/cancel")
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
                response = await self._http.get(self._path)
            except httpx2.TransportError as error:
                await self._patience.spend(_unreachable(error))
                continue
            self._patience.reset()
            return json_of(response)

    async def moved_on(self, question: Any) -> None:
        """Reads ahead on a connection of its own, until the task needs no answer; updates are kept for later."""
        ahead = ServerTask(self._base, self._http, self._task, self._patience)
        ahead.cursor = self.cursor
        try:
            while not _goes_on(*await ahead.next(), question):
                pass
        finally:
            await ahead.close()

    async def _post(self, path: str) -> None:
        while True:
            try:
                return await self._post_once(path, None)
            except Disconnected as lost:
                await self._patience.spend(lost)

    async def _post_once(self, path: str, body: Any) -> None:
        try:
            response = await self._http.post(path, json=body)
        except httpx2.TransportError as error:
            raise _unreachable(error) from error
        if response.status_code in _OF_PROXIES and response.headers.get("content-type") != "application/json":
            raise Disconnected(f"cannot be reached: it answered {response.status_code}")  # a proxy before it
        self._patience.reset()
        json_of(response)

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
                await self._patience.spend(Disconnected("cannot be reached: its stream ended"))
                continue
            except httpx2.TransportError as error:
                self._stream = None
                if isinstance(error, httpx2.ReadTimeout) and self._opening is None:
                    await self._looked_up(quiet=True)  # should it have ended by now, its stream tells all of it
                await self._patience.spend(_unreachable(error))
                continue
            self._patience.reset()
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
                if response.status_code in TRANSIENT:
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
                if response.status_code in _OF_PROXIES and kind != "application/json":
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
            within = httpx2.Timeout(_REACHED_WITHIN) if quiet else self._http.timeout
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
            self._patience.reset()
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
                data = decoded(event.data, pieces=event.event in PIECES)
            except InvalidRequest as error:
                yield event.id, "broken", {"error": error.message, "answers": event.event in (None, *ANSWERS)}
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


def _unreachable(error: Exception) -> Disconnected:
    return Disconnected(f"cannot be reached: {words_of(error)}")


async def cancel_left(address: HttpAddress, task: str) -> None:
    """Cancels a task whose run is not in memory here, as long as there is time for it."""
    async with address.open() as http:
        way = ServerTask(address.base, http, task, Patience(redact_text(address.base), address.patience))
        try:
            await way.cancel()
        finally:
            await way.close()

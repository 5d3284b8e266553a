"""Reads a remote run until it ends or asks: by its stream, by `wait`, or by its status.

Streams may be cut, missing, or silent about interrupts; the first of the three to report the end of the stretch is
believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Literal, Protocol
from urllib.parse import quote

import httpx2
import msgspec

from ....model.delta import ABSENT
from ....model.events import ArtifactAdded, MessageSent, Plan, Thought, ToolCall, Warned
from ....mounts.errors import RemoteError
from ....mounts.http import TRANSIENT
from ....mounts.remote_output import RemoteOutput
from ....mounts.remote_run import ASKED, ENDED, FAILED, Patience, Stretch
from ....transports import json_text, wire_tap
from ....transports.http import plain_client
from ....transports.http.sse import Reader
from ..projection import place_of
from .agent_card import Remote
from .answers import Silent, disconnected, json_of, object_or_empty, same_interrupt, whole_value

log = logging.getLogger("interlingua.connect")

_ACTIVITY = MessageSent | Thought | Plan | ToolCall | ArtifactAdded | Warned
_PIECES = ("values", "custom")
_FINAL = frozenset({401, 403, 404, 410})  # the run is gone, or is not for us any more: asking again does not help
_LOOK_FIRST, _LOOK_LAST = 1.0, 30.0  # seconds between two looks whether a run still waits for an answer


class Beginning(Protocol):
    """A run that begins with the request for its stream."""

    def asked(self) -> tuple[str, bytes, dict[str, str]]:
        """Returns the request to post: path, body and headers. Posting it again gives the same run."""

    def begun(self, run: str) -> str:
        """Takes the run's id, and returns its path."""

    def heard(self) -> None:
        """Notes that something came of the request."""


class Follower:
    """Reads one remote run, stretch by stretch."""

    def __init__(
        self, remote: Remote, http: httpx2.AsyncClient, path: str | Beginning, output: RemoteOutput, patience: Patience
    ) -> None:
        self._remote = remote
        self._http = http
        self._begins = None if isinstance(path, str) else path
        self._path = path if isinstance(path, str) else ""  # not known before the run is there
        self._patience = patience
        self._output = output
        self._last: Any = ABSENT  # the newest whole output
        self._streams = remote.mode is not None
        self._waits = True  # whether the server has a `wait` that works
        self._answered: str | None = None  # id of the question that was answered last
        self.cursor: str | None = None  # the last update that was taken in

    async def follow(self) -> Stretch:
        """Reads until the run ends or asks, and shows its updates."""
        while True:
            try:
                stretch = await self._read() if self._streams else None
                if not self._path:
                    raise Silent("it did not say which run it made")
                stretch = stretch or await self.settled(blocking=not self._streams)
            except (httpx2.TransportError, Silent) as error:
                raise disconnected(error) from error
            if stretch is not None:
                stretch.cursor = self.cursor
                return stretch
            await self._patience.pause()

    def answered(self, asked: dict[str, Any]) -> None:
        self._answered = asked.get("interrupt_id")

    async def moved_on(self, asked: dict[str, Any], *, at_once: bool) -> None:
        """Waits until the run no longer waits for this answer, because another client has given it. Only the status
        tells that. `at_once` means that the run may have moved on before."""
        pause, seen = _LOOK_FIRST, None
        while True:
            if not at_once:
                await asyncio.sleep(pause)
                if seen is not None and not await self._heard_of(asked):
                    pause = min(2 * pause, _LOOK_LAST)
            at_once = False
            with contextlib.suppress(httpx2.TransportError, Silent):
                told = object_or_empty(json_of(await self._http.get(self._path)))
                stands = (told.get("status"), told.get("updated_at"))
                if stands == seen:
                    continue
                if told.get("status") != "interrupted":
                    return
                now = await self.settled()
                if now is None or now.kind != ASKED or not same_interrupt(now.data, asked):
                    return
                seen = stands

    async def _heard_of(self, asked: dict[str, Any]) -> bool:
        """Waits for news of a question with an Interlingua server, which sends them as they come. Returns False where
        it did not wait, because an earlier version of the server does not."""
        id_ = asked.get("interrupt_id")
        if not self._remote.ours or not isinstance(id_, str):
            return False
        with contextlib.suppress(httpx2.TransportError):
            response = await self._http.get(f"{self._path}/wait?while={quote(id_, safe='')}&timeout={_LOOK_LAST:g}")
            if response.is_success:
                told = object_or_empty(json_of(response))
                return not same_interrupt(object_or_empty(told.get("output")), asked)
        return False

    # -- by the stream ------------------------------------------------------------------------------------

    async def _read(self) -> Stretch | None:
        """Reads one connection. Returns None where it ended before the run did, or was silent for too long."""
        try:
            return await self._read_on()
        except httpx2.ReadTimeout:
            if not self._path:
                raise
            return None  # there may be nothing to say: whether the server is there, its other answers tell

    async def _read_on(self) -> Stretch | None:
        if not self._path and self._begins is not None:
            return await self._begin(self._begins)
        headers = {"accept": "text/event-stream"}
        if self.cursor is not None:
            headers["last-event-id"] = self.cursor
        elif self._remote.ours:
            headers["last-event-id"] = "0"  # from the beginning; unknown to others, whose values are whole anyway
        async with self._http.stream("GET", f"{self._path}/stream", headers=headers) as response:
            kind = response.headers.get("content-type", "")
            if not response.is_success or "text/event-stream" not in kind:
                if response.status_code not in TRANSIENT:
                    self._streams = False  # workflow-srv answers 500 or 501 to operations that it lacks
                return None
            return await self._updates(response)

    async def _begin(self, beginning: Beginning) -> Stretch | None:
        path, body, headers = beginning.asked()
        async with self._http.stream("POST", path, content=body, headers=headers) as response:
            if not response.is_success:
                await response.aread()
                json_of(response)  # raises
            run = response.headers.get("content-location", "").rpartition("/")[2]
            if not run or "text/event-stream" not in response.headers.get("content-type", ""):
                raise RemoteError(f"{self._remote.base} made no run: it answered without saying which")
            self._path = beginning.begun(run)
            return await self._updates(response)

    async def _updates(self, response: httpx2.Response) -> Stretch | None:
        reader = Reader()
        async for chunk in response.aiter_bytes():
            try:
                events = reader.feed(chunk)
            except json_text.Unreadable as error:
                raise RemoteError(f"the answer of {self._remote.base} cannot be read: {error}") from None
            for event in events:
                try:
                    update = _update_of(event.data)
                except json_text.Unreadable as error:
                    log.warning("an update of %s cannot be read: %s", self._remote.base, error)
                    ended = await self.settled()  # it may have been the last
                    if ended is not None:
                        return ended
                    continue
                if update is None:
                    continue
                self._patience.reset()
                if self._begins is not None:
                    self._begins.heard()
                ended = await self._take(event.id, update)
                if ended is not None:
                    plain_client.let_end(response)
                    return ended
        return None

    async def _take(self, id_: str | None, update: dict[str, Any]) -> Stretch | None:
        kind = update.get("type")
        if kind == "interrupt":
            if update.get("interrupt_id") is not None and update["interrupt_id"] == self._answered:
                return None  # it has our answer, and has not come to it yet
            self.cursor = id_ or self.cursor
            return Stretch(ASKED, update)
        if self._remote.ours and id_ and self.cursor and _seen(id_, self.cursor):
            return None  # others number anew on every connection
        if kind == "values":
            self._last = whole_value(update.get("values", update.get("result")))
            await self._output.value(self._last)
        elif kind == "custom" and self._remote.ours:
            await self._custom(object_or_empty(update.get("update")))
        self.cursor = id_ or self.cursor
        ends = _ends(update)
        if ends == "error":
            return Stretch(FAILED, update)
        if ends == "result":
            # Only ours is known to say so at the end alone.
            if not self._remote.ours:
                return await self.settled()
            kept = {"thread_values": update["thread_values"]} if "thread_values" in update else {}
            return Stretch(ENDED, {"values": self._last, **kept})
        return None

    async def _custom(self, update: dict[str, Any]) -> None:
        """Takes an update of an Interlingua server: a fragment, a fresh start, or an activity."""
        kind, delta = update.get("kind"), update.get("delta")
        if kind == "reset" and isinstance(delta, dict):
            await self._output.value(delta)
        elif kind == "delta" and isinstance(delta, dict):
            await self._output.delta(delta)
        else:
            with contextlib.suppress(msgspec.ValidationError):
                await self._output.emit(msgspec.convert(update, _ACTIVITY))

    # -- by asking ----------------------------------------------------------------------------------------

    async def settled(self, *, blocking: bool = False) -> Stretch | None:
        """Returns the end of the run or its question, by its status and `wait`; None while it goes on."""
        ended = await self._settled(blocking)
        self._patience.reset()
        return ended

    async def _settled(self, blocking: bool) -> Stretch | None:
        response = await self._http.get(self._path)
        status = None
        if response.is_success:
            status = object_or_empty(json_of(response)).get("status")
            if status == "pending" and not (blocking and self._waits):
                return None
        elif response.status_code in _FINAL:
            json_of(response)  # raises
        if self._waits:
            try:
                response = await self._http.get(f"{self._path}/wait")
            except httpx2.ReadTimeout:
                if status != "pending":
                    raise
                return None  # it waits with us
        if response.status_code == 204 or (response.status_code in TRANSIENT and status == "pending"):
            return None
        if response.status_code in TRANSIENT:
            raise Silent(f"it answered {response.status_code}")
        if not response.is_success:
            self._waits = False
        told = object_or_empty(json_of(response)) if response.is_success else {}
        output = object_or_empty(told.get("output"))
        status = object_or_empty(told.get("run")).get("status", status)  # workflow-srv leaves `run` out
        return self._ended(response, output, status)

    def _ended(self, response: httpx2.Response, output: dict[str, Any], status: Any) -> Stretch | None:
        """Returns the end of the stretch by an output and a status; None while it goes on."""
        kind = output.get("type")
        if kind == "interrupt":
            fresh = output.get("interrupt_id") is None or output["interrupt_id"] != self._answered
            return Stretch(ASKED, output) if fresh else None
        if kind == "error" or status in ("error", "timeout"):
            return Stretch(FAILED, {"description": f"the run ended with status {status}", **output, "status": status})
        if kind == "result":
            messages = output.get("messages")
            told = {"messages": messages} if isinstance(messages, list) and messages else {}
            return Stretch(ENDED, {"values": whole_value(output.get("values", output.get("result"))), **told})
        if status == "success":
            if self._last is ABSENT:
                json_of(response)
                raise RemoteError(f"{self._remote.base} says that the run succeeded, but not with what")
            return Stretch(ENDED, {"values": self._last})
        if status == "pending":
            return None
        raise Silent(f"it answered {response.status_code}, and status {status!r}")


def _ends(update: dict[str, Any]) -> Literal["result", "error", "interrupt"] | None:
    """Returns the kind of end that an update gives its stretch; None where the stretch goes on."""
    kind = update.get("type")
    if kind == "values":
        return "result" if update.get("status") == "success" else None
    return kind if kind in ("error", "interrupt") else None


def _update_of(data: str) -> dict[str, Any] | None:
    """Returns an update. Pieces of the output keep halves of characters, which are joined where they are shown."""
    wire_tap.event(data)
    update = json_text.decode_pieces(data, lambda told: isinstance(told, dict) and told.get("type") in _PIECES)
    return update if isinstance(update, dict) else None


def _seen(id_: str, cursor: str) -> bool:
    here, last = place_of(id_), place_of(cursor)
    return here is not None and last is not None and here <= last

"""Binding D as a channel, for the side that dials an http(s):// link: frames become calls of the remote's HTTP API, and
its answers and streams become frames.

A remote that is away for a while is tried again, with the same ids, so that nothing is done twice; one that stays away
ends the channel, and the caller dials again. Tasks are followed in `http_tasks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import lru_cache
from typing import Any

import httpx2

from ....model import trace_context
from ....model.trace_context import Carrier
from ....transports import wire_tap
from ....transports.channel import Channel
from ....transports.channel_queues import Queues
from ....transports.http import plain_client
from ....transports.http.sse import Reader, Received
from ..wire import card as cards
from ..wire import frames
from ..wire.frames import UNREADABLE
from ..wire.links import HTTP, Link
from .dial import Backoff
from .http_frames import (
    asked_of,
    code_in,
    data_of,
    error_in,
    message_of,
    object_of,
    reply_of,
    seq_of,
    task_path,
    words_of,
)
from .http_tasks import Following

log = logging.getLogger("interlingua.peer")

_AGAIN = frozenset({425, 429, 502, 503, 504})
_BROKEN_TRIES = 3  # tries of a request that is answered with 500
_CLOSING = 2.0
_ANSWER = 30.0
_REPLY_WITHIN = 25.0  # seconds that the remote is asked to wait for a reply, each time
_PULSE = 15.0
_SILENCE = 60.0  # of a stream: ours says something every 15 s, the reference every 30
_REMEMBERED = 10_000
_MAX_EVENT = 64 * 1024 * 1024
_KEPT_BACK = frozenset({"type", "server_seq", "_was_queued", "to_peer", "peer_id", "correlation_id"})

_STREAMING = httpx2.Timeout(_SILENCE, connect=10.0)

Frame = dict[str, Any]


class Memory:
    """The state that a channel takes over from the channels before it: the position in their stream, and the sent
    messages. This class remembers nothing, which is enough for a caller that asks again by itself."""

    place: str | None = None

    def reached(self, place: str) -> None:
        """Notes the position up to which the stream was read."""

    async def sent(self, message_id: str) -> bool:
        """Tells if a message went to the remote, over any channel."""
        return False


class Away(Exception):
    """Raised where the remote has been away for too long, and the channel is over."""


async def dial_http(
    link: Link,
    *,
    name: str,
    max_bytes: int,
    tls: ssl.SSLContext | None = None,
    timeout: float = 10.0,
    headers: dict[str, str] | None = None,
    outage: float = 30.0,
    memory: Memory | None = None,
) -> Channel:
    """Connects to the HTTP API of a node. Raises ConnectionError, in plain words."""
    if link.scheme not in HTTP:
        raise ConnectionError(f"{link.shown} is no address of an HTTP API")
    client = httpx2.AsyncClient(
        headers=headers or {},
        timeout=httpx2.Timeout(_ANSWER, connect=timeout),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),  # a task holds a connection
        verify=tls or _authorities(),
        transport=plain_client.transport(tls or _authorities()),
        event_hooks=wire_tap.hooks(),
    )
    try:
        async with asyncio.timeout(timeout):
            base, card = await _find(client, link)
    except TimeoutError:
        await client.aclose()
        raise ConnectionError(f"{link.shown} did not answer within {timeout:g} s") from None
    except BaseException:
        await client.aclose()
        raise
    client.base_url = httpx2.URL(base)
    return HttpChannel(link, client, card, name, max_bytes, outage, memory or Memory())


async def _find(client: httpx2.AsyncClient, link: Link) -> tuple[str, dict[str, Any]]:
    """Returns the address of the API, and the card of the node. Servers have it at the root, or below /peer."""
    bases = [link.url] if link.path else [link.url, f"{link.url}/peer"]
    said = ""
    for base in bases:
        try:
            answer = await client.get(f"{base}/.well-known/acp.json")
        except (httpx2.HTTPError, OSError) as error:
            raise ConnectionError(f"{link.shown} cannot be reached: {words_of(error)}") from error
        card = cards.unwrap(object_of(answer)) if answer.status_code == 200 else None
        if card and isinstance(card.get("name"), str):
            return base, card
        if answer.status_code in (401, 403):
            raise ConnectionError(f"{link.shown} does not let us in: it answered {answer.status_code}")
        said = said or f"it answered {answer.status_code}"
    raise ConnectionError(f"{link.shown} has no agent card at /.well-known/acp.json: {said}")


class HttpChannel(Queues):
    replays = True  # a task that is delegated again is shown from its beginning

    def __init__(
        self,
        link: Link,
        client: httpx2.AsyncClient,
        card: dict[str, Any],
        name: str,
        max_bytes: int,
        outage: float,
        memory: Memory,
    ) -> None:
        super().__init__(link.shown)
        self.client = client
        self.card = card
        self.ours = cards.has(card, "task_delegation")
        self.remote = str(card["name"])  # the sender of all frames
        self.name = name
        self.outage = outage
        self.max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._sent: OrderedDict[str, None] = OrderedDict()  # ids of messages that may be answered
        self.following: dict[str, Following] = {}
        self._streaming: asyncio.Task[None] | None = None
        self._stream_open: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.take(frames.agent_card(card))
        self._memory = memory
        self._writing = self.spawn(self._write())
        if memory.place is not None:  # there may be replies to earlier messages
            self._streaming = self.spawn(self._follow_stream())
        self.spawn(self._pulse())

    # -- the channel --------------------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        return self._gone

    def take(self, frame: Frame) -> None:
        """Takes a frame, as if the remote had sent it."""
        self._take(frames.encode(frame))

    async def room(self) -> None:
        """Waits until the reader has taken enough."""
        await self._in_room.wait()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(self._beside(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # one that is cancelled before its first turn never got to it
        return task

    async def _beside(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except Away:
            pass
        except Exception as error:
            if not self._gone:
                log.exception("the channel to %s failed", self._name)
                self._lost(words_of(error))

    async def drain(self) -> None:
        if cards.has(self.card, "delivery_ack"):
            await self._room.wait()
        else:  # written frames count as delivered there, so they have to be
            await self._empty.wait()

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self._empty.wait()
        self._lost()
        await self.client.aclose()
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # -- calls --------------------------------------------------------------------------------------------

    async def call(
        self, method: str, path: str, body: Any = None, *, within: float = _ANSWER, trace: Carrier | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Makes one request, and retries while the remote is away: only for requests that may be repeated. Raises
        Away."""
        backoff, began, broken = Backoff(0.2, 2.0), self._loop.time(), 0
        timeout = httpx2.Timeout(within + 5.0, connect=10.0)
        while True:
            try:
                answer = await self.client.request(method, path, json=body, timeout=timeout, headers=trace)
            except (httpx2.HTTPError, OSError) as error:
                why = words_of(error)
            else:
                status, told = answer.status_code, object_of(answer)
                if status < 300 and told.get("error_code") == UNREADABLE:
                    return 500, told
                broken += status == 500
                if told.get("queued") is True or (status not in _AGAIN and not 0 < broken < _BROKEN_TRIES):
                    self._heard = self._loop.time()
                    return status, told
                why = f"it answered {status}: {error_in(told)}"
            await self.pause(began, backoff, why)

    async def pause(self, since: float, backoff: Backoff, why: str) -> None:
        """Waits between two tries. Raises Away when there is no use in another."""
        wait = 0.02 + backoff.next()
        if self._gone or self._loop.time() + wait - since > self.outage:
            if not self._gone:
                log.info("%s is away: %s", self._name, why)
            self._lost()
            raise Away(why)
        await asyncio.sleep(wait)

    async def _pulse(self) -> None:
        """Asks a quiet remote regularly, because only that shows when it is gone."""
        while not self._gone:
            await asyncio.sleep(_PULSE)
            if self._loop.time() - self._heard >= _PULSE:
                await self.call("GET", "/status", within=_PULSE)

    def heard(self) -> None:
        self._heard = self._loop.time()

    # -- sending ------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        async for data in self._outgoing():
            frame = frames.decode(data)
            handler = _HANDLERS.get(frame.get("type", ""))
            if handler is not None:  # frames without a place in HTTP (cards, confirmations) are not sent
                await handler(self, frame)

    def _settle(self, frame: Frame, status: int, told: dict[str, Any]) -> bool:
        """Reports the end of a frame. Returns True if the remote has taken it, False if it will not take it."""
        id_ = frame.get("message_id")
        good = status < 300 or told.get("queued") is True
        if isinstance(id_, str):
            refused = frames.error(code_in(status, told), error_in(told), message_id=id_, ts=frames.now_z())
            self.take(frames.delivered(self.remote, id_) if good else refused)
        return good

    async def _message(self, frame: Frame) -> None:
        body, trace = _traced({name: value for name, value in frame.items() if name not in _KEPT_BACK})
        id_, task = frame.get("message_id"), frame.get("task_id")
        if isinstance(id_, str):
            self._sent[id_] = None
            while len(self._sent) > _REMEMBERED:
                self._sent.popitem(last=False)
            if frame.get("correlation_id") == id_:
                self.spawn(self._ask(frame, body, trace))
                return
        follower = self.following.get(task) if isinstance(task, str) else None
        if follower is not None and follower.state == "input_required" and not self.ours:
            self._settle(frame, *await self.call("POST", f"{task_path(follower.id)}:continue", body))
            return
        # An Interlingua node recognizes a message by its id, also on a task: a repeated answer counts once.
        if follower is None:
            await self._listen()
        self._settle(frame, *await self.call("POST", "/message:send", body, trace=trace))

    async def _ask(self, frame: Frame, body: Frame, trace: Carrier | None) -> None:
        """Sends a message whose sender waits for the reply."""
        told_of, asked = False, None
        while not self._gone:
            wanted = {**body, "sync": True, "timeout": _REPLY_WITHIN}
            status, told = await self.call(
                "POST", "/message:send", wanted, within=_REPLY_WITHIN + 5.0, trace=trace
            )  # fmt: skip
            late = status == 408
            if not told_of:
                told_of = True
                if not self._settle(frame, 200 if late else status, told):
                    return
            reply, task = told.get("reply"), told.get("task")
            if isinstance(reply, dict):
                self.take(reply_of(self.remote, frame["message_id"], reply))
                return
            if late:
                continue
            question = task.get("question") if isinstance(task, dict) else None
            if not isinstance(task, dict) or not isinstance(question, dict):
                return  # it has ended without a reply
            if asked != question.get("id"):
                asked = question.get("id")
                self.take(asked_of(self.remote, frame, task, question))
            await asyncio.sleep(1.0)  # until it is answered, the remote answers at once

    async def _delegate(self, frame: Frame) -> None:
        task = str(frame.get("task_id"))
        body, trace = self._delegation(frame)
        before = self.following.get(task)
        if before is not None:
            before.told_again()
            return
        if frame.get("again") is True:  # it must not be begun anew
            status, told = await self.call("GET", task_path(task))
            if status == 404:
                self._fail(frame, frames.LOST, "the remote no longer has the task", transient=True)
                return
        elif self.ours:
            answer = await self._delegate_at_once(frame, body, trace)
            if answer is None:
                return
            status, told = answer
        else:
            status, told = await self.call("POST", "/tasks", body, trace=trace)
        if status >= 300:
            self._fail(frame, code_in(status, told), error_in(told))
            return
        # It is confirmed when it has ended: a sender that repeats it after this channel is lost gets all of it again.
        again = frame.get("again") is True
        follower = self.following[task] = Following(self, task, frame.get("message_id"), again=again)
        self.spawn(follower.run())

    @staticmethod
    def _delegation(frame: Frame) -> tuple[Frame, Carrier | None]:
        """Returns the body that creates a task, and its trace."""
        payload = frame["payload"] if isinstance(frame.get("payload"), dict) else {}
        task = str(frame.get("task_id"))
        body, trace = _traced({"role": "user", **payload, "task_id": task, "message_id": frame.get("message_id")})
        if frame.get("context_id") is not None:
            body["context_id"] = frame["context_id"]
        return body, trace

    async def _delegate_at_once(
        self, frame: Frame, body: Frame, trace: Carrier | None
    ) -> tuple[int, dict[str, Any]] | None:  # fmt: skip
        """Creates the task and follows it with one request. Returns the answer where it is no stream of a task."""
        task = str(frame.get("task_id"))
        opened: asyncio.Future[int] = self._loop.create_future()
        follower = self.following[task] = Following(self, task, frame.get("message_id"))
        self.spawn(follower.run_new(body, trace, opened))
        status = await opened
        if status == 200:
            return None
        # It was refused, or the result is unknown: the patient way asks again, and finds a task that was created.
        return await self.call("POST", "/tasks", body, trace=trace)

    def _fail(self, frame: Frame, code: str, why: str, *, transient: bool = False) -> None:
        """Reports a task as failed that no agent works on."""
        info = {"code": code, "message": why, "transient": transient}
        self.take(frames.updated(self.remote, str(frame.get("task_id")), "failed", error=why, error_info=info))
        self._settle(frame, 200, {})

    async def _cancel(self, frame: Frame) -> None:
        task = frame.get("task_id")
        status, told = await self.call("POST", f"{task_path(str(task))}:cancel", {})
        # A task that has ended cannot be cancelled, and its stream shows how it ended.
        self._settle(frame, 200 if status in (400, 409) else status, told)

    async def _updated(self, frame: Frame) -> None:
        if frame.get("status") in ("cancelling", "canceled"):
            await self._cancel(frame)
            return
        body = {name: frame[name] for name in ("status", "artifact", "error") if frame.get(name) is not None}
        self._settle(frame, *await self.call("POST", f"{task_path(str(frame.get('task_id')))}:update", body))

    async def _reply(self, frame: Frame) -> None:
        body = {name: frame[name] for name in ("correlation_id", "parts", "content") if frame.get(name) is not None}
        self._settle(frame, *await self.call("POST", "/reply", body))

    async def _ping(self, frame: Frame) -> None:
        self.spawn(self._pong(frame))

    async def _pong(self, frame: Frame) -> None:
        with contextlib.suppress(httpx2.HTTPError, OSError):
            answer = await self.client.get("/status")
            if answer.status_code < 500:
                self.heard()
                self.take(frames.pong(self.remote, str(frame.get("nonce"))))

    # -- the remote's own messages ------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Opens the stream for replies before a message is sent."""
        if self._streaming is None:
            self._streaming = self.spawn(self._follow_stream())
        await asyncio.wait({self._stream_open}, timeout=_ANSWER)

    async def _follow_stream(self) -> None:
        place = self._memory.place
        backoff, since = Backoff(0.2, 2.0), self._loop.time()
        while not self._gone:
            why = "its stream ended"
            try:
                async with self.events("/stream", place) as (status, received):
                    if not self._stream_open.done():
                        self._stream_open.set_result(None)
                    if status in (401, 403, 404, 405, 501):
                        log.warning("%s has no stream (it answered %d): its messages are not seen", self._name, status)
                        return
                    async for event in received:
                        since = self._loop.time()
                        place = event.id or seq_of(event) or place
                        await self._said(event)
                        await self.room()
                        if place is not None:
                            self._memory.reached(place)
            except (httpx2.HTTPError, OSError, ValueError) as error:
                why = words_of(error)
            await self.pause(since, backoff, why)

    @contextlib.asynccontextmanager
    async def events(
        self, path: str, place: str | None, body: Frame | None = None, trace: Carrier | None = None
    ) -> AsyncIterator[tuple[int, AsyncIterator[Received]]]:
        """Opens a stream from a cursor on; the status tells where there is none. With a body, the stream is that of the
        task or message that the request begins."""
        headers = {**(trace or {}), "accept": "text/event-stream", **({"last-event-id": place} if place else {})}
        query = {"since": place} if place and place.isdecimal() else None
        method = "GET" if body is None else "POST"
        async with self.client.stream(
            method, path, headers=headers, json=body, timeout=_STREAMING, params=query
        ) as answer:
            is_stream = "text/event-stream" in answer.headers.get("content-type", "")
            status = answer.status_code if answer.status_code != 200 or is_stream else 404
            if status in _AGAIN or status == 500:
                raise httpx2.HTTPError(f"it answered {status}")
            yield status, self._received(answer)

    async def _received(self, answer: httpx2.Response) -> AsyncIterator[Received]:
        reader = Reader(_MAX_EVENT)
        async for chunk in answer.aiter_bytes():
            self.heard()
            for event in reader.feed(chunk):
                wire_tap.event(event.data)
                if event.event == "acp.task":  # nothing comes after it
                    plain_client.let_end(answer)
                yield event
            if self._gone:
                return

    async def _said(self, event: Received) -> None:
        told = data_of(event)
        id_, asked, task = told.get("message_id"), told.get("correlation_id"), told.get("task_id")
        if told.get("type") != "message" or id_ in self._sent or task in self.following:
            return
        if told.get("sync") is True:  # a reply that its asker waits for, and gets as the answer to the request
            return
        # An Interlingua node streams other messages, too. The reference does not name the answered one.
        if self.ours:
            answers = asked in self._sent or (isinstance(asked, str) and await self._memory.sent(asked))
        else:
            answers = told.get("direction") != "outbound"
        if answers:
            with contextlib.suppress(Exception):
                self.take(message_of(self.remote, told))


def _traced(body: Frame) -> tuple[Frame, Carrier | None]:
    """Returns a body, and the HTTP headers for the parts of its metadata that have some."""
    metadata = body.get("metadata")
    trace = trace_context.read(metadata)
    if not isinstance(metadata, dict) or trace is None:
        return body, None
    left = {name: value for name, value in metadata.items() if name not in trace_context.NAMES}
    body = {name: value for name, value in body.items() if name != "metadata"}
    return ({**body, "metadata": left} if left else body), trace


@lru_cache(maxsize=1)
def _authorities() -> ssl.SSLContext:
    return ssl.create_default_context()  # once: reading the certificates takes longer than a request


_HANDLERS: dict[str, Callable[[HttpChannel, Frame], Coroutine[Any, Any, None]]] = {
    "acp.message": HttpChannel._message,
    "acp.reply": HttpChannel._reply,
    "acp.ping": HttpChannel._ping,
    "task.delegate": HttpChannel._delegate,
    "task.cancel": HttpChannel._cancel,
    "task.updated": HttpChannel._updated,
}

"""Forwards a request unchanged to the replica that it belongs to, and its answer back.

Forwards only to replicas that the store knows, and only once: the replica that gets a forwarded request answers it
itself. Forwarding grants no trust: that replica checks the caller again, and Host and Origin, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from ...engine.ports import Membership, Replica
from ...model.errors import InterlinguaError
from ...protocols.base import Affinity
from ...security.auth import Authenticator
from ...transports.http import plain_client
from ...transports.http.body import json_response
from ...transports.http.request_path import path_below_root
from .websocket_proxy import pass_socket_on

log = logging.getLogger("interlingua.cluster")

MARK = b"x-interlingua-replica"
"""The header of a request that was passed on: the id of the replica that it is meant for."""

_OF_ONE_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect")
)
_OURS = _OF_ONE_CONNECTION | {b"date"}  # headers of an answer; each server gives its own time
_CONNECT = 5.0  # seconds
_BODY = 30.0  # seconds for a body to arrive
_TRIES = 3


class _NotThere(Exception):
    """The replica does not answer at its address; it has not seen the request."""


class Passing:
    """Wraps the doors: forwards requests that belong to another replica."""

    def __init__(
        self,
        app: ASGIApp,
        replicas: Membership,
        auth: Authenticator,
        affinities: Mapping[str, Affinity],
        added: str = "",
    ) -> None:
        """`affinities`: by the prefix of its door. `added` stands before the paths of the other replica, if it does not
        stand before those here."""
        self._app = app
        self._replicas = replicas
        self._auth = auth
        self._affinities = dict(affinities)
        self._added = added
        self._transport = plain_client.Plain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path = path_below_root(scope)
        affinity = self._affinities.get("/" + path[1:].partition("/")[0] if not self._added else self._added)
        if affinity is None:
            await self._app(scope, receive, send)
            return
        named, marked = affinity.elsewhere(scope), _marked(scope)
        if marked is not None and marked != self._replicas.id.encode():
            # The replica that forwarded it knew another server at this address.
            await _answer(scope, receive, send, 421, "this is another replica than the one that was meant")
        elif named is None:
            await self._app(scope, receive, send)
        else:
            await self._elsewhere(affinity, named, scope, receive, send, last=marked is not None)

    async def _elsewhere(
        self, affinity: Affinity, named: str, scope: Scope, receive: Receive, send: Send, *, last: bool
    ) -> None:
        """Forwards a request to the replica that it belongs to, or answers it here. `last`: it was forwarded already,
        and is answered here."""
        try:
            caller = await self._auth.authenticate(Headers(scope=scope))
        except InterlinguaError:
            caller = None  # the door says in its own words what is wrong
        body = _Body(receive)
        try:
            for _ in range(_TRIES):
                replica = await affinity.locate(named, caller)
                if replica is None or last:
                    break
                try:
                    await self._pass_on(replica, scope, body, send)
                    return
                except _NotThere as error:
                    log.info("replica %s does not answer: %s", replica.id, error)
                    if not await self._replicas.gone(replica):
                        await _answer(scope, receive, send, 503, "the replica that has this cannot be reached")
                        return
        except InterlinguaError as error:
            log.error("what belongs to another replica could not be had: %s", error)
            await _answer(scope, receive, send, 503, "what this belongs to cannot be had now")
            return
        await self._app(scope, body.again, send)

    async def _pass_on(self, replica: Replica, scope: Scope, body: _Body, send: Send) -> None:
        target = replica.address + self._added + _path(scope)
        headers = [(name, value) for name, value in scope["headers"] if name not in _OF_ONE_CONNECTION]
        headers.append((MARK, replica.id.encode()))
        if scope["type"] == "websocket":
            try:
                await pass_socket_on(target, headers, WebSocket(scope, body.again, send))
            except OSError as error:
                raise _NotThere(str(error)) from error
            self._replicas.passed_on += 1
            return
        request = httpx2.Request(scope["method"], target, headers=headers, content=await body.content())
        request.extensions["timeout"] = {"connect": _CONNECT}
        working = asyncio.ensure_future(self._exchange(request, send, body))
        leaving = asyncio.ensure_future(body.left())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _exchange(self, request: httpx2.Request, send: Send, body: _Body) -> None:
        try:
            response = await self._transport.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            if body.begun:
                await _say(send, 503, "the replica that has this cannot be reached")
                return
            raise _NotThere(str(error)) from error
        except httpx2.HTTPError as error:
            if request.method == "GET":  # it changes nothing: another one can be asked
                raise _NotThere(str(error)) from error
            log.warning("a replica ended before it answered: %s", error)
            # It may have done what was asked: to ask another one could do it twice.
            await _say(send, 502, "the replica that had this ended before it answered; ask again")
            return
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        try:
            if response.status_code == 421 and MARK.decode() in response.headers and not body.begun:
                raise _NotThere("another one is there now")
            self._replicas.passed_on += 1
            told = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in _OURS]
            await send({"type": "http.response.start", "status": response.status_code, "headers": told})
            with contextlib.suppress(httpx2.HTTPError):  # then the client's connection is cut, as that one was
                async for chunk in stream:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            await stream.aclose()

    async def close(self) -> None:
        await self._transport.aclose()


class _Body:
    """The body of a client's request. Most often it is one piece that is there already. What was read can be read
    again, as long as no part of it was sent on."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._first: Message | None = None
        self._whole = asyncio.Event()
        self._gone = asyncio.Event()
        self.begun = False  # it comes in pieces, and some of them were sent: it cannot be sent again

    async def again(self) -> Message:
        """Acts as the server's own `receive` if the request is answered here after all."""
        if self._first is not None:
            message, self._first = self._first, None
            return message
        return await self._receive()

    async def content(self) -> bytes | AsyncIterator[bytes] | None:
        if self._first is None:
            self._first = await self._receive()
        message = self._first
        if message["type"] == "http.disconnect":
            self._gone.set()
        elif message.get("more_body"):
            return self._rest(message)
        self._whole.set()
        return message.get("body") or None

    async def _rest(self, message: Message) -> AsyncIterator[bytes]:
        self.begun = True
        try:
            async with asyncio.timeout(_BODY):
                while True:
                    if message["type"] == "http.disconnect":
                        self._gone.set()
                        raise httpx2.WriteError("the client left before its body was complete")
                    if message.get("body"):
                        yield message["body"]
                    if not message.get("more_body"):
                        return
                    message = await self._receive()
        except TimeoutError:
            raise httpx2.WriteError(f"the body did not arrive within {_BODY:g} s") from None
        finally:
            self._whole.set()

    async def left(self) -> None:
        """Waits until the client is gone."""
        await self._whole.wait()
        while not self._gone.is_set():
            if (await self._receive())["type"] == "http.disconnect":
                self._gone.set()


def _marked(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == MARK:
            found: bytes = value
            return found
    return None


def _path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode("ascii", "surrogateescape")
    query: bytes = scope.get("query_string", b"")
    return path if not query else f"{path}?{query.decode('latin-1')}"


async def _say(send: Send, status: int, text: str) -> None:
    answer = json_response(text, status)
    await send({"type": "http.response.start", "status": status, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": bytes(answer.body)})


async def _answer(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    headers: dict[str, Any] = {MARK.decode(): "no"} if status == 421 else {"retry-after": "1"}
    answer = json_response(text, status, headers)
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(answer)
    else:
        await answer(scope, receive, send)

"""Implements the wires of the protocol: the pipes of a command, a WebSocket, and POSTs with event streams.

All of them take one message at a time, right or wrong, and keep what came in the same way. They know nothing of the
meaning of messages, except what Streamable HTTP needs: the session of a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from interlingua.model.errors import Unavailable
from interlingua.transports.raw_client import Answer, Heard, Http, Stream
from interlingua.transports.raw_client.websocket import Socket

from ..base import Broken, Gone, shown
from ..clients.jsonrpc import Link, Message, StdioLink

__all__ = ["Link", "Message", "StdioLink"]

CONNECTION, SESSION = "acp-connection-id", "acp-session-id"


class SocketLink(Socket, Link):
    kind = "websocket"

    async def put(self, message: Any, headers: dict[str, str] | None = None) -> None:
        await super().put(message)


class Listening(Heard):
    """An event stream that is read as it comes."""

    def __init__(self, http: Http, headers: dict[str, str], heard: Callable[[bytes], Any] | None = None) -> None:
        super().__init__(http.subject.patience, http.subject.quiet)
        self.stream: Stream | None = None
        self.refused: Answer | None = None  # the answer, if it is no stream
        self.ids: list[str | None] = []  # ids of the events
        self._heard = heard
        self._failed: Exception | None = None
        self._opened = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._read(http, headers))

    async def _read(self, http: Http, headers: dict[str, str]) -> None:
        try:
            async with http.stream("GET", "", headers=headers) as stream:
                if stream.status != 200 or stream.media_type != "text/event-stream":
                    self.refused = await stream.body() if stream.status != 200 else Answer(200, stream.headers, b"")
                    return
                self.stream = stream
                self._opened.set()
                async for event in stream.events:
                    self.ids.append(event.id)
                    await self.take(event.data.encode(errors="replace"))
                    if self._heard is not None:
                        await self._heard(event.data.encode(errors="replace"))
        except (Gone, Unavailable, ValueError) as error:
            self._failed = error
        finally:
            self._opened.set()
            await self.end()

    async def opened(self) -> Listening:
        """Returns when the server has answered, in whatever way."""
        await self._opened.wait()
        if self._failed is not None:
            raise self._failed
        return self

    def gone(self) -> str:
        return "the event stream ended"

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class HttpLink(Link):
    """A connection whose streams are opened as a careful client would: before anything can come on them."""

    kind = "http"

    def __init__(self, http: Http) -> None:
        super().__init__(http.subject.patience, http.subject.quiet)
        self.http = http
        self.connection: str | None = None
        self.streams: dict[str | None, Listening] = {}
        self._asked: dict[Any, str | None] = {}  # requests of the server: session
        self._known: set[str] = set()  # sessions that were made here

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, http: Http) -> AsyncIterator[HttpLink]:
        link = cls(http)
        try:
            yield link
        finally:
            await link.close()

    def came(self, message: Message) -> None:
        if isinstance(message.get("id"), int | str) and "method" in message:
            self._asked[message["id"]] = session_of(message)
        made = message.get("result")
        if isinstance(made, dict) and isinstance(made.get("sessionId"), str):
            self._known.add(made["sessionId"])
        super().came(message)

    async def put_bytes(self, data: bytes) -> Answer | None:
        try:
            message = json.loads(data)
        except ValueError:
            message = None
        session = self._session(message)
        if session is not None:
            await self.listen(session)
        answer = await self.post(data, session)
        if session is not None and session not in self._known:  # it may be known now
            await self.listen(session)
        if answer.status == 200 and self.connection is None:
            self.connection = answer.headers.get(CONNECTION)
            if self.connection is None:
                raise Broken(f"initialize was answered without the header Acp-Connection-Id: {dict(answer.headers)}")
            await self.take(answer.body)
            await self.listen(None)
        elif answer.status >= 300:
            self._refused(message, answer)
            await self.take(answer.body)
        return answer

    def _session(self, message: Any) -> str | None:
        if not isinstance(message, dict):
            return None
        if "method" not in message and isinstance(message.get("id"), int | str):
            return self._asked.get(message["id"])
        return session_of(message)

    def _refused(self, message: Any, answer: Answer) -> None:
        """An error as JSON-RPC has it is the answer to the request. Anything else is none."""
        what = message.get("method", "an answer") if isinstance(message, dict) else "a message"
        try:
            told = json.loads(answer.body)
        except ValueError:
            told = None
        if not isinstance(told, dict) or "error" not in told:
            raise Broken(f"POST of {what} was answered with status {answer.status}: {answer.body[:100]!r}")
        if isinstance(message, dict) and told.get("id") is None and "id" in message:
            answer.body = json.dumps({**told, "id": message["id"]}).encode()

    def headers(self, session: str | None = None) -> dict[str, str]:
        if not ((session or "") + (self.connection or "")).isascii():
            raise Broken(f"an id is nothing that a header can carry: {shown(session or self.connection)}")
        told = {CONNECTION: self.connection} if self.connection is not None else {}
        return {**told, SESSION: session} if session is not None else told

    async def post(self, data: bytes, session: str | None = None, headers: dict[str, str] | None = None) -> Answer:
        told = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        return await self.http.ask(
            "POST", "", content=data, headers={**told, **self.headers(session), **(headers or {})}
        )

    async def listen(self, session: str | None) -> Listening:
        """Opens a stream, unless it is open. The server may refuse the stream of a session that it does not know."""
        found = self.streams.get(session)
        if found is None or found.ended:
            found = self.streams[session] = Listening(self.http, self.headers(session), self.take)
            refused = (await found.opened()).refused
            if refused is not None and (session is None or session in self._known):
                whose = "the connection" if session is None else "a session"
                raise Broken(
                    f"GET of the event stream of {whose} was answered with status {refused.status} and "
                    f"{refused.media_type or 'no content type'}"
                )
        return found

    async def close(self) -> None:
        for stream in self.streams.values():
            await stream.close()
        if self.connection is not None:
            with contextlib.suppress(Gone, Unavailable):
                await self.http.ask("DELETE", "", headers=self.headers())
        await self.end()


def session_of(message: Any) -> str | None:
    params = message.get("params") if isinstance(message, dict) else None
    session = params.get("sessionId") if isinstance(params, dict) else None
    return session if isinstance(session, str) else None

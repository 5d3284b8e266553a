"""The HTTP client of mounts: httpx2's, with a short way for requests that need nothing of what makes it slow.

A request over `plain` to a server without TLS, whose client keeps no cookies and is watched by nobody, is put together
here and sent at once. All others go the way of httpx2, and so does a redirect. What is answered is httpx2's either way,
except to who asks for the whole answer (`ask_now`): for short runs, which are over when their answer begins.
"""

from __future__ import annotations

import contextlib
import json as json_
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec

from . import plain
from .plain import Plain

_MANY = 256  # addresses that are remembered; those of runs are new each time
_LENGTHS = frozenset((b"content-length", b"transfer-encoding", b"host"))
_UNSET = httpx2.USE_CLIENT_DEFAULT
_JSON = (b"content-type", b"application/json")


A_MOMENT = 0.2  # seconds in which an answer may come at once; a short run is over in it

Asked = contextlib.AbstractAsyncContextManager[httpx2.Response]
"""What gives the answer to a request that has been sent."""


class _Place:
    """Where a request goes."""

    __slots__ = ("host", "line", "port", "request")

    def __init__(self, method: str, url: httpx2.URL) -> None:
        self.host = url.host
        self.port = url.port or 80
        self.line = b"%s %s HTTP/1.1\r\nhost: %s\r\n" % (method.encode(), url.raw_path, url.netloc)
        self.request = httpx2.Request(method, url)  # what an answer says that it answers


class Written:
    """A request as it is sent."""

    __slots__ = ("data", "place", "usual", "within")

    def __init__(self, place: _Place, data: bytes, within: httpx2.Timeout, usual: dict[str, Any]) -> None:
        self.place = place
        self.data = data
        self.within = within
        self.usual = usual  # how it is said to httpx2


class _Answer(httpx2.Response):
    packed = False  # it has to be unpacked

    def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:  # type: ignore[override]
        if chunk_size is not None or hasattr(self, "_content") or self.packed:
            return super().aiter_bytes(chunk_size)
        self.is_stream_consumed = True
        return _Pieces(self)


class _Pieces(AsyncIterator[bytes]):
    """An answer as it comes, and its end. No generator, for the reason that `plain` has for it."""

    def __init__(self, answer: _Answer) -> None:
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        self._answer = answer
        self._stream = aiter(answer.stream)

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            await self._answer.aclose()
            raise

    async def aclose(self) -> None:
        """Who leaves in the middle closes the answer."""


class Client(httpx2.AsyncClient):
    """As httpx2's. `verify` is for servers with TLS."""

    _places: dict[tuple[str, str], _Place | None]
    _placed: httpx2.URL | None = None
    _raw: list[tuple[bytes, bytes]] | None = None
    _lines: list[tuple[bytes, bytes]]

    def stream(  # type: ignore[override]
        self, method: str, url: str, *, content: Any = None, json: Any = None, headers: Any = None,
        timeout: Any = _UNSET, **more: Any,
    ) -> contextlib.AbstractAsyncContextManager[httpx2.Response]:  # fmt: skip
        written = None
        if not more:
            written = self.write(method, url, content=content, json=json, headers=headers, timeout=timeout)
        if written is None:
            return super().stream(
                method, url, content=content, json=json, headers=headers, timeout=timeout, **more
            )  # fmt: skip
        return self.answer_of(written)

    def write(
        self, method: str, url: str, *, content: Any = None, json: Any = None, headers: Any = None,
        timeout: Any = _UNSET,
    ) -> Written | None:  # fmt: skip
        """A request, made ready for `send_now`. None where it cannot go the short way."""
        place = self._place(method, url)
        body = None if place is None else _body(content, json)
        if place is None or body is None:
            return None
        data = self._data(place, body, headers, is_json=content is None and json is not None)
        within = self.timeout if timeout is _UNSET else httpx2.Timeout(timeout)
        usual = {"content": content, "json": json, "headers": headers, "timeout": timeout}
        return Written(place, data, within, usual)

    def send_now(self, written: Written) -> plain.Sent | None:
        """Send a request here and now, where a connection is free. Whoever does not get its whole answer goes on with
        `answer_of`, or cuts it."""
        return plain.send(written.place.host, written.place.port, written.data, written.within.read)

    async def ask_now(self, written: Written) -> tuple[plain.Whole | None, Asked | None]:
        """Send a request here and now. Its answer, where all of it comes at once; or else what goes on with it; or
        neither: nothing was sent, because no connection is free. Who is cancelled meanwhile has cut it."""
        sent = self.send_now(written)
        if sent is None:
            return None, None
        try:
            whole = await sent.whole(A_MOMENT)
        except BaseException:
            sent.cut()
            raise
        return whole, None if whole is not None else self.answer_of(written, sent)

    @contextlib.asynccontextmanager
    async def answer_of(self, written: Written, sent: plain.Sent | None = None) -> AsyncIterator[httpx2.Response]:
        """What a request is answered with, which may have been sent by now."""
        place, within = written.place, written.within
        if sent is not None:
            head = await sent.head()
        else:
            head = await Plain.exchange(place.host, place.port, written.data, within.connect, within.read)
        answer = self._answer(place, head)
        if 300 <= answer.status_code < 400 and answer.has_redirect_location and self.follow_redirects:
            await answer.aclose()
            async with super().stream(place.request.method, place.request.url, **written.usual) as followed:
                yield followed
            return
        try:
            yield answer
        finally:
            await answer.aclose()

    async def request(  # type: ignore[override]
        self, method: str, url: str, *, content: Any = None, json: Any = None, headers: Any = None,
        timeout: Any = _UNSET, **more: Any,
    ) -> httpx2.Response:  # fmt: skip
        if any(value is not None and value is not _UNSET for value in more.values()):
            return await super().request(
                method, url, content=content, json=json, headers=headers, timeout=timeout, **more
            )  # fmt: skip
        async with self.stream(
            method, url, content=content, json=json, headers=headers, timeout=timeout
        ) as answer:  # fmt: skip
            await answer.aread()
        return answer

    def _place(self, method: str, url: str) -> _Place | None:
        """Where a request goes, if it can go the short way."""
        if type(self._transport) is not Plain or self._mounts or self.auth is not None or self.params or self.cookies:
            return None
        hooks = self.event_hooks
        if hooks["request"] or hooks["response"] or self.is_closed:
            return None
        if self._placed is not self.base_url or len(self._places) > _MANY:
            self._places, self._placed = {}, self.base_url
        known = (method, url)
        if known in self._places:
            return self._places[known]
        whole = self._merge_url(url)
        simple = whole.scheme == "http" and not whole.userinfo and method in Plain.simple
        place = self._places[known] = _Place(method, whole) if simple else None
        return place

    def _data(self, place: _Place, body: bytes, headers: Any, *, is_json: bool) -> bytes:
        given = {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
        if is_json:
            given.setdefault(*_JSON)
        lines = [line for name, line in self._own_lines() if name not in given]
        lines += [b"%s: %s" % (name, value) for name, value in given.items() if name not in _LENGTHS]
        if body or place.request.method != "GET":
            lines.append(b"content-length: %d" % len(body))
        head = b"\r\n".join(lines)
        if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
            raise httpx2.LocalProtocolError("a header has a line break in it")
        return place.line + head + b"\r\n\r\n" + body

    def _own_lines(self) -> list[tuple[bytes, bytes]]:
        """Headers that the client sends with every request, by their names in small letters."""
        raw = self.headers.raw
        if raw != self._raw:
            self._raw = raw
            named = [(name.lower(), b"%s: %s" % (name, value)) for name, value in raw]
            self._lines = [(name, line) for name, line in named if name not in _LENGTHS]
        return self._lines

    def _answer(self, place: _Place, head: plain.Head) -> _Answer:
        status, told, stream, extensions = head
        answer = _Answer(status, headers=told, stream=stream, extensions=extensions, request=place.request)
        names = {name.lower() for name, _ in told}  # httpx2 goes through all of them for each question
        answer.packed = b"content-encoding" in names
        if b"set-cookie" in names:
            self.cookies.extract_cookies(answer)
        return answer


def as_asked(written: Written, whole: plain.Whole) -> Asked:
    """An answer that came at once, for who reads them as they come."""
    told = list(whole.headers.items())
    answer = httpx2.Response(whole.status, headers=told, content=whole.body, request=written.place.request)
    return contextlib.nullcontext(answer)


def _body(content: Any, json: Any) -> bytes | None:
    """What is sent; None where that takes httpx2 to say."""
    if content is not None:
        return content if type(content) is bytes else None
    return b"" if json is None else as_json(json)


def as_json(value: Any) -> bytes:
    """A body as it is sent: numbers of any size too."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return json_.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

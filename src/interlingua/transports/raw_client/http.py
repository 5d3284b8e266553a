"""Sends any HTTP request as it is given, and reads answers and event streams of any shape."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx2
import msgspec

from ...model.errors import Unavailable
from ..http import sse
from .endpoint import Broken, Endpoint, Gone, shown

_UNKNOWN_ISSUERS = (18, 19, 20, 21)  # of OpenSSL: self-signed, or by an unknown issuer

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

    def __init__(self, subject: Endpoint) -> None:
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

    def __init__(self, answer: httpx2.Response, subject: Endpoint) -> None:
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

"""Servers at an HTTP address: the client for their runs, and their answers."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import httpx2

from ..model.errors import Denied, InvalidRequest
from ..transports import json_text, wire_tap
from ..transports.http import plain_client
from .errors import RemoteError
from .settings import Access, MountSettings, read_settings

PATIENCE = 60.0
"""Seconds for which a server that cannot be reached, or tells nothing, is tried again before the run fails as
transient."""
TRANSIENT = frozenset({408, 425, 429, 502, 503, 504})
_SILENCE = 60.0  # seconds without a byte after which a connection counts as dead; ours sends one every 15
TIMEOUT = httpx2.Timeout(_SILENCE, connect=10.0, write=30.0)


class HttpAddress:
    """The address of a server, and how to reach it."""

    def __init__(self, base: str, access: Access, *, kind: str) -> None:
        """`kind` is the protocol as it is written in a target."""
        try:
            url = httpx2.URL(base)
        except (httpx2.InvalidURL, ValueError) as error:
            raise InvalidRequest(f"{base!r} is not an address: {error}") from error
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise InvalidRequest(f"{base!r} is not the address of a server; write {kind}+http://HOST[/PREFIX][#AGENT]")
        self.base = base.rstrip("/")
        self.timeout = TIMEOUT
        self.patience = PATIENCE
        key = read_settings(MountSettings, kind, access).key
        self._headers = {**({"x-api-key": key} if key else {}), **access.headers}
        self._clients = plain_client.Shared(self._client, self.base)

    def open(self) -> contextlib.AbstractAsyncContextManager[httpx2.AsyncClient]:
        """Opens a client for one run, or for all runs."""
        return self._clients.open()

    def _client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            base_url=self.base, headers=self._headers, timeout=self.timeout, verify=_tls(),
            event_hooks=wire_tap.hooks(), transport=plain_client.transport(_tls()),
        )  # fmt: skip


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # once: reading the certificates takes longer than a request


class Refused(RemoteError):
    """The server answered with an error status."""

    def __init__(self, message: str, status: int, code: str | None, transient: bool) -> None:
        super().__init__(message, code=code, transient=transient, details={"status": status})
        self.status = status


class Refusal(NamedTuple):
    """The reason that a server gives for a refusal. None: it does not say."""

    text: str
    code: str | None = None
    transient: bool | None = None


def read_json(response: httpx2.Response, refusal: Callable[[Any, httpx2.Response], Refusal], key_variable: str) -> Any:
    """Returns the body of an answer, or raises the refusal in it, which `refusal` reads."""
    try:
        body = json_text.decode(response.content)
    except json_text.Unreadable as error:
        body = None
        if response.is_success and response.content:
            raise RemoteError(f"the answer of {response.request.url} cannot be read: {error}") from None
    if response.is_success:
        return body
    status, host, told = response.status_code, response.request.url.host, refusal(body, response)
    text = told.text or response.reason_phrase or "no reason given"
    if status in (401, 403):
        raise Denied(f"{host} refused: {text}" + (f"; put the API key into {key_variable}" if status == 401 else ""))
    transient = status in TRANSIENT if told.transient is None else told.transient
    raise Refused(f"{host} answered {status}: {text}", status, told.code, transient)


def words_of(error: Exception) -> str:
    return str(error) or type(error).__name__

"""Authenticates callers: one check for every HTTP door, from request headers to a caller.

Also describes the accepted credentials to clients that have none yet, hides credentials from the log, and holds the
rule that nothing is served to the world without a credential.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..model.errors import StoreError
from ..model.run import Caller
from .addresses import is_loopback
from .errors import Unauthenticated, UnsafeBind
from .headers import single
from .keys import KeyStore, check_key, key_id

if TYPE_CHECKING:
    from .tokens import TokenVerifier

API_KEY_HEADER = "x-api-key"

# A caller that can reach an open server on loopback is on this machine, and may do what its owner may.
ANONYMOUS = Caller("anonymous", "anyone on this machine", ("*",))

_CREDENTIALS = frozenset({API_KEY_HEADER, "authorization"})
_CREDENTIALS_RAW = frozenset(name.encode() for name in _CREDENTIALS)
_SECRET_HEADERS = ("authorization", "proxy-authorization", API_KEY_HEADER, "cookie", "set-cookie")
_TOUCH_EVERY = 60_000_000  # microseconds: noting each use would cost a write per request


class Authenticator:
    """Identifies callers by API key or token. `open_to_all` admits callers without either, on loopback."""

    def __init__(
        self,
        keys: KeyStore | None = None,
        tokens: TokenVerifier | None = None,
        *,
        open_to_all: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self.open_to_all = open_to_all
        self._clock = clock

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """Returns the caller. Raises Unauthenticated; a wrong credential is refused even where none is needed."""
        if self.open_to_all and not _mentions_any(headers):
            return ANONYMOUS
        key = single(headers, API_KEY_HEADER)
        scheme, _, bearer = (single(headers, "authorization") or "").partition(" ")
        bearer = bearer.strip() if scheme.lower() == "bearer" else ""
        if key is not None:
            if bearer and bearer != key:
                raise Unauthenticated(f"Two credentials came; send {API_KEY_HEADER} or Authorization, not both")
            return await self._by_key(key)
        if bearer:
            return await (self._by_token(bearer) if bearer.count(".") == 2 else self._by_key(bearer))
        if scheme:
            raise Unauthenticated(f"The Authorization header holds no bearer token; {self._what_to_send()}")
        if self.open_to_all:
            return ANONYMOUS
        raise Unauthenticated(f"This server wants to know who asks; {self._what_to_send()}", rejected=False)

    def schemes(self) -> list[dict[str, Any]]:
        """Returns the accepted credentials as OpenAPI security scheme objects, for clients that have none yet. None is
        needed if the list is empty."""
        if self.open_to_all:
            return []
        schemes: list[dict[str, Any]] = []
        if self._keys is not None:
            schemes.append(
                {"type": "apiKey", "in": "header", "name": API_KEY_HEADER, "description": "An API key of this server"}
            )
            schemes.append({"type": "http", "scheme": "bearer", "description": "An API key of this server"})
        for issuer in self._tokens.issuers if self._tokens else []:
            description = f"A token from {issuer.issuer} for the audience {' or '.join(issuer.audiences)}"
            schemes.append({"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": description})
        return schemes

    async def _by_key(self, presented: str) -> Caller:
        now = int(self._clock() * 1_000_000)
        id_ = key_id(presented)
        stored = await self._keys.get(id_) if self._keys is not None and id_ is not None else None
        record = check_key(presented, stored, now)
        if record is None:
            raise Unauthenticated("The API key is not known, was revoked or has expired")
        assert self._keys is not None
        self.open_to_all = False  # there are keys: an open server that learns of them now asks for them from now on
        if record.last_used_at is None or now - record.last_used_at >= _TOUCH_EVERY:
            with contextlib.suppress(StoreError):  # the time of the last use is not worth failing the request
                await self._keys.touch(record.id, now)
        return Caller(f"key:{record.id}", record.name, tuple(record.scopes))

    async def _by_token(self, token: str) -> Caller:
        if self._tokens is None:
            raise Unauthenticated(f"This server accepts no tokens; {self._what_to_send()}")
        return await self._tokens.verify(token)

    def _what_to_send(self) -> str:
        ways = []
        if self._keys is not None:
            ways.append(f'an API key as "{API_KEY_HEADER}: KEY" or "Authorization: Bearer KEY"')
        if self._tokens is not None:
            ways.append('a token as "Authorization: Bearer TOKEN"')
        return f"send {' or '.join(ways)}" if ways else "it has no keys and no issuers yet, so nobody is let in"


def _mentions_any(headers: Mapping[str, str]) -> bool:
    """Returns whether the headers have a credential at all. Web frameworks keep headers as bytes, in lower case:
    reading those is ten times as fast as building a mapping of text."""
    raw = getattr(headers, "raw", None)
    if raw is None:
        return any(name.lower() in _CREDENTIALS for name in headers)
    return not _CREDENTIALS_RAW.isdisjoint([name.lower() for name, _ in raw])


def redact(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers as they may stand in a log. Of an API key, its public id stays."""
    return {name: _redacted(value) if name.lower() in _SECRET_HEADERS else value for name, value in headers.items()}


def check_bind(host: str, authenticator: Authenticator) -> None:
    """Refuses to serve the world without authentication."""
    if authenticator.open_to_all and not is_loopback(host):
        raise UnsafeBind(
            f"Refused to listen on {host or 'all addresses'!r} without authentication: anyone who reaches it could run "
            "the agents. Make a key with `interlingua keys add NAME`, or stay on this machine with --host 127.0.0.1"
        )


def _redacted(value: str) -> str:
    scheme, _, rest = value.rpartition(" ")
    id_ = key_id(rest)
    shown = f"il_{id_}_***" if id_ else "***"
    return f"{scheme} {shown}" if id_ and scheme.lower() == "bearer" else shown

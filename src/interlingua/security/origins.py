"""Host and Origin checks: the defence of a server on loopback against web pages (DNS rebinding, cross-site requests).

A page whose name was rebound to 127.0.0.1 still sends its own name as Host, and a page of another site sends its
Origin. Programs that are no browsers send no Origin, and are not affected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..model.errors import InvalidRequest
from .addresses import is_loopback
from .errors import HostRefused, OriginRefused
from .headers import single

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::(?P<port>[0-9]{1,5}|\*))?", re.ASCII)
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>[^/?#@]+)", re.ASCII | re.IGNORECASE)
_DEFAULT_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443"}


class _Place(NamedTuple):
    """A host with a port: None where none is written, * in a pattern that takes any."""

    host: str
    port: str | None


class HostPolicy:
    """Decides which hosts this server answers to, and which web pages may call it.

    A host is NAME, on any port, or NAME:PORT. An origin is SCHEME://NAME, SCHEME://NAME:PORT or, for any port,
    SCHEME://NAME:*. `*` alone takes everything. A page that this server itself served (its Origin is the Host) is
    always fine.
    """

    def __init__(
        self, allowed_hosts: Iterable[str], allowed_origins: Iterable[str] = (), *, calling: Iterable[str] = ()
    ) -> None:
        """Pages of `allowed_origins` may call and read the answers; those of `calling` may only call."""
        self.allowed_hosts = tuple(allowed_hosts)
        self.allowed_origins = tuple(allowed_origins)
        self._hosts = [_pattern(host) for host in self.allowed_hosts if host != "*"]
        self._reading = [_origin_pattern(origin) for origin in self.allowed_origins if origin not in ("*", "null")]
        self._calling = [*self._reading, *(_origin_pattern(origin) for origin in calling)]

    @classmethod
    def for_bind(cls, host: str, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> HostPolicy:
        """Returns the default policy for an address to bind to, with the hosts and origins that the owner adds.

        On loopback, only loopback names are allowed. Elsewhere the names of the server cannot be known; there every
        request is authenticated with a credential that no browser sends by itself, so any Host is fine unless some are
        given.
        """
        if is_loopback(host):
            own = host if ":" not in host or host.startswith("[") else f"[{host}]"
            names = tuple(dict.fromkeys((*LOOPBACK_HOSTS, own.lower())))
            pages = tuple(f"{scheme}://{name}:*" for scheme in ("http", "https") for name in names)
            return cls((*names, *hosts), origins, calling=pages)
        return cls(tuple(hosts) or ("*",), origins)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises HostRefused or OriginRefused for a request that is not allowed."""
        host = _parse(single(headers, "host") or "")
        if host is None or host.port == "*":
            raise HostRefused("The request has no Host header, or one that makes no sense")
        if "*" not in self.allowed_hosts and not any(_fits(host, pattern) for pattern in self._hosts):
            raise HostRefused(
                f"This server does not answer to the host {_show(host)}; it answers to {', '.join(self.allowed_hosts)}"
            )
        origin = single(headers, "origin")
        if origin is not None and not self._welcome(origin, host):
            raise OriginRefused(f"Web pages of the origin {origin[:200]!r} may not call this server")

    def may_read(self, origin: str) -> bool:
        """Returns whether the owner named the origin of a page: a browser shows the page an answer if the server says
        so."""
        return self._among(origin, self._reading)

    def _welcome(self, origin: str, host: _Place) -> bool:
        if self._among(origin, self._calling):
            return True
        if (parsed := _parse_origin(origin)) is None:
            return False
        scheme, page = parsed
        default = _DEFAULT_PORTS.get(scheme)
        return page.port != "*" and page.host == host.host and (page.port or default) == (host.port or default)

    def _among(self, origin: str, allowed: list[tuple[str, _Place]]) -> bool:
        if "*" in self.allowed_origins:
            return True
        parsed = _parse_origin(origin)
        if parsed is None or parsed[1].port == "*":
            # Sandboxed frames and files send "null", from whatever site.
            return origin == "null" and "null" in self.allowed_origins
        scheme, page = parsed
        default = _DEFAULT_PORTS.get(scheme)
        return any(scheme == named and _fits(page, pattern, default) for named, pattern in allowed)


def _parse(text: str) -> _Place | None:
    match = _HOST.fullmatch(text.strip())
    return None if match is None else _Place(match["host"].lower().removesuffix("."), match["port"])


def _parse_origin(text: str) -> tuple[str, _Place] | None:
    match = _ORIGIN.fullmatch(text.strip())
    place = _parse(match["rest"]) if match else None
    return None if match is None or place is None else (match["scheme"].lower(), place)


def _pattern(text: str) -> _Place:
    place = _parse(text)
    if place is None:
        raise InvalidRequest(f"Expected an allowed host as NAME or NAME:PORT, but got {text!r}")
    return place if place.port else place._replace(port="*")


def _origin_pattern(text: str) -> tuple[str, _Place]:
    parsed = _parse_origin(text)
    if parsed is None:
        raise InvalidRequest(
            f"Expected an allowed origin as SCHEME://NAME, with :PORT or :* if need be, but got {text!r}"
        )
    return parsed


def _fits(place: _Place, pattern: _Place, default: str | None = None) -> bool:
    same_port = pattern.port == "*" or (place.port or default) == (pattern.port or default)
    return place.host == pattern.host and same_port


def _show(place: _Place) -> str:
    return repr(place.host if place.port is None else f"{place.host}:{place.port}")

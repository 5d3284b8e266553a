"""Guards outgoing calls whose address others chose: webhooks, file URLs, links.

A host is resolved once, every address of it is judged, and the connection goes to a judged address: a name cannot lead
elsewhere between check and connect. The guard sits in the transport, so every hop of a redirect is judged too. Links
that the owner gives are not guarded.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any

import httpx2
import msgspec

from .addresses import Kind, kind, plain
from .errors import EgressRefused, HostUnresolved

Resolve = Callable[[str, int], Awaitable[list[str]]]

_PORTS = {"http": 80, "https": 443}
_ADDRESSES_TRIED = 4
_RESOLVERS = 8
_PLACES: dict[Kind, str] = {
    "loopback": "this machine itself",
    "private": "a private network",
    "shared": "a shared network (100.64.0.0/10)",
    "link-local": "a link-local address",
    "metadata": "a cloud metadata service",
    "multicast": "a multicast address",
    "unspecified": "an unspecified address",
    "reserved": "a reserved address",
}


class Target(msgspec.Struct, frozen=True):
    """The target of an allowed call: the host that was asked for, and the addresses that passed the check."""

    scheme: str
    host: str
    port: int
    addresses: tuple[str, ...]

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def server_name(self) -> str | None:
        """The name for TLS; None where the host is an address already."""
        try:
            ip_address(self.host)
        except ValueError:
            return self.host
        return None


class EgressGuard:
    """Judges the targets of outgoing calls.

    `allow_hosts` are hosts that the owner vouches for, as NAME, *.DOMAIN, or either with :PORT: they may be on this
    machine or on a private or shared network. Metadata services, link-local and other special addresses are refused
    whatever is allowed.
    """

    def __init__(
        self,
        allow_loopback: bool,
        allow_private: bool = False,
        allow_hosts: Iterable[str] = (),
        *,
        resolve: Resolve | None = None,
        resolve_timeout: float = 10.0,
    ) -> None:
        self.allow_loopback = allow_loopback
        self.allow_private = allow_private
        self.allow_hosts = tuple(host.lower() for host in allow_hosts)
        self._resolve = resolve or self._getaddrinfo
        self._resolve_timeout = resolve_timeout
        # Threads of its own: slow names, which a stranger can provide, must not hold up the threads of other work.
        self._threads = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="interlingua-dns")

    def check_text(self, url: str) -> None:
        """Raises EgressRefused for a URL that may never be called, whatever its name resolves to. Resolves no name."""
        host, port, _ = self._parse(url)
        self._check_port(host, port)
        address = _address_in(host)
        if address is not None and not self._fine(found := kind(address), self._vouched(host, port)):
            raise EgressRefused(f"Refused to call {host!r}: it leads to {_PLACES[found]}")

    async def check(self, url: str | httpx2.URL) -> Target:
        """Returns the target of a call to this URL. Raises EgressRefused, or HostUnresolved if the name leads nowhere
        now."""
        return await self.check_host(*self._parse(url))

    def _parse(self, url: str | httpx2.URL) -> tuple[str, int, str]:
        # Parsed by the library that will make the call: two parsers may see two hosts in one text.
        try:
            parsed = httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError):
            raise EgressRefused("Refused to call what is not a valid URL") from None
        if parsed.scheme not in _PORTS:
            raise EgressRefused(f"Refused to call a URL of the scheme {parsed.scheme[:50]!r}; use http or https")
        if parsed.userinfo:
            raise EgressRefused("Refused to call a URL with a user name or password in it")
        host = parsed.raw_host.decode("ascii")
        return host, _PORTS[parsed.scheme] if parsed.port is None else parsed.port, parsed.scheme

    async def check_host(self, host: str, port: int, scheme: str = "") -> Target:
        """The same for a host and port: for connections that are not HTTP."""
        self._check_port(host, port)
        vouched = self._vouched(host, port)
        addresses: dict[str, None] = {}
        for text in await self._lookup(host, port):
            address = plain(text)
            found = kind(address)
            if not self._fine(found, vouched):
                raise EgressRefused(f"Refused to call {host!r}: it leads to {_PLACES[found]}")
            addresses[str(address)] = None
        return Target(scheme, host, port, tuple(addresses))

    def _check_port(self, host: str, port: int) -> None:
        if not host:
            raise EgressRefused("Refused to call a URL without a host")
        if not 0 < port < 65536:
            raise EgressRefused(f"Refused to call port {port} of {host!r}")

    def transport(self, **options: Any) -> httpx2.AsyncBaseTransport:
        """A transport for `httpx2.AsyncClient` that judges every request. `options` are those of AsyncHTTPTransport."""
        return _GuardedTransport(self, options)

    def client(self, verify: ssl.SSLContext | bool = True, **options: Any) -> httpx2.AsyncClient:
        """A client whose every call is guarded. It follows no redirects, and uses no proxy: a proxy would resolve
        the name again, by itself."""
        return httpx2.AsyncClient(
            transport=self.transport(verify=verify), follow_redirects=False, trust_env=False, **options
        )

    def _fine(self, place: Kind, vouched: bool) -> bool:
        if place == "loopback":
            return self.allow_loopback or vouched
        if place == "private":
            return self.allow_private or vouched
        return place == "public" or (place == "shared" and vouched)

    def _vouched(self, host: str, port: int) -> bool:
        name = host.lower().removesuffix(".")
        _, _, domain = name.partition(".")
        forms = [f"[{name}]" if ":" in name else name]
        while domain:
            forms.append(f"*.{domain}")
            _, _, domain = domain.partition(".")
        return any(form in self.allow_hosts or f"{form}:{port}" in self.allow_hosts for form in forms)

    async def _lookup(self, host: str, port: int) -> list[str]:
        try:
            async with asyncio.timeout(self._resolve_timeout):
                addresses = await self._resolve(host, port)
        except (OSError, UnicodeError, TimeoutError):
            addresses = []
        if not addresses:
            raise HostUnresolved(f"The host {host!r} could not be resolved")
        return addresses

    async def _getaddrinfo(self, host: str, port: int) -> list[str]:
        # The system's resolver also reads 2130706433, 0x7f.1 and 0177.0.0.1, so what it says is judged, not the text.
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _system_lookup, host, port)
        return [str(address[0]) for *_, address in found]


def _address_in(host: str) -> str | None:
    """The address that a host is, in any form that resolvers read without asking anybody; None for a name."""
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return "127.0.0.1"
    try:
        return str(ip_address(name.removeprefix("[").removesuffix("]").partition("%")[0]))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(name))  # 2130706433, 0x7f.1, 0177.0.0.1
    except (OSError, ValueError):
        return None


def _system_lookup(host: str, port: int) -> list[tuple[Any, ...]]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


class _GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends each request to the address that was judged, with Host and TLS name as they were asked for."""

    def __init__(self, guard: EgressGuard, options: dict[str, Any]) -> None:
        self._guard = guard
        # Connections are pooled by address. Keeping one would send a request for one name over a TLS connection that
        # was verified for another name at the same address, so none is kept.
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._inner = httpx2.AsyncHTTPTransport(**{**options, "limits": limits, "http2": False})

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            target = await self._guard.check(request.url)
        except HostUnresolved as error:  # for callers of httpx2, a name without address is a failed connection
            raise httpx2.ConnectError(error.message, request=request) from error
        addresses = target.addresses[:_ADDRESSES_TRIED]
        for address in addresses[:-1]:
            try:
                return await self._send(request, target, address)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue  # nothing was sent yet
        return await self._send(request, target, addresses[-1])

    async def _send(self, request: httpx2.Request, target: Target, address: str) -> httpx2.Response:
        extensions = dict(request.extensions)
        extensions.pop("sni_hostname", None)
        if target.server_name is not None:
            extensions["sni_hostname"] = target.server_name
        headers = request.headers.copy()
        headers["host"] = request.url.netloc.decode("ascii")
        pinned = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=headers,
            stream=request.stream,
            extensions=extensions,
        )
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        await self._inner.aclose()

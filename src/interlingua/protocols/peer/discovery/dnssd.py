"""Finds peers by standard DNS-SD (Bonjour, Avahi): the service _acp._tcp, as an extra.

The seed's own beacons are in `beacons`, and need no library; this needs `zeroconf`, which is imported only on demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .... import extras
from .beacons import Announcement, FoundPeer, is_token

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

log = logging.getLogger("interlingua.peer")

SERVICE = "_acp._tcp.local."
_PEERS = 256
_LABEL = 63  # bytes of a name in DNS
_ASK_MS = 3000


class Dnssd:
    """Announces and finds peers by DNS-SD. `on_found` is called for each peer that is new, or has a new link."""

    def __init__(
        self,
        announcement: Announcement | None = None,
        *,
        on_found: Callable[[FoundPeer], None] | None = None,
        interfaces: list[str] | None = None,
    ) -> None:
        self._announcement = announcement
        self._on_found = on_found
        self._interfaces = interfaces
        self._found: dict[str, FoundPeer] = {}
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: Any = None
        self._own: AsyncServiceInfo | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._news: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        """Begins to announce and listen. Raises Unavailable where zeroconf is not installed."""
        zeroconf, zeroconf_asyncio = _imported()
        interfaces = self._interfaces or zeroconf.InterfaceChoice.All
        self._zeroconf = zeroconf_asyncio.AsyncZeroconf(interfaces=interfaces)
        if self._announcement is not None:
            self._own = self._service(zeroconf_asyncio.AsyncServiceInfo, self._announcement)
            await self._zeroconf.async_register_service(self._own, allow_name_change=True)
        loop = asyncio.get_running_loop()
        changes = zeroconf.ServiceStateChange

        def changed(zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
            if state_change is changes.Removed:
                if self._found.pop(name, None) is not None:
                    self._tell()
            elif len(self._asking) < _PEERS:
                task = loop.create_task(self._ask(zeroconf_asyncio.AsyncServiceInfo(service_type, name)))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

        self._browser = zeroconf_asyncio.AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE, handlers=[changed])

    async def stop(self) -> None:
        if self._zeroconf is None:
            return
        if self._browser is not None:
            await self._browser.async_cancel()
        for task in list(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._own is not None:
            await (await self._zeroconf.async_unregister_service(self._own))
        await self._zeroconf.async_close()
        self._zeroconf = None

    def peers(self) -> list[FoundPeer]:
        return sorted(self._found.values(), key=lambda found: (found.name, found.ip, found.ws_port))

    def changed(self) -> asyncio.Future[None]:
        """Returns a future that is done when a peer was found, or has left."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._news.add(news)
        return news

    def _tell(self) -> None:
        news, self._news = self._news, set()
        for future in news:
            if not future.done():
                future.set_result(None)

    def _service(self, make: Any, told: Announcement) -> AsyncServiceInfo:
        label = told.name.replace(".", " ").encode()[: _LABEL - 9].decode(errors="ignore").strip() or "agent"
        properties = {"v": "1", "name": told.name[:200], "tok": told.token, "hp": str(told.http_port)}
        info: AsyncServiceInfo = make(
            SERVICE,
            f"{label} {secrets.token_hex(4)}.{SERVICE}",  # the name is no identity: several may have the same
            port=told.ws_port or told.http_port,
            properties=properties,
            server=f"{socket.gethostname().partition('.')[0] or 'host'}-{secrets.token_hex(3)}.local.",
            parsed_addresses=_own_addresses(self._interfaces),
        )
        return info

    async def _ask(self, info: AsyncServiceInfo) -> None:
        assert self._zeroconf is not None
        if self._own is not None and info.name == self._own.name:
            return
        if not await info.async_request(self._zeroconf.zeroconf, _ASK_MS):
            return
        found = _peer_of(info)
        if found is None or (info.name not in self._found and len(self._found) >= _PEERS):
            return
        old = self._found.get(info.name)
        self._found[info.name] = found
        self._tell()
        if self._on_found is not None and (old is None or old.link != found.link):
            try:
                self._on_found(found)
            except Exception:
                log.exception("what was found could not be told")


def _peer_of(info: AsyncServiceInfo) -> FoundPeer | None:
    """The peer that a service tells of; None where it says not how to reach it."""
    addresses = info.parsed_scoped_addresses()
    if not addresses or not info.port:
        return None
    ip = min(addresses, key=lambda address: (":" in address, address))
    told = {key: value or "" for key, value in info.decoded_properties.items()}
    token, http = told.get("tok", ""), told.get("hp", "")
    host = f"[{ip}]" if ":" in ip else ip
    link = f"acp://{host}:{info.port}/{token}" if is_token(token) else None
    name = (told.get("name") or info.get_name())[:200]
    http_port = int(http) if http.isascii() and http.isdigit() and 0 < int(http[:6]) < 65536 else 0
    return FoundPeer(name, token, link, ip, info.port, http_port, time.time())


def check_installed() -> None:
    extras.look_for("DNS-SD", "zeroconf", "dnssd", "zeroconf")


def _imported() -> tuple[Any, Any]:
    extras.require("DNS-SD", "zeroconf", "dnssd", "zeroconf")
    import zeroconf
    import zeroconf.asyncio

    return zeroconf, zeroconf.asyncio


def _own_addresses(interfaces: list[str] | None) -> list[str]:
    """Returns the addresses at which others reach this host. Loopback only where there is no other."""
    import ifaddr  # comes with zeroconf

    found: list[str] = []
    for adapter in ifaddr.get_adapters():
        for address in adapter.ips:
            if isinstance(address.ip, str):
                with contextlib.suppress(ValueError):
                    found.append(str(ipaddress.IPv4Address(address.ip)))
    if interfaces:
        return [address for address in found if address in interfaces] or interfaces
    return [address for address in found if not address.startswith("127.")] or ["127.0.0.1"]

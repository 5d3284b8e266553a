"""Finds peers on the local network by multicast beacons: a plain UDP socket, without a library. Beacons tell how to
connect; nothing is connected here.

A beacon is `ACP1` and a JSON object with name, token, and ports, as the reference (2.19) sends it. An announcing node
gives its token to the whole network, so an owner must switch announcing on; listening gives away nothing. Beacons
cannot be trusted: every host on the network can send any beacon, so the memory for them is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

log = logging.getLogger("interlingua.peer")

GROUP, PORT = "224.0.0.251", 5354
MAGIC = b"ACP1"
GOODBYE = b"ACP0"  # ours; one that only knows beacons ignores it
_TTL = 2
_PACKET = 1400
_NAME = 200
_PEERS = 256
_LINUX = sys.platform.startswith("linux")  # elsewhere, interfaces cannot be chosen by their index


class Announcement(msgspec.Struct, frozen=True):
    name: str
    ws_port: int
    http_port: int
    token: str = ""  # none: others see the name, and cannot connect


class FoundPeer(msgspec.Struct, frozen=True):
    name: str
    token: str
    link: str | None
    ip: str
    ws_port: int
    http_port: int
    seen_at: float


class _Beacon(msgspec.Struct):
    name: str
    wp: msgspec.Raw = msgspec.Raw(b"0")
    hp: msgspec.Raw = msgspec.Raw(b"0")
    tok: str = ""
    i: str = ""  # ours: which process sends it


class Discovery:
    """Listens for beacons, and sends them where there is something to announce.

    `on_found` is called for each peer that is new, or has a new link. `interfaces` are names of interfaces, or their
    addresses; without any, all interfaces are used.
    """

    def __init__(
        self,
        announcement: Announcement | None = None,
        *,
        on_found: Callable[[FoundPeer], None] | None = None,
        interfaces: Iterable[str] = (),
        group: str = GROUP,
        port: int = PORT,
        every: float = 30.0,
        forget: float = 120.0,
    ) -> None:
        self.announcement = announcement
        self._on_found = on_found
        self._wanted = tuple(interfaces)
        self._group, self._port = group, port
        self._every, self._forget = every, forget
        self._instance = secrets.token_hex(4)
        self._found: dict[str, FoundPeer] = {}
        self._socket: socket.socket | None = None
        self._joined: dict[int, str] = {}  # interfaces, and our address there
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def active(self) -> bool:
        return self._socket is not None

    async def start(self) -> None:
        """Begins to listen. Raises OSError where there is no network to listen on."""
        self._loop = asyncio.get_running_loop()
        self._socket = _listening(self._port)
        try:
            self._join()
            if not self._joined:
                raise OSError(errno.ENETUNREACH, "no interface takes part in multicast")
        except BaseException:
            self._socket.close()
            self._socket = None
            raise
        self._loop.add_reader(self._socket, self._readable)
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Sends a goodbye, and stops listening."""
        if self._socket is None or self._loop is None:
            return
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.announcement is not None:
            self._send(GOODBYE + msgspec.json.encode({"v": 1, "i": self._instance}))
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._socket = None

    def announce(self, announcement: Announcement | None) -> None:
        """Announces something else from now on, or nothing."""
        if self.announcement is not None and announcement is None:
            self._send(GOODBYE + msgspec.json.encode({"v": 1, "i": self._instance}))
        self.announcement = announcement
        self._changed.set()

    def peers(self) -> list[FoundPeer]:
        """Returns the peers nearby, as far as their beacons came lately."""
        self._expire()
        return sorted(self._found.values(), key=lambda found: (found.name, found.ip, found.ws_port))

    # -- sending ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._join()  # interfaces come and go
            if self.announcement is not None:
                self._send(self._beacon(self.announcement))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._changed.wait()

    def _beacon(self, told: Announcement) -> bytes:
        name = told.name[:_NAME]
        body = {"v": 1, "name": name, "tok": told.token, "wp": told.ws_port, "hp": told.http_port, "i": self._instance}
        return MAGIC + msgspec.json.encode(body)

    def _send(self, packet: bytes) -> None:
        if self._socket is None:
            return
        for index, address in self._joined.items():
            with contextlib.suppress(OSError):  # an interface that is down; the others are not
                if index:
                    chosen = _member(self._group, index, address)
                    self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, chosen)
                self._socket.sendto(packet, (self._group, self._port))

    def _join(self) -> None:
        assert self._socket is not None
        if not _LINUX:
            if not self._joined:
                member = socket.inet_aton(self._group) + socket.inet_aton("0.0.0.0")  # noqa: S104 - not a bind
                self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
                self._joined = {0: ""}  # the one that the system chooses
            return
        joined, self._joined = self._joined, {}
        for index, name in socket.if_nameindex():
            address = _address_of(name)
            if not address or (self._wanted and name not in self._wanted and address not in self._wanted):
                continue
            if index not in joined:
                try:
                    self._socket.setsockopt(
                        socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, _member(self._group, index, address)
                    )
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:  # we are in already
                        continue
            self._joined[index] = address

    # -- listening ----------------------------------------------------------------------------------------

    def _readable(self) -> None:
        for _ in range(64):  # and then others have their turn
            if self._socket is None:
                return
            try:
                packet, (ip, _port) = self._socket.recvfrom(_PACKET + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                return
            if len(packet) <= _PACKET:
                self._heard(packet, ip)

    def _heard(self, packet: bytes, ip: str) -> None:
        if not packet.startswith((MAGIC, GOODBYE)):
            return
        try:
            if packet.startswith(GOODBYE):
                key = f"i:{msgspec.json.decode(packet[4:])['i']}"
                if key in self._found and self._found[key].ip == ip:
                    del self._found[key]
                return
            beacon = msgspec.json.decode(packet[4:], type=_Beacon)
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        ws, http = _port_of(beacon.wp), _port_of(beacon.hp)
        name = beacon.name[:_NAME]
        if beacon.i == self._instance or not name or not (ws or http):
            return
        self._remember(FoundPeer(name, beacon.tok, _link(ip, ws, beacon.tok), ip, ws, http, time.time()), beacon.i)

    def _remember(self, found: FoundPeer, instance: str) -> None:
        key = f"i:{instance[:64]}" if instance else f"{found.ip} {found.ws_port or found.http_port} {found.name}"
        old = self._found.get(key)
        if old is not None and old.ip != found.ip and found.seen_at - old.seen_at < self._forget / 2:
            return  # we hear it by several interfaces, and keep to the first
        if old is None and len(self._found) >= _PEERS:
            self._expire()
            if len(self._found) >= _PEERS:
                return  # those that were here first stay, or a flood would wash them away
        self._found[key] = found
        if self._on_found is not None and (old is None or old.link != found.link):
            try:
                self._on_found(found)
            except Exception:
                log.exception("what was found could not be told")

    def _expire(self) -> None:
        before = time.time() - self._forget
        self._found = {key: found for key, found in self._found.items() if found.seen_at > before}


def _listening(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _TTL)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)  # others on this machine are near too
        if hasattr(socket, "IP_MULTICAST_ALL"):
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_ALL, 0)
        made.bind(("", port))
    except BaseException:
        made.close()
        raise
    return made


def _member(group: str, index: int, address: str) -> bytes:
    """Returns Linux's ip_mreqn. It includes the address, because loopback traffic would otherwise come from another
    interface's address."""
    return struct.pack("=4s4si", socket.inet_aton(group), socket.inet_aton(address), index)


def _address_of(interface: str) -> str:
    """Returns the IPv4 address of an interface; nothing where it has none."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(asking.fileno(), 0x8915, request)  # SIOCGIFADDR
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def _port_of(raw: msgspec.Raw) -> int:
    value: Any = msgspec.json.decode(raw)
    return value if type(value) is int and 0 < value < 65536 else 0


def _link(ip: str, port: int, token: str) -> str | None:
    return f"acp://{ip}:{port}/{token}" if port and is_token(token) else None


def is_token(token: str) -> bool:
    return 0 < len(token) <= 200 and token.isascii() and token.replace("_", "").replace("-", "").isalnum()

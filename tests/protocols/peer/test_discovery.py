"""Finding peers on the local network: the beacons of the specification, what others may send, and DNS-SD."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from interlingua.model.errors import Unavailable
from interlingua.protocols.peer.discovery import beacons
from interlingua.protocols.peer.discovery.beacons import GROUP, PORT, Announcement, Discovery, FoundPeer
from interlingua.protocols.peer.discovery.dnssd import Dnssd
from interlingua.protocols.peer.wire.links import new_token, parse
from tests.kit.ports import free_port
from tests.kit.wait_for import PATIENCE

ALICE = Announcement("Alice", 7801, 7901, "tok_0123456789abcdef")
BOB = Announcement("Bob", 7811, 7911, "tok_fedcba9876543210")


class Node:
    def __init__(self, announcement: Announcement | None, port: int, **more: Any) -> None:
        self.found: asyncio.Queue[FoundPeer] = asyncio.Queue()
        more.setdefault("interfaces", ["lo"])
        self.discovery = Discovery(announcement, on_found=self.found.put_nowait, port=port, **more)

    async def finds(self) -> FoundPeer:
        return await asyncio.wait_for(self.found.get(), PATIENCE)


@contextlib.asynccontextmanager
async def near(announcement: Announcement | None = None, port: int = PORT, **more: Any) -> AsyncIterator[Node]:
    node = Node(announcement, port, **more)
    await node.discovery.start()
    try:
        yield node
    finally:
        await node.discovery.stop()


@contextlib.contextmanager
def reference(port: int) -> Any:
    """The socket of another program that takes part."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("", port))
        member = socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1")
        other.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        other.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        other.setblocking(False)
        yield other


async def heard(other: socket.socket) -> bytes:
    packet = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(other, 4096), PATIENCE)
    assert isinstance(packet, bytes)
    return packet


async def after(node: Node, other: socket.socket, port: int, name: str = "last") -> None:
    """Wait until everything that was sent before was heard."""
    other.sendto(b"ACP1" + json.dumps({"v": 1, "name": name, "tok": "tok_x", "wp": 1, "hp": 2}).encode(), (GROUP, port))
    while (await node.finds()).name != name:
        pass


# -- beacons ----------------------------------------------------------------------------------------------------


async def test_two_peers_find_each_other_at_the_port_of_the_specification() -> None:
    async with near(ALICE) as alice, near(BOB) as bob:
        found = await bob.finds()
        assert (found.name, found.token, found.ip) == ("Alice", ALICE.token, "127.0.0.1")
        assert (found.ws_port, found.http_port) == (7801, 7901)
        assert found.link == f"acp://127.0.0.1:7801/{ALICE.token}"
        assert str(parse(found.link)) == found.link
        assert (await alice.finds()).name == "Bob"
        assert [peer.name for peer in alice.discovery.peers()] == ["Bob"]  # and not itself
        assert [peer.name for peer in bob.discovery.peers()] == ["Alice"]


async def test_a_beacon_is_sent_at_once_and_again_and_is_what_the_reference_sends() -> None:
    port = free_port()
    with reference(port) as other:
        async with near(ALICE, port, every=0.05):
            for _ in range(3):
                packet = await heard(other)
                assert packet[:4] == b"ACP1"
                told = json.loads(packet[4:])
                assert {key: told[key] for key in ("v", "name", "tok", "wp", "hp")} == {
                    "v": 1,
                    "name": "Alice",
                    "tok": ALICE.token,
                    "wp": 7801,
                    "hp": 7901,
                }
                assert b" " not in packet


async def test_a_beacon_stays_near(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (GROUP, PORT) == ("224.0.0.251", 5354)
    async with near(ALICE, free_port()) as alice:
        used = alice.discovery._socket
        assert used is not None
        assert used.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == 2


async def test_the_beacon_of_the_reference_is_understood() -> None:
    port = free_port()
    with reference(port) as other:
        async with near(None, port) as node:
            other.sendto(b'ACP1{"v":1,"name":"Ref","tok":"tok_aa","wp":7801,"hp":7901}', (GROUP, port))
            found = await node.finds()
            assert (found.name, found.link) == ("Ref", "acp://127.0.0.1:7801/tok_aa")


async def test_one_that_only_listens_says_nothing() -> None:
    port = free_port()
    with reference(port) as other:
        async with near(None, port, every=0.01) as node:
            await after(node, other, port)
            await after(node, other, port, "more")
            packets = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    packets.append(other.recv(4096))
            assert [json.loads(packet[4:])["name"] for packet in packets] == ["last", "more"]


async def test_without_a_token_there_is_no_link() -> None:
    port = free_port()
    async with near(Announcement("Shy", 7801, 7901), port), near(None, port, every=0.05) as node:
        node.discovery.announce(BOB)
        found = await node.finds()
        assert (found.name, found.link, found.token) == ("Shy", None, "")


async def test_who_leaves_says_goodbye_and_is_forgotten_at_once() -> None:
    port = free_port()
    with reference(port) as other:
        async with near(None, port) as node:
            async with near(ALICE, port):
                await node.finds()
                assert [peer.name for peer in node.discovery.peers()] == ["Alice"]
            await after(node, other, port)
            assert [peer.name for peer in node.discovery.peers()] == ["last"]
            packets = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    packets.append(other.recv(4096))
            assert [packet[:4] for packet in packets] == [b"ACP1", b"ACP0", b"ACP1"]  # no beacon in disguise
            assert ALICE.token.encode() not in packets[1]


async def test_nobody_says_goodbye_for_another() -> None:
    port = free_port()
    with reference(port) as other:
        async with near(ALICE, port), near(None, port) as node:
            await node.finds()
            for instance in ("", "00000000", None, 7, ["x"]):
                other.sendto(b"ACP0" + json.dumps({"v": 1, "i": instance}).encode(), (GROUP, port))
            await after(node, other, port)
            assert [peer.name for peer in node.discovery.peers()] == ["Alice", "last"]


async def test_who_is_silent_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    now = 1_000_000.0
    monkeypatch.setattr(beacons.time, "time", lambda: now)
    async with near(ALICE, port), near(None, port) as node:
        await node.finds()
        now += 119
        assert [peer.name for peer in node.discovery.peers()] == ["Alice"]
        now += 2
        assert node.discovery.peers() == []


async def test_a_peer_is_told_of_once_and_again_when_its_link_changes() -> None:
    port = free_port()
    async with near(ALICE, port, every=0.02) as alice, near(None, port) as node:
        first = await node.finds()
        assert first.token == ALICE.token
        changed = Announcement("Alice", 7801, 7901, new_token())
        alice.discovery.announce(changed)
        assert (await node.finds()).token == changed.token
        assert len(node.discovery.peers()) == 1
        alice.discovery.announce(None)
        alice.discovery.announce(changed)
        assert (await node.finds()).token == changed.token  # it had gone between


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"ACP1",
        b"ACP1nonsense",
        b"ACP1[]",
        b"ACP1\xff\xfe",
        b'ACP1{"v":1}',
        b'ACP1{"name":7,"wp":1,"hp":1}',
        b'ACP1{"name":"","wp":1,"hp":1}',
        b'ACP1{"name":"x","wp":0,"hp":70000}',
        b'ACP1{"name":"x","wp":"7801","hp":null}',
        b'ACP1{"name":"x","wp":1.5,"hp":true}',
        b'ACP2{"name":"x","wp":1,"hp":1}',
        b"ACP1" + b"[" * 1300,
        b'ACP1{"name":"' + b"x" * 2000 + b'","wp":1,"hp":1}',
        b"ACP0",
        b"ACP0[]",
        b"ACP0{}",
    ],
)
async def test_nonsense_on_the_network_changes_nothing(packet: bytes) -> None:
    port = free_port()
    with reference(port) as other:
        async with near(None, port) as node:
            other.sendto(packet, (GROUP, port))
            await after(node, other, port)
            assert [peer.name for peer in node.discovery.peers()] == ["last"]


async def test_a_token_that_is_none_makes_no_link() -> None:
    port = free_port()
    with reference(port) as other:
        async with near(None, port) as node:
            told = {"v": 1, "name": "Evil", "tok": "x/../?y@z", "wp": 1, "hp": 2}
            other.sendto(b"ACP1" + json.dumps(told).encode(), (GROUP, port))
            assert (await node.finds()).link is None


async def test_a_flood_of_beacons_does_not_grow_without_end_nor_wash_others_away() -> None:
    port = free_port()
    with reference(port) as other:
        async with near(None, port) as node:
            await after(node, other, port, "first")
            for n in range(1000):
                told = {"v": 1, "name": f"flood{n}", "tok": "tok_x", "wp": 1, "hp": 2}
                other.sendto(b"ACP1" + json.dumps(told).encode(), (GROUP, port))
                if n % 50 == 0:
                    await asyncio.sleep(0)  # let it read
            async with asyncio.timeout(PATIENCE):
                while len(node.discovery.peers()) < 256:
                    await node.finds()
            assert "first" in {peer.name for peer in node.discovery.peers()}


async def test_only_the_interfaces_that_were_asked_for_take_part() -> None:
    assert struct.calcsize("=4s4si") == 12
    with pytest.raises(OSError, match="no interface"):
        await Discovery(ALICE, interfaces=["no-such-interface"], port=free_port()).start()
    port = free_port()
    async with near(ALICE, port, interfaces=["127.0.0.1"]), near(None, port) as node:
        assert (await node.finds()).name == "Alice"
    async with near(ALICE, port, interfaces=[]) as all_of_them:  # and loopback is one of them
        assert all_of_them.discovery.active
        async with near(None, port, interfaces=[]) as node:
            all_of_them.discovery.announce(ALICE)
            assert (await node.finds()).name == "Alice"
            with reference(port) as other:
                all_of_them.discovery.announce(ALICE)
                while not (await heard(other)).startswith(b"ACP1"):
                    pass
                await after(node, other, port)
            # Heard by as many interfaces as there are, and told of once.
            assert [peer.name for peer in node.discovery.peers()] == ["Alice", "last"]
            assert node.found.empty()


async def test_an_error_in_what_is_called_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    calls: asyncio.Queue[str] = asyncio.Queue()

    def breaks(found: FoundPeer) -> None:
        calls.put_nowait(found.name)
        raise ValueError("on purpose")

    node = Discovery(None, on_found=breaks, port=port, interfaces=["lo"])
    await node.start()
    with reference(port) as other:
        for name in ("one", "two"):
            told = {"v": 1, "name": name, "tok": "tok_x", "wp": 1, "hp": 2}
            other.sendto(b"ACP1" + json.dumps(told).encode(), (GROUP, port))
            assert await asyncio.wait_for(calls.get(), PATIENCE) == name
    await node.stop()
    assert "on purpose" in caplog.text


# -- DNS-SD -----------------------------------------------------------------------------------------------------


async def test_dns_sd_finds_peers_with_their_links_and_forgets_them_when_they_leave() -> None:
    found: asyncio.Queue[FoundPeer] = asyncio.Queue()
    bob = Dnssd(BOB, on_found=found.put_nowait, interfaces=["127.0.0.1"])
    alice = Dnssd(ALICE, interfaces=["127.0.0.1"])
    await bob.start()
    await alice.start()
    peer = await asyncio.wait_for(found.get(), PATIENCE)
    assert (peer.name, peer.ip, peer.ws_port, peer.http_port) == ("Alice", "127.0.0.1", 7801, 7901)
    assert peer.link == f"acp://127.0.0.1:7801/{ALICE.token}"
    assert [near.name for near in bob.peers()] == ["Alice"]
    gone = bob.changed()
    await alice.stop()
    await asyncio.wait_for(gone, PATIENCE)
    assert bob.peers() == []
    await bob.stop()


async def test_without_zeroconf_dns_sd_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    with pytest.raises(Unavailable, match=r"interlingua\[dnssd\]"):
        await Dnssd(ALICE).start()

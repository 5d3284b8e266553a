"""Features side by side: ways to connect, what is signed and what is not, discovery; each works with the others and
without them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

import interlingua as il
from interlingua.protocols.peer.discovery import beacons
from interlingua.protocols.peer.relay.app import RelaySettings, relay_app
from tests.kit.peer_nodes import WAIT, Running, checked, echo, listening, running_door, running_node, shout, text
from tests.kit.ports import free_port
from tests.kit.servers import node as node_process

from .reference import Reference

ASK = {"role": "user", "text": "hi", "sync": True}


# -- ways to connect --------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def a_relay() -> AsyncIterator[str]:
    async with listening(relay_app(RelaySettings())) as base:
        yield base.replace("http://", "acp+ws://")


@contextlib.asynccontextmanager
async def at_relay(relay: str, **settings: Any) -> AsyncIterator[Running]:
    """A host with an agent that waits at a relay, too."""
    async with running_node("Host", agents=[shout], relay=relay, **settings) as host:
        if host.node.relay is not None:
            await host.node.relay.ready()
        yield host


async def kind_of(guest: Running) -> str:
    """How its only peer is connected, once it is."""
    await guest.until(lambda event: event.get("event") == "card")
    return str((await guest.get("/peers"))["peers"][0]["connection_type"])


async def test_a_link_is_dialled_directly_even_where_there_is_a_relay() -> None:
    async with a_relay() as relay, at_relay(relay) as host, running_node("Guest", relay=relay) as guest:
        await guest.post("/peers/connect", {"link": host.node.link})
        assert await kind_of(guest) == "p2p_direct"
        assert (await guest.post("/message:send", ASK))["reply"]["parts"] == text("HI")


async def test_where_the_direct_way_is_blocked_the_relay_is_used_and_an_event_says_why() -> None:
    async with a_relay() as relay, at_relay(relay) as host, running_node("Guest", relay=relay) as guest:
        blocked = f"acp://127.0.0.1:{free_port()}/{host.node.token}"
        await guest.post("/peers/connect", {"link": blocked})
        assert await kind_of(guest) == "relay"
        fallen = await guest.until(lambda event: event.get("event") == "relay_fallback")
        assert "cannot be reached" in fallen["reason"]
        assert (await guest.post("/message:send", ASK))["reply"]["parts"] == text("HI")


async def test_one_that_is_reached_directly_alone_does_not_wait_at_the_relay_nor_use_it() -> None:
    async with a_relay() as relay, at_relay(relay, transport_modes=("p2p",)) as host:
        assert host.node.relay is None
        assert (await host.get("/link"))["relay_link"] is None
        assert (await host.get("/.well-known/acp.json"))["transport_modes"] == ["p2p"]
        async with (
            at_relay(relay) as other,
            running_node("Guest", relay=relay, transport_modes=("p2p",)) as guest,
        ):
            blocked = f"acp://127.0.0.1:{free_port()}/{other.node.token}"
            id_ = (await guest.post("/peers/connect", {"link": blocked}))["peer_id"]
            async with asyncio.timeout(15):
                while (await guest.get(f"/peers/{id_}"))["error"] is None:
                    pass
            await guest.connect(host)
            answer = await guest.post("/message:send", ASK)
            assert answer["reply"]["parts"] == text("HI")
            assert (await guest.get(f"/peers/{id_}"))["connected"] is False


async def test_one_that_is_reached_by_the_relay_alone_has_no_port_for_peers_and_dials_nobody_directly() -> None:
    async with a_relay() as relay, at_relay(relay, transport_modes=("relay",)) as host:
        link = await host.get("/link")
        assert link["link"] is None
        assert link["relay_link"].startswith("acp+ws://")
        card = await host.get("/.well-known/acp.json")
        assert card["transport_modes"] == ["relay"]
        assert "ws" not in card["capabilities"]["supported_transports"]
        async with running_node("Guest", relay=relay, transport_modes=("relay",)) as guest:
            # The place where a direct link points at is not even tried.
            with socket.create_server(("127.0.0.1", 0)) as trap:
                trap.setblocking(False)
                direct = f"acp://127.0.0.1:{trap.getsockname()[1]}/{host.node.token}"
                await guest.post("/peers/connect", {"link": direct})
                assert await kind_of(guest) == "relay"
                with pytest.raises(BlockingIOError):
                    trap.accept()
            assert (await guest.post("/message:send", ASK))["reply"]["parts"] == text("HI")


async def test_what_a_card_says_about_ways_is_advice_and_unknown_ways_are_passed_over() -> None:
    ref = Reference("Ref")
    card = {**ref.card(), "transport_modes": ["relay", "carrier-pigeon"]}
    ref.card = lambda: card  # type: ignore[method-assign]
    ref.answers = lambda frame: "reached"
    async with ref.host(), running_node("Ours") as ours:
        await ours.post("/peers/connect", {"link": ref.link})
        assert await kind_of(ours) == "p2p_direct"
        assert (await ours.post("/message:send", ASK))["reply"]["content"] == "reached"


class AtRelay:
    """The reference (2.19) behind a relay: it posts plain messages, and reads what others post."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http
        self._last = ""

    async def join(self, name: str = "Ref") -> None:
        checked(await self._http.post("/join", json={"name": name, "card": Reference(name).card()}), 200)

    async def send(self, words: str, **more: Any) -> str:
        message = {"type": "acp.message", "from": "Ref", "role": "user", "parts": text(words), **more}
        return str(checked(await self._http.post("/send", json=message), 200)["id"])

    async def answers(self, *ids: str) -> list[tuple[str, str]]:
        """The answers that came, in order, once there is one for each of these messages."""
        found: list[tuple[str, str]] = []
        async with asyncio.timeout(WAIT):
            while not set(ids) <= {asked for asked, _ in found}:
                polled = checked(await self._http.get("/poll?limit=200"), 200)["messages"]
                said = [one for one in polled if one.get("from") == "Host" and one.get("correlation_id")]
                found = [(one["correlation_id"], one["parts"][0]["content"]) for one in said]
        return found


@contextlib.asynccontextmanager
async def reference_at(relay: str, host: Running) -> AsyncIterator[AtRelay]:
    base = relay.replace("acp+ws://", "http://")
    async with httpx2.AsyncClient(base_url=f"{base}/acp/{host.node.token}", trust_env=False, verify=False) as http:
        yield AtRelay(http)


@pytest.mark.parametrize("strict", [False, True])
async def test_what_is_left_at_a_relay_while_the_host_is_away_is_answered_once_when_it_is_back(
    tmp_path: Path, strict: bool
) -> None:
    async with a_relay() as relay, contextlib.AsyncExitStack() as stack:
        again = {"store": tmp_path / "s.db", "strict": strict}
        async with at_relay(relay, **again) as host:
            ref = await stack.enter_async_context(reference_at(relay, host))
            await ref.join()
            await ref.send("one", message_id="msg_1")
            await ref.answers("msg_1")
        await ref.send("two", message_id="msg_2")
        unnamed = await ref.send("three")  # the relay gives it an id
        async with at_relay(relay, **again):
            await ref.answers("msg_2", unnamed)
        async with at_relay(relay, **again):
            await ref.send("four", message_id="msg_4")
            answers = await ref.answers("msg_4")
        said = {"msg_1": "ONE", "msg_2": "TWO", unnamed: "THREE", "msg_4": "FOUR"}
        assert sorted(answers) == sorted(said.items())


async def test_an_answer_that_the_host_owes_when_it_ends_reaches_the_relay_when_it_is_back(tmp_path: Path) -> None:
    """The reference only listens by then."""
    may = asyncio.Event()

    @il.agent
    async def slow(text: str) -> str:
        await may.wait()
        return text.upper()

    settings: dict[str, Any] = {"agents": [slow], "store": tmp_path / "s.db"}
    async with a_relay() as relay, contextlib.AsyncExitStack() as stack:
        async with running_node("Host", relay=relay, **settings) as host:
            ref = await stack.enter_async_context(reference_at(relay, host))
            await ref.join()
            await ref.send("hello", message_id="msg_1")
            await host.message(direction="inbound")
        may.set()
        async with running_node("Host", relay=relay, **settings):
            assert await ref.answers("msg_1") == [("msg_1", "HELLO")]


async def test_what_a_guest_wants_to_say_while_the_host_is_away_is_answered_when_it_is_back(tmp_path: Path) -> None:
    modes = {"transport_modes": ("relay",)}
    async with a_relay() as relay, running_node("Guest", relay=relay, **modes) as guest:
        async with at_relay(relay, store=tmp_path / "s.db", **modes) as host:
            await guest.post("/peers/connect", {"link": (await host.get("/link"))["relay_link"]})
            await guest.until(lambda event: event.get("event") == "card")
        await guest.until(lambda event: event.get("event") == "disconnected")
        waits = await guest.post("/message:send", {"role": "user", "text": "hi", "message_id": "msg_1"}, 503)
        assert waits["queued"] is True
        async with at_relay(relay, store=tmp_path / "s.db", **modes):
            answer = await guest.message(direction="inbound", correlation_id="msg_1")
            assert answer["parts"] == text("HI")


# -- what is signed ---------------------------------------------------------------------------------------------

EXTRAS = [(None, False), ("shared", False), (None, True), ("shared", True)]


@pytest.mark.parametrize("theirs", EXTRAS)
@pytest.mark.parametrize("ours", EXTRAS)
async def test_the_core_works_alike_with_any_of_the_extensions_on_either_side(
    tmp_path: Path, ours: tuple[str | None, bool], theirs: tuple[str | None, bool]
) -> None:
    def settings(name: str, secret: str | None, identity: bool) -> dict[str, Any]:
        return {"secret": secret, "identity": tmp_path / f"{name}.json" if identity else None}

    async with (
        running_node("Host", agents=[shout], **settings("host", *theirs)) as host,
        running_node("Guest", **settings("guest", *ours)) as guest,
    ):
        await guest.connect(host)
        answer = await guest.post("/message:send", {**ASK, "context_id": "ctx"})
        reply = answer["reply"]
        assert reply["parts"] == text("HI")
        assert ("sig" in reply, "identity" in reply) == (theirs[0] is not None, theirs[1])
        assert not {"_sig_invalid", "_ed25519_invalid"} & reply.keys()
        assert reply.get("_ed25519_verified", False) is theirs[1]


async def test_a_reply_over_http_is_signed_and_comes_once(tmp_path: Path) -> None:
    async with (
        running_node("Host", agents=[shout], identity=tmp_path / "key.json") as host,
        running_door(host.node) as door,
        running_node("Guest") as guest,
    ):
        await guest.post("/peers/connect", {"link": door})
        assert await kind_of(guest) == "http"
        for said in ("first", "last"):  # once there was one without sync, replies come by the stream as well
            await guest.post("/message:send", {"role": "user", "text": said})
            await guest.until(lambda event, said=said: event.get("parts") == text(said.upper()))
            answer = await guest.post("/message:send", ASK)
            assert (answer["reply"]["parts"], answer["reply"]["_ed25519_verified"]) == (text("HI"), True)
        read = (await guest.get("/message:recv"))["messages"]
        assert [one["parts"] for one in read] == [text("FIRST"), text("LAST")]


async def test_an_identity_signature_that_does_not_match_is_a_warning_and_the_message_arrives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node("Host") as host, running_node("Other", identity=tmp_path / "key.json") as other:
        frame = Reference("Ref").message("changed on the way")
        signed = {**other.node.trust.sign(frame), "parts": text("something else")}
        async with connect(str(host.node.link).replace("acp://", "ws://")) as wire:
            await wire.send(Reference("Ref").introduction())
            with caplog.at_level(logging.WARNING, "interlingua.peer"):
                await wire.send(json.dumps(signed))
                await host.message(direction="inbound")
        (read,) = (await host.get("/message:recv"))["messages"]
        assert (read["parts"], read["raw"]["_ed25519_invalid"]) == (text("something else"), True)
        assert any("peer_001" in record.getMessage() for record in caplog.records)


# -- discovery --------------------------------------------------------------------------------------------------


async def test_nodes_that_are_near_and_announce_themselves_find_each_other() -> None:
    """By plain UDP multicast at the address of the specification, and on the loopback interface alone here."""
    assert (beacons.GROUP, beacons.PORT) == ("224.0.0.251", 5354)
    near = {"advertise_mdns": True, "multicast_interface": "127.0.0.1"}
    async with running_node("Ann", **near) as ann, running_node("Bob", agents=[echo], **near) as bob:
        for one in (ann, bob):
            await one.node.discover()
        found = await ann.until(lambda event: event["type"] == "mdns" and event["name"] == "Bob")
        assert (found["event"], found["link"]) == ("discovered", bob.node.link)
        told = await ann.get("/discover")
        (there,) = [one for one in told["lan_peers"] if one["name"] == "Bob"]
        assert set(there) >= {"name", "token", "link", "ip", "ws_port", "http_port", "seen_at"}
        assert (told["count"], told["mdns_active"]) == (len(told["lan_peers"]), True)
        card = await ann.get("/.well-known/acp.json")
        assert card["capabilities"]["lan_discovery"] is True
        await ann.post("/peers/connect", {"link": there["link"]})
        await ann.until(lambda event: event.get("event") == "card")
        assert (await ann.post("/message:send", ASK))["reply"]["parts"] == text("you said hi")


def test_a_node_starts_with_a_name_a_secret_an_identity_and_announcements_at_once(
    env: dict[str, str],
    tmp_path: Path,
) -> None:
    home = {**env, "HOME": str(tmp_path)}
    options = ["--name", "MyAgent", "--secret", "shared-key", "--identity", "--advertise-mdns", "--log", "off"]
    with node_process(home, tmp_path, *options) as one:
        card = one.get("/.well-known/acp.json")
        assert card["name"] == "MyAgent"
        capabilities = card["capabilities"]
        assert (capabilities["hmac_signing"], capabilities["identity"]) == (True, "ed25519")
        assert capabilities["lan_discovery"] is True
        key = tmp_path / ".acp" / "identity.json"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert {one["uri"] for one in card["extensions"]} == {"acp:ext:hmac-v1", "acp:ext:mdns-v1"}

"""Peers over HTTP: connecting, listing, looking, pinging, and the node's own state."""

from __future__ import annotations

import time
from typing import Any

from tests.kit.peer_nodes import running_node, text


async def test_a_link_is_all_that_is_needed_to_connect() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        link = (await ben.get("/link"))["link"]
        assert link == ben.node.link
        told = await ann.post("/peers/connect", {"link": link})
        assert (told["ok"], told["connecting_to"]) == (True, link)
        await ann.until(lambda event: event.get("event") == "card")
        await ben.until(lambda event: event.get("event") == "card")
        for path in (f"/peer/{told['peer_id']}", f"/peers/{told['peer_id']}"):
            peer = await ann.get(path)
            assert (peer["id"], peer["peer_id"], peer["name"]) == (told["peer_id"], told["peer_id"], "Ben")
            assert (peer["link"], peer["connected"]) == (link, True)
            assert peer["connected_at"].endswith("Z")
            assert peer["agent_card"]["name"] == "Ben"
            assert (peer["messages_sent"], peer["messages_received"]) == (0, 0)
        again = await ann.post("/peers/connect", {"link": link})
        assert (again["peer_id"], again["already_connected"]) == (told["peer_id"], True)
        await ann.post("/message:send", {"role": "user", "text": "hi"})
        await ben.message(parts=text("hi"))
        assert (await ann.get(f"/peer/{told['peer_id']}"))["messages_sent"] == 1
        (there,) = (await ben.get("/peers"))["peers"]
        assert (there["name"], there["messages_received"], there["link"]) == ("Ann", 1, None)


async def test_a_bad_link_is_refused_and_a_dead_one_is_not_called_connected() -> None:
    async with running_node("Ann") as ann:
        for wrong in (
            {},
            {"link": 5},
            {"link": ""},
            {"link": "http"},
            {"link": "ftp://host/tok_1"},
            {"link": "acp:///tok_1"},
            {"link": "acp://host:99999/tok_1"},
            {"link": "acp://host:7801"},
            {"link": ann.node.link},
            {"link": "acp://127.0.0.1:1/tok_1", "name": 3},
        ):
            error = await ann.post("/peers/connect", wrong, 400)
            assert error["error_code"] == "ERR_INVALID_REQUEST", wrong
        assert (await ann.get("/peers"))["peers"] == []
        told = await ann.post("/peers/connect", {"link": "acp://127.0.0.1:1/tok_1", "name": "Ghost"})
        peer = await ann.get(f"/peer/{told['peer_id']}")
        assert (peer["connected"], peer["name"], peer["connecting"]) == (False, "Ghost", True)
        error = await ann.post(f"/peer/{told['peer_id']}/send", {"role": "user", "text": "x"}, 503)
        assert (error["error_code"], error["queued"]) == ("ERR_NOT_CONNECTED", True)
        status = await ann.get("/status")
        assert (status["connected"], status["peer_count"]) == (False, 0)


async def test_one_peer_that_leaves_changes_nothing_for_the_others() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        first = await ann.connect(ben)
        async with running_node("Cid") as cid:
            second = await ann.connect(cid)
            assert (await ann.get("/status"))["peer_count"] == 2
            head = await ann.node.journal.feed().head()
        await ann.until(lambda event: event.get("event") == "disconnected" and event["peer_id"] == second, head)
        status = await ann.get("/status")
        assert (status["connected"], status["peer_count"], status["peer_card"]["name"]) == (True, 1, "Ben")
        sent = await ann.post("/message:send", {"role": "user", "text": "still there?"})
        assert sent["peer_id"] == first
        await ben.message(parts=text("still there?"))
        gone = await ann.get(f"/peer/{second}")
        assert (gone["connected"], gone["agent_card"]["name"]) == (False, "Cid")
        assert gone["disconnected_at"].endswith("Z")


async def test_peers_are_listed_in_pages_and_by_whether_they_are_there() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        first = await ann.connect(ben)
        ghosts = [
            (await ann.post("/peers/connect", {"link": f"acp://127.0.0.1:1/tok_{index}"}))["peer_id"]
            for index in range(3)
        ]
        every = await ann.get("/peers")
        assert [peer["id"] for peer in every["peers"]] == [first, *ghosts]
        assert (every["count"], every["active"], every["total"]) == (4, 1, 4)
        here = await ann.get("/peers", filter="connected")
        assert ([peer["id"] for peer in here["peers"]], here["total_filtered"]) == ([first], 1)
        page = await ann.get("/peers", filter="disconnected", limit=2)
        assert [peer["id"] for peer in page["peers"]] == ghosts[:2]
        assert page["pagination"] == {
            "limit": 2, "offset": 0, "filter": "disconnected", "has_more": True, "next_offset": 2,
        }  # fmt: skip
        rest = await ann.get("/peers", filter="disconnected", limit=2, offset=2)
        assert ([peer["id"] for peer in rest["peers"]], rest["has_more"]) == (ghosts[2:], False)
        assert (await ann.get("/peers", 400, filter="some"))["error_code"] == "ERR_INVALID_FILTER"
        assert isinstance(await ann.get("/peers", format="array"), list)
        assert (await ann.get("/peer/peer_999", 404))["error_code"] == "ERR_NOT_FOUND"


async def test_a_peer_can_be_renamed_and_forgotten() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        peer = await ann.connect(ben)
        told = await ann.post(f"/peer/{peer}/rename", {"name": "Benjamin"})
        assert (told["old_name"], told["new_name"]) == ("Ben", "Benjamin")
        assert (await ann.get(f"/peer/{peer}"))["name"] == "Benjamin"
        assert (await ann.post(f"/peer/{peer}/rename", {"name": ""}, 400))["ok"] is False
        head = await ben.node.journal.feed().head()
        answer = await ann.http.delete(f"/peers/{peer}")
        assert (answer.status_code, answer.json()["deleted"]) == (200, peer)
        await ben.until(lambda event: event.get("event") == "disconnected", head)
        assert (await ann.get("/peers"))["peers"] == []


async def test_a_peer_that_is_there_answers_a_ping() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        peer = await ann.connect(ben)
        told = await ann.post(f"/peers/{peer}/ping", {"timeout": 5})
        assert (told["ok"], told["status"], told["peer_id"]) == (True, "alive", peer)
        assert told["rtt_ms"] >= 0
        seen = await ann.get(f"/peer/{peer}")
        assert (seen["ping_count"], seen["last_ping_rtt_ms"]) == (1, told["rtt_ms"])
        error = await ann.post(f"/peers/{peer}/ping", {"timeout": 0}, 408)
        assert error["error_code"] == "ERR_PING_TIMEOUT"
        ghost = (await ann.post("/peers/connect", {"link": "acp://127.0.0.1:1/tok_1"}))["peer_id"]
        assert (await ann.post(f"/peers/{ghost}/ping", {}, 503))["error_code"] == "ERR_NOT_CONNECTED"


async def test_whether_the_card_of_a_peer_is_signed_is_told(tmp_path: Any) -> None:
    async with running_node("Ann") as ann, running_node("Ben", identity=tmp_path / "id.json") as ben:
        assert (await ann.get("/peer/verify", 404))["error_code"] == "ERR_NOT_FOUND"
        peer = await ann.connect(ben)
        told = await ann.get("/peer/verify")
        assert (told["peer_name"], told["verified"], told["valid"], told["peer_id"]) == ("Ben", True, True, peer)
        assert told["peer_did"].startswith("did:acp:")
        assert (await ben.get("/peer/verify"))["verified"] is False


async def test_nobody_to_send_to_is_told_with_its_code() -> None:
    async with running_node("Ann") as ann:
        error = await ann.post("/message:send", {"role": "user", "text": "x", "message_id": "m"}, 503)
        assert (error["error_code"], error["queued"]) == ("ERR_NOT_CONNECTED", True)
        error = await ann.post("/peers/broadcast", {"role": "user", "text": "x"}, 503)
        assert error["error_code"] == "ERR_NO_PEERS"


async def test_the_state_of_the_node_is_told() -> None:
    before = time.time()
    async with running_node("Ann", agents=[]) as ann, running_node("Ben") as ben:
        peer = await ann.connect(ben)
        await ann.post("/message:send", {"role": "user", "text": "x"})
        status = await ann.get("/status")
        assert (status["acp_version"], status["agent_name"], status["connected"]) == ("1.0", "Ann", True)
        assert status["version"] == status["agent_card"]["version"]
        assert 0 <= status["uptime"] <= time.time() - before
        assert (status["link"], status["server_seq"], status["messages_sent"]) == (ann.node.link, 1, 1)
        assert status["http_port"] == int(ann.base.rpartition(":")[2])
        assert status["ws_port"] == ann.node.listeners["ws"].port
        assert status["connection_type"] == "p2p_direct"
        assert status["peer_card"]["name"] == "Ben"
        assert (await ben.get("/status"))["connection_type"] == "host"
        near = await ann.get("/discover")
        assert near["count"] == len(near["lan_peers"])
        assert near["mdns_active"] is (ann.node.discovery is not None)  # asked for, it listens where there is a network
        assert (await ann.get(f"/peer/{peer}"))["connection_type"] == "p2p_direct"

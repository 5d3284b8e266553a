"""What a node tells of itself over HTTP: card, keys, skills, extensions, availability; and the files it offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import interlingua as il
from interlingua.model.content import FilePart
from interlingua.protocols.peer.wire.signatures import verify_card
from tests.kit.peer_nodes import Keys, at_door, checked, client, echo, running_node, shout

WELL_KNOWN = ("/.well-known/acp.json", "/.well-known/jwks.json", "/.well-known/did.json", "/.well-known/other")


async def test_the_card_is_served_flat_and_wrapped_and_tells_what_the_node_is() -> None:
    async with running_node("Ann", agents=[echo], skills=("summarize",)) as ann:
        card = await ann.get("/.well-known/acp.json")
        assert (card["name"], card["acp_version"], card["protocol"]) == ("Ann", "1.0", "acp")
        assert [skill["id"] for skill in card["skills"]] == ["echo", "summarize"]
        assert card["self"]["name"] == "Ann"
        assert card["peer"] is None
        assert (card["extensions"], card["identity"]) == ([], None)
        assert card["auth"] == {"schemes": ["none"]}
        assert card["capabilities"]["well_known_rfc8615"] is True
        assert card["capabilities"]["supported_transports"] == ["http", "ws"]
        assert ann.node.token not in str(card)
        assert (await ann.get("/card"))["name"] == "Ann"


async def test_the_card_of_the_connected_peer_is_beside_ours() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        peer = await ann.connect(ben)
        assert (await ann.get("/.well-known/acp.json"))["peer"]["name"] == "Ben"
        told = await ann.get(f"/peers/{peer}/card")
        assert (told["agent_card"]["name"], told["card_available"], told["connected"]) == ("Ben", True, True)


async def test_every_answer_below_well_known_has_the_headers_of_its_rfc() -> None:
    async with at_door(echo) as (node, http):
        for client_ in (node.http, http):
            for path in WELL_KNOWN:
                for method in ("GET", "DELETE", "HEAD"):
                    answer = await client_.request(method, path)
                    assert answer.headers["cache-control"] == "no-cache, no-store", (path, method)
                    assert answer.headers["vary"] == "Accept"
                    assert answer.headers["x-content-type-options"] == "nosniff"
        refused = await node.http.get("/.well-known/acp.json", headers={"host": "evil.example"})
        assert (refused.status_code, refused.headers["vary"]) == (403, "Accept")


async def test_a_card_names_no_endpoint_that_is_not_there() -> None:
    posted = ("send", "skills_query", "peers_connect")
    async with at_door(echo) as (node, http):
        for client_ in (node.http, http):
            named = checked(await client_.get("/.well-known/acp.json"), 200)["endpoints"]
            assert {"send", "tasks", "skills_query"} <= set(named)
            for name, path in named.items():
                if name not in ("stream", "peer_send"):  # one does not end, the other needs a peer
                    answer = await (client_.post(path, json={}) if name in posted else client_.get(path))
                    assert answer.status_code != 404, (name, answer.text)
        there = checked(await node.http.get("/.well-known/acp.json"), 200)["endpoints"]
        assert set(there) - set(named) == {"peers", "peer_send", "peers_connect", "discover"}


async def test_a_card_says_multi_session_where_peers_are_listed() -> None:
    async with at_door(echo) as (node, http):
        for client_, there in ((node.http, True), (http, False)):
            card = checked(await client_.get("/.well-known/acp.json"), 200)
            assert card["capabilities"]["multi_session"] is there
            assert ((await client_.get("/peers")).status_code == 200) is there


async def test_an_identity_is_on_the_card_in_the_key_set_and_in_the_did_document(tmp_path: Path) -> None:
    async with at_door(echo, identity=tmp_path / "keys" / "identity.json") as (node, http):
        for client_ in (node.http, http):
            card = checked(await client_.get("/.well-known/acp.json"), 200)
            assert card["capabilities"]["identity"] == "ed25519"
            assert verify_card(card)["valid"] is True
            assert checked(await client_.get("/verify/card"), 200)["valid"] is True
            (key,) = checked(await client_.get("/.well-known/jwks.json"), 200)["keys"]
            assert (key["kty"], key["crv"], key["x"]) == ("OKP", "Ed25519", card["identity"]["public_key"])
            did = checked(await client_.get("/.well-known/did.json"), 200)
            assert card["identity"]["did"] in did["alsoKnownAs"]
            assert node.node.token not in str(did)
            given = checked(await client_.post("/verify/card", json={"card": card}), 200)
            assert (given["valid"], given["did"]) == (True, card["identity"]["did"])
            forged = checked(await client_.post("/verify/card", json={"self": {**card["self"], "name": "Eve"}}), 200)
            assert forged["valid"] is False
            assert checked(await client_.post("/verify/card", json={}), 400)["error_code"] == "ERR_INVALID_REQUEST"


async def test_without_an_identity_there_are_no_keys() -> None:
    async with running_node("Ann") as ann:
        assert await ann.get("/.well-known/jwks.json") == {"keys": []}
        assert (await ann.get("/.well-known/did.json", 404))["error_code"] == "ERR_NOT_FOUND"
        assert (await ann.get("/verify/card"))["valid"] is False


async def test_limitations_and_availability_are_changed_while_it_runs_and_last(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    path = "/.well-known/acp.json"
    async with running_node("Ann", store=store, limitations=("no video",)) as ann, running_node("Ben") as ben:
        peer = await ben.connect(ann)

        async def patch(body: Any, status: int = 200) -> Any:
            return checked(await ann.http.patch(path, json=body), status)

        before = await ben.node.journal.feed().head()
        slow = {"kind": "scale", "code": "slow", "message": "slow today", "permanent": False}
        told = await patch({"limitations": [slow], "limitations_merge": True})
        assert told["updated"] == ["limitations"]
        assert [one["code"] for one in told["limitations"]] == ["no video", "slow"]
        await ben.until(lambda event: event.get("event") == "card", before)  # those who are connected are told
        assert len((await ben.get(f"/peers/{peer}/card"))["agent_card"]["limitations"]) == 2
        told = await patch({"availability": {"mode": "cron", "schedule": "0 9 * * 1"}})
        assert told["availability"] == {"mode": "cron", "schedule": "0 9 * * 1"}
        for wanted, codes in (
            ("permanent", ["no video"]),
            ("transient", ["slow"]),
            ("scale", ["slow"]),
            ("domain", []),
        ):
            shown = await ann.get(path, filter_limitations=wanted)
            assert [one["code"] for one in shown["limitations"]] == codes
        assert (await ann.get(path, 400, filter_limitations="blue"))["error_code"] == "ERR_INVALID_REQUEST"
        for wrong in (
            {},
            {"name": "Eve"},
            {"availability": {"mode": "always"}},
            {"availability": {"mood": "good"}},
            {"limitations": "none"},
            {"limitations": [{"kind": "bad", "code": "x"}]},
            {"limitations": [], "limitations_merge": 1},
            [],
        ):
            assert (await patch(wrong, 400))["error_code"] == "ERR_INVALID_REQUEST"
        kept = await ann.get(path)
    async with running_node("Ann", store=store) as ann:
        now = await ann.get(path)
        assert (now["limitations"], now["availability"]) == (kept["limitations"], kept["availability"])
        await ann.http.patch(path, json={"limitations": []})
        assert (await ann.get(path))["limitations"] == []


async def test_one_skill_gets_limitations_of_its_own() -> None:
    async with running_node("Ann", agents=[echo, shout]) as ann:
        told = checked(await ann.http.patch("/skills/echo/limitations", json={"limitations": ["short texts"]}), 200)
        assert (told["skill_id"], told["limitations"][0]["code"]) == ("echo", "short texts")
        skills = {skill["id"]: skill for skill in (await ann.get("/skills"))["skills"]}
        assert [one["code"] for one in skills["echo"]["limitations"]] == ["short texts"]
        assert skills["shout"]["limitations"] == []
        missing = await ann.http.patch("/skills/sing/limitations", json={"limitations": []})
        assert checked(missing, 404)["error_code"] == "ERR_NOT_FOUND"
        assert checked(await ann.http.patch("/skills/echo/limitations", json={}), 400)["ok"] is False


async def test_skills_are_found_by_words_by_id_and_in_lists() -> None:
    async with at_door(echo, shout, skills=("summarize",)) as (node, http):
        for client_ in (node.http, http):

            async def query(body: Any, status: int = 200, client_: Any = client_) -> Any:
                return checked(await client_.post("/skills/query", json=body), status)

            found = await query({"query": "summarize", "limit": 5})
            assert found["ok"] is True
            assert [(one["id"], one["name"], one["match_score"]) for one in found["skills"]] == [
                ("summarize", "summarize", 1.0)
            ]
            (loud,) = (await query({"query": "loudly"}))["skills"]
            assert (loud["id"], 0 < loud["match_score"] < 1) == ("shout", True)
            assert (await query({"query": "swimming"}))["skills"] == []
            told = await query({"skill_id": "echo", "constraints": {"input_mode": "text"}})
            assert (told["support_level"], told["agent"]) == ("supported", "Agents")
            assert (await query({"skill_id": "sing"}))["support_level"] == "unsupported"
            everything = await query({})
            assert [one["id"] for one in everything["skills"]] == ["echo", "shout", "summarize"]
            assert everything["capabilities"]["query_skill"] is True
            for wrong in ({"query": 5}, {"query": "x", "limit": 0}, {"skill_id": 1}, {"query": "x", "limit": "2"}):
                assert (await query(wrong, 400))["error_code"] == "ERR_INVALID_REQUEST"
            page = checked(await client_.get("/skills", params={"limit": 2, "offset": 1}), 200)
            assert [one["id"] for one in page["skills"]] == ["shout", "summarize"]
            assert (page["total"], page["has_more"]) == (3, False)
            named = checked(await client_.get("/skills", params={"q": "shout"}), 200)
            assert [one["id"] for one in named["skills"]] == ["shout"]
            assert len(checked(await client_.get("/skills", params={"format": "array"}), 200)) == 3


async def test_the_skills_of_a_peer_can_be_searched_too() -> None:
    async with running_node("Ann") as ann, running_node("Ben", agents=[shout]) as ben:
        peer = await ann.connect(ben)
        found = await ann.post("/skills/query", {"query": "shout", "peer_id": peer})
        assert [one["id"] for one in found["skills"]] == ["shout"]


async def test_extensions_are_the_same_in_their_list_and_on_the_card() -> None:
    async with running_node("Ann", secret="s3cret") as ann:
        hmac = {"uri": "acp:ext:hmac-v1", "required": False, "params": {"scheme": "hmac-sha256"}}
        listed = await ann.get("/extensions")
        assert listed["extensions"] == [hmac]
        audit = "https://corp.example.com/ext/audit"
        told = await ann.post("/extensions/register", {"uri": audit, "params": {"level": "high"}})
        assert told["extensions"] == [{"uri": audit, "required": False, "params": {"level": "high"}}, hmac]
        assert (await ann.get("/.well-known/acp.json"))["extensions"] == (await ann.get("/extensions"))["extensions"]
        assert (await ann.get("/extensions"))["count"] == 2
        gone = await ann.post("/extensions/unregister", {"uri": audit})
        assert (gone["removed"], gone["extensions"]) == (audit, [hmac])
        assert (await ann.post("/extensions/unregister", {"uri": audit}, 404))["error_code"] == "ERR_NOT_FOUND"
        for wrong in ({}, {"uri": "no uri"}, {"uri": audit, "required": "yes"}):
            assert (await ann.post("/extensions/register", wrong, 400))["error_code"] == "ERR_INVALID_REQUEST"


async def test_a_heartbeat_says_when_the_node_was_awake_and_will_be() -> None:
    async with running_node("Ann", availability={"mode": "heartbeat", "interval_seconds": 60}) as ann:
        assert (await ann.get("/availability"))["availability"]["mode"] == "heartbeat"
        beat = await ann.post("/availability/heartbeat")
        assert beat["ok"] is True
        assert beat["next_active_at"] > beat["last_active_at"]
        assert (await ann.get("/.well-known/acp.json"))["availability"] == beat["availability"]


async def test_at_the_door_whoever_is_not_known_reads_the_card_without_the_skills() -> None:
    keys = Keys()
    ann = keys.add("ann")
    async with at_door(echo, keys=keys) as (_, http):
        card = checked(await http.get("/.well-known/acp.json"), 200)
        assert (card["skills"], card["auth"]) == ([], {"schemes": ["apiKey", "bearer"]})
        known = checked(await http.get("/.well-known/acp.json", headers=ann), 200)
        assert [skill["id"] for skill in known["skills"]] == ["echo"]
        for path in ("/skills", "/status", "/tasks", "/extensions", "/stream", "/message:recv"):
            error = await http.get(path)
            assert checked(error, 401)["error_code"] == "ERR_UNAUTHORIZED"
            assert error.headers["www-authenticate"].startswith("Bearer")


async def test_bytes_are_offered_at_an_address_that_cannot_be_guessed_and_never_shown_as_a_page() -> None:
    page = b"<script>alert(1)</script>"

    @il.agent
    async def draws(text: str, ctx: il.Context[None, None]) -> str:
        await ctx.message([FilePart(data=page, media_type="text/html", name="grüße.html")])
        return "drawn"

    keys = Keys()
    ann = keys.add("ann")
    async with at_door(draws, keys=keys) as (node, http):
        body = {"role": "user", "text": "x"}
        checked(await http.post("/message:send", json=body, headers=ann), 200)
        got = checked(await http.get("/message:recv", params={"wait": 10}, headers=ann), 200)
        part = got["messages"][0]["parts"][0]
        assert (part["type"], part["media_type"], part["filename"]) == ("file", "text/html", "grüße.html")
        id_ = part["url"].rpartition("/")[2]
        assert len(id_) >= 32
        assert part["url"] == f"{node.node.files.base}/files/{id_}"
        answer = await http.get(f"/files/{id_}")
        assert (answer.status_code, answer.content) == (200, page)
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        async with client(node.base) as owner:
            assert (await owner.get(f"/files/{id_}")).content == page
        assert checked(await http.get("/files/guess"), 404)["error_code"] == "ERR_NOT_FOUND"


async def test_a_node_offers_what_mounts_of_its_process_have_no_address_for() -> None:
    @il.agent
    async def says(text: str) -> str:
        return text

    async with at_door(says) as (node, http):
        address, kept = node.node.engine.files.publish(b"\x00\xff", "image/png", "a.png")
        await kept
        answer = await http.get(address)
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"\x00\xff", "image/png")

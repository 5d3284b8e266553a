"""The card: every member of the specification, flags that tell the truth, and cards of others with their defaults."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from interlingua._version import __version__
from interlingua.model.card import AgentCard
from interlingua.model.errors import InvalidRequest
from interlingua.protocols.peer.translate import skills
from interlingua.protocols.peer.wire.card import (
    OPTIONAL,
    CardFacts,
    availability,
    build,
    filter_limitations,
    filtered,
    has,
    limitation,
    limitations,
    merge_limitations,
    parse_limitations,
    parse_modes,
    served,
    supported_transports,
    transport_modes,
    unwrap,
)
from interlingua.protocols.peer.wire.extensions import extension
from interlingua.protocols.peer.wire.frames import seconds_of
from interlingua.protocols.peer.wire.signatures import Identity, Trust

IDENTITY = Trust(identity=Identity.from_seed(bytes(32))).card_block()

# The card that the specification shows.
EXAMPLE: dict[str, Any] = {
    "name": "MyAgent",
    "acp_version": "2.8.0",
    "timestamp": "2026-03-28T07:00:00Z",
    "skills": [{"id": "summarize", "name": "summarize"}],
    "transport_modes": ["p2p", "relay"],
    "extensions": [
        {"uri": "acp:ext:hmac-v1", "required": False, "params": {"scheme": "hmac-sha256"}},
        {"uri": "acp:ext:mdns-v1", "required": False, "params": {}},
        {"uri": "acp:ext:h2c-v1", "required": False, "params": {}},
    ],
    "capabilities": {
        "streaming": True,
        "push_notifications": True,
        "input_required": True,
        "part_types": ["text", "file", "data"],
        "max_msg_bytes": 1048576,
        "query_skill": True,
        "server_seq": True,
        "multi_session": True,
        "error_codes": True,
        "hmac_signing": False,
        "lan_discovery": False,
        "context_id": True,
        "identity": "none",
        "supported_transports": ["http", "ws"],
    },
    "identity": None,
    "trust": {"scheme": "none", "enabled": False},
    "auth": {"schemes": ["none"]},
    "endpoints": {
        "send": "/message:send",
        "stream": "/stream",
        "tasks": "/tasks",
        "agent_card": "/.well-known/acp.json",
        "skills_query": "/skills/query",
        "peers": "/peers",
        "peer_send": "/peer/{id}/send",
        "peers_connect": "/peers/connect",
    },
}


def card(**facts: Any) -> dict[str, Any]:
    return build(CardFacts(**{"name": "MyAgent", **facts}))


def flags(**facts: Any) -> dict[str, Any]:
    found = card(**facts)["capabilities"]
    assert isinstance(found, dict)
    return found


def groups(**facts: Any) -> dict[str, dict[str, bool]]:
    found = flags(**facts)["groups"]
    assert isinstance(found, dict)
    return found


# -- the card itself ------------------------------------------------------------------------------------------


def test_a_card_has_every_member_of_the_example() -> None:
    told = card(transports=["http", "ws"], skills=skills.declared("summarize"))
    assert set(EXAMPLE) <= set(told)
    assert set(EXAMPLE["capabilities"]) <= set(told["capabilities"])
    for name, value in EXAMPLE["capabilities"].items():
        assert told["capabilities"][name] == value
    for name in ("name", "transport_modes", "identity", "auth"):
        assert told[name] == EXAMPLE[name]


def test_the_version_of_the_protocol_is_1_0() -> None:
    assert card()["acp_version"] == "1.0"


def test_a_card_names_the_software_and_the_protocol_too() -> None:
    told = card(name="Ada")
    assert (told["protocol"], told["version"]) == ("acp", __version__)
    assert "Ada" in told["description"]
    assert card(description="Counts.")["description"] == "Counts."


def test_the_timestamp_is_when_the_card_was_made_in_utc() -> None:
    assert card(timestamp="2026-03-28T07:00:00Z")["timestamp"] == "2026-03-28T07:00:00Z"
    first, second = card()["timestamp"], card()["timestamp"]
    assert first.endswith("Z")
    assert (seconds_of(first) or 0) <= (seconds_of(second) or 0)


def test_skills_are_objects_with_id_and_name() -> None:
    told = card(skills=skills.from_cards([AgentCard("writer")], skills.declared("paint")))["skills"]
    assert [(skill["id"], skill["name"]) for skill in told] == [("writer", "writer"), ("paint", "paint")]
    assert card()["skills"] == []


@pytest.mark.parametrize("name", sorted(EXAMPLE["endpoints"]))
def test_an_endpoint_has_the_path_of_the_specification(name: str) -> None:
    assert card()["endpoints"][name] == EXAMPLE["endpoints"][name]


def test_further_endpoints_stand_beside_them() -> None:
    told = card(endpoints={"verify_card": "/verify/card"})["endpoints"]
    assert told["verify_card"] == "/verify/card"
    assert told["send"] == "/message:send"


def test_a_card_is_plain_json_and_shares_nothing_with_the_facts() -> None:
    facts = CardFacts(name="A", transport_modes=["p2p"], availability={"mode": "cron"}, identity=dict(IDENTITY or {}))
    told = build(facts)
    assert msgspec.json.decode(msgspec.json.encode(told)) == told
    told["transport_modes"].append("relay")
    told["availability"]["mode"] = "manual"
    told["identity"]["card_sig"] = "x"
    assert (facts.transport_modes, facts.availability, "card_sig" in (facts.identity or {})) == (
        ["p2p"],
        {"mode": "cron"},
        False,
    )


def test_the_link_stands_on_a_card_only_when_it_is_given() -> None:
    assert "link" not in card()
    assert card(link="acp://h:7801/tok_x")["link"] == "acp://h:7801/tok_x"


# -- signing --------------------------------------------------------------------------------------------------


def test_without_signing_the_scheme_of_trust_is_none() -> None:
    told = card()
    assert told["trust"] == {"scheme": "none", "enabled": False, "signals": []}
    assert told["capabilities"]["hmac_signing"] is False


def test_with_a_secret_the_card_says_that_messages_are_signed() -> None:
    told = card(hmac=True)
    assert (told["trust"]["scheme"], told["trust"]["enabled"]) == ("hmac-sha256", True)
    assert told["capabilities"]["hmac_signing"] is True
    assert told["capabilities"]["groups"]["identity"]["hmac"] is True
    assert told["capabilities"]["identity"] == "none"


def test_with_an_identity_the_card_has_scheme_and_public_key() -> None:
    told = card(identity=IDENTITY)
    assert told["capabilities"]["identity"] == "ed25519"
    assert told["identity"]["scheme"] == "ed25519"
    assert len(told["identity"]["public_key"]) == 43
    assert told["capabilities"]["hmac_signing"] is False


def test_the_signals_of_trust_are_those_that_are_on() -> None:
    assert [signal["type"] for signal in card(hmac=True)["trust"]["signals"]] == ["hmac"]
    told = card(hmac=True, identity=IDENTITY)["trust"]["signals"]
    assert [signal["type"] for signal in told] == ["hmac", "identity", "card_signature", "jwks"]
    assert told[1]["did"] == (IDENTITY or {})["did"]


def test_the_schemes_of_authentication() -> None:
    assert card()["auth"] == {"schemes": ["none"]}
    assert card(auth_schemes=["bearer"])["auth"] == {"schemes": ["bearer"]}


# -- flags ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flag",
    [
        "streaming", "push_notifications", "input_required", "query_skill", "server_seq", "multi_session",
        "error_codes", "context_id", "well_known_rfc8615", "tasks_pagination", "message_priority", "delivery_ack",
        "peer_ping", "offline_queue", "task_delegation", "task_chunks", "resume",
    ],
)  # fmt: skip
def test_what_every_node_does_is_declared(flag: str) -> None:
    assert flags()[flag] is True


@pytest.mark.parametrize("feature", sorted(OPTIONAL))
def test_an_optional_feature_is_declared_only_by_a_node_that_has_it(feature: str) -> None:
    def declared(**facts: Any) -> list[bool]:
        told = flags(**facts)
        places = [told, *told["groups"].values()]
        return [place[feature] for place in places if feature in place]

    assert set(declared()) == {False}
    assert set(declared(features=frozenset({feature}))) == {True}


def test_a_feature_that_no_card_has_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="'teleport' is no optional feature"):
        card(features=frozenset({"teleport"}))


def test_the_parts_and_the_largest_message_are_declared() -> None:
    assert flags()["part_types"] == ["text", "file", "data"]
    assert flags()["max_msg_bytes"] == 1_048_576
    assert flags(max_msg_bytes=500)["max_msg_bytes"] == 500


@pytest.mark.parametrize("on", [True, False])
def test_discovery_on_the_lan_is_declared_while_it_is_on(on: bool) -> None:
    assert flags(lan_discovery=on)["lan_discovery"] is on
    assert groups(lan_discovery=on)["discovery"]["lan_mdns"] is on


@pytest.mark.parametrize(
    "transports", [["http"], ["http", "ws"], ["http", "ws", "h2c"], ["http", "ws", "tcp", "stdio"]]
)
def test_the_bindings_on_the_card_are_those_that_are_active(transports: list[str]) -> None:
    assert flags(transports=transports)["supported_transports"] == transports
    assert flags(transports=transports)["http2"] is ("h2c" in transports)
    assert groups(transports=transports)["transport"]["http2"] is ("h2c" in transports)
    assert groups(transports=transports)["transport"]["p2p_direct"] is ("ws" in transports)


def test_hole_punching_is_not_declared() -> None:
    assert groups(transports=["http", "ws"], relay=True)["transport"]["dcutr"] is False


# -- groups ---------------------------------------------------------------------------------------------------


def test_the_groups_are_the_five_of_the_specification() -> None:
    assert list(groups()) == ["messaging", "tasks", "identity", "transport", "discovery"]


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("messaging", "streaming push input_required message_priority delivery_ack"),
        ("messaging", "priority long_poll history broadcast"),
        ("tasks", "cancelling pagination context_id"),
        ("tasks", "filtering state_machine"),
        ("identity", "ed25519 hmac jwks did"),
        ("identity", "card_signature"),
        ("transport", "sse http2 p2p_direct dcutr relay_fallback"),
        ("discovery", "lan_mdns skills_list query_skill"),
        ("discovery", "skills skills_openapi_spec limitations availability_schedule"),
    ],
)
def test_a_group_has_the_keys_of_the_specification_and_of_the_reference(group: str, names: str) -> None:
    told = groups()[group]
    assert all(type(told[name]) is bool for name in names.split())


def test_the_flat_flags_are_filled_in_beside_the_groups() -> None:
    for facts in ({}, {"hmac": True, "identity": IDENTITY, "lan_discovery": True, "transports": ["http", "ws", "h2c"]}):
        told, grouped = flags(**facts), groups(**facts)
        assert told["streaming"] is grouped["messaging"]["streaming"]
        assert told["push_notifications"] is grouped["messaging"]["push"]
        assert told["input_required"] is grouped["messaging"]["input_required"]
        assert told["message_priority"] is grouped["messaging"]["message_priority"]
        assert told["delivery_ack"] is grouped["messaging"]["delivery_ack"]
        assert told["tasks_pagination"] is grouped["tasks"]["pagination"]
        assert told["context_id"] is grouped["tasks"]["context_id"]
        assert told["hmac_signing"] is grouped["identity"]["hmac"]
        assert (told["identity"] == "ed25519") is grouped["identity"]["ed25519"]
        assert told["http2"] is grouped["transport"]["http2"]
        assert told["lan_discovery"] is grouped["discovery"]["lan_mdns"]
        assert told["query_skill"] is grouped["discovery"]["query_skill"]


@pytest.mark.parametrize("key", ["ed25519", "jwks", "did", "card_signature"])
def test_what_an_identity_brings_is_declared_only_with_one(key: str) -> None:
    assert groups()["identity"][key] is False
    assert groups(identity=IDENTITY)["identity"][key] is True


# -- routing --------------------------------------------------------------------------------------------------


def test_both_ways_of_routing_are_declared_unless_something_else_is_set() -> None:
    assert card()["transport_modes"] == ["p2p", "relay"]


def test_the_card_of_a_sandboxed_agent_has_relay_alone() -> None:
    told = card(name="SandboxAgent", transport_modes=["relay"], transports=["http", "ws"], relay=True)
    assert told["transport_modes"] == ["relay"]
    assert told["capabilities"]["groups"]["transport"]["p2p_direct"] is False
    assert told["capabilities"]["groups"]["transport"]["relay_fallback"] is True


def test_the_card_of_an_edge_agent_has_p2p_alone() -> None:
    told = card(name="EdgeAgent", transport_modes=["p2p"], transports=["http", "ws"], relay=True)
    assert told["transport_modes"] == ["p2p"]
    assert told["capabilities"]["groups"]["transport"]["p2p_direct"] is True
    assert told["capabilities"]["groups"]["transport"]["relay_fallback"] is False


def test_routing_and_bindings_are_set_independently() -> None:
    told = card(transport_modes=["relay"], transports=["http", "ws"])
    assert (told["transport_modes"], told["capabilities"]["supported_transports"]) == (["relay"], ["http", "ws"])


@pytest.mark.parametrize(
    ("text", "modes"),
    [("p2p,relay", ["p2p", "relay"]), (" relay ", ["relay"]), ("relay,p2p,p2p", ["p2p", "relay"]), ("p2p", ["p2p"])],
)
def test_the_flag_takes_a_subset_of_the_modes(text: str, modes: list[str]) -> None:
    assert parse_modes(text) == modes


@pytest.mark.parametrize("text", ["", " , ", "p2p,teleport", "P2P"])
def test_a_mode_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="transport mode"):
        parse_modes(text)


# -- extensions -----------------------------------------------------------------------------------------------


def test_extensions_are_on_every_card_even_when_there_are_none() -> None:
    assert card()["extensions"] == []


def test_what_is_declared_stands_before_what_is_on_and_wins_over_it() -> None:
    own = extension("acp:ext:hmac-v1", required=True)
    told = card(
        extensions=[extension("https://e.example/x"), own], hmac=True, lan_discovery=True, transports=["http", "h2c"]
    )
    assert [entry["uri"] for entry in told["extensions"]] == [
        "https://e.example/x", "acp:ext:hmac-v1", "acp:ext:mdns-v1", "acp:ext:h2c-v1",
    ]  # fmt: skip
    assert told["extensions"][1] == own
    assert told["capabilities"]["extensions"] is True


# -- limitations ----------------------------------------------------------------------------------------------

NO_VIDEO = {"kind": "modality", "code": "no_video", "message": "No video", "permanent": True}
BUSY = {"kind": "scale", "code": "busy", "message": "Busy today", "permanent": False}


def test_a_limitation_that_is_a_text_becomes_an_object() -> None:
    told = {"kind": "capability", "code": "no_internet", "message": "no_internet", "permanent": True}
    assert limitations(["no_internet"]) == [told]
    assert card(limitations=[told])["limitations"] == [told]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (NO_VIDEO, NO_VIDEO),
        ({"code": "x"}, {"kind": "other", "code": "x", "message": "x", "permanent": True}),
        ({"message": "m", "permanent": False}, {"kind": "other", "code": "m", "message": "m", "permanent": False}),
        ({**BUSY, "future": 1}, BUSY),
    ],
)
def test_a_limitation_has_kind_code_message_and_permanent(value: Any, told: dict[str, Any]) -> None:
    assert limitation(value) == told


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": 1}, "/limitations"),
        ("text", "/limitations"),
        ([""], "/limitations/0"),
        ([5], "/limitations/0"),
        ([NO_VIDEO, {"code": "x", "kind": "mood"}], "/limitations/1/kind"),
        ([{"code": "x", "permanent": "yes"}], "/limitations/0/permanent"),
        ([{"kind": "scale"}], "/limitations/0/code"),
        ([{"code": 5}], "/limitations/0/code"),
    ],
)
def test_a_limitation_that_makes_no_sense_is_refused(value: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        limitations(value)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("wanted", "codes"),
    [
        ("permanent", ["no_video"]),
        ("transient", ["busy"]),
        ("scale", ["busy"]),
        ("modality", ["no_video"]),
        ("domain", []),
    ],
)
def test_limitations_are_filtered_by_how_long_they_last_and_by_kind(wanted: str, codes: list[str]) -> None:
    assert [entry["code"] for entry in filter_limitations([NO_VIDEO, BUSY], wanted)] == codes


def test_a_filter_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="filter_limitations is one of permanent, transient, capability"):
        filter_limitations([], "mood")


def test_a_filtered_card_is_filtered_in_its_skills_too_and_claims_no_signature() -> None:
    skill = skills.Skill("a", "a", limitations=[NO_VIDEO, BUSY])
    whole = card(limitations=[NO_VIDEO, BUSY], skills=[skill], identity={**(IDENTITY or {}), "card_sig": "sig"})
    told = filtered(whole, "transient")
    assert (told["limitations"], told["skills"][0]["limitations"]) == ([BUSY], [BUSY])
    assert "card_sig" not in told["identity"]
    assert whole["identity"]["card_sig"] == "sig"
    assert filtered(card(), "permanent")["identity"] is None


def test_a_newer_limitation_takes_the_place_of_one_with_the_same_code() -> None:
    newer = {**BUSY, "message": "Busy all week"}
    assert merge_limitations([NO_VIDEO, BUSY], [newer]) == [NO_VIDEO, newer]


def test_limitations_are_read_from_flags() -> None:
    assert [entry["code"] for entry in parse_limitations("no_video, no_audio,")] == ["no_video", "no_audio"]
    assert parse_limitations('[{"kind": "scale", "code": "busy", "message": "Busy today", "permanent": false}]') == [
        BUSY
    ]
    with pytest.raises(InvalidRequest, match="look like a JSON array"):
        parse_limitations("[")


# -- availability ---------------------------------------------------------------------------------------------


def test_availability_stands_on_the_card_when_it_is_set() -> None:
    assert "availability" not in card()
    assert flags()["availability"] is False
    told = card(availability={"mode": "heartbeat", "interval_seconds": 60})
    assert told["availability"] == {"mode": "heartbeat", "interval_seconds": 60}
    assert told["capabilities"]["availability"] is True


def test_every_member_of_availability_can_be_set_changed_and_taken_away() -> None:
    first = availability(
        {
            "mode": "cron",
            "interval_seconds": 3600,
            "next_active_at": "2026-03-24T10:05:00Z",
            "last_active_at": "2026-03-24T10:00:00.5+01:00",
            "task_latency_max_seconds": 300,
            "schedule": "0 9 * * 1-5",
            "timezone": "Europe/Paris",
        }
    )
    assert len(first) == 7
    second = availability({"mode": "manual", "schedule": None}, first)
    assert (second["mode"], "schedule" in second, second["timezone"]) == ("manual", False, "Europe/Paris")
    assert first["mode"] == "cron"


@pytest.mark.parametrize("mode", ["persistent", "heartbeat", "cron", "manual"])
def test_the_modes_of_availability(mode: str) -> None:
    assert availability({"mode": mode}) == {"mode": mode}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("cron", "/availability"),
        ({"mode": "sometimes"}, "/availability/mode"),
        ({"mode": ["cron"]}, "/availability/mode"),
        ({"interval_seconds": -1}, "/availability/interval_seconds"),
        ({"interval_seconds": True}, "/availability/interval_seconds"),
        ({"task_latency_max_seconds": "5"}, "/availability/task_latency_max_seconds"),
        ({"next_active_at": "tomorrow"}, "/availability/next_active_at"),
        ({"last_active_at": 5}, "/availability/last_active_at"),
        ({"schedule": "at nine"}, "/availability/schedule"),
        ({"timezone": "not a zone"}, "/availability/timezone"),
        ({"holidays": []}, "/availability/holidays"),
        ({"holidays": None}, "/availability/holidays"),
    ],
)
def test_availability_that_makes_no_sense_is_refused(change: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        availability(change, {"mode": "cron"})
    assert caught.value.path == path


def test_the_interfaces_are_the_groups_that_are_active_or_what_is_set() -> None:
    assert card()["supported_interfaces"] == ["messaging", "tasks", "transport", "discovery"]
    assert "identity" in card(hmac=True)["supported_interfaces"]
    assert card(interfaces=["core"])["supported_interfaces"] == ["core"]


# -- others' cards --------------------------------------------------------------------------------------------


def test_a_served_card_is_flat_and_wrapped_at_once() -> None:
    own = card()
    told = served(own, EXAMPLE)
    assert all(told[name] == value for name, value in own.items())
    assert (told["self"], told["peer"]) == (own, EXAMPLE)
    assert served(own)["peer"] is None
    assert unwrap(told) == own


@pytest.mark.parametrize(
    ("answer", "found"),
    [(EXAMPLE, EXAMPLE), ({"self": EXAMPLE, "peer": None}, EXAMPLE), ([], None), (None, None), ("x", None)],
)
def test_a_card_is_found_flat_or_wrapped(answer: Any, found: Any) -> None:
    assert unwrap(answer) == found


def test_the_example_card_is_read_with_every_member_that_it_has() -> None:
    for flag in ("streaming", "push_notifications", "input_required", "query_skill", "server_seq", "multi_session"):
        assert has(EXAMPLE, flag)
    assert not has(EXAMPLE, "hmac_signing")
    assert transport_modes(EXAMPLE) == ["p2p", "relay"]
    assert supported_transports(EXAMPLE) == ["http", "ws"]
    assert [skill.id for skill in skills.read(EXAMPLE["skills"])] == ["summarize"]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"delivery_ack": True}, True),
        ({"delivery_ack": False}, False),
        ({}, False),
        (None, False),
        ({"delivery_ack": "yes"}, False),
        ({"delivery_ack": False, "groups": {"messaging": {"delivery_ack": True}}}, True),
        ({"delivery_ack": True, "groups": {"messaging": {"delivery_ack": False}}}, False),
        ({"delivery_ack": True, "groups": {"messaging": {}}}, True),
        ({"delivery_ack": True, "groups": {"messaging": "x"}}, True),
        ({"delivery_ack": True, "groups": ["x"]}, True),
    ],
)
def test_a_flag_of_a_peer_is_read_from_the_groups_first_and_absent_is_false(capabilities: Any, expected: bool) -> None:
    assert has({"capabilities": capabilities}, "delivery_ack") is expected


def test_the_reference_spells_some_groups_differently() -> None:
    assert has({"capabilities": {"groups": {"messaging": {"priority": True}}}}, "message_priority")


def test_group_keys_that_are_not_known_are_ignored() -> None:
    odd = {
        "capabilities": {
            "streaming": True,
            "groups": {"messaging": {"telepathy": True}, "astral": {"x": 1}, "tasks": 5},
        }
    }
    assert has(odd, "streaming")
    assert not has(odd, "telepathy")


def test_capabilities_that_are_not_known_are_ignored() -> None:
    odd = {"capabilities": {"telepathy": {"range": "km"}, "streaming": True}, "aura": "blue"}
    assert has(odd, "streaming")
    assert supported_transports(odd) == ["http"]
    assert transport_modes(odd) == ["p2p", "relay"]


def test_a_peer_without_a_card_has_the_defaults() -> None:
    assert not has(None, "streaming")
    assert transport_modes(None) == ["p2p", "relay"]
    assert supported_transports(None) == ["http"]


@pytest.mark.parametrize(
    ("value", "modes"),
    [
        (["p2p"], ["p2p"]),
        (["relay"], ["relay"]),
        (["relay", "p2p"], ["p2p", "relay"]),
        (["carrier-pigeon", "relay"], ["relay"]),
        (["carrier-pigeon"], ["p2p", "relay"]),
        ([], ["p2p", "relay"]),
        ("p2p", ["p2p", "relay"]),
        ([["p2p"], 5], ["p2p", "relay"]),
    ],
)
def test_modes_of_a_peer_that_are_not_known_are_ignored(value: Any, modes: list[str]) -> None:
    assert transport_modes({"transport_modes": value}) == modes

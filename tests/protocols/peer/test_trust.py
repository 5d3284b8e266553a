"""Signatures with known vectors, and what a receiver makes of good, bad, missing and foreign ones."""

from __future__ import annotations

import hmac
import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from interlingua.model.errors import InvalidRequest
from interlingua.protocols.peer.wire import frames, signatures
from interlingua.protocols.peer.wire.card import CardFacts, build, served
from interlingua.protocols.peer.wire.signatures import (
    Identity,
    Trust,
    b64,
    base58,
    canonical,
    did_acp,
    did_key,
    key_of_did,
    unb64,
    unbase58,
    verify,
    verify_card,
)

# The first test key of RFC 8032, 7.1.
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
X = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"

SECRET = "gemeinsam-秘密"
TS = "2026-03-21T07:00:00Z"
AT = 1774076400.0  # the same, in seconds

FRAME: dict[str, Any] = {
    "type": "acp.message",
    "message_id": "msg_7a3f9c2b",
    "ts": TS,
    "from": "Zoë",
    "role": "user",
    "parts": [
        {"type": "text", "content": "grüße 世界 🙂"},
        {"type": "data", "content": {"ä": 1e16, "a": [1, 2.5, None, True]}},
    ],
}
# Both made with the openssl command, from the bytes below.
SIG = "90e4ee163b9d5f4b12e4f9c7d3c065d0828113c25c70304aed27afbbc24055f3"
IDENTITY_SIG = "o-u13kvMn3uXfOWjyRVO7HWchgY-Wrztk9WrkZc40WWe9GP4AI4CIdbvlySuQ8ImQXnepKIJOXY_XTF6DwUUBA"
SIGNED_BYTES = (
    '{"from":"Zoë","message_id":"msg_7a3f9c2b","parts":[{"content":"grüße 世界 🙂","type":"text"},'
    '{"content":{"a":[1,2.5,null,true],"ä":1e+16},"type":"data"}],"role":"user","sig":"' + SIG + '",'
    '"ts":"2026-03-21T07:00:00Z","type":"acp.message"}'
).encode()

KEY = Identity.from_seed(SEED)
OTHER = Identity.from_seed(bytes(32))


def over_the_wire(frame: dict[str, Any]) -> dict[str, Any]:
    return frames.decode(frames.encode(frame))


def card_of(identity: Identity) -> dict[str, Any]:
    own = Trust(identity=identity)
    return own.sign_card(build(CardFacts(name="Zoë", identity=own.card_block())))


# -- HMAC -----------------------------------------------------------------------------------------------------


def test_sig_is_the_hmac_over_message_id_and_ts() -> None:
    signed = Trust(SECRET).sign(FRAME)
    assert signed == {**FRAME, "sig": SIG}
    assert "sig" not in FRAME


def test_both_peers_need_the_same_key() -> None:
    signed = over_the_wire(Trust(SECRET).sign(FRAME))
    assert Trust(SECRET).check(signed, now=AT).sig == "valid"
    assert Trust(SECRET + "x").check(signed, now=AT).sig == "invalid"


def test_without_a_secret_nothing_is_signed_and_nothing_checked() -> None:
    assert Trust().sign(FRAME) == FRAME
    assert Trust("").sign(FRAME) == FRAME
    found = Trust().check({**FRAME, "sig": "anything"}, now=AT)
    assert (found.sig, found.warnings, found.drop) == ("unchecked", [], False)


@pytest.mark.parametrize(
    "change",
    [
        {"sig": SIG[:-1] + "0"},
        {"sig": ""},
        {"sig": 5},
        {"sig": "ß"},
        {"message_id": "msg_x"},
        {"ts": "2026-03-21T07:00:01Z"},
    ],
    ids=["last-digit", "empty", "number", "not-ascii", "other-id", "other-time"],
)
def test_a_sig_that_does_not_match_is_a_warning_and_a_mark_and_no_loss(change: dict[str, Any]) -> None:
    frame = {**FRAME, "sig": SIG, **change}
    found = Trust(SECRET).check(frame, now=AT)
    assert (found.sig, found.drop) == ("invalid", False)
    assert len(found.warnings) == 1
    assert found.mark(frame) == {**frame, "_sig_invalid": True}


def test_a_sig_without_the_members_that_it_covers_does_not_match() -> None:
    assert Trust(SECRET).check({"type": "acp.message", "sig": SIG}, now=AT).sig == "invalid"


def test_a_strict_node_drops_what_does_not_match_and_what_is_not_signed() -> None:
    strict = Trust(SECRET, strict=True)
    assert not strict.check({**FRAME, "sig": SIG}, now=AT).drop
    assert strict.check({**FRAME, "sig": SIG[::-1]}, now=AT).drop
    unsigned = strict.check(FRAME, now=AT)
    assert unsigned.drop
    assert unsigned.warnings == ["it is not signed, and this node takes only what is"]


def test_a_strict_node_takes_frames_that_nobody_signs() -> None:
    strict = Trust(SECRET, strict=True)
    card = card_of(KEY)
    for frame in (
        frames.ping("Zoë"),
        frames.delivered("Zoë", "msg_1"),
        frames.agent_card(card),
        frames.typing("Zoë", True),
    ):
        assert not strict.check(frame, card).drop


def test_only_a_strict_node_minds_frames_without_signatures() -> None:
    assert Trust(SECRET).lenient
    assert not Trust(SECRET, strict=True).lenient


@pytest.mark.parametrize(
    ("now", "stale"), [(AT, False), (AT + 299, False), (AT - 299, False), (AT + 301, True), (AT - 301, True)]
)
def test_a_good_sig_of_a_time_far_away_is_stale(now: float, stale: bool) -> None:
    frame = {**FRAME, "sig": SIG}
    found = Trust(SECRET).check(frame, now=now)
    assert (found.sig, found.stale, found.drop) == ("valid", stale, False)
    assert found.mark(frame).get("_sig_stale", False) is stale
    assert Trust(SECRET, strict=True).check(frame, now=now).drop is stale
    assert Trust(SECRET, window=1000).check(frame, now=now).stale is False


def test_the_time_of_a_check_is_the_present_one() -> None:
    old = Trust(SECRET).sign(FRAME)
    new = Trust(SECRET).sign(frames.message("Zoë", "user", FRAME["parts"]))
    assert Trust(SECRET).check(old).stale
    assert not Trust(SECRET).check(new).stale


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[set[bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append({a, b})
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert Trust(SECRET).check({**FRAME, "sig": SIG}, now=AT).sig == "invalid"
    assert compared == [{SIG.encode()}]


# -- Ed25519 --------------------------------------------------------------------------------------------------


def test_the_key_of_rfc_8032_signs_as_the_rfc_says() -> None:
    assert (KEY.raw, KEY.public_key) == (PUBLIC, X)
    assert unb64(KEY.sign(b"")) == bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe"
        "24655141438e7a100b"
    )


def test_what_is_signed_is_the_whole_envelope_without_the_identity_as_canonical_json() -> None:
    signed = Trust(SECRET, KEY).sign(FRAME)
    assert canonical({name: value for name, value in signed.items() if name != "identity"}) == SIGNED_BYTES
    assert signed["identity"] == {
        "scheme": "ed25519",
        "public_key": X,
        "pubkey_b64": X,
        "did": did_key(PUBLIC),
        "sig": IDENTITY_SIG,
    }


def test_canonical_json_has_sorted_keys_no_white_space_and_text_as_it_is() -> None:
    assert (
        canonical({"b": [1, {"z": None, "a": "ü"}], "ä": True, "a": ""})
        == '{"a":"","b":[1,{"a":"ü","z":null}],"ä":true}'.encode()
    )


def test_anyone_can_verify_a_signed_message_with_the_key_in_it() -> None:
    signed = over_the_wire(Trust(SECRET, KEY).sign(FRAME))
    block = signed.pop("identity")
    key = Ed25519PublicKey.from_public_bytes(unb64(block["public_key"]) or b"")
    payload = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    key.verify(unb64(block["sig"]) or b"", payload)


def test_key_and_signature_have_their_lengths() -> None:
    block = Trust(identity=KEY).sign(FRAME)["identity"]
    assert block["scheme"] == "ed25519"
    assert (len(unb64(block["public_key"]) or b""), len(unb64(block["sig"]) or b"")) == (32, 64)
    assert "=" not in block["public_key"] + block["sig"]


def test_the_signature_of_the_identity_is_never_part_of_what_is_signed() -> None:
    once = Trust(SECRET, KEY).sign(FRAME)
    assert Trust(SECRET, KEY).sign(once) == once
    assert Trust(SECRET, KEY).sign({**FRAME, "identity": {"sig": "junk"}, "sig": "junk"}) == once


def test_a_receiver_without_any_key_verifies_an_identity_and_knows_whose_it_is() -> None:
    signed = over_the_wire(Trust(identity=KEY).sign(FRAME))
    found = Trust().check(signed)
    assert (found.identity, found.public_key, found.warnings) == ("valid", X, [])
    assert found.mark(signed) == {**signed, "_ed25519_verified": True}


def test_hmac_and_identity_are_valid_together() -> None:
    found = Trust(SECRET).check(over_the_wire(Trust(SECRET, KEY).sign(FRAME)), card_of(KEY), now=AT)
    assert (found.sig, found.identity, found.stale) == ("valid", "valid", False)


@pytest.mark.parametrize(
    "change",
    [{"parts": []}, {"from": "Zoe"}, {"ts": "2026-03-21T07:00:01Z"}, {"added": None}, {"role": "agent"}],
    ids=lambda change: next(iter(change)),
)
def test_a_change_of_anything_breaks_the_identity_and_only_warns(change: dict[str, Any]) -> None:
    frame = {**Trust(identity=KEY).sign(FRAME), **change}
    found = Trust().check(frame)
    assert (found.identity, found.drop, found.public_key) == ("invalid", False, None)
    assert found.warnings == ["the identity's signature does not match the message"]
    assert found.mark(frame)["_ed25519_invalid"] is True
    assert Trust(strict=True).check(frame).drop


@pytest.mark.parametrize(
    "block",
    [
        "text",
        5,
        [],
        {},
        {"scheme": "ed25519"},
        {"public_key": X},
        {"public_key": X, "sig": "x"},
        {"public_key": "AAAA", "sig": IDENTITY_SIG},
        {"public_key": 5, "sig": 6},
        {"public_key": X, "sig": IDENTITY_SIG + "AAAA"},
        {"public_key": "ü", "sig": "ü"},
        {"scheme": 5, "public_key": X, "sig": IDENTITY_SIG},
    ],
)
def test_an_identity_that_makes_no_sense_is_invalid_and_harms_nobody(block: Any) -> None:
    assert Trust().check({**FRAME, "identity": block}).identity == "invalid"


def test_text_that_cannot_be_written_down_is_invalid() -> None:
    signed = Trust(identity=KEY).sign(FRAME)
    assert Trust().check({**signed, "from": "\ud800"}).identity == "invalid"


def test_an_identity_of_an_unknown_scheme_is_not_checked() -> None:
    found = Trust().check({**FRAME, "identity": {"scheme": "post-quantum-1", "public_key": "x", "sig": "y"}})
    assert (found.identity, found.drop) == ("unchecked", False)
    assert "post-quantum-1" in found.warnings[0]


def test_a_message_signed_with_another_key_than_the_cards_is_not_the_peers() -> None:
    signed = over_the_wire(Trust(identity=OTHER).sign(FRAME))
    assert Trust().check(signed, card_of(OTHER)).identity == "valid"
    found = Trust().check(signed, card_of(KEY))
    assert (found.identity, found.drop) == ("invalid", False)
    assert "another key" in found.warnings[0]
    assert Trust(strict=True).check(signed, card_of(KEY)).drop


def test_a_strict_node_wants_the_identity_of_a_peer_whose_card_has_one() -> None:
    strict = Trust(strict=True)
    assert strict.check(FRAME, card_of(KEY)).drop
    assert not strict.check(Trust(identity=KEY).sign(FRAME), card_of(KEY)).drop
    assert not strict.check(FRAME, None).drop
    assert not strict.check(FRAME, {"identity": None}).drop
    assert not Trust().check(FRAME, card_of(KEY)).drop


def test_a_peer_cannot_mark_its_own_messages_as_verified() -> None:
    claims = {**FRAME, "_ed25519_verified": True, "_sig_invalid": False, "_was_queued": True}
    assert Trust().check(claims).mark(claims) == {**FRAME, "_was_queued": True}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_whatever_a_message_holds_its_signatures_survive_the_wire(value: Any) -> None:
    frame = frames.message("Zoë", "agent", [{"type": "data", "content": value}])
    found = Trust(SECRET).check(over_the_wire(Trust(SECRET, KEY).sign(frame)))
    assert (found.sig, found.identity) == ("valid", "valid")


# -- cards ----------------------------------------------------------------------------------------------------


def test_a_signed_card_is_verified_flat_and_as_it_is_served() -> None:
    card = over_the_wire(card_of(KEY))
    expected = {
        "valid": True,
        "did": did_acp(PUBLIC),
        "did_consistent": True,
        "public_key": X,
        "scheme": "ed25519",
        "error": None,
    }
    assert verify_card(card) == expected
    assert Trust().verify_card(served(card, {"name": "peer"})) == expected
    assert card["identity"]["did_key"] == did_key(PUBLIC)
    assert card["identity"]["did_acp"] == did_acp(PUBLIC)


def test_the_signature_of_a_card_covers_all_of_it_but_itself() -> None:
    card = card_of(KEY)
    identity = dict(card["identity"])
    signature = identity.pop("card_sig")
    assert verify(PUBLIC, signature, {**card, "identity": identity})
    assert Trust(identity=KEY).sign_card(card) == card


@pytest.mark.parametrize("change", [{"name": "Mallory"}, {"timestamp": TS}, {"more": 1}, {"skills": ["x"]}])
def test_a_changed_card_does_not_verify(change: dict[str, Any]) -> None:
    told = verify_card({**card_of(KEY), **change})
    assert (told["valid"], told["error"]) == (False, "the signature does not match the card")
    assert told["public_key"] == X


def test_a_card_that_claims_the_did_of_another_is_not_valid() -> None:
    thief = card_of(OTHER)
    identity = {**thief["identity"], "did": did_acp(PUBLIC)}
    del identity["card_sig"]
    forged = {**thief, "identity": identity}
    identity["card_sig"] = OTHER.sign(canonical(forged))
    told = verify_card(forged)
    assert (told["valid"], told["did_consistent"]) == (False, False)
    assert told["error"] == "the card claims a DID that is not of its key"


@pytest.mark.parametrize(
    ("card", "why"),
    [
        (None, "the card has no identity"),
        ([], "the card has no identity"),
        ({}, "the card has no identity"),
        ({"identity": None}, "the card has no identity"),
        ({"identity": {"public_key": "AAAA"}}, "identity.public_key is missing, or is no Ed25519 key"),
        ({"identity": {"public_key": X}}, "identity.card_sig is missing: the card is not signed"),
        ({"identity": {"public_key": X, "card_sig": "AAAA"}}, "the signature does not match the card"),
    ],
)
def test_a_card_without_a_good_signature_says_why(card: Any, why: str) -> None:
    told = verify_card(card)
    assert (told["valid"], told["error"]) == (False, why)
    assert set(told) == {"valid", "did", "did_consistent", "public_key", "scheme", "error"}


def test_without_an_identity_a_card_is_left_as_it_is() -> None:
    card = build(CardFacts(name="A"))
    assert Trust(SECRET).sign_card(card) is card
    assert Trust(SECRET).card_block() is None


# -- documents and names --------------------------------------------------------------------------------------


def test_the_key_set_has_the_key_as_rfc_8037_writes_it() -> None:
    expected = {"kty": "OKP", "crv": "Ed25519", "x": X, "use": "sig", "alg": "EdDSA"}
    assert Trust(identity=KEY).jwks() == {"keys": [{**expected, "kid": f"did:acp:{X}"}]}
    assert Trust(identity=KEY).jwks("Zoë") == {"keys": [{**expected, "kid": "Zoë:11qYAYKx"}]}
    assert Trust(SECRET).jwks() == {"keys": []}


def test_the_did_document_names_the_key_and_where_it_is_reached() -> None:
    told = Trust(identity=KEY).did_document("acp://h:7801/tok_x")
    assert told is not None
    assert (told["id"], told["alsoKnownAs"]) == (did_key(PUBLIC), [did_acp(PUBLIC)])
    (method,) = told["verificationMethod"]
    assert method["type"] == "Ed25519VerificationKey2020"
    assert f"did:key:{method['publicKeyMultibase']}" == did_key(PUBLIC)
    assert told["authentication"] == told["assertionMethod"] == [method["id"]]
    assert told["service"] == [
        {"id": f"{did_key(PUBLIC)}#acp", "type": "ACPRelay", "serviceEndpoint": "acp://h:7801/tok_x"}
    ]
    assert (Trust(identity=KEY).did_document() or {})["service"] == []
    assert Trust().did_document("acp://h/t") is None


@pytest.mark.parametrize(
    ("key", "did"),
    [
        (OTHER.raw, "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"),  # of the did:key specification
        (PUBLIC, f"did:acp:{X}"),
    ],
)
def test_a_did_is_made_of_the_key_and_gives_it_back(key: bytes, did: str) -> None:
    assert did in (did_key(key), did_acp(key))
    assert key_of_did(did) == key


@pytest.mark.parametrize(
    "did",
    [
        "",
        "did:web:example.com",
        "did:acp:",
        "did:acp:AAAA",
        "did:acp:ü",
        "did:key:z",
        "did:key:z0OIl",
        "did:key:z6Mk",
        "did:key:zQ3shokFTS3brHcDQrn82RUDfCZESWL1ZdCEJwekUDPQiYBme",  # of another kind of key
    ],
)
def test_what_is_no_did_of_an_ed25519_key_has_none(did: str) -> None:
    assert key_of_did(did) is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"Hello World!", "2NEpo7TZRRrLZSi2U"),  # of the Base58 draft
        (
            b"The quick brown fox jumps over the lazy dog.",
            "USm3fpXnKG5EUBx2ndxBDMPVciP5hGey2Jh4NDv6gmeo1LkMeiKrLJUUBk6Z",
        ),
        (bytes.fromhex("0000287fb4cd"), "11233QC4"),
    ],
)
def test_base58_as_the_draft_has_it(data: bytes, text: str) -> None:
    assert base58(data) == text
    assert unbase58(text) == data


@given(st.binary(max_size=64))
def test_bytes_survive_base58_and_base64(data: bytes) -> None:
    assert unbase58(base58(data)) == data
    assert unb64(b64(data)) == data
    assert unb64(b64(data) + "=" * (-len(b64(data)) % 4)) == data


# -- the key file ---------------------------------------------------------------------------------------------


def test_a_key_pair_is_made_at_the_first_start_and_found_at_the_next(tmp_path: Path) -> None:
    file = tmp_path / "acp" / "identity.json"
    first = Identity.load_or_create(file)
    second = Identity.load_or_create(str(file))
    assert (first.public_key, first.warnings) == (second.public_key, [])
    held = json.loads(file.read_text())
    assert set(held) == {"scheme", "public_key", "did", "did_acp", "private_key", "created_at"}
    assert (held["scheme"], held["public_key"], held["did_acp"]) == ("ed25519", first.public_key, first.did_acp)
    assert Identity.from_seed(unb64(held["private_key"]) or b"").public_key == first.public_key
    assert [path.name for path in file.parent.iterdir()] == ["identity.json"]


def test_only_its_owner_can_read_the_key_file(tmp_path: Path) -> None:
    file = tmp_path / "acp" / "identity.json"
    Identity.load_or_create(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_key_file_is_in_the_home_folder_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Identity.load_or_create(signatures.DEFAULT_KEY_FILE)
    assert json.loads((tmp_path / ".acp" / "identity.json").read_text())["public_key"] == made.public_key


def test_a_key_file_that_others_could_read_is_closed_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    Identity.load_or_create(file)
    file.chmod(0o644)
    found = Identity.load_or_create(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(found.warnings) == 1
    assert "mode 0644" in found.warnings[0]
    assert Identity.load_or_create(file).warnings == []


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "no json", '{"private_key": 5}', '{"private_key": "AAAA"}', '"text"', '{"private_key": "ü"}'],
)
def test_a_file_that_holds_no_key_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    file = tmp_path / "identity.json"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match="holds no Ed25519 key"):
        Identity.load_or_create(file)
    assert file.read_text() == text


def test_two_keys_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    file.write_bytes(msgspec.json.encode({"private_key": b64(SEED), "public_key": OTHER.public_key}))
    with pytest.raises(InvalidRequest, match="do not belong together"):
        Identity.load_or_create(file)
    file.write_bytes(msgspec.json.encode({"private_key": b64(SEED) + "=", "public_key": X}))
    assert Identity.load_or_create(file).public_key == X


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: Identity.load_or_create(file).public_key, range(16)))
    assert len(set(found)) == 1


def test_a_private_key_shows_in_no_representation() -> None:
    shown = f"{KEY!r} {Trust(SECRET, KEY)!r} {vars(Trust(SECRET, KEY))}"
    assert b64(SEED) not in shown
    assert SEED.hex() not in shown

"""Signatures: HMAC with a shared secret, Ed25519 with a key of the node's own, and where the key is published."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ...base import Broken, applies, expect, member, shown
from ...remembering import once
from ...rows import Row, Source, add
from ..driver import Node
from ..shapes import HEX_64, told
from ..suite import check, suite
from ..wires import Frame

A = "a message that came to a peer"


async def _with_secret(node: Node) -> list[Frame]:
    applies(await node.has("hmac_signing"), "nothing is signed with a secret")
    return await node.said()


async def _trust(node: Node) -> dict[str, Any]:
    applies(await node.has("hmac_signing"), "nothing is signed with a secret")
    return await node.card()


add(
    suite,
    Row("peer.7-1.outbound", Source(_with_secret, A, each=True), "sig", str, matches=HEX_64, form="HMAC-SHA256 in hex"),
    Row("peer.7-1.card-trust", Source(_trust, "the card of a node that signs"), "trust.scheme", equals="hmac-sha256"),
)


@check("peer.7-1.formula")
async def the_sig_is_over_id_and_time(node: Node) -> None:
    frames = [frame for frame in await _with_secret(node) if "sig" in frame]
    applies(node.subject.secret is not None, "the secret was not given")
    applies(frames, "messages have no sig")
    for frame in frames:
        signed = f"{frame.get('message_id')}:{frame.get('ts')}".encode(errors="replace")
        wanted = hmac.new((node.subject.secret or "").encode(), signed, hashlib.sha256).hexdigest()
        expect(
            frame["sig"] == wanted, f"sig of {A} is {shown(frame['sig'])}, and over {signed.decode()} it is {wanted}"
        )


@check("peer.7-1.card-flag")
async def whoever_signs_has_the_flag(node: Node) -> None:
    signed = [frame for frame in await node.said() if "sig" in frame]
    applies(signed, "nothing is signed with a secret")
    expect(await node.has("hmac_signing"), "messages have a sig, and capabilities.hmac_signing is not true")


# -- Ed25519 --------------------------------------------------------------------------------------------------


@once
async def _signed(node: Node) -> list[tuple[Frame, dict[str, Any]]]:
    """Messages with their identity."""
    found = []
    for frame in await node.said():
        if "identity" in frame:
            found.append((frame, member(frame, "identity", dict, A)))
    applies(found, "messages have no identity")
    return found


def _bytes(block: dict[str, Any], name: str, length: int) -> bytes:
    value = member(block, name, str, "identity of a message")
    try:
        raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        raise Broken(f"{name} of the identity is no base64url: {value!r}") from None
    expect("+" not in value and "/" not in value, f"{name} of the identity is base64, not base64url: {value!r}")
    expect(len(raw) == length, f"{name} of the identity has {len(raw)} bytes, not {length}")
    return raw


def _holds(name: str, length: int) -> Callable[[Any, str], object]:
    return lambda block, where: _bytes(block, name, length)


_IDENTITY = Source(_signed, "identity of a message", each=True, value=lambda pair: pair[1])
add(
    suite,
    Row("peer.7-2.scheme", _IDENTITY, "scheme", equals="ed25519"),
    Row("peer.7-2.public-key", _IDENTITY, fits=_holds("public_key", 32)),
    Row("peer.7-2.sig", _IDENTITY, fits=_holds("sig", 64)),
)


@check("peer.7-2.publicly-verifiable", "peer.7-2.signing-input", "peer.7-2.signing-input-no-sig", "peer.7-2.canonical")
async def anybody_can_verify_it(node: Node) -> None:
    for frame, block in await _signed(node):
        content = {name: value for name, value in frame.items() if name != "identity"}
        key = Ed25519PublicKey.from_public_bytes(_bytes(block, "public_key", 32))
        expect(
            any(_verifies(key, _bytes(block, "sig", 64), content, ascii_) for ascii_ in (True, False)),
            f"identity.sig does not verify over the canonical JSON of the message without its identity: {shown(frame)}",
        )


def _verifies(key: Ed25519PublicKey, sig: bytes, content: Frame, ascii_: bool) -> bool:
    """The formula leaves open whether characters outside ASCII are escaped."""
    data = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=ascii_).encode(errors="replace")
    try:
        key.verify(sig, data)
    except InvalidSignature:
        return False
    return True


@check("peer.7-2.card-flag")
async def whoever_has_an_identity_says_so(node: Node) -> None:
    flags, card = await node.flags(), await node.card()
    applies(card.get("identity") is not None, "the node has no identity")
    expect(
        flags.get("identity") == "ed25519", f"the card has an identity, and the flag is {shown(flags.get('identity'))}"
    )


@check("peer.7-2.card-block")
async def the_card_has_the_key(node: Node) -> None:
    flags = await node.flags()
    applies(flags.get("identity") == "ed25519", "the node has no identity")
    block = member(await node.card(), "identity", dict, "the card")
    expect(str(block.get("scheme", "")).startswith("ed25519"), f"identity.scheme of the card is {shown(block)}")
    _bytes(block, "public_key", 32)


@check("peer.7-2.with-hmac")
async def both_signatures_can_be_there(node: Node) -> None:
    both = [frame for frame, _ in await _signed(node) if "sig" in frame]
    applies(both, "messages have no sig beside the identity")
    expect(await node.has("hmac_signing"), "messages have both signatures, and capabilities.hmac_signing is not true")


@check("peer.history.v2-18-jwks")
async def the_key_is_published(node: Node) -> None:
    applies((await node.flags()).get("identity") == "ed25519", "the node has no identity")
    answer = await node.ask("GET", "/.well-known/jwks.json")
    applies(answer.status not in (404, 405, 501), "there is no GET /.well-known/jwks.json, which came with 2.18")
    expect(answer.status == 200, f"GET /.well-known/jwks.json is answered with {told(answer)}")
    keys = member(answer.json(), "keys", list, "GET /.well-known/jwks.json")
    fits = [key for key in keys if isinstance(key, dict) and (key.get("kty"), key.get("crv")) == ("OKP", "Ed25519")]
    expect(fits, f"GET /.well-known/jwks.json has no Ed25519 key: {shown(keys)}")
    member(fits[0], "x", str, "the key")

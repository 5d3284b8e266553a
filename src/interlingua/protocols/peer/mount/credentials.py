"""Connects the mount to a remote node: by the binding of its link, with credentials, and checks that it can be used."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ....model.errors import Denied, InvalidRequest, Unavailable
from ....transports import json_text, wire_tap
from ....transports.channel import Channel
from ..bindings.dial import dial, trusting
from ..bindings.http import dial_http
from ..bindings.relay import dial_relay
from ..config import MountSettings
from ..wire import card as cards
from ..wire import extensions, frames
from ..wire.links import HTTP, RELAYED, Link
from ..wire.signatures import Identity, Trust

_HTTP_OUTAGE = 5.0  # seconds; then the mount takes over, which knows the waiting runs

Frame = dict[str, Any]

log = logging.getLogger("interlingua.peer")


def trust_of(settings: MountSettings) -> Trust:
    identity = Identity.load_or_create(settings.identity) if settings.identity is not None else None
    return Trust(settings.secret, identity)


async def dial_link(link: Link, settings: MountSettings) -> Channel:
    """Opens a channel to the node of a link, over the link's binding. Raises ConnectionError."""
    tls, timeout = trusting(settings.tls_ca), settings.start_timeout
    if link.scheme in HTTP:
        headers = {**({"authorization": f"Bearer {settings.key}"} if settings.key else {}), **settings.headers}
        return await dial_http(
            link, name=settings.name, max_bytes=settings.max_bytes, tls=tls, timeout=timeout, headers=headers,
            outage=_HTTP_OUTAGE,
        )  # fmt: skip
    if link.scheme in RELAYED:
        return await dial_relay(link, name=settings.name, max_bytes=settings.max_bytes, timeout=timeout, tls=tls)
    return await dial(link, max_bytes=settings.max_bytes, timeout=timeout, tls=tls)


async def look(link: Link, settings: MountSettings) -> dict[str, Any]:
    """Returns the card of a node. The node learns nothing: it sends its card unasked, and we leave before we send
    ours."""
    channel = await dial_link(link, settings)
    trust = trust_of(settings)
    try:
        async with asyncio.timeout(settings.start_timeout):
            telling = asyncio.get_running_loop().call_later(
                settings.start_timeout / 4,
                lambda: channel.send(
                    frames.encode(frames.agent_card(our_card(settings.name, trust, settings.max_bytes)))
                ),
            )
            try:
                while True:
                    for frame in await received(channel, link.shown):
                        if frame.get("type") == "acp.agent_card":
                            return check_card(frame, trust, link.shown)
            finally:
                telling.cancel()
    except TimeoutError:
        raise ConnectionError(f"{link.shown} did not tell who it is") from None
    finally:
        await channel.close()


def check_card(frame: Frame, trust: Trust, where: str) -> dict[str, Any]:
    """Returns the card in a frame. Raises Unavailable where the node demands credentials that we do not have."""
    card = frames.read(frame)
    assert isinstance(card, frames.Card)
    told = cards.unwrap(card.card) or {}
    supported = {one["uri"] for one in extensions.built_in(hmac=trust.hmac, mdns=False, h2c=False)}
    missing = extensions.missing_required(told.get("extensions"), supported | {extensions.MDNS, extensions.H2C})
    if missing:
        raise Unavailable(f"{where} requires extensions that are not here: {', '.join(missing)}", transient=False)
    return told


async def received(channel: Channel, where: str) -> list[Frame]:
    """Returns the first frames of a connection."""
    batch = await channel.receive()
    if not batch:
        raise ConnectionError(f"{where} hung up before it told who it is")
    found = [frame for data in batch if (frame := read_frame(data)) is not None]
    for frame in found:
        if frame.get("type") == "error" and frame.get("code") == "invalid_token":
            raise Denied(f"{where} does not know the token of the link")
    return found


def read_frame(data: bytes) -> Frame | None:
    if wire_tap.current is not None:
        wire_tap.current.received(data)
    try:
        return frames.decode(data)
    except InvalidRequest as error:
        if not data.strip():
            return None
        found = json_text.members(data, "task_id", "correlation_id", "message_id")
        log.warning("a frame of %s cannot be read: %s", found.get("from", "a peer"), error.message)
        return {**found, "type": frames.UNREADABLE, "why": error.message} if "type" in found else None


def our_card(name: str, trust: Trust, max_bytes: int) -> dict[str, Any]:
    facts = cards.CardFacts(
        name=name, hmac=trust.hmac, identity=trust.card_block(), transports=[], max_msg_bytes=max_bytes
    )
    card = cards.build(facts)
    card["capabilities"]["client_only"] = True  # unsolicited frames would not be read here
    return trust.sign_card(card)

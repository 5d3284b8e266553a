"""Checks the handling of messages that a peer sends to the node."""

from __future__ import annotations

from typing import Any

from ...base import Broken, Gone, NotApplicable, applies, expect, shown
from ...remembering import once
from ...rows import Played, add
from ..driver import Node
from ..records import Heard
from ..shapes import listed, told
from ..suite import check, suite
from ..wires import Frame, new_id


@check("peer.4-1.message-recv")
async def received_messages_can_be_polled(node: Node) -> None:
    answer = await node.ask("GET", "/message:recv")
    expect(answer.status == 200, f"GET /message:recv is answered with {told(answer)}")
    body = answer.json()
    node.received += listed(body, "messages")
    messages = body.get("messages") if isinstance(body, dict) else body
    expect(isinstance(messages, list), f"GET /message:recv gives no messages: {shown(body)}")
    if await node.wire_if_any() is not None:
        heard = await node.hear(entry=True)
        taken = heard.entry is not None or heard.answer is not None
        expect(taken, f"a message of a peer is not at /message:recv, and no agent answers it: {shown(heard.frame)}")


@check("peer.1.example")
async def the_example_is_taken_as_it_stands(node: Node) -> None:
    await node.hear(
        message_id=new_id(), server_seq=42, ts="2026-03-21T07:00:00Z", role="user", task_id=new_id("task"),
        context_id="ctx_xyz456", sig="a3f9...", identity={},
    )  # fmt: skip


@check("peer.7.opt-in")
async def extensions_can_be_combined(node: Node) -> None:
    await node.hear(context_id="ctx_both", sig="0" * 64, identity=_identity())


def _identity() -> Frame:
    return {"scheme": "ed25519", "public_key": "A" * 43, "sig": "A" * 86}


@once
async def _badly_signed(node: Node) -> Heard:
    """A message whose sig cannot be right. Broken where it is lost."""
    return await node.hear(entry=True, sig="0" * 64)


@once
async def _badly_identified(node: Node) -> Heard:
    """A message whose identity cannot be right. Broken where it is lost."""
    return await node.hear(identity=_identity())


@check("peer.0.warn-not-drop")
async def a_wrong_signature_loses_no_message(node: Node) -> None:
    await _badly_signed(node)
    await _badly_identified(node)


add(suite, Played("peer.7-2.mismatch-warns", _badly_identified), Played("peer.comparison.auth-optional", Node.hear))


@check("peer.7-1.mismatch-delivered")
async def a_message_with_a_wrong_sig_is_delivered(node: Node) -> None:
    applies(await node.has("hmac_signing"), "nothing is signed with a secret")
    await _badly_signed(node)


@check("peer.7-1.mismatch-flag", "peer.7-1.inbound-verified")
async def a_message_with_a_wrong_sig_is_marked(node: Node) -> None:
    applies(await node.has("hmac_signing"), "nothing is signed with a secret")
    try:
        heard = await _badly_signed(node)
    except Broken as error:
        raise NotApplicable(str(error)) from None
    found = [one for one in (heard.entry, heard.event.body if heard.event else None) if one is not None]
    applies(found, "an agent took the message, so that it is not seen")
    marked = any(_within(one, "_sig_invalid") is True for one in found)
    expect(marked, f"a message with a wrong sig is without _sig_invalid: {shown(found[0])}")


def _within(value: Any, name: str) -> Any:
    """A member, however deep."""
    if isinstance(value, dict):
        if name in value:
            return value[name]
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        if (found := _within(one, name)) is not None:
            return found
    return None


@check("peer.5-3.delivery-ack-message", "peer.8-7.y-delivery-ack", "peer.history.v2-43-delivery-ack")
async def a_delivery_is_acknowledged(node: Node) -> None:
    applies(await node.has("delivery_ack"), "the card does not have capabilities.delivery_ack")
    wire = await node.wire()
    start = len(wire.messages)
    heard = await node.hear(delivery_ack=True)
    try:
        await wire.until(lambda frame: _acknowledges(frame, heard.frame["message_id"]), "an acknowledgement", start)
    except Gone as error:
        raise Broken(f"a message with delivery_ack is not acknowledged: {error}") from None


def _acknowledges(frame: Frame, id_: str) -> bool:
    return frame.get("type") != "acp.message" and id_ in frame.values()


@check("peer.7-3.correlate")
async def what_is_received_keeps_its_context(node: Node) -> None:
    heard = await node.hear(entry=True, context_id="ctx_kept")
    found = heard.entry or heard.answer or (heard.event.body if heard.event is not None else {})
    kept = _within(found, "context_id")
    expect(kept == "ctx_kept", f"a message with the context_id ctx_kept is told with {shown(kept)}: {shown(found)}")

"""A hand-written node with one mistake at a time: each is caught by the rule that it breaks, and by no other.

The mistakes are those that implementers make. Where the document says a rule more than once, all its ids fail; what
fails beside them follows from it, and is named in `FOLLOWS`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlingua.model.errors import Unavailable
from interlingua_conform import suite
from interlingua_conform.base import Roles, Subject

from ..common import failures, findings
from . import broken, broken_http

pytestmark = pytest.mark.faults  # many servers, each broken in one way: too long for every change

# By the mistake: the ids of the rule that it breaks, and where to look.
CAUGHT: dict[str, tuple[str, ...]] = {
    "a card that is wrapped": ("4-1.agent-card",),
    "no extensions on the card": (
        "5-5-4.always-present", "5-2.extensions-empty", "5-5-5.card", "5-5.declarative", "5-2.extensions",
        "history.v2-8",
    ),
    "an extension twice": ("5-5-4.dedup",),
    "groups without flat flags": ("5-3-1.flat-kept",),
    "well-known answers without headers": (
        "8-7.m10-cache-control", "8-7.m10-vary", "8-7.m10-nosniff", "history.v2-47-headers",
    ),
    "a role by default": (
        "1-1.role-missing-rejected", "4-2.role-required", "1-1.role-not-defaulted", "14.role", "8-7.m8-role",
        "comparison.role-enforced",
    ),
    "short ids": ("1-3.auto-generated",),
    "unknown members refused": ("0.unknown-fields-ignored",),
    "unknown tasks taken": ("4-2.task-id-exists",),
    "files from anywhere": ("2-2.url-http",),
    "no limit": ("6.msg-too-large",),
    "a sig over the content": ("7-1.formula",),
    "a signature over JSON with spaces": (
        "7-2.publicly-verifiable", "7-2.signing-input", "7-2.signing-input-no-sig", "7-2.canonical",
    ),
    "bad signatures dropped": ("0.warn-not-drop", "7-1.mismatch-delivered"),
    "no acknowledgements": ("5-3.delivery-ack-message", "8-7.y-delivery-ack", "history.v2-43-delivery-ack"),
    "another name for message_id": ("3-4.message-id",),
    "no way to change a task": ("4-1.task-put",),
    "ends that are none": (
        "3-3.completed-final", "3-3.failed-final", "3-3.canceled-final", "8-7.m5-terminal",
        "6.invalid-request-transition",
    ),
    "canceled at once": (
        "3-1.cancel-first-cancelling", "3-3-1.phase-1-state", "3-3-1.phase-1-event", "3-3-1.response",
        "8-2.cancelling-before-canceled", "8-2.cancel-path", "comparison.cancel-specified", "history.v2-6",
    ),
    "no second cancel": ("3-3.cancel-cancelling-idempotent", "3-3.cancel-canceled-idempotent"),
    "artifacts after the end": ("8-2.artifacts-third", "8-2.completed-last"),
    "artifacts of no task": ("8-1.task-id-artifact", "8-7.m2-artifact", "8-4.task-id"),
    "failures without a reason": ("8-3.error", "8-7.s-failed-error"),
    "a stream that tells nothing": (
        "8-1.type-status", "8-1.type-message", "8-1.type-peer", "8-5.direction", "8.subscribe",
    ),
    "events without names": ("8-1-1.status-named", "8-1-1.artifact-named"),
    "gaps in the count": ("8-7.m7-seq-no-gap",),
    "a count for each reader": ("8-1.seq-global", "8-7.m7-seq-no-reset"),
    "times without a zone": ("8-7.m9-timezone", "history.v2-44"),
    "errors without codes": ("6.error-code", "14.error-code", "5-3.error-codes"),
    "errors as pages": ("6.error-code", "14.error-code", "5-3.error-codes", "6.ok-false", "6.error"),
    "pages that do not go on": ("8-7.s-after", "history.v2-40-after"),
    "no limit of skills": ("11.limit",),
    "contexts lost on the way to a peer": ("10-1.peer-send-body",),
    "everybody hears everything": ("10-1.peer-send",),
    "unknown modes minded": ("5-4.unknown-ignored",),
    "no second connection": ("history.v0-1-reconnect",),
}  # fmt: skip

# What cannot hold either then.
FOLLOWS: dict[str, tuple[str, ...]] = {
    # Nothing that should be listed is listed.
    "no extensions on the card": ("5-5-3.hmac", "5-5-3.automatic", "5-5-5.example"),
    # The wrong part is told as an event as well.
    "files from anywhere": ("8-5.parts",),
    # These messages have a wrong signature among other things.
    "bad signatures dropped": ("1.example", "7.opt-in"),
    # The last event is no end then.
    "ends that are none": ("8-2.completed-last", "8-7.s-final-event"),
    # A state that is left out is reached by no arrow and told by no event.
    "canceled at once": (
        "3-1.working-cancelling", "3-1.input-required-cancelling", "3-2.cancelling", "3-1.cancel-event",
        "3-3-1.slow-work",
    ),
    # What is to be told as an event is not.
    "a stream that tells nothing": (
        "3-1.cancel-event", "3-3-1.phase-1-event", "3-3-1.phase-2-event", "3-3-1.slow-work",
        "comparison.cancel-specified", "history.v2-6",
    ),
    # The example's order, and the shape of its events.
    "artifacts after the end": ("8-7.s-final-event", "8-6.wire"),
    "artifacts of no task": ("8-4.example", "8-6.wire"),
    "failures without a reason": ("8-3.example-failed",),
    "events without names": ("8-6.names",),
    "gaps in the count": ("8-6.seq",),
    # Each kind of event, messages, tasks, peers and the card have times.
    "times without a zone": (
        "8-3.ts", "8-4.ts", "8-5.ts", "1-1.ts", "3-4.created-at", "3-4.updated-at", "5-2.timestamp",
        "10-2.connected-at",
    ),
}  # fmt: skip

# Whoever does not do something is waited for.
WAITED_FOR = ("bad signatures dropped", "no second connection", "no acknowledgements", "no way to change a task",
              "a stream that tells nothing")  # fmt: skip


def subject(address: str, patience: float = 5.0) -> Subject:
    return Subject(address=address, patience=patience, quiet=0.05, secret=broken.SECRET)


def _neighbours(names: tuple[str, ...]) -> list[str]:
    """The sections of some ids."""
    return sorted({f"peer.{name.partition('.')[0]}." for name in names})


async def test_the_hand_written_node_breaks_nothing() -> None:
    async with broken_http.serving() as base:
        found = await findings("peer", subject(base, 10.0))
    assert failures(found) == {}
    hidden = {name: finding.why for name, finding in found.items() if finding.verdict == "not applicable"}
    assert len(hidden) < 30, hidden
    assert set(found) == set(suite("peer").ids)


@pytest.mark.parametrize("mistake", CAUGHT)
async def test_a_mistake_is_caught_by_the_rule_that_it_breaks(mistake: str) -> None:
    wrong = {f"peer.{name}" for name in (*CAUGHT[mistake], *FOLLOWS.get(mistake, ()))}
    patience = 2.0 if mistake in WAITED_FOR else 10.0
    async with broken_http.serving(mistake) as base:
        found = await findings(
            "peer", subject(base, patience), _neighbours((*CAUGHT[mistake], *FOLLOWS.get(mistake, ())))
        )
    failed = failures(found)
    assert set(failed) == wrong, failed
    assert all(len(why) > 20 for why in failed.values()), failed


# -- servers that make no sense -------------------------------------------------------------------------------

NONSENSE = [
    b"", b"null", b"[]", b'"text"', b"7", b"<html>", b"\xff\xfe", b"{}", b'"\\ud83d"',
    b'{"tasks": 7, "peers": {"a": 1}, "task": [], "messages": "x", "skills": [1, null], "capabilities": [],'
    b' "status": ["x"], "endpoints": [], "extensions": [7], "transport_modes": "p2p"}',
    b'{"name": 1, "capabilities": {"groups": {"messaging": []}, "max_msg_bytes": "x", "streaming": "yes", '
    b'"tasks_pagination": true, "hmac_signing": true, "delivery_ack": true, "identity": "ed25519"}, "identity": [],'
    b' "id": "t", "status": "working", "tasks": [1, {}], "peers": [null, {"link": 7}], "task": {"id": 5}}',
]  # fmt: skip


@asynccontextmanager
async def _saying(status: int, body: bytes) -> AsyncIterator[str]:
    """A server that says the same to everything."""

    async def took(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).lower():
                length = next((line for line in head.split(b"\r\n") if line.startswith(b"content-length:")), b":0")
                await reader.readexactly(int(length.partition(b":")[2]))
                streams = b"/stream" in head or b":subscribe" in head
                said = b"data: " + body + b"\n\n" if streams else body
                kind = b"text/event-stream" if streams else b"application/json"
                start = b"HTTP/1.1 %d Said\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
                writer.write(start % (status, kind, len(said)) + said)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(took, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("body", NONSENSE)
async def test_nonsense_is_told_as_what_it_is(status: int, body: bytes) -> None:
    roles = Roles(agent="a", asking="b", slow="c", failing="d")
    async with _saying(status, body) as base:
        found = await findings("peer", Subject(address=base, patience=0.1, quiet=0.01, roles=roles, secret="x"))
    assert set(found) == set(suite("peer").ids)
    failed = failures(found)
    assert len(failed) > 30
    assert not any("Traceback" in why for why in failed.values())


VALUES: list[Any] = [None, True, -1, 1.5, "", "x", [], {}, [1], {"a": 1}, [{}], "\ud83d", 10**30]


def _spoiled(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.05:
        return chance.choice(VALUES)
    if isinstance(value, dict):
        return {name: _spoiled(one, chance) for name, one in value.items() if chance.random() > 0.02}
    return [_spoiled(one, chance) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_spoiled_in_what_it_says_the_look_goes_on(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)

    class Spoiled(broken_http.JSONResponse):
        def render(self, content: Any) -> bytes:
            return json.dumps(_spoiled(content, chance)).encode()

    monkeypatch.setattr(broken_http, "JSONResponse", Spoiled)
    async with broken_http.serving() as base:
        found = await findings("peer", Subject(address=base, patience=0.1, quiet=0.01))
    assert set(found) == set(suite("peer").ids)
    assert failures(found)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "acp://127.0.0.1:9/tok_1", "ftp://127.0.0.1/"])
async def test_a_node_that_is_not_there_is_told_apart_from_one_that_fails(address: str) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        await findings("peer", subject(address))


async def test_a_command_that_is_no_node_is_caught() -> None:
    found = await findings("peer", Subject(command=("true",), patience=1.0))
    assert set(failures(found)) == {"peer.9.b-stdio"}
    with pytest.raises(Unavailable, match="cannot be started"):
        await findings("peer", Subject(command=("/no/such/command",)))

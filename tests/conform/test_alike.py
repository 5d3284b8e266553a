"""Servers that answer everything alike: nothing of a protocol is seen of them, so next to nothing passes."""

from __future__ import annotations

import pytest

from interlingua.model.errors import Unavailable
from interlingua_conform.base import Roles, Subject
from tests.kit.http_servers import answering

from .common import findings

ROLES = Roles(agent="a", asking="b", slow="c", failing="d")

ANSWERS = {
    "not found": (404, b'{"detail": "Not Found"}'), "refused": (400, b"{}"), "nothing": (200, b""),
    "an object": (200, b"{}"), "a list": (200, b"[]"),
}  # fmt: skip

# What even they keep.
KEPT = {
    ("an object", "peer"): {
        "peer.4-1.skills-query",  # is there; what it tells is for others
        "peer.0.curl-compatible",  # curl alone gets as far as anybody
    },
    ("a list", "peer"): {
        "peer.4-1.message-recv", "peer.4-1.peers", "peer.4-1.discover",  # which may be empty
        "peer.0.curl-compatible",
    },
}  # fmt: skip


async def passed(protocol: str, subject: Subject) -> set[str]:
    try:
        found = await findings(protocol, subject)
    except Unavailable:
        return set()  # it is no server of the protocol at all
    return {name for name, finding in found.items() if finding.verdict == "pass"}


@pytest.mark.parametrize("protocol", ["connect", "mcp", "peer", "editor", "cap"])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_server_that_answers_everything_alike_passes_nothing(answer: str, protocol: str) -> None:
    async with answering(*ANSWERS[answer]) as address:
        subject = Subject(address=address, roles=ROLES, patience=0.3, quiet=0.02)
        assert await passed(protocol, subject) == KEPT.get((answer, protocol), set())


@pytest.mark.parametrize("protocol", ["mcp", "peer", "editor", "cap"])
async def test_a_program_that_says_nothing_passes_nothing(protocol: str) -> None:
    subject = Subject(command=("sh", "-c", "cat >/dev/null"), roles=ROLES, patience=0.1, quiet=0.02)
    assert await passed(protocol, subject) == set()

"""Our own node passes its own look: its control API, its door, its link and its pipes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from interlingua_conform.base import Finding, Roles, Subject
from interlingua_conform.peer.feed import Feed
from interlingua_conform.peer.tasks import Story
from tests.kit.commands import process_env
from tests.kit.servers import Process, node, started

from ..common import AGENTS, ROLES, failures, findings

WAYS = ("everything", "control", "door", "link", "pipes")

# What none of our nodes below shows, and why.
NOWHERE = {
    "peer.5-4.relay-only": "each of them can be reached directly",
    "peer.6.internal": "nothing goes wrong inside",
}

FLAGS = (
    "--name", "Full", "--secret", "shared", "--identity", "identity.json", "--advertise-mdns", "--http2",
    "--transport-modes", "p2p", "--availability-mode", "heartbeat", "--heartbeat-interval", "60",
    "--extension", "https://corp.example.com/ext/billing,tier=pro", "--limitations", "no images",
    "--skills", "summarize,translate",
)  # fmt: skip

Found = dict[str, Finding]


def _look(address: str | None, roles: Roles = ROLES, **more: Any) -> Found:
    return asyncio.run(findings("peer", Subject(address=address, roles=roles, patience=20.0, **more)))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("everything")
    with node(process_env(folder), folder, *FLAGS) as full:
        return _look(full.control, Roles(), secret="shared")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("served")
    ports = ["--port", "0", "--peer-port", "0", "--peer-http-port", "0"]
    with started(["serve", str(AGENTS), *ports], process_env(folder), folder) as process:
        yield process


@pytest.fixture(scope="module")
def control(served: Process) -> Found:
    return _look(served.control)


@pytest.fixture(scope="module")
def door(served: Process) -> Found:
    return _look(served.find(r"(http://\S+/peer)"))


@pytest.fixture(scope="module")
def link(served: Process) -> Found:
    return _look(served.link)


@pytest.fixture(scope="module")
def pipes(tmp_path_factory: pytest.TempPathFactory) -> Found:
    store = tmp_path_factory.mktemp("pipes") / "store.db"
    command = (
        "env",
        "INTERLINGUA_PROJECT=tests",
        sys.executable,
        "-m",
        "interlingua",
        "stdio",
        "--as",
        "peer",
        str(AGENTS),
        "--store",
        str(store),
    )
    return _look(None, command=command)


@pytest.mark.parametrize("way", WAYS)
def test_our_node_fails_nothing(request: pytest.FixtureRequest, way: str) -> None:
    assert failures(request.getfixturevalue(way)) == {}


def _seen(request: pytest.FixtureRequest) -> dict[str, Found]:
    return {way: request.getfixturevalue(way) for way in WAYS}


def test_what_is_seen_nowhere_of_ours_is_known(request: pytest.FixtureRequest) -> None:
    seen = _seen(request)
    nowhere = {
        name for name in seen["control"] if all(found[name].verdict == "not applicable" for found in seen.values())
    }
    assert nowhere == set(NOWHERE), {name: [seen[way][name].why for way in WAYS] for name in nowhere ^ set(NOWHERE)}


def test_most_is_seen_by_the_address_of_the_control_api(everything: Found) -> None:
    hidden = {name: finding.why for name, finding in everything.items() if finding.verdict != "pass"}
    assert len(hidden) < 10, hidden


def test_every_way_shows_something(request: pytest.FixtureRequest) -> None:
    passed = {
        way: sum(finding.verdict == "pass" for finding in found.values()) for way, found in _seen(request).items()
    }
    assert all(count > 100 for count in passed.values()), passed


@pytest.mark.parametrize(
    ("roles", "verdict", "why"),
    [
        (ROLES, "pass", ""),
        (
            Roles(agent="echo"),
            "not applicable",
            "this node works on tasks itself, and no agent of it is named for this (--slow: one that runs for a while)",
        ),
    ],
)
def test_whether_a_task_can_be_cancelled_is_no_matter_of_luck(
    served: Process, roles: Roles, verdict: str, why: str
) -> None:
    """A task that may have ended by then is none to look at."""
    subject = Subject(address=served.find(r"(http://\S+/peer)"), roles=roles, patience=20.0)
    for _ in range(3):
        (found,) = asyncio.run(findings("peer", subject, ["peer.4-1.task-cancel"])).values()
        assert (found.verdict, found.why) == (verdict, why)


def test_a_task_that_ends_while_its_stream_is_opened_is_read_to_its_end(
    served: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events come one by one, and the first of them with the stream."""
    read, look = Feed._read, Story.look

    async def late(self: Feed, answer: httpx2.Response) -> None:
        pieces = answer.aiter_bytes

        async def slowly(*args: Any) -> AsyncIterator[bytes]:
            async for piece in pieces(*args):
                for event in piece.split(b"\n\n"):
                    yield event + b"\n\n"
                    if b"submitted" in event:
                        await ended.wait()

        answer.aiter_bytes = slowly  # type: ignore[method-assign]
        await read(self, answer)

    async def sees_its_end(self: Story) -> dict[str, Any]:
        while (seen := await look(self)).get("status") != "completed":
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(ended.set)
        return seen

    async def looked() -> Found:
        nonlocal ended
        ended = asyncio.Event()
        subject = Subject(address=served.find(r"(http://\S+/peer)"), roles=ROLES, patience=20.0)
        return await findings("peer", subject, ["peer.8.subscribe"])

    ended = asyncio.Event()
    monkeypatch.setattr(Feed, "_read", late)
    monkeypatch.setattr(Story, "look", sees_its_end)
    (found,) = asyncio.run(looked()).values()
    assert (found.verdict, found.why) == ("pass", "")

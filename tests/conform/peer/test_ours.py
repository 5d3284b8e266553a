"""Our own node passes its own look: its control API, its door, its link and its pipes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from interlingua.conform.base import Finding, Roles, Subject

from ...cli.conftest import process_env
from ...cli.nodes import node, started
from ..common import AGENTS, ROLES, failures, findings

WAYS = ("everything on", "control", "door", "link", "pipes")

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

Seen = dict[str, dict[str, Finding]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Each of them, looked at once."""
    return asyncio.run(_look(tmp_path_factory.mktemp("nodes")))


async def _look(folder: Path) -> Seen:
    def subject(address: str | None = None, roles: Roles = ROLES, **more: object) -> Subject:
        return Subject(address=address, roles=roles, patience=10.0, **more)  # type: ignore[arg-type]

    found: Seen = {}
    (folder / "full").mkdir()
    with node(process_env(folder / "full"), folder / "full", *FLAGS) as full:
        found["everything on"] = await findings("peer", subject(full.control, Roles(), secret="shared"))
    ports = ["--port", "0", "--peer-port", "0", "--peer-http-port", "0"]
    with started(["serve", str(AGENTS), *ports], process_env(folder), folder) as served:
        door = served.find(r"(http://\S+/peer)")
        for name, address in (("control", served.control), ("door", door), ("link", served.link)):
            found[name] = await findings("peer", subject(address))
    command = (
        sys.executable, "-m", "interlingua", "stdio", "--as", "peer", str(AGENTS), "--store", str(folder / "pipes.db")
    )  # fmt: skip
    found["pipes"] = await findings("peer", subject(command=command))
    return found


@pytest.mark.parametrize("way", WAYS)
def test_our_node_fails_nothing(seen: Seen, way: str) -> None:
    assert failures(seen[way]) == {}


def test_what_is_seen_nowhere_of_ours_is_known(seen: Seen) -> None:
    nowhere = {
        name
        for name in seen["control"]
        if all(found[name].verdict == "not applicable" for found in seen.values() if name in found)
    }
    assert nowhere == set(NOWHERE), {name: [seen[way][name].why for way in WAYS] for name in nowhere ^ set(NOWHERE)}


def test_most_is_seen_by_the_address_of_the_control_api(seen: Seen) -> None:
    hidden = {name: finding.why for name, finding in seen["everything on"].items() if finding.verdict != "pass"}
    assert len(hidden) < 10, hidden


def test_every_way_shows_something(seen: Seen) -> None:
    passed = {way: sum(finding.verdict == "pass" for finding in seen[way].values()) for way in WAYS}
    assert all(count > 100 for count in passed.values()), passed

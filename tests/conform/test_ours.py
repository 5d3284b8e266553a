"""Our own doors keep the documents: the checker looks at them over every wire, and each requirement is a test.

The looks of a protocol are taken once, by whichever worker comes first, and only as far as the chosen tests need them.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from interlingua_conform import suite
from interlingua_conform.base import Finding, Subject, catalogue, conform
from tests.requirements.manifest import load_all

from .looks import LOOKS, NOWHERE, Look, Servers

IDS = list(catalogue())
NAMES = [look.name for look in LOOKS if look.shows is not None or look.fewest]

Findings = dict[str, Finding]


class Seen(msgspec.Struct):
    """The outcome of a look: findings, or what went wrong."""

    findings: Findings = {}
    trouble: str = ""


class Looking:
    """Takes each look once in all workers of a test run, and keeps what was seen in a folder that they share."""

    def __init__(self, folder: Path, servers: Servers, chosen: dict[str, frozenset[str]]) -> None:
        self._folder = folder
        self._servers = servers
        self._chosen = chosen
        self._seen: dict[str, Seen] = {}

    def of(self, protocol: str) -> dict[str, Findings]:
        """The findings of all looks at a protocol."""
        looks = [look for look in LOOKS if look.protocol == protocol]
        for wait in (False, True):  # another worker may be at one of them: the others first
            for look in looks:
                if look.name not in self._seen:
                    self._take(look, wait)
        for look in looks:
            assert not self._seen[look.name].trouble, f"{look.name}: {self._seen[look.name].trouble}"
        return {look.name: self._seen[look.name].findings for look in looks}

    def _take(self, look: Look, wait: bool) -> None:
        file = self._folder / f"{look.name.replace(' ', '-')}.json"
        with file.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if not file.exists():
                file.write_bytes(msgspec.json.encode(self._look(look)))
            self._seen[look.name] = msgspec.json.decode(file.read_bytes(), type=Seen)

    def _look(self, look: Look) -> Seen:
        wanted = look.wants(self._chosen[look.protocol])
        if not wanted:
            return Seen()
        try:
            return Seen(asyncio.run(_findings(look, self._servers.subject(look), wanted)))
        except Exception:  # told by each test, and not tried again for each
            return Seen(trouble=traceback.format_exc())


async def _findings(look: Look, subject: Subject, wanted: frozenset[str]) -> Findings:
    checks = suite(look.protocol)
    only = None if wanted >= set(checks.ids) else wanted
    found = {finding.id: finding async for finding in conform(checks, subject, only)}
    return {name: finding for name, finding in found.items() if name in wanted}


@pytest.fixture(scope="session")
def looking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looking]:
    items = [item for item in request.session.items if item.path == Path(__file__)]
    params = [item.callspec.params for item in items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    ids = {each.get("id_") for each in params}
    whole = {each.get("look", "").partition(" ")[0] for each in params}
    chosen: dict[str, frozenset[str]] = {}
    for protocol in {look.protocol for look in LOOKS}:
        every = frozenset(name for name in IDS if name.startswith(f"{protocol}."))
        chosen[protocol] = every if protocol in whole else every & ids
    folder = Path(os.environ["SESSION_FOLDER"], "looks")
    folder.mkdir(exist_ok=True)
    with Servers(tmp_path_factory.mktemp("servers")) as servers:
        yield Looking(folder, servers, chosen)


@pytest.mark.parametrize("id_", IDS)
def test_our_doors_keep_the_requirement(id_: str, looking: Looking) -> None:
    seen = {name: findings[id_] for name, findings in looking.of(id_.partition(".")[0]).items() if id_ in findings}
    assert {name: finding.why for name, finding in seen.items() if finding.verdict == "fail"} == {}
    passed = [name for name, finding in seen.items() if finding.verdict == "pass"]
    assert bool(passed) != (id_ in NOWHERE), {name: finding.why for name, finding in seen.items()}


@pytest.mark.parametrize("look", NAMES)
def test_a_look_shows_all_that_it_can(look: str, looking: Looking) -> None:
    (taken,) = (each for each in LOOKS if each.name == look)
    found = looking.of(taken.protocol)[look]
    passed = {name for name, finding in found.items() if finding.verdict == "pass"}
    assert len(passed) >= taken.fewest
    if taken.shows is not None:
        assert passed == taken.shows(taken.wants(frozenset(suite(taken.protocol).ids)))


def test_a_requirement_that_no_door_of_ours_shows_has_other_tests_or_deviates() -> None:
    entries = {entry.id: entry for manifest in load_all() for entry in manifest.requirements}
    assert [name for name in NOWHERE if not entries[name].tests and entries[name].status != "deviates"] == []

"""Whatever a server says, the checks end, and tell in words what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from interlingua.model.errors import InvalidRequest, Unavailable
from interlingua_conform import suite
from interlingua_conform.base import Subject

from ..common import ROLES, findings

pytestmark = pytest.mark.faults  # many servers, each broken in one way: too long for every change

HERE = Path(__file__).parent


@pytest.mark.parametrize("seed", [2, 8])
async def test_garbage_is_told_in_words(seed: int) -> None:
    command = (sys.executable, str(HERE / "garbage.py"), str(seed))
    found = await findings("editor", Subject(command=command, roles=ROLES, patience=1.0, quiet=0.02), ["editor.v"])
    assert set(found) == {id_ for id_ in suite("editor").ids if id_.startswith("editor.v")}
    failed = [finding for finding in found.values() if finding.verdict == "fail"]
    assert len(failed) > 20
    assert all(finding.why for finding in failed)


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (Subject(command=("/no/such/command",)), "cannot be started"),
        (Subject(command=(sys.executable, "-c", "")), "does not answer initialize: the process ended"),
        (Subject(address="http://127.0.0.1:9/acp"), "nothing answers at"),
        (Subject(address="ws://127.0.0.1:9/acp"), "there is no WebSocket at"),
    ],
    ids=["no-command", "it-ends", "no-server", "no-socket"],
)
async def test_a_server_that_is_not_there_is_not_judged(subject: Subject, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        await findings("editor", subject, ["editor.v1.prompt"])


async def test_an_address_of_something_else_is_a_slip_of_whoever_gave_it() -> None:
    with pytest.raises(InvalidRequest, match="begins with http or ws"):
        await findings("editor", Subject(address="gopher://there"), ["editor.v1.prompt"])

"""One trace over the wire: headers over HTTP, and the metadata of the notice where a line has no headers."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load_all
from tests.kit.engines import engine, finish
from tests.kit.traces import MALFORMED, TRACE, check_sent_on, requests

from ..connect.reference import Proxy
from .door_common import Peer, door, notice, words
from .test_stdio import start  # noqa: F401 - a fixture


async def only_run(eng: il.Engine) -> il.Run:
    (run,) = await eng.runs.search(RunFilter())
    return await eng.runs.get(run.id)


@pytest.mark.parametrize("place", ["headers", "metadata"])
@pytest.mark.parametrize(("given", "expected"), [(TRACE, TRACE), (MALFORMED, None)], ids=["well formed", "malformed"])
async def test_the_trace_of_a_notice_is_that_of_its_run(
    store: Path, place: str, given: dict[str, str], expected: dict[str, str] | None
) -> None:
    async with door(store, words) as server, Peer(server) as peer:
        beside = given if place == "metadata" else {}
        headers = given if place == "headers" else {}
        said = notice("T1", "words", "hi", metadata={"ours": 1, **beside})
        for trace in (headers, {}):  # the same notice in another trace, or in none, is the same task
            answer = await peer.http.post("/messages", json=said, headers=trace)
            assert answer.status_code == 202, answer.text
        run = await only_run(server.engine)
        assert run.request is not None
        assert run.request.trace == expected
        assert run.metadata == {"ours": 1}
        assert run.request.messages[0].metadata == {"ours": 1}


async def test_the_same_notice_in_another_trace_is_the_same_task(store: Path) -> None:
    async with door(store, words) as server, Peer(server) as peer:
        for trace in (TRACE, {}):
            await peer.post(notice("T1", "words", "hi", metadata={**trace}))
        assert (await only_run(server.engine)).request is not None


async def test_the_mount_sends_the_trace_as_headers_to_an_address(store: Path, tmp_path: Path) -> None:
    async with door(tmp_path / "there.db", words) as server, Proxy(server.address) as proxy:
        agents = await load_all(parse(f"cap+{proxy.address}/cap#words"))
        async with engine(store, *agents) as eng:
            for trace in (TRACE, None):
                run = await finish(eng, "words", {"text": "hi"}, trace=trace)
                assert run.status is il.Status.SUCCEEDED, run.error
        with_trace, without = [headers for what, headers in requests(proxy.heads) if what == "POST /cap/messages"]
        check_sent_on(with_trace)
        assert without["baggage"] == "interlingua-hops=1"


PROGRAM = """
import json, sys
for line in sys.stdin:
    notice = json.loads(line)
    print(json.dumps({"type": "message", "task_id": notice["task_id"], "sender_id": notice["recipient_id"],
                      "recipient_id": notice["sender_id"], "content": json.dumps(notice["metadata"])}), flush=True)
"""


async def test_the_mount_sends_the_trace_in_the_metadata_to_a_program(store: Path, tmp_path: Path) -> None:
    program = tmp_path / "tells.py"
    program.write_text(PROGRAM)
    (agent,) = await load_all(parse(f"cap:{shlex.join([sys.executable, str(program)])}"))
    async with engine(store, agent) as eng:
        for trace in (TRACE, None):
            run = await finish(eng, agent.card.name, {"text": "hi"}, trace=trace, metadata={"baggage": "not this"})
            assert run.output is not None, run.error
            got = json.loads(run.output["text"])
            if trace is not None:
                check_sent_on(got)
            else:
                assert got["baggage"] == "interlingua-hops=1"


async def test_a_line_that_has_a_trace_is_run_in_it(start: object, tmp_path: Path) -> None:  # noqa: F811
    """The program behind the door is one that tells what it got: two hops, and no header in between."""
    program = tmp_path / "tells.py"
    program.write_text(PROGRAM)
    with start(f"cap:{shlex.join([sys.executable, str(program)])}") as other:  # type: ignore[operator]
        other.say(notice("T1", "tells", "hi", sender="orchestrator", metadata={**TRACE}))
        got = json.loads(other.hear(type="message")["content"])
        assert {name: got[name] for name in TRACE} == {**TRACE, "baggage": f"interlingua-hops=1,{TRACE['baggage']}"}
        other.end()

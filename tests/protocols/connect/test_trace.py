"""One trace over the wire: headers that the door takes, and headers that the mount sends."""

from __future__ import annotations

from pathlib import Path

import httpx2

import interlingua as il
from interlingua.server.app import Server
from tests.kit.engines import finish
from tests.kit.mounts.connect import door, local
from tests.kit.traces import MALFORMED, TRACE, check_sent_on, requests

from .reference import Proxy, Reference, listening


async def run_at(server: Server, headers: dict[str, str] | list[tuple[str, str]]) -> il.Run:
    async with httpx2.AsyncClient(base_url=f"{server.address}/connect") as http:
        body = {"agent_id": "words", "input": {"text": "hi"}}
        made = await http.post("/runs/wait", json=body, headers=headers)
        assert made.status_code == 200, made.text
    return await server.engine.runs.get(made.json()["run"]["run_id"])


async def test_the_headers_of_a_request_are_the_trace_of_its_run(tmp_path: Path) -> None:
    async with door(tmp_path) as server:
        run = await run_at(server, TRACE)
        assert run.request is not None
        assert run.request.trace == TRACE


async def test_several_headers_of_one_name_are_one_list(tmp_path: Path) -> None:
    parent = ("traceparent", TRACE["traceparent"])
    async with door(tmp_path) as server:
        lists = [("tracestate", "vendor=1"), ("tracestate", "other=2"), ("baggage", "a=1"), ("baggage", "b=2")]
        run = await run_at(server, [parent, *lists])
        assert run.request is not None
        assert run.request.trace == {**TRACE, "baggage": "a=1,b=2"}
        twice = await run_at(server, [parent, parent, ("baggage", "a=1")])
        assert twice.request is not None
        assert twice.request.trace == {"baggage": "a=1"}


async def test_a_malformed_trace_is_as_good_as_none(tmp_path: Path) -> None:
    async with door(tmp_path) as server:
        run = await run_at(server, MALFORMED)
        assert run.request is not None
        assert run.request.trace is None


async def test_the_mount_sends_the_trace_with_the_request_that_makes_the_run(store: Path) -> None:
    async with listening(Reference()) as address, Proxy(address) as proxy, local(store, proxy.address) as eng:
        (name,) = [agent.card.name for agent in eng.agents if agent.card.name.endswith("Echo-Agent")]
        for trace in (TRACE, None):
            run = await finish(eng, name, {"text": "hi"}, trace=trace)
            assert run.status is il.Status.SUCCEEDED, run.error
        with_trace, without = [headers for what, headers in requests(proxy.heads) if what == "POST /runs"]
        check_sent_on(with_trace)
        assert without["baggage"] == "interlingua-hops=1"

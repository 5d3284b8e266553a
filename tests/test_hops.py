"""Calls that go through several mounts: one trace over all of them, and an end to those that go round in circles."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.protocols.targets import parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load_all
from tests.kit.clients import editor, rpc
from tests.kit.engines import PATIENT, finish
from tests.kit.traces import TRACE, requests

from .protocols.connect.reference import Proxy, Reference, listening


@il.agent(name="loop")
async def begins(text: str) -> str:
    """What is mounted first, before there is a loop."""
    return text


async def target(address: str, kind: str, agent: str = "loop") -> list[il.Agent[..., object]]:
    return await load_all(parse(f"{kind}+{address}/{kind}#{agent}"))


@contextlib.asynccontextmanager
async def ring(folder: Path, kinds: tuple[str, str], settings: il.Settings) -> AsyncIterator[tuple[Server, Server]]:
    """Two servers whose one agent is each other's: the first mounts the second by one protocol, and the second the
    first by the other."""
    both = ServeSettings(port=0, engine=settings)
    async with serving(folder / "first.db", [begins], both) as first:
        there = await target(first.address, kinds[1])
        async with serving(folder / "second.db", there, both) as second:
            (here,) = await target(second.address, kinds[0])
            assert here.card.key == begins.card.key
            first.engine.agents.remove(begins.card.key)
            first.engine.teams.add(here)
            yield first, second


async def runs(server: Server) -> int:
    return len(await server.engine.runs.search(RunFilter(limit=100)))


# Every protocol has the error on its way back, through its door and its mount.
@pytest.mark.parametrize(
    "kinds", [("connect", "mcp"), ("mcp", "editor"), ("editor", "peer"), ("peer", "cap"), ("cap", "connect")],
    ids="-".join,
)  # fmt: skip
async def test_a_loop_of_mounts_ends_with_an_error_that_says_so(tmp_path: Path, kinds: tuple[str, str]) -> None:
    settings = msgspec.structs.replace(PATIENT, max_hops=4)
    async with ring(tmp_path, kinds, settings) as (first, second):
        run = await finish(first.engine, "loop", {"text": "round and round"}, trace=TRACE)
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert (run.error.code, run.error.transient) == ("too_many_hops", False)
        assert "max_hops is 4" in run.error.message
        assert await runs(first) + await runs(second) == 5
        for server in (first, second):
            for one in await server.engine.runs.search(RunFilter(limit=100)):
                request = (await server.engine.runs.get(one.id)).request
                assert request is not None
                assert request.trace is not None
                assert request.trace["traceparent"].split("-")[1] == TRACE["traceparent"].split("-")[1]
                assert request.trace["tracestate"] == TRACE["tracestate"]
                assert request.trace["baggage"].endswith(TRACE["baggage"])


async def test_a_loop_ends_also_where_nobody_has_set_a_limit_or_a_trace(tmp_path: Path) -> None:
    async with ring(tmp_path, ("connect", "connect"), PATIENT) as (first, second):
        run = await finish(first.engine, "loop", {"text": "round and round"})
        assert run.error is not None
        assert run.error.code == "too_many_hops"
        assert await runs(first) + await runs(second) == 17


class Spoilt(il.AgentError):
    """As it was told to fail."""

    def __init__(self, code: str, message: str, transient: bool, details: object) -> None:
        super().__init__(message, transient=transient, details=details)
        self.code = code  # type: ignore[misc]  # of this one: whoever asks says which


FAILURES = {
    "own": ("too_ripe", "it broke", True, {"code": 3, "data": {"details": [1, None]}, "errcode": "x"}),
    "plain": ("too_ripe", "it broke", False, None),
    "no object": ("agent_error", "it broke", True, ["a list"]),
    "our own, final": ("unavailable", "gone for good", False, {"since": 1970}),
    "our own, late": ("timed_out", "too late", False, {"after": 3}),
    "our own, refused": ("unauthenticated", "who are you?", True, {"status": 401}),
    "our own, invalid": ("invalid_input", "that does not fit", True, {"path": "/text"}),
}


@il.agent
async def spoils(text: str) -> str:
    raise Spoilt(*FAILURES[text])


@pytest.mark.parametrize(
    "kinds", [("connect", "mcp", "editor"), ("mcp", "editor", "peer"), ("editor", "peer", "cap"),
              ("peer", "cap", "connect"), ("cap", "connect", "mcp")],
    ids="-".join,
)  # fmt: skip
async def test_an_error_is_after_three_hops_what_it_was_at_its_source(
    tmp_path: Path, kinds: tuple[str, str, str]
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        agents: list[il.Agent[..., object]] = [spoils]
        for number, kind in enumerate((*kinds, None)):
            settings = ServeSettings(port=0, engine=PATIENT)
            server = await stack.enter_async_context(serving(tmp_path / f"{number}.db", agents, settings))
            if kind is not None:
                agents = await target(server.address, kind, "spoils")
        for name, expected in FAILURES.items():
            run = await finish(server.engine, "spoils", {"text": name})
            assert run.status is il.Status.FAILED
            assert run.error is not None
            assert (run.error.code, run.error.message, run.error.transient, run.error.details) == expected, name


async def test_a_call_through_processes_is_one_trace_as_it_came(tmp_path: Path) -> None:
    """An editor prompts a process, which has mounted a server by the peer protocol, which has mounted another maker's
    by Connect. Neither process has loaded OpenTelemetry: what the last one gets is what the editor sent."""
    async with listening(Reference()) as address, Proxy(address) as proxy:
        command = [sys.executable, "-m", "interlingua", "serve", "--port", "0", "--no-peer-ports"]
        store = ["--store", str(tmp_path / "hub.db")]
        hub = await asyncio.create_subprocess_exec(
            *command, *store, f"connect+{proxy.address}#org.example-Echo-Agent", stderr=asyncio.subprocess.PIPE
        )  # fmt: skip
        try:
            assert hub.stderr is not None
            where = await asyncio.wait_for(said(hub.stderr, r"Serving on (http://\S+)"), 30)
            beside = [*editor.COMMAND, "--store", str(tmp_path / "editor.db"), f"peer+{where}/peer"]
            async with rpc.start(editor.Process, beside, tmp_path / "stderr.txt", None) as client:
                await client.initialize()
                session = await client.new_session()
                prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "hi"}], "_meta": TRACE}
                assert (await client.ask("session/prompt", prompt))["stopReason"] == "end_turn"
        finally:
            hub.terminate()
            await asyncio.wait_for(hub.communicate(), 30)
        (headers,) = [headers for what, headers in requests(proxy.heads) if what == "POST /runs"]
        expected = {**TRACE, "baggage": f"interlingua-hops=2,{TRACE['baggage']}"}
        assert {name: headers[name] for name in TRACE} == expected, json.dumps(headers)


async def said(output: asyncio.StreamReader, wanted: str) -> str:
    while line := await output.readline():
        if found := re.search(wanted, line.decode()):
            return found[1]
    raise AssertionError(f"it ended without {wanted}")

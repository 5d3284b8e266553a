"""One trace over the wire: the metadata of frames, and headers where a frame is a request over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from tests.kit.engines import finish, submit
from tests.kit.mounts.peer import mounted, output, remote, runs_of
from tests.kit.peer_nodes import at_door, listening, running_node, shout, text
from tests.kit.traces import MALFORMED, TRACE, check_sent_on, requests

from ..connect.reference import Proxy
from .reference import Reference
from .reference_http import ReferenceApi
from .test_mount_odd import Puppet

taken = pytest.mark.parametrize(
    ("given", "expected"), [(TRACE, TRACE), (MALFORMED, None)], ids=["well formed", "malformed"]
)


async def only_run(eng: il.Engine) -> il.RunRequest:
    (run,) = await eng.runs.search(RunFilter())
    request = (await eng.runs.get(run.id)).request
    assert request is not None
    return request


# -- the door -------------------------------------------------------------------------------------------------


@taken
@pytest.mark.parametrize("kind", ["message", "task"])
async def test_the_trace_in_the_metadata_of_a_frame_is_that_of_the_run(
    kind: str, given: dict[str, str], expected: dict[str, str] | None
) -> None:
    async with running_node("Ours", agents=[shout]) as ours, Reference("Ref").join(str(ours.node.link)) as ref:
        await ref.connected()
        if kind == "message":
            reply = await ref.ask("hi", metadata={"other": 1, **given})
            assert reply["parts"] == text("HI")
        else:
            task = await ref.delegate({"role": "user", "parts": text("hi"), "metadata": {"other": 1, **given}})
            await ref.until(lambda: ref.tasks[task]["status"] == "completed")
        assert (await only_run(ours.node.engine)).trace == expected


@taken
@pytest.mark.parametrize("place", ["headers", "metadata"])
@pytest.mark.parametrize("path", ["/message:send", "/tasks"])
async def test_the_trace_of_a_request_is_that_of_the_run(
    path: str, place: str, given: dict[str, str], expected: dict[str, str] | None
) -> None:
    async with at_door(shout) as (node, http):
        body: dict[str, Any] = {"role": "user", "parts": text("hi")}
        if place == "metadata":
            body["metadata"] = given
        answer = await http.post(path, json=body, headers=given if place == "headers" else None)
        assert answer.is_success, answer.text
        assert (await only_run(node.node.engine)).trace == expected


# -- the mount ------------------------------------------------------------------------------------------------


async def test_the_mount_sends_the_trace_with_a_message(store: Path) -> None:
    async with Reference().host() as ref:
        ref.answers = lambda frame: "yes"
        async with mounted(store, ref.link) as (eng, _):
            for trace in (TRACE, None):
                run = await finish(eng, "RefAgent", {"text": "hi"}, trace=trace)
                assert run.output == {"text": "yes"}, run.error
        with_trace, without = [frame["metadata"] for frame in ref.frames if frame["type"] == "acp.message"]
        check_sent_on(with_trace)
        assert without["baggage"] == "interlingua-hops=1"


async def test_the_mount_sends_the_trace_with_a_task(store: Path) -> None:
    async with Puppet().host() as there, mounted(store, there.link) as (eng, _):
        run = await submit(eng, "Puppet", {"text": "go"}, trace=TRACE)
        delegated = await there.came("task.delegate")
        check_sent_on(delegated["payload"]["metadata"])
        artifact = {"artifact_id": "output", "parts": text("done")}
        await there.tell(delegated["task_id"], "completed", artifact=artifact)
        assert await output(eng, run.id) == {"text": "done"}


@asynccontextmanager
async def recorded(app: Any) -> AsyncIterator[Proxy]:
    async with listening(app) as address, Proxy(address) as proxy:
        yield proxy


async def test_over_http_the_mount_sends_the_trace_as_headers_and_not_in_the_body(store: Path) -> None:
    api = ReferenceApi()
    api.replies["hi"] = "hello"
    async with recorded(api.app()) as proxy, mounted(store, f"peer+{proxy.address}") as (eng, _):
        for trace in (TRACE, None):
            run = await finish(eng, "RefAgent", {"text": "hi"}, trace=trace)
            assert run.output == {"text": "hello"}, run.error
        with_trace, without = [headers for what, headers in requests(proxy.heads) if what == "POST /message:send"]
        check_sent_on(with_trace)
        assert without["baggage"] == "interlingua-hops=1"
        assert all("metadata" not in body for body in api.sent)


async def test_over_http_a_task_has_the_trace_in_its_headers(store: Path) -> None:
    async with remote("http") as there:
        address = there.link.removeprefix("peer+").removesuffix("/peer")
        async with Proxy(address) as proxy, mounted(store, f"peer+{proxy.address}/peer") as (eng, _):
            run = await finish(eng, "words", {"text": "hi"}, trace=TRACE)
            assert run.status is il.Status.SUCCEEDED, run.error
            (headers,) = [headers for what, headers in requests(proxy.heads) if what == "POST /peer/tasks"]
            check_sent_on(headers)
        (theirs,) = await runs_of(there.node)
        request = (await there.engine.runs.get(theirs.id)).request
        assert request is not None
        assert request.trace == {name: headers[name] for name in TRACE}
        assert request.metadata == {}
        async with httpx2.AsyncClient(base_url=f"{address}/peer") as http:
            (task,) = (await http.get("/tasks")).json()["tasks"]
            assert "metadata" not in task


@pytest.mark.parametrize("kind", ["acp", "tcp", "relay", "http"])
async def test_every_binding_carries_the_trace(store: Path, kind: str) -> None:
    async with remote(kind) as there, mounted(store, there.link) as (eng, _):
        await finish(eng, "words", {"text": "hi"}, trace=TRACE)
        check_sent_on((await only_run(there.engine)).trace or {})

"""The Connect door as users of the published SDK see it: `agntcy-acp` 1.5.2 from PyPI, sync and async.

The SDK runs in its own virtualenv and process (`connect_sdk_driver.py`); `sdk.OPERATION(...)` below is a call of its
method of that name. First the flows of the protocol's document, one test each, then every operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from interlingua.doors.streams import EventStream
from interlingua.protocols.connect.config import DoorSettings
from interlingua.server.app import Server, ServeSettings, serving
from tests.kit.engines import QUICK

from ..protocols.connect.test_door import AGENTS, NOBODY, Gate, Receiver, Teller, _keys

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(600),  # the first test installs the SDK
    pytest.mark.parametrize("kind", ["sync", "async"]),
]

DRIVER = Path(__file__).with_name("connect_sdk_driver.py")
ROOT = Path(__file__).parent.parent.parent

OPERATIONS = {
    "search_agents", "get_agent_by_id", "get_acp_descriptor_by_id", "create_thread", "search_threads", "get_thread",
    "patch_thread", "delete_thread", "get_thread_history", "copy_thread", "list_thread_runs", "create_thread_run",
    "create_and_stream_thread_run_output", "create_and_wait_for_thread_run_output", "get_thread_run",
    "resume_thread_run", "delete_thread_run", "wait_for_thread_run_output", "stream_thread_run_output",
    "cancel_thread_run", "create_stateless_run", "search_stateless_runs", "create_and_stream_stateless_run_output",
    "create_and_wait_for_stateless_run_output", "get_stateless_run", "resume_stateless_run", "delete_stateless_run",
    "wait_for_stateless_run_output", "stream_stateless_run_output", "cancel_stateless_run",
}  # fmt: skip


class SdkError(Exception):
    """What the SDK raised."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told)
        self.kind, self.status, self.body = told["error"], told["status"], told["body"]


class Sdk:
    """The SDK in its own process. Calls are made one after the other."""

    server: Server  # where it runs in this process

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.called: set[str] = set()

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        if operation not in OPERATIONS:
            raise AttributeError(operation)
        return lambda **arguments: self._call(operation, arguments)

    async def _call(self, operation: str, arguments: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"operation": operation, "arguments": arguments}).encode() + b"\n")
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        assert line, "the SDK's process has ended"
        told = json.loads(line)
        if "error" in told:
            raise SdkError(told)
        self.called.add(operation)
        return told["result"]

    async def agent_id(self, name: str) -> str:
        (found,) = await self.search_agents(agent_search_request={"name": name})
        identity: str = found["agent_id"]
        return identity


@contextlib.asynccontextmanager
async def served(store: Path, python: Path, kind: str, *agents: Any, key: str | None = None) -> AsyncIterator[Sdk]:
    """Our agents, served in this process, with the SDK as client."""
    async with (
        serving(store, agents or AGENTS, ServeSettings(port=0, engine=QUICK)) as server,
        driven(python, server.address, kind, key) as sdk,
    ):
        sdk.server = server
        yield sdk


@contextlib.asynccontextmanager
async def driven(python: Path, address: str, kind: str, key: str | None = None) -> AsyncIterator[Sdk]:
    command = [str(python), str(DRIVER), address + "/connect", kind, *([key] if key else [])]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=2**24)
    assert process.stdin is not None
    try:
        yield Sdk(process)
    finally:
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 30) == 0


def once(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The SDK repeats earlier events after each chunk: callers know them by their ids."""
    return list({update["id"]: update for update in updates}.values())


def data(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [update["data"] for update in once(updates)]


# -- the flows of the document --------------------------------------------------------------------------------


async def test_flow_agents_are_found_by_name_and_version_and_described(store: Path, acp_sdk: Path, kind: str) -> None:
    async with served(store, acp_sdk, kind) as sdk:
        assert len(await sdk.search_agents(agent_search_request={})) == len(AGENTS)
        (found,) = await sdk.search_agents(agent_search_request={"name": "echo", "version": "0.1.3"})
        assert found["metadata"]["ref"]["name"] == "echo"
        described = await sdk.get_acp_descriptor_by_id(agent_id=found["agent_id"])
        assert described["metadata"] == found["metadata"]
        assert described["specs"]["input"]["properties"]["text"]["type"] == "string"


async def test_flow_start_a_run_and_poll_for_completion(store: Path, acp_sdk: Path, kind: str) -> None:
    gate = Gate()
    async with served(store, acp_sdk, kind, gate.agent) as sdk:
        body = {"agent_id": await sdk.agent_id("held"), "input": {"text": "a"}, "metadata": {"tag": "x"}}
        run = await sdk.create_stateless_run(run_create_stateless=body)
        assert run["status"] == "pending"
        assert (await sdk.get_stateless_run(run_id=run["run_id"]))["status"] == "pending"
        gate.go.set()
        while (polled := await sdk.get_stateless_run(run_id=run["run_id"]))["status"] == "pending":
            pass
        assert polled["status"] == "success"
        done = await sdk.wait_for_stateless_run_output(run_id=run["run_id"])
        assert (done["output"]["type"], done["output"]["values"]) == ("result", {"text": "held a"})


async def test_flow_start_a_run_and_block_until_completion(store: Path, acp_sdk: Path, kind: str) -> None:
    gate = Gate()
    async with served(store, acp_sdk, kind, gate.agent) as sdk:
        body = {"agent_id": await sdk.agent_id("held"), "input": {"text": "a"}}
        run = await sdk.create_stateless_run(run_create_stateless=body)
        waiting = asyncio.create_task(sdk.wait_for_stateless_run_output(run_id=run["run_id"]))
        await gate.entered.get()
        assert not waiting.done()
        gate.go.set()
        done = await waiting
        assert (done["output"]["type"], done["output"]["values"]) == ("result", {"text": "held a"})


async def test_flow_start_a_run_with_a_callback(store: Path, acp_sdk: Path, kind: str) -> None:
    async with served(store, acp_sdk, kind) as sdk, Receiver() as receiver:
        body = {"agent_id": await sdk.agent_id("echo"), "input": {"text": "a b"}, "webhook": receiver.url}
        run = await sdk.create_stateless_run(run_create_stateless=body)
        called = (await receiver.until("success"))[-1][1]
        assert called["run_id"] == run["run_id"]
        done = await sdk.wait_for_stateless_run_output(run_id=run["run_id"])
        assert (done["output"]["type"], done["output"]["values"]) == ("result", {"text": "a b "})


async def test_flow_a_run_is_interrupted_and_resumed(store: Path, acp_sdk: Path, kind: str) -> None:
    async with served(store, acp_sdk, kind) as sdk:
        body = {"agent_id": await sdk.agent_id("mailer"), "input": {"message": "at noon?"}}
        run = await sdk.create_stateless_run(run_create_stateless=body)
        stopped = await sdk.wait_for_stateless_run_output(run_id=run["run_id"])
        assert stopped["run"]["status"] == "interrupted"
        assert stopped["output"]["type"] == "interrupt"
        ((interrupt_type, payload),) = stopped["output"]["interrupt"].items()
        assert interrupt_type == "mail_send_approval"
        assert payload == {"subject": "Lunch", "body": "at noon?", "recipients": ["ada@example.org"]}
        resumed = await sdk.resume_stateless_run(run_id=run["run_id"], body={"approved": True})
        assert (resumed["run_id"], resumed["status"]) == (run["run_id"], "pending")
        done = await sdk.wait_for_stateless_run_output(run_id=run["run_id"])
        assert (done["output"]["type"], done["output"]["values"]) == ("result", {"message": "Sent."})


async def test_flow_runs_on_one_thread_remember_each_other(store: Path, acp_sdk: Path, kind: str) -> None:
    async with served(store, acp_sdk, kind) as sdk:
        agent = await sdk.agent_id("chat")
        thread = await sdk.create_thread(thread_create={})
        assert thread["status"] == "idle"
        said = {"Hello, my name is John": "Hello John", "Can you remind my name?": "Yes, your name is John"}
        for message, reply in said.items():
            run = await sdk.create_thread_run(
                thread_id=thread["thread_id"],
                run_create_stateful={"agent_id": agent, "input": {"message": message}},
            )
            assert run["status"] == "pending"
            done = await sdk.wait_for_thread_run_output(thread_id=thread["thread_id"], run_id=run["run_id"])
            assert (done["output"]["type"], done["output"]["values"]) == ("result", {"message": reply})
        now = await sdk.get_thread(thread_id=thread["thread_id"])
        assert now["status"] == "idle"
        assert now["values"] == {"messages": [line for turn in said.items() for line in turn]}


async def test_flow_start_a_run_and_stream_its_output(store: Path, acp_sdk: Path, kind: str) -> None:
    words = ["Hello", ", how", " can", " I help", " you", " today"]
    teller = Teller(*words)
    async with served(store, acp_sdk, kind, teller.agent) as sdk:
        body = {"agent_id": await sdk.agent_id("teller"), "stream_mode": "values"}
        for _ in range(len(words) + 1):
            teller.next.release()
        updates = once(await sdk.create_and_stream_stateless_run_output(run_create_stateless=body))
        assert {update["event"] for update in updates} == {"agent_event"}
        assert {update["data"]["type"] for update in updates} == {"values"}
        assert len({update["data"]["run_id"] for update in updates}) == 1
        told = [update["data"]["values"]["message"] for update in updates]
        assert told[-1] == "Hello, how can I help you today"
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(told))
        assert updates[-1]["data"]["status"] == "success"


# -- every operation ------------------------------------------------------------------------------------------


async def test_every_operation_of_the_sdk_works(store: Path, acp_sdk: Path, kind: str) -> None:
    gate = Gate()
    async with served(store, acp_sdk, kind, *AGENTS, gate.agent) as sdk:
        await _agents(sdk)
        await _threads(sdk)
        await _thread_runs(sdk, gate)
        await _stateless_runs(sdk, gate)
        assert sdk.called == OPERATIONS


async def _agents(sdk: Sdk) -> None:
    page = await sdk.search_agents(agent_search_request={"limit": 2, "offset": 1})
    assert [agent["metadata"]["ref"]["name"] for agent in page] == ["greeter", "chat"]
    assert await sdk.get_agent_by_id(agent_id=page[0]["agent_id"]) == page[0]
    for agent in await sdk.search_agents(agent_search_request={}):
        described = await sdk.get_acp_descriptor_by_id(agent_id=agent["agent_id"])
        assert described["metadata"] == agent["metadata"]
    described = await sdk.get_acp_descriptor_by_id(agent_id=await sdk.agent_id("mailer"))
    assert described["specs"]["capabilities"]["interrupts"] is True
    assert described["specs"]["interrupts"][0]["interrupt_type"] == "mail_send_approval"


async def _threads(sdk: Sdk) -> None:
    made = await sdk.create_thread(thread_create={"metadata": {"a": 1}})
    thread = made["thread_id"]
    again = await sdk.create_thread(thread_create={"thread_id": thread, "if_exists": "do_nothing"})
    assert again["metadata"] == {"a": 1}
    assert (await sdk.get_thread(thread_id=thread))["metadata"] == {"a": 1}
    chat = await sdk.agent_id("chat")
    for message in ("one", "two"):
        body = {"agent_id": chat, "input": {"message": message}}
        await sdk.create_and_wait_for_thread_run_output(thread_id=thread, run_create_stateful=body)
    newest, oldest = await sdk.get_thread_history(thread_id=thread)
    assert (len(newest["values"]["messages"]), len(oldest["values"]["messages"])) == (4, 2)
    before = newest["checkpoint"]["checkpoint_id"]
    assert await sdk.get_thread_history(thread_id=thread, limit=1, before=before) == [oldest]
    copy = await sdk.copy_thread(thread_id=thread)
    assert copy["values"] == newest["values"]
    patched = await sdk.patch_thread(
        thread_id=thread,
        thread_patch={"metadata": {"b": 2}, "values": {"messages": ["x"]}, "checkpoint": oldest["checkpoint"]},
    )
    assert (patched["metadata"], patched["values"]) == ({"a": 1, "b": 2}, {"messages": ["x"]})
    wanted = {"metadata": {"b": 2}, "values": {"messages": ["x"]}, "status": "idle", "limit": 5, "offset": 0}
    assert [t["thread_id"] for t in await sdk.search_threads(thread_search_request=wanted)] == [thread]
    assert len(await sdk.search_threads(thread_search_request={})) == 2
    assert await sdk.delete_thread(thread_id=copy["thread_id"]) is None
    assert len(await sdk.search_threads(thread_search_request={})) == 1


async def _thread_runs(sdk: Sdk, gate: Gate) -> None:
    thread = (await sdk.create_thread(thread_create={}))["thread_id"]
    mail = {"agent_id": await sdk.agent_id("mailer"), "input": {"message": "m"}}
    run = (await sdk.create_thread_run(thread_id=thread, run_create_stateful=mail))["run_id"]
    stopped = await sdk.wait_for_thread_run_output(thread_id=thread, run_id=run)
    assert stopped["output"]["type"] == "interrupt"
    assert (await sdk.get_thread_run(thread_id=thread, run_id=run))["status"] == "interrupted"
    resumed = await sdk.resume_thread_run(thread_id=thread, run_id=run, body={"approved": False, "reason": "no"})
    assert resumed["status"] == "pending"
    updates = data(await sdk.stream_thread_run_output(thread_id=thread, run_id=run))
    assert updates[-1]["values"] == {"message": "Not sent: no"}
    chat = {"agent_id": await sdk.agent_id("chat"), "input": {"message": "hi"}, "stream_mode": ["values", "custom"]}
    streamed = data(await sdk.create_and_stream_thread_run_output(thread_id=thread, run_create_stateful=chat))
    assert streamed[-1]["status"] == "success"
    other = str(NOBODY)
    created = {**chat, "if_not_exists": "create"}
    made = await sdk.create_and_wait_for_thread_run_output(thread_id=other, run_create_stateful=created)
    assert made["run"]["thread_id"] == other
    held = {"agent_id": await sdk.agent_id("held"), "multitask_strategy": "enqueue"}
    for action in ("interrupt", "rollback"):
        going = (await sdk.create_thread_run(thread_id=thread, run_create_stateful=held))["run_id"]
        await gate.entered.get()
        assert await sdk.cancel_thread_run(thread_id=thread, run_id=going, wait=True, action=action) is None
    listed = await sdk.list_thread_runs(thread_id=thread, limit=10, offset=0)
    assert [r["status"] for r in listed] == ["error", "success", "success"]
    assert await sdk.delete_thread_run(thread_id=thread, run_id=run) is None
    assert len(await sdk.list_thread_runs(thread_id=thread)) == 2


async def _stateless_runs(sdk: Sdk, gate: Gate) -> None:
    echo = {"agent_id": await sdk.agent_id("echo"), "input": {"text": "a b"}, "metadata": {"tag": "echo"}}
    done = await sdk.create_and_wait_for_stateless_run_output(run_create_stateless=echo)
    run = done["run"]["run_id"]
    assert done["output"]["values"] == {"text": "a b "}
    assert done["run"]["creation"]["metadata"] == {"tag": "echo"}
    found = await sdk.search_stateless_runs(run_search_request={"metadata": {"tag": "echo"}, "status": "success"})
    assert [r["run_id"] for r in found] == [run]
    updates = data(await sdk.stream_stateless_run_output(run_id=run))
    assert [u["values"] for u in updates] == [{"text": "a b "}]
    custom = {**echo, "stream_mode": "custom"}
    streamed = data(await sdk.create_and_stream_stateless_run_output(run_create_stateless=custom))
    assert {u["type"] for u in streamed} == {"custom", "values"}
    mail = {"agent_id": await sdk.agent_id("mailer"), "input": {"message": "m"}}
    asked = data(await sdk.create_and_stream_stateless_run_output(run_create_stateless=mail))
    assert (asked[-1]["type"], asked[-1]["status"]) == ("interrupt", "interrupted")
    await sdk.resume_stateless_run(run_id=asked[-1]["run_id"], body={"approved": True})
    sent = await sdk.wait_for_stateless_run_output(run_id=asked[-1]["run_id"])
    assert sent["output"]["values"] == {"message": "Sent."}
    held = await sdk.create_stateless_run(run_create_stateless={"agent_id": await sdk.agent_id("held")})
    await gate.entered.get()
    assert await sdk.cancel_stateless_run(run_id=held["run_id"], wait=True, action="interrupt") is None
    assert (await sdk.get_stateless_run(run_id=held["run_id"]))["status"] == "error"
    ended = await sdk.wait_for_stateless_run_output(run_id=held["run_id"])
    assert (ended["output"]["type"], ended["output"]["errcode"]) == ("error", 1005)
    assert await sdk.delete_stateless_run(run_id=held["run_id"]) is None


# -- errors and odd streams -----------------------------------------------------------------------------------


async def test_errors_reach_the_sdk_as_its_own_exceptions(store: Path, acp_sdk: Path, kind: str) -> None:
    async with served(store, acp_sdk, kind) as sdk:
        mail = await sdk.agent_id("mailer")
        run = (await sdk.create_stateless_run(run_create_stateless={"agent_id": mail}))["run_id"]
        await sdk.wait_for_stateless_run_output(run_id=run)
        thread = (await sdk.create_thread(thread_create={}))["thread_id"]
        bad_input = {"agent_id": await sdk.agent_id("echo"), "input": {"text": 3}}
        for status, exception, call in (
            (404, "NotFoundException", lambda: sdk.get_stateless_run(run_id=NOBODY)),
            (404, "NotFoundException", lambda: sdk.stream_stateless_run_output(run_id=NOBODY)),
            (404, "NotFoundException", lambda: sdk.get_agent_by_id(agent_id=NOBODY)),
            (409, "ConflictException", lambda: sdk.create_thread(thread_create={"thread_id": thread})),
            (422, "UnprocessableEntityException", lambda: sdk.resume_stateless_run(run_id=run, body={"approved": 1})),
            (422, "UnprocessableEntityException", lambda: sdk.create_stateless_run(run_create_stateless=bad_input)),
        ):
            with pytest.raises(SdkError) as raised:
                await call()
            assert (raised.value.status, raised.value.kind) == (status, exception)
        await sdk.resume_stateless_run(run_id=run, body={"approved": True})
        await sdk.wait_for_stateless_run_output(run_id=run)
        with pytest.raises(SdkError) as raised:
            await sdk.resume_stateless_run(run_id=run, body={"approved": True})
        assert raised.value.status == 409


async def test_a_failed_run_is_read_by_the_sdk_in_both_ways(store: Path, acp_sdk: Path, kind: str) -> None:
    async with served(store, acp_sdk, kind) as sdk:
        body = {"agent_id": await sdk.agent_id("postman"), "input": {}}
        done = await sdk.create_and_wait_for_stateless_run_output(run_create_stateless=body)
        assert done["run"]["status"] == "error"
        assert (done["output"]["type"], done["output"]["description"]) == ("error", "two stamps are missing")
        streamed = data(await sdk.create_and_stream_stateless_run_output(run_create_stateless=body))
        assert (streamed[-1]["type"], streamed[-1]["errcode"]) == ("error", done["output"]["errcode"])
        slow = {"agent_id": await sdk.agent_id("sleeper"), "input": {}}
        timed_out = await sdk.create_and_wait_for_stateless_run_output(run_create_stateless=slow)
        assert timed_out["run"]["status"] == "timeout"


async def test_keep_alives_and_line_breaks_in_text_do_not_break_the_sdk(
    store: Path, acp_sdk: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = asyncio.Semaphore(0)

    write_comment = EventStream.write_comment

    async def counted(stream: EventStream) -> None:
        await write_comment(stream)
        beats.release()

    monkeypatch.setattr(EventStream, "write_comment", counted)
    nasty = ["line\u2028sep\u2029", "nel\u0085vt\x0b", "ff\x0cend é 😀"]
    teller = Teller(*nasty)
    async with served(store, acp_sdk, kind, teller.agent) as sdk:
        door: Any = sdk.server.engine.callbacks.formats["connect"].__self__  # type: ignore[attr-defined]
        door.settings = DoorSettings(keep_alive=0.005, values_per_second=1e6)
        body = {"agent_id": await sdk.agent_id("teller"), "stream_mode": "values"}
        streaming = asyncio.create_task(sdk.create_and_stream_stateless_run_output(run_create_stateless=body))
        for _ in range(len(nasty) + 1):
            for _ in range(3):
                await asyncio.wait_for(beats.acquire(), 20)
            teller.next.release()
        updates = data(await streaming)
        assert updates[-1]["values"] == {"message": "".join(nasty)}
        assert len(updates) == len(nasty) + 1


async def test_the_sdk_sends_its_api_key(store: Path, acp_sdk: Path, kind: str) -> None:
    (key,) = await _keys(store, "ada")
    async with served(store, acp_sdk, kind, key=key) as sdk:
        assert len(await sdk.search_agents(agent_search_request={})) == len(AGENTS)
    async with served(store, acp_sdk, kind) as sdk:
        with pytest.raises(SdkError) as raised:
            await sdk.search_agents(agent_search_request={})
        assert (raised.value.status, raised.value.kind) == (401, "UnauthorizedException")


async def test_a_run_that_waits_survives_kill_9_and_is_resumed_by_the_sdk(
    store: Path, acp_sdk: Path, kind: str
) -> None:
    async with killable(store) as (address, kill):
        async with driven(acp_sdk, address, kind) as sdk:
            thread = (await sdk.create_thread(thread_create={}))["thread_id"]
            body = {"agent_id": await sdk.agent_id("mailer"), "input": {"message": "at noon?"}}
            run = (await sdk.create_thread_run(thread_id=thread, run_create_stateful=body))["run_id"]
            before = await sdk.wait_for_thread_run_output(thread_id=thread, run_id=run)
            assert before["output"]["type"] == "interrupt"
        await kill()
    async with killable(store) as (address, _), driven(acp_sdk, address, kind) as sdk:
        assert (await sdk.get_thread(thread_id=thread))["status"] == "interrupted"
        assert (await sdk.wait_for_thread_run_output(thread_id=thread, run_id=run))["output"] == before["output"]
        await sdk.resume_thread_run(thread_id=thread, run_id=run, body={"approved": True})
        done = await sdk.wait_for_thread_run_output(thread_id=thread, run_id=run)
        assert done["output"]["values"] == {"message": "Sent."}
        assert (await sdk.get_thread(thread_id=thread))["values"] == {"messages": ["at noon?"]}


@contextlib.asynccontextmanager
async def killable(store: Path) -> AsyncIterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """A server in a process of its own: its address, and what kills it as `kill -9` does."""
    command = [sys.executable, "-m", "tests.interop.connect_server", str(store)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None

    async def kill() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    try:
        address = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        assert address, "the server did not start"
        yield address, kill
    finally:
        await kill()

"""The door's OpenAPI document: complete, beside the published one, and true of a running server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from starlette.routing import Route

import interlingua as il
from interlingua.engine.engine import Engine
from interlingua.protocols.connect.door import openapi
from interlingua.protocols.connect.door.http import ConnectDoor, routes
from interlingua.security.auth import Authenticator
from interlingua.security.keys import make_key
from interlingua.server.app import ServeSettings, serving
from interlingua.server.auth.stored_keys import StoredKeys
from interlingua.store.open import open_store
from tests.kit.engines import QUICK
from tests.kit.examples import share

# The server is a thread of this process, and draws random numbers while hypothesis draws an example.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")

DOCUMENT = openapi.document("/connect", [])
OPERATIONS = {
    operation["operationId"]: (method, path)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}


# -- the document beside the routes and the published operations ---------------------------------------------


def test_every_route_of_the_door_is_in_the_document_and_nothing_else(tmp_path: Path) -> None:
    door = ConnectDoor(Engine(tmp_path / "store.db"), Authenticator(open_to_all=True))
    answered = set()
    for route in routes(door):
        assert isinstance(route, Route)
        answered |= {(method.lower(), route.path) for method in (route.methods or set()) - {"HEAD"}}
    assert set(OPERATIONS.values()) == answered
    assert len(OPERATIONS) == len(answered), "every operationId is there once"


ON_A_RUN = {
    "get_{}": "get", "resume_{}": "post", "delete_{}": "delete", "wait_for_{}_output": "get /wait",
    "stream_{}_output": "get /stream", "cancel_{}": "post /cancel",
}  # fmt: skip
CREATES = {
    "create_{}": "post", "create_and_wait_for_{}_output": "post /wait", "create_and_stream_{}_output": "post /stream",
}  # fmt: skip


def _published() -> dict[str, tuple[str, str]]:
    """The thirty operations of the protocol, version 0.2.3."""
    found = {
        "search_agents": "post /agents/search", "get_agent_by_id": "get /agents/{agent_id}",
        "get_acp_descriptor_by_id": "get /agents/{agent_id}/descriptor", "create_thread": "post /threads",
        "search_threads": "post /threads/search", "get_thread": "get /threads/{thread_id}",
        "patch_thread": "patch /threads/{thread_id}", "delete_thread": "delete /threads/{thread_id}",
        "get_thread_history": "get /threads/{thread_id}/history", "copy_thread": "post /threads/{thread_id}/copy",
        "list_thread_runs": "get /threads/{thread_id}/runs", "search_stateless_runs": "post /runs/search",
    }  # fmt: skip
    for name, base in (("thread_run", "/threads/{thread_id}/runs"), ("stateless_run", "/runs")):
        for table, at in ((CREATES, base), (ON_A_RUN, base + "/{run_id}")):
            for pattern, what in table.items():
                method, _, rest = what.partition(" ")
                found[pattern.format(name)] = f"{method} {at}{rest}"
    return {name: (what.split()[0], what.split()[1]) for name, what in found.items()}


def test_the_thirty_published_operations_are_there_under_their_own_names() -> None:
    published = _published()
    assert len(published) == 30
    assert {name: OPERATIONS.get(name) for name in published} == published


REQUIRED = {
    "Agent": "agent_id metadata", "AgentMetadata": "ref description", "AgentRef": "name version",
    "AgentACPDescriptor": "metadata specs", "AgentACPSpec": "capabilities input output config",
    "Run": "run_id agent_id created_at updated_at status", "RunStateless": "creation", "RunStateful": "creation",
    "Thread": "thread_id created_at updated_at metadata status", "ThreadState": "checkpoint values",
    "ThreadCheckpoint": "checkpoint_id", "Message": "role content", "RunResult": "type",
    "RunInterrupt": "type interrupt", "RunError": "type run_id errcode description", "RunOutputStream": "id event data",
    "ValueRunResultUpdate": "type run_id status values", "CustomRunResultUpdate": "type status update",
    "ValueRunInterruptUpdate": "run_id status", "ValueRunErrorUpdate": "status",
}  # fmt: skip
REQUESTS = {
    "AgentSearchRequest": "name version limit offset",
    "RunCreateStateful": "agent_id input metadata config webhook stream_mode on_disconnect multitask_strategy "
    "after_seconds stream_subgraphs if_not_exists",
    "RunCreateStateless": "agent_id input metadata config webhook stream_mode on_disconnect multitask_strategy "
    "after_seconds on_completion",
    "RunSearchRequest": "agent_id status metadata limit offset",
    "ThreadCreate": "thread_id metadata if_exists",
    "ThreadPatch": "checkpoint metadata values messages",
    "ThreadSearchRequest": "metadata values status limit offset",
}


def test_answers_promise_what_the_published_document_requires() -> None:
    for name, required in REQUIRED.items():
        schema = DOCUMENT["components"]["schemas"][name]
        promised = {r for part in [schema, *schema.get("allOf", [])] for r in part.get("required", [])}
        assert set(required.split()) <= promised, name


def test_requests_take_what_the_published_document_has_and_require_nothing() -> None:
    for name, members in REQUESTS.items():
        schema = DOCUMENT["components"]["schemas"][name]
        assert set(members.split()) <= set(schema["properties"]), name
        assert not schema.get("required"), name


def test_background_creates_declare_the_callback() -> None:
    declared = {name for name, (method, path) in OPERATIONS.items() if "callbacks" in DOCUMENT["paths"][path][method]}
    assert declared == {"create_thread_run", "create_stateless_run"}


def test_every_reference_in_the_document_leads_somewhere() -> None:
    def refs(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for member in value.values():
                yield from refs(member)
        elif isinstance(value, list):
            for member in value:
                yield from refs(member)

    found = set(refs(DOCUMENT))
    assert found
    for reference in found:
        place: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


async def test_the_document_is_served_without_credentials_and_names_the_schemes(store: Path) -> None:
    stored = open_store(store)
    await stored.open()
    _, record = make_key("ada", (), 1)
    await StoredKeys(stored.keys).put(record)
    await stored.close()
    async with (
        serving(store, [echo], ServeSettings(port=0, engine=QUICK)) as server,
        httpx2.AsyncClient(base_url=server.address + "/connect") as http,
    ):
        told = (await http.get("/openapi.json")).json()
        schemes = (await http.get("/auth")).json()["schemes"]
        assert (await http.post("/agents/search", json={})).status_code == 401
    assert told["servers"] == [{"url": "/connect"}]
    assert list(told["components"]["securitySchemes"].values()) == schemes
    assert told["security"] == [{name: []} for name in told["components"]["securitySchemes"]]
    assert told["paths"]["/auth"]["get"]["security"] == []


# -- the document beside a running server --------------------------------------------------------------------


class Memory(msgspec.Struct):
    said: list[str] = []


class Sure(il.Question[il.Verdict]):
    """Are you sure?"""

    about: str


@il.agent(description="Says it again.")
async def echo(text: str = "hello") -> AsyncIterator[str]:
    for word in text.split():
        yield word + " "


@il.agent
async def keeper(ctx: il.Context[Memory, None], text: str = "") -> str:
    ctx.state.said.append(text)
    return f"{len(ctx.state.said)}"


@il.agent(asks=[Sure])
async def asker(ctx: il.Context[Memory, None]) -> str:
    verdict = await ctx.ask(Sure(about="it"))
    return "yes" if verdict.approved else "no"


@il.agent
async def failer() -> str:
    raise RuntimeError("as always")


AGENTS = (echo, keeper, asker, failer)


class Fuzzed:
    """A server in a thread of its own, and things on it to be fuzzed."""

    def __init__(self, address: str) -> None:
        self.base = address + "/connect"
        self.http = httpx2.Client(base_url=self.base, timeout=20)

    def made(self, path: str, body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ids(self, wanted: set[str], agent: str) -> dict[str, str]:
        """Something that is there, for each of these path parameters."""
        found = {}
        base = ""
        if "agent_id" in wanted:
            found["agent_id"] = agent
        if "config_id" in wanted:
            found["config_id"] = self.made(f"/agents/{agent}/configurations", {})["config_id"]
        if "thread_id" in wanted:
            found["thread_id"] = self.made("/threads", {"metadata": {"a": 1}})["thread_id"]
            base = f"/threads/{found['thread_id']}"
            self.made(base + "/runs/wait", {"agent_id": "keeper"})
        if "run_id" in wanted:
            found["run_id"] = self.made(base + "/runs/wait", {"agent_id": agent})["run"]["run_id"]
        return found


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    store = tmp_path_factory.mktemp("fuzzed") / "store.db"
    up, address = threading.Event(), list[str]()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving(store, AGENTS, ServeSettings(port=0, engine=QUICK)) as server:
            address.append(server.address)
            up.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()
            up.set()

    thread = threading.Thread(target=run, name="fuzzed server")
    thread.start()
    assert up.wait(30)
    assert address
    server = Fuzzed(address[0])
    yield server
    server.http.close()
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    assert not thread.is_alive(), "a fuzzed server still stops"


SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, unsupported_method,
]  # fmt: skip


@schemathesis.deserializer("text/event-stream")
def _events(_: Any, response: Any) -> Any:
    """The updates of a stream, each to be checked against the schema of one."""
    found = []
    for block in response.content.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            event = dict(line.split(": ", 1) for line in lines)
            event["data"] = json.loads(event["data"])
            found.append(event)
    assert found, "a stream tells at least how the run ended"
    return found


def _tamed(case: Any, agent: str) -> bool:
    """So that nothing waits for long and nobody outside is called; the rest stays as it was made up.

    Whether anything had to be changed.
    """
    before = json.dumps([case.query, case.body if isinstance(case.body, dict) else None], default=str)
    if case.operation.path.endswith("/wait") and "timeout" not in (case.query or {}):
        case.query = {**(case.query or {}), "timeout": 5}
    if isinstance(case.body, dict):
        if isinstance(case.body.get("after_seconds"), int):
            case.body["after_seconds"] = 0
        for name in ("webhook", "callback"):
            if case.body.get(name) is not None:
                case.body[name] = "http://127.0.0.1:9/nobody"
        if case.operation.path.endswith(("/runs", "/wait", "/stream")):
            case.body["agent_id"] = agent
            if not isinstance(case.body.get("input"), list | int | float):
                case.body["input"] = {}
    return before != json.dumps([case.query, case.body if isinstance(case.body, dict) else None], default=str)


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_a_plain_request_is_answered_as_the_document_says(fuzzed: Fuzzed, name: str) -> None:
    method, path = OPERATIONS[name]
    operation = SCHEMA[path][method.upper()]
    agent = "asker" if name.startswith("resume") else "echo"
    body = {"approved": True} if name.startswith("resume") else {"agent_id": agent} if "_run" in name else {}
    given_ = {"body": body, "media_type": "application/json"} if operation.body else {}
    case = operation.Case(path_parameters=fuzzed.ids(_parameters(path), agent), **given_)
    response = case.call(base_url=fuzzed.base, timeout=20)
    assert response.status_code in (200, 204), response.text
    case.validate_response(response, checks=CHECKS)


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_the_document_is_true_whatever_is_sent(fuzzed: Fuzzed, name: str) -> None:
    method, path = OPERATIONS[name]
    operation = SCHEMA[path][method.upper()]
    kinds = [GenerationMode.POSITIVE]
    if DOCUMENT["paths"][path][method].keys() & {"parameters", "requestBody"}:
        kinds.append(GenerationMode.NEGATIVE)

    @settings(
        max_examples=share(30), derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(data=st.data())
    def fuzz(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=data.draw(st.sampled_from(kinds))))
        agent = data.draw(st.sampled_from([agent.card.name for agent in AGENTS]))
        if data.draw(st.booleans()):
            case.path_parameters = {**(case.path_parameters or {}), **fuzzed.ids(_parameters(path), agent)}
        else:
            agent = "nobody"
        # What was made up to be wrong is refused, unless taming it has put it right.
        checks = CHECKS if _tamed(case, agent) else [*CHECKS, negative_data_rejection]
        response = case.call(base_url=fuzzed.base, timeout=20)
        case.validate_response(response, checks=checks)

    fuzz()
    assert fuzzed.http.get("/auth").status_code == 200


def _parameters(path: str) -> set[str]:
    return {part[1:-1] for part in path.split("/") if part.startswith("{")}

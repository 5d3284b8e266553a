"""The OpenAPI document of the control API is true of a running server, whatever is sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from interlingua.control import app
from interlingua.control.openapi import document
from tests.kit.examples import share

from .agents import serve

# The server is a thread of this process, and draws random numbers while hypothesis draws an example.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")

DOCUMENT = document(app.OPERATIONS, "/api/v1")
OPERATIONS = {
    operation["operationId"]: (method, path)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


class Fuzzed:
    """A server in a thread of its own, and things on it to be fuzzed."""

    def __init__(self, address: str) -> None:
        self.base = address + "/api/v1"
        self.http = httpx2.Client(base_url=self.base, timeout=20)

    def made(self, path: str, body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def ids(self, path: str) -> dict[str, str]:
        """Something that is there, for each of the path's parameters."""
        found = {}
        if "{agent}" in path:
            found["agent"] = "echo"
        if "{thread}" in path:
            found["thread"] = self.made("/threads", {"metadata": {"a": 1}})["id"]
        if "{run}" in path:
            found["run"] = self.made("/runs", {"agent": "asker", "input": "it"})["id"]
        if "{question}" in path:
            run = self.made("/runs", {"agent": "asker", "input": "it"})["id"]
            found["question"] = self.http.get(f"/runs/{run}/wait").json()["questions"][0]["id"]
        return found


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    store = tmp_path_factory.mktemp("fuzzed") / "store.db"
    up, address, stop = threading.Event(), list[str](), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def stay() -> None:
        async with serve(store) as server:
            address.append(server.address)
            up.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(stay())
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


def _tamed(case: Any) -> None:
    """So that nothing waits for long and nothing runs for ever; the rest stays as it was made up.

    A path with a line break is below no prefix: starlette's routes do not match it, so the server itself answers.
    """
    if case.path_parameters:
        case.path_parameters = {name: value.replace("%0A", "") for name, value in case.path_parameters.items()}
    if case.operation.path.endswith("/wait"):
        case.query = {**(case.query or {}), "timeout": 0.01}
    if isinstance(case.body, dict) and case.operation.path == "/runs" and "agent" in case.body:
        case.body["agent"] = "echo"


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_the_document_is_true_whatever_is_sent(fuzzed: Fuzzed, name: str) -> None:
    method, path = OPERATIONS[name]
    operation = SCHEMA[path][method.upper()]
    kinds = [GenerationMode.POSITIVE]
    if DOCUMENT["paths"][path][method]["parameters"] or "requestBody" in DOCUMENT["paths"][path][method]:
        kinds.append(GenerationMode.NEGATIVE)

    @settings(
        max_examples=share(20), derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(data=st.data())
    def fuzz(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=data.draw(st.sampled_from(kinds))))
        if data.draw(st.booleans()):
            case.path_parameters = {**(case.path_parameters or {}), **fuzzed.ids(path)}
        _tamed(case)
        response = case.call(base_url=fuzzed.base, timeout=20)
        case.validate_response(response, checks=CHECKS)

    fuzz()
    assert fuzzed.http.get("/me").status_code == 200

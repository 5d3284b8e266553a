"""Checks operations for which the text gives no address: they are found in the server's own OpenAPI document.

A server without such a document, or without such an operation in it, may still have them: no check can tell.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from interlingua.transports.raw_client import Answer, Http

from ...base import Broken, applies, expect, member, shown
from ...remembering import once
from ...sample import sample
from ..driver import Driver, Json, answered, at, output_of, suite
from .runs import succeeded

_KINDS = ("apiKey", "http", "mutualTLS", "oauth2", "openIdConnect")
_SHORT = 1  # seconds


@once
async def document(d: Driver) -> Json:
    """The server's own OpenAPI document."""
    agent = (await d.agent()).id
    for path in ("/openapi.json", at("agents", agent, "openapi")):
        answer = await d.http.ask("GET", path)
        if answer.status == 200 and answer.media_type.endswith("json"):
            told = answer.json()
            if isinstance(told, dict) and isinstance(told.get("paths"), dict):
                return told
    applies(False, "the server has no OpenAPI document of itself that would tell where this is")
    raise AssertionError


def _operations(told: Json, method: str) -> dict[str, Json]:
    return {
        path: operations[method]
        for path, operations in told["paths"].items()
        if isinstance(operations, dict) and isinstance(operations.get(method), dict)
    }


async def _path(d: Driver, method: str, word: str, *, of_agent: bool) -> tuple[str, Json]:
    """The operation that has a word in its path, alone or of an agent."""
    for path, operation in sorted(_operations(await document(d), method).items(), key=lambda found: len(found[0])):
        steps = [step for step in path.split("/") if step]
        holes = [step for step in steps if step.startswith("{")]
        if word in steps[-1] and not steps[-1].startswith("{") and len(holes) == of_agent:
            agent = (await d.agent()).id
            return "".join(at(agent if step in holes else step) for step in steps), operation
    applies(False, f"the server's OpenAPI document has no operation for this ({method.upper()} …{word}…)")
    raise AssertionError


# -- authentication -------------------------------------------------------------------------------------------


@once
async def strange(d: Driver) -> tuple[Answer, Answer, Answer]:
    """Returns the answers to requests without credentials and with wrong ones, and the OpenAPI document without any."""
    applies(d.subject.headers, "no credentials were given (--header), so that nobody is refused who lacks them")
    nobody = msgspec.structs.replace(d.subject, headers={})
    wrong = msgspec.structs.replace(d.subject, headers=dict.fromkeys(d.subject.headers, "wrong"))
    body = await d.request()
    async with Http(nobody) as without, Http(wrong) as other:
        return (
            await without.ask("POST", "/runs", body),
            await other.ask("POST", "/runs", body),
            await without.ask("GET", "/openapi.json"),
        )


def _inside(value: Any, *steps: str) -> Any:
    """Returns the value at these steps of a document; an empty object if there is none."""
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return {} if value is None else value


def _schemes(told: Any) -> list[Json]:
    found = _inside(told, "components", "securitySchemes")
    return [scheme for scheme in found.values() if isinstance(scheme, dict)] if isinstance(found, dict) else []


@suite.check("connect.auth.authenticate-caller", "connect.requirements.authentication")
async def nobody_runs_an_agent_without_credentials(d: Driver) -> None:
    for who, answer in zip(("without", "with wrong"), (await strange(d))[:2], strict=True):
        expect(answer.status in (401, 403), answered(f"POST /runs {who} credentials", answer))
    await succeeded(d)


@suite.check("connect.auth.scheme-endpoint")
async def there_is_an_endpoint_that_tells_the_scheme(d: Driver) -> None:
    await strange(d)
    expect(_schemes(await document(d)), "the server's OpenAPI document has no securitySchemes")


@suite.check("connect.auth.scheme-endpoint-open")
async def the_scheme_is_told_to_whoever_asks(d: Driver) -> None:
    _, _, answer = await strange(d)
    applies(_schemes(await document(d)), "the server's OpenAPI document has no securitySchemes")
    expect(answer.status == 200, answered("GET /openapi.json without credentials", answer))
    expect(_schemes(answer.json()), "the OpenAPI document has no securitySchemes for whoever has no credentials")


@suite.check("connect.auth.agent-declares-scheme")
async def whoever_is_refused_learns_how_to_authenticate(d: Driver) -> None:
    answer, _, _ = await strange(d)
    told = answer.headers.get("www-authenticate") or _schemes(await document(d))
    expect(told, "neither WWW-Authenticate nor the server's OpenAPI document tells the scheme")


@suite.check("connect.auth.allowed-schemes")
async def every_scheme_is_of_a_known_kind(d: Driver) -> None:
    await strange(d)
    schemes = _schemes(await document(d))
    applies(schemes, "the server's OpenAPI document has no securitySchemes")
    for scheme in schemes:
        expect(scheme.get("type") in _KINDS, f"a scheme is of none of the kinds {', '.join(_KINDS)}: {shown(scheme)}")


# -- configured instances -------------------------------------------------------------------------------------


@once
async def configured(d: Driver) -> Json:
    """The answer to a configuration of the agent."""
    path, operation = await _path(d, "post", "config", of_agent=True)
    return member(await d.told("POST", path, await _given(d, operation)), "", dict, f"the answer to POST {path}")


_BODY = ("requestBody", "content", "application/json", "schema")


async def _given(d: Driver, operation: Json) -> Any:
    """A body that the operation takes, by the server's OpenAPI document."""
    try:
        return sample(_inside(operation, *_BODY), await document(d))
    except (AttributeError, KeyError, TypeError):
        raise Broken(f"the body of an operation is no schema: {shown(_inside(operation, *_BODY))}") from None


@once
async def instance(d: Driver) -> tuple[str, str]:
    """The member that has the identifier of the configured instance, and that identifier."""
    told = await configured(d)
    agent = (await d.agent()).id
    named = {key: value for key, value in told.items() if key.endswith("id") and isinstance(value, str)}
    ours = [(key, value) for key, value in named.items() if value != agent]
    expect(ours, f"the answer to a configuration has no identifier: {shown(told)}")
    return ours[0]


@once
async def instance_runs(d: Driver) -> list[Any]:
    """Two runs of the configured instance: under the name of its identifier, or as the agent."""
    key, value = await instance(d)
    told = await document(d)
    schema = _inside(told, "paths", "/runs", "post", *_BODY)
    name = str(_inside(schema, "$ref")).rpartition("/")[2]
    taken = _inside(schema, "properties") or _inside(told, "components", "schemas", name, "properties")
    body = {**await d.request(), key if key in taken else "agent_id": value}
    return [await d.told("POST", "/runs/wait", body) for _ in range(2)]


@suite.check("connect.configuration.endpoint")
async def an_agent_is_configured_at_an_endpoint(d: Driver) -> None:
    await configured(d)


@suite.check("connect.configuration.endpoint-distinct")
async def configuring_is_not_running(d: Driver) -> None:
    told = await configured(d)
    expect("run_id" not in told, f"configuring an agent makes a run: {shown(told)}")


@suite.check("connect.configuration.returns-identifier")
async def configuring_gives_an_identifier(d: Driver) -> None:
    _, first = await instance(d)
    path, operation = await _path(d, "post", "config", of_agent=True)
    again = member(await d.told("POST", path, await _given(d, operation)), "", dict, f"the answer to POST {path}")
    expect(first not in again.values(), f"two instances have the identifier {first}")


@suite.check("connect.invocation.configured-instance")
async def an_instance_is_run_by_its_identifier(d: Driver) -> None:
    output = output_of((await instance_runs(d))[0], "a run of a configured instance")
    expect(output.get("type") == "result", f"the output of a configured instance is {shown(output)}")


@suite.check("connect.configuration.identifier-reusable", "connect.configuration.several-invocations")
async def an_instance_is_run_more_than_once(d: Driver) -> None:
    outputs = [output_of(told, "a run of a configured instance") for told in await instance_runs(d)]
    told = [output.get("type") for output in outputs]
    expect(told == ["result", "result"], f"the outputs of a configured instance, run twice, are {shown(outputs)}")


@suite.check("connect.configuration.error")
async def a_configuration_that_does_not_fit_is_refused_with_a_text(d: Driver) -> None:
    path, _ = await _path(d, "post", "config", of_agent=True)
    answer = await d.ask("POST", path, {"config": ["no", "such", "configuration"]})
    applies(answer.status >= 400, "the server takes any configuration")
    expect(answer.status < 500 and answer.body, answered(f"POST {path} of what does not fit", answer))


# -- definitions of errors ------------------------------------------------------------------------------------


async def _table(d: Driver, *, of_agent: bool) -> list[Json]:
    path, _ = await _path(d, "get", "error", of_agent=of_agent)
    return await d.listed("GET", path)


def _members(entry: Json, *words: str) -> list[Any]:
    return [value for key, value in entry.items() if any(word in key.lower() for word in words)]


@suite.check("connect.errors.code", "connect.errors.description")
async def a_definition_has_a_code_and_a_description(d: Driver) -> None:
    for entry in await _table(d, of_agent=False):
        expect(
            any(isinstance(v, int | str) for v in _members(entry, "code")), f"a definition has no code: {shown(entry)}"
        )
        texts = [v for v in _members(entry, "descr", "message", "text") if isinstance(v, str) and v]
        expect(texts, f"a definition has no description: {shown(entry)}")


@suite.check("connect.errors.transient-flag")
async def a_definition_tells_transient_from_permanent(d: Driver) -> None:
    for entry in await _table(d, of_agent=False):
        flags = [v for v in _members(entry, "transient", "permanent", "retr") if isinstance(v, bool)]
        expect(flags, f"a definition does not tell whether the error is transient: {shown(entry)}")


@suite.check("connect.errors.info-schema")
async def the_details_of_an_error_are_described_by_a_schema(d: Driver) -> None:
    entries = [*await _table(d, of_agent=False), *await _table(d, of_agent=True)]
    given = [v for entry in entries for v in _members(entry, "detail", "info", "schema", "data") if v is not None]
    applies(given, "no error has details")
    for schema in given:
        expect(isinstance(schema, dict), f"the schema of the details of an error is {shown(schema)}")


@suite.check("connect.errors.agent-specific-endpoint")
async def there_is_an_endpoint_for_the_errors_of_an_agent(d: Driver) -> None:
    await _table(d, of_agent=True)


@suite.check("connect.errors.agent-specific")
async def an_agent_has_errors_of_its_own(d: Driver) -> None:
    entries = await _table(d, of_agent=True)
    applies(entries, "the agent defines no errors of its own")
    for entry in entries:
        expect(_members(entry, "code"), f"a definition has no code: {shown(entry)}")


# -- a wait that gives up -------------------------------------------------------------------------------------


@suite.check("connect.runs.wait-timeout")
async def a_wait_whose_time_is_over_has_no_content(d: Driver) -> None:
    operation = _operations(await document(d), "get").get("/runs/{run_id}/wait", {})
    names = [name for name in _parameters(operation, await document(d)) if "timeout" in name]
    applies(names, "the wait endpoint takes no timeout, says the server's OpenAPI document")
    run = await d.start("slow")
    path = at("runs", run, "wait") + f"?{names[0]}={_SHORT}"
    try:
        async with asyncio.timeout(_SHORT + d.patience):
            answer = await d.ask("GET", path)
    finally:
        await d.stop(run)
    expect(answer.status == 204, answered(f"GET {path} of a run that goes on", answer))


def _parameters(operation: Json, told: Json) -> list[str]:
    """The query parameters of an operation, by name."""
    found = []
    listed = operation.get("parameters")
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and isinstance(reference := entry.get("$ref"), str):
            entry = _inside(told, "components", "parameters", reference.rpartition("/")[2])
        if isinstance(entry, dict) and entry.get("in") == "query" and isinstance(entry.get("name"), str):
            found.append(entry["name"])
    return found

"""Listing agents: the request, the answer, and what an agent is listed with."""

from __future__ import annotations

from typing import Any

from ...base import Broken, Gone, NotApplicable, applies, expect, member, shown
from ...schemas import compiled
from ..driver import Driver, check, ended, listed, plain
from ..links import Message
from ..talk import INVALID_PARAMS, METHOD_NOT_FOUND, same


async def items(d: Driver) -> list[Message]:
    """The agents that are listed, as far as they are objects."""
    try:
        found = await listed(d)
    except (Broken, Gone) as error:
        raise NotApplicable(f"the agents cannot be listed: {error}") from None
    applies(found, "the server lists no agents")
    return [item for item in found if isinstance(item, dict)]


def titled(item: Message) -> str:
    """Returns the name of an agent for a report; without a name, the entry itself."""
    name = item.get("name")
    return name if isinstance(name, str) and name else shown(item, 60)


@check("mcp.listing.method", calm=True)
async def agents_are_listed(d: Driver) -> None:
    client = await d.client()
    answer = await client.answer("agents/list", {})
    if "error" in answer and not client.modern:
        answer = await client.answer("agents/list")
    expect("error" not in answer, f"agents/list was answered with an error: {shown(answer.get('error'))}")


@check("mcp.listing.params-empty", calm=True)
async def params_may_be_empty(d: Driver) -> None:
    """Sends empty params. In the revision without a handshake, they hold only the members that every request has."""
    client = await d.client()
    answer = await client.answer("agents/list", {})
    error = answer.get("error")
    applies(error is None or error["code"] != METHOD_NOT_FOUND, f"there is no agents/list: {shown(error)}")
    expect(error is None, f"agents/list with params {{}} is refused: {shown(error)}")


@check("mcp.listing.response-id", calm=True)
async def the_answer_has_the_id(d: Driver) -> None:
    client = await d.client()
    for id_ in (1_000_001, "a list"):
        answer = await client.answer("agents/list", {}, id_)
        carries(answer, id_, "agents/list")


def carries(answer: Message, id_: Any, what: str) -> None:
    """An answer is one of JSON-RPC 2.0, to this request."""
    expect(answer.get("jsonrpc") == "2.0", f"jsonrpc of the answer to {what} is not 2.0: {shown(answer)}")
    expect("id" in answer, f"the answer to {what} has no id: {shown(answer)}")
    expect(
        same(answer["id"], id_), f"the answer to {what} with the id {shown([id_])[1:-1]} has another: {shown(answer)}"
    )


@check("mcp.listing.result-agents", calm=True)
async def the_result_has_agents(d: Driver) -> None:
    for item in await listed(d):
        expect(isinstance(item, dict), f"an entry of agents is no object: {shown(item)}")


@check("mcp.listing.agent-name")
async def agents_have_names_that_run_them(d: Driver) -> None:
    names = [member(item, "name", str, "a listed agent") for item in await items(d)]
    expect(all(names), "the name of a listed agent is empty")
    twice = {name for name in names if names.count(name) > 1}
    expect(not twice, f"several agents are listed under one name: {', '.join(sorted(twice))}")
    answer = (await plain(d)).answer
    error = answer.get("error")
    if error is not None and error["code"] in (INVALID_PARAMS, METHOD_NOT_FOUND):
        raise Broken(f"agents/run does not take the listed name {(await d.agent()).name}: {shown(error)}")


@check("mcp.listing.agent-description", calm=True)
async def agents_are_described(d: Driver) -> None:
    """The document has it in its example alone, and the published SDKs leave it out where there is none."""
    found = await items(d)
    for item in found:
        if "description" in item:
            text = member(item, "description", str, f"the agent {titled(item)}")
            expect(text.strip(), f"the description of {titled(item)} is empty")
    without = [titled(item) for item in found if "description" not in item]
    applies(not without, f"there are agents without a description: {', '.join(without[:10])}")


@check("mcp.listing.agent-input-schema", calm=True)
async def agents_have_input_schemas(d: Driver) -> None:
    for item in await items(d):
        is_schema(item, "inputSchema")


@check("mcp.listing.agent-output-schema", calm=True)
async def agents_have_output_schemas(d: Driver) -> None:
    for item in await items(d):
        is_schema(item, "outputSchema")


def is_schema(item: Message, name: str) -> Message:
    where = f"the agent {titled(item)}"
    schema = member(item, name, dict, where)
    expect(schema.get("type") == "object", f"{name} of {where} is not of type object: {shown(schema)}")
    compiled(schema, f"{name} of {where}")
    return schema


@check("mcp.listing.schema-properties")
async def schemas_tell_their_properties(d: Driver) -> None:
    told = [_tells(item, name) for item in await items(d) for name in ("inputSchema", "outputSchema")]
    applies(any(told), "no listed agent has a schema with properties")
    agent = await d.agent()
    schema = agent.item.get("outputSchema")
    if isinstance(schema, dict) and _OPEN.isdisjoint(schema):
        unknown = set((await ended(d)).output()) - set(schema.get("properties", {}))
        expect(
            not unknown, f"the output of {agent.name} has members that its outputSchema lacks: {shown(sorted(unknown))}"
        )


_OPEN = {"additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "allOf", "anyOf", "oneOf"}
"""With one of these, a schema may say elsewhere what there is."""


def _tells(item: Message, name: str) -> bool:
    """Returns whether a schema describes properties. Raises Broken if it does so in a wrong way."""
    schema, where = item.get(name), f"{name} of the agent {titled(item)}"
    if not isinstance(schema, dict):
        return False
    properties = member(schema, "properties", dict, where) if "properties" in schema else {}
    for entry in properties.values():
        expect(isinstance(entry, dict | bool), f"a property in {where} is no schema: {shown(schema)}")
    for required in member(schema, "required", list, where) if "required" in schema else ():
        expect(isinstance(required, str), f"required of {where} holds something else than names: {shown(schema)}")
        expect(
            required in properties or not _OPEN.isdisjoint(schema),
            f"{where} requires {shown(required)}, which is not among its properties: {shown(schema)}",
        )
    return bool(properties)


@check("mcp.listing.example-gpa", calm=True)
async def gpa_is_listed_as_in_the_example(d: Driver) -> None:
    found = [item for item in await items(d) if item.get("name") == "gpa"]
    applies(found, "there is no agent gpa")
    where = "the agent gpa"
    for name in ("inputSchema", "outputSchema"):
        schema = member(found[0], name, dict, where)
        properties = schema.get("properties")
        alike = isinstance(properties, dict) and set(properties) == {"text"} and schema.get("required") == ["text"]
        applies(alike, f"{name} of gpa is another than that of the example: {shown(schema)}")
        kind = member(properties, "text.type", str, f"{name} of gpa")
        expect(kind == "string", f"the type of text in {name} of gpa is {kind}, not string")
        expect(schema.get("type") == "object", f"{name} of gpa is not of type object: {shown(schema)}")
    member(found[0], "description", str, where)

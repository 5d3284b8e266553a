"""Configurations that come with a run: taken, and gone with it."""

from __future__ import annotations

from typing import Any

from ...base import NotApplicable, applies, expect, member, shown
from ...remembering import once
from ...rows import Played, add
from ...sample import sample
from ...schemas import compiled
from ..driver import Driver, answered, output_of, result_of, suite
from .runs import created, succeeded

_TRIES = 4  # configurations that are tried until one shows


async def _schema(d: Driver) -> dict[str, Any]:
    schema = member(await d.specs(), "config", dict, "specs")
    compiled(schema, "the configuration")
    return schema


@once
async def spelled(d: Driver) -> str:
    """Returns the member of `config` that holds a configuration: `configurable` in the OpenAPI document, none in the
    text."""
    await succeeded(d)
    config = sample(await _schema(d))
    answer = await d.ask("POST", "/runs", await d.request(config={"configurable": config}))
    if answer.status != 200:
        bare = await d.ask("POST", "/runs", await d.request(config=config))
        expect(bare.status == 200, answered(f"POST /runs with the config {shown(config)}", answer))
        return ""
    return "configurable"


async def _said(d: Driver, config: Any = None) -> Any:
    """Returns the result of the agent, with a configuration or without; NotImplemented if it has none."""
    body = await d.request()
    if config is not None:
        body["config"] = {"configurable": config} if await spelled(d) else config
    told = await d.told("POST", "/runs/wait", body)
    output = output_of(told, "POST /runs/wait")
    return result_of(output) if output.get("type") == "result" else NotImplemented


def _others(schema: dict[str, Any]) -> list[Any]:
    """Configurations that differ from the usual one in a member that has few values."""
    found = []
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        if not isinstance(inner, dict):
            continue
        choices = inner.get("enum", [True, False] if inner.get("type") == "boolean" else [])
        choices = choices if isinstance(choices, list) else []
        found += [{**_required(schema), name: choice} for choice in choices if choice != inner.get("default")]
    return found[:_TRIES]


def _required(schema: dict[str, Any]) -> dict[str, Any]:
    if not schema.get("required"):
        return {}
    usual = sample(schema)
    return usual if isinstance(usual, dict) else {}


@once
async def flavoured(d: Driver) -> tuple[Any, Any]:
    """Returns the result of the agent without a configuration before and after a run with one that changed the
    result."""
    others = _others(await _schema(d))
    applies(others, "the agent's configuration has no member of which the values are told")
    plain = await _said(d)
    applies(plain is not NotImplemented and await _said(d) == plain, "the agent does not say the same thing twice")
    for config in others:
        said = await _said(d, config)
        if said is not NotImplemented and said != plain:
            return plain, await _said(d)
    raise NotApplicable(f"no configuration of {shown(others)} shows in what the agent says")


@suite.check(
    "connect.runs.config", "connect.configuration.invocation-option", "connect.invocation.config",
    "connect.requirements.configuration",
)  # fmt: skip
async def a_run_takes_a_configuration_or_none(d: Driver) -> None:
    await created(d)
    await spelled(d)


add(
    suite,
    Played("connect.configuration.agent-may-support", succeeded),
    Played("connect.configuration.purpose", flavoured),
)


@suite.check("connect.configuration.invocation-only", "connect.invocation.config-scope")
async def a_configuration_is_gone_with_its_run(d: Driver) -> None:
    before, after = await flavoured(d)
    expect(
        before == after,
        f"a run without a configuration says {shown(after)} after one that had one, {shown(before)} before",
    )

"""Checks the manifests that a server lists of its agents: a manifest that it lists is one that it has not refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from ...base import applies, expect, member, shown
from ..driver import Driver, manifests, suite
from ..scenes import talks
from ..wires import Json

_ID = re.compile(r"[A-Za-z0-9_-]+")
REQUIRED = ("id", "system_prompt", "allowed_agents", "delegate_rules", "mcp_bindings")


async def _listed(d: Driver) -> list[Json]:
    found = await manifests(d)
    applies(found, "the server lists no agents")
    return found


def _what(told: Json) -> str:
    return f"the manifest of {shown(told['id'])}" if isinstance(told.get("id"), str) else "a manifest"


@suite.check("cap.schema.json-manifest", "cap.schema.is-object", calm=True)
async def a_manifest_is_an_object(d: Driver) -> None:
    listed = await d.wire.agents()
    applies(listed, "the server lists no agents")
    for told in listed:
        expect(isinstance(told, dict), f"a manifest is {shown(told)}, not an object")


@suite.check("cap.overview.roles", calm=True)
async def an_agent_is_told_by_its_definition(d: Driver) -> None:
    for told in await _listed(d):
        missing = [name for name in REQUIRED if name not in told]
        expect(not missing, f"{_what(told)} has no {', '.join(missing)}: {shown(told)}")


@suite.check("cap.definition.unique-id", "cap.schema.id-unique", calm=True)
async def an_id_is_that_of_one_agent(d: Driver) -> None:
    ids = Counter(told["id"] for told in await _listed(d) if isinstance(told.get("id"), str))
    twice = [id_ for id_, count in ids.items() if count > 1]
    expect(not twice, f"several agents have the id {', '.join(twice)}")


def _required(name: str) -> None:
    @suite.check(f"cap.schema.{name.replace('_', '-')}-required", calm=True)
    async def a_manifest_has_it(d: Driver) -> None:
        for told in await _listed(d):
            expect(name in told, f"{_what(told)} has no {name}: {shown(told)}")


for _name in REQUIRED:
    _required(_name)


def _texts(value: Any, what: str, name: str) -> None:
    expect(isinstance(value, list), f"the {name} of {what} is {shown(value)}, not an array")
    for one in value:
        expect(isinstance(one, str), f"the {name} of {what} has {shown(one)}, which is no string: {shown(value)}")


def _of_kind(requirement: str, name: str, right: Callable[[Any], bool], kind: str) -> None:
    @suite.check(requirement, calm=True)
    async def it_is_of_that_kind(d: Driver) -> None:
        has = [told for told in await _listed(d) if name in told]
        applies(has, f"no manifest has {name}")
        for told in has:
            expect(right(told[name]), f"the {name} of {_what(told)} is {shown(told[name])}, not {kind}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_of_kind("cap.schema.id-string", "id", _is_text, "a string")
_of_kind("cap.schema.system-prompt-string", "system_prompt", _is_text, "a string")
_of_kind("cap.schema.delegate-rules-object", "delegate_rules", lambda value: isinstance(value, dict), "an object")
_of_kind("cap.schema.overseer-string-or-null", "overseer", lambda value: value is None or _is_text(value), "a string")
_of_kind(
    "cap.schema.bindings-array", "mcp_bindings",
    lambda value: isinstance(value, list) and all(isinstance(one, dict) for one in value), "an array of objects",
)  # fmt: skip


@suite.check("cap.schema.allowed-agents-strings", calm=True)
async def allowed_agents_are_texts(d: Driver) -> None:
    for told in await _listed(d):
        if "allowed_agents" in told:
            _texts(told["allowed_agents"], _what(told), "allowed_agents")


# -- rules ----------------------------------------------------------------------------------------------------


async def _rules(d: Driver) -> list[tuple[Json, str, Any]]:
    """Returns every rule of the manifests, with the agent that it is for."""
    found = [
        (told, agent, rule)
        for told in await _listed(d)
        if isinstance(told.get("delegate_rules"), dict)
        for agent, rule in told["delegate_rules"].items()
        if _ID.fullmatch(agent)  # the schema defines no other keys
    ]
    applies(found, "no manifest that is listed has a rule")
    return found


@suite.check("cap.schema.delegate-rules-pattern", calm=True)
async def a_rule_is_an_object(d: Driver) -> None:
    for told, agent, rule in await _rules(d):
        expect(isinstance(rule, dict), f"the rule of {_what(told)} for {agent} is {shown(rule)}, not an object")


@suite.check("cap.schema.when-to-delegate-required", calm=True)
async def a_rule_has_its_condition(d: Driver) -> None:
    for told, agent, rule in await _rules(d):
        if isinstance(rule, dict):
            expect("when_to_delegate" in rule, f"the rule of {_what(told)} for {agent} has no when_to_delegate")


@suite.check("cap.schema.when-to-delegate-string", "cap.definition.delegate-rules", calm=True)
async def a_condition_is_a_text(d: Driver) -> None:
    for told, agent, rule in await _rules(d):
        if isinstance(rule, dict) and "when_to_delegate" in rule:
            member(rule, "when_to_delegate", str, f"the rule of {_what(told)} for {agent}")


@suite.check("cap.schema.delegate-rules-keys", calm=True)
async def rules_are_for_agents_that_are_allowed(d: Driver) -> None:
    for told, agent, _ in await _rules(d):
        allowed = told.get("allowed_agents")
        if isinstance(allowed, list):
            expect(agent in allowed, f"{_what(told)} has a rule for {agent}; its allowed_agents are {shown(allowed)}")


# -- overseers ------------------------------------------------------------------------------------------------


@suite.check("cap.definition.overseer", calm=True)
async def an_overseer_is_named(d: Driver) -> None:
    named = [told for told in await _listed(d) if told.get("overseer") is not None]
    applies(named, "no agent that is listed has an overseer")
    for told in named:
        overseer = member(told, "overseer", str, _what(told))
        expect(overseer and overseer != told.get("id"), f"{_what(told)} names {shown(overseer)} as its overseer")


@suite.check("cap.schema.overseer-optional")
async def an_overseer_may_be_left_out(d: Driver) -> None:
    without = [told.get("id") for told in await _listed(d) if told.get("overseer") is None]
    played = [talk for talk in await talks(d) if talk.agent in without]
    applies(played, "every agent that was run has an overseer")
    for talk in played:
        refused = talk.refusal and talk.refusal.how
        expect(talk.refusal is None, f"{talk.agent} has no overseer, and is given no task: {refused}")


# -- bindings -------------------------------------------------------------------------------------------------


async def _bindings(d: Driver) -> list[tuple[str, Json]]:
    found = [
        (f"a binding of {_what(told)}", binding)
        for told in await _listed(d)
        if isinstance(told.get("mcp_bindings"), list)
        for binding in told["mcp_bindings"]
        if isinstance(binding, dict)
    ]
    applies(found, "no manifest that is listed has a binding")
    return found


def _binding(name: str, *, texts: bool) -> None:
    dashed = name.replace("_", "-")

    @suite.check(f"cap.schema.binding-{dashed}-required", calm=True)
    async def a_binding_has_it(d: Driver) -> None:
        for what, binding in await _bindings(d):
            expect(name in binding, f"{what} has no {name}: {shown(binding)}")

    @suite.check(f"cap.schema.binding-{dashed}-{'strings' if texts else 'string'}", calm=True)
    async def it_is_of_its_kind(d: Driver) -> None:
        for what, binding in await _bindings(d):
            if name in binding and texts:
                _texts(binding[name], what, name)
            elif name in binding:
                member(binding, name, str, what)


_binding("server_id", texts=False)
_binding("scopes", texts=True)
_binding("allowed_tools", texts=True)


@suite.check("cap.schema.binding-description", calm=True)
async def the_description_of_a_binding_is_a_text(d: Driver) -> None:
    described = [(what, binding) for what, binding in await _bindings(d) if "description" in binding]
    applies(described, "no binding has a description")
    for what, binding in described:
        member(binding, "description", str, what)

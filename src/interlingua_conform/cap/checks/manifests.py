"""Checks the manifests that a server lists of its agents: a manifest that it lists is one that it has not refused."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec

from ...base import applies, expect, member, shown
from ...rows import Row, Source, add
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


async def _entries(d: Driver) -> list[Any]:
    listed = await d.wire.agents()
    applies(listed, "the server lists no agents")
    return listed


_MANIFEST = Source(_listed, _what, each=True)
add(
    suite,
    Row("cap.schema.json-manifest cap.schema.is-object", Source(_entries, "a manifest", each=True), kind=dict),
    Row("cap.overview.roles", _MANIFEST, has=REQUIRED),
    *(Row(f"cap.schema.{name.replace('_', '-')}-required", _MANIFEST, name) for name in REQUIRED),
    Row("cap.schema.id-string", _MANIFEST, "id", str, optional=True),
    Row("cap.schema.system-prompt-string", _MANIFEST, "system_prompt", str, optional=True),
    Row("cap.schema.delegate-rules-object", _MANIFEST, "delegate_rules", dict, optional=True),
    Row("cap.schema.overseer-string-or-null", _MANIFEST, "overseer", str, optional=True, null=True),
    Row("cap.schema.bindings-array", _MANIFEST, "mcp_bindings", list, items=dict, optional=True),
    Row("cap.schema.allowed-agents-strings", _MANIFEST, "allowed_agents", list, items=str, optional=True),
    calm=True,
)


@suite.check("cap.definition.unique-id", "cap.schema.id-unique", calm=True)
async def an_id_is_that_of_one_agent(d: Driver) -> None:
    ids = Counter(told["id"] for told in await _listed(d) if isinstance(told.get("id"), str))
    twice = [id_ for id_, count in ids.items() if count > 1]
    expect(not twice, f"several agents have the id {', '.join(twice)}")


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


async def _objects(d: Driver) -> list[tuple[Json, str, Any]]:
    return [rule for rule in await _rules(d) if isinstance(rule[2], dict)]


_RULE = Source(
    _rules, lambda rule: f"the rule of {_what(rule[0])} for {rule[1]}", each=True, value=lambda rule: rule[2]
)
_RULE_OBJECT = msgspec.structs.replace(_RULE, play=_objects)
add(
    suite,
    Row("cap.schema.delegate-rules-pattern", _RULE, kind=dict),
    Row("cap.schema.when-to-delegate-required", _RULE_OBJECT, "when_to_delegate"),
    Row(
        "cap.schema.when-to-delegate-string cap.definition.delegate-rules", _RULE_OBJECT, "when_to_delegate", str,
        optional=True,
    ),
    calm=True,
)  # fmt: skip


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


_BINDING = Source(_bindings, lambda pair: pair[0], each=True, value=lambda pair: pair[1])
add(
    suite,
    *(
        Row(f"cap.schema.binding-{name.replace('_', '-')}-required", _BINDING, name)
        for name in ("server_id", "scopes", "allowed_tools")
    ),
    Row("cap.schema.binding-server-id-string", _BINDING, "server_id", str, optional=True),
    Row("cap.schema.binding-scopes-strings", _BINDING, "scopes", list, items=str, optional=True),
    Row("cap.schema.binding-allowed-tools-strings", _BINDING, "allowed_tools", list, items=str, optional=True),
    Row("cap.schema.binding-description", _BINDING, "description", str, optional=True),
    calm=True,
)

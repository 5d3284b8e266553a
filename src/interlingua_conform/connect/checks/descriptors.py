"""Checks descriptors: the identity of the agent, its capabilities, and the formats that it speaks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from ...base import applies, expect, member, shown
from ...remembering import once
from ...rows import Row, Source, add
from ...schemas import compiled
from ..driver import Agent, Driver, capabilities, descriptor, every_agent, suite

_MAY: dict[str, Any] = {"optional": True, "null": True}
_MANY = 50  # descriptors that are looked at, of a server with more agents than that


@once
async def described(d: Driver) -> list[tuple[Agent, dict[str, Any]]]:
    """Agents with their descriptors."""
    found = [(agent, await descriptor(d, agent.id)) for agent in (await every_agent(d))[:_MANY]]
    applies(found, "the server has no agents")
    return found


@once
async def all_specs(d: Driver) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"the descriptor of {agent.name}", member(told, "specs", dict, f"the descriptor of {agent.name}"))
        for agent, told in await described(d)
    ]


# -- who it is ------------------------------------------------------------------------------------------------


def _schema(value: Any, where: str) -> None:
    compiled(value, where)


def _modes(streaming: Any, where: str) -> None:
    for mode in ("values", "custom"):
        if streaming.get(mode) is not None:
            member(streaming, mode, bool, where)


_DESCRIPTOR = Source(described, lambda pair: f"the descriptor of {pair[0].name}", each=True, value=lambda pair: pair[1])
_SPECS = Source(all_specs, lambda pair: f"specs of {pair[0]}", each=True, value=lambda pair: pair[1])
_CONSUMED = (
    "connect.descriptor.consume connect.agents.descriptor-use connect.requirements.schemas "
    "connect.schemas.agent-provides"
)
add(
    suite,
    Row("connect.metadata.ref-name", _DESCRIPTOR, "metadata.ref.name", str, filled=True),
    Row("connect.metadata.ref-version", _DESCRIPTOR, "metadata.ref.version", str, filled=True),
    Row("connect.metadata.description", _DESCRIPTOR, "metadata.description", str),
    Row(
        "connect.descriptor.capabilities connect.specs.capabilities connect.requirements.capabilities "
        "connect.schemas.capabilities-endpoint", _SPECS, "capabilities", dict,
    ),
    # A capability that is missing is false.
    Row("connect.specs.capability-threads connect.threads.signalled", _SPECS, "capabilities.threads", bool, **_MAY),
    Row("connect.specs.capability-interrupts", _SPECS, "capabilities.interrupts", bool, **_MAY),
    Row(
        "connect.specs.capability-callbacks connect.callbacks.signalled", _SPECS, "capabilities.callbacks", bool, **_MAY
    ),
    Row("connect.specs.capability-streaming", _SPECS, "capabilities.streaming", dict, fits=_modes, **_MAY),
    Row(
        "connect.specs.config connect.schemas.endpoint-config connect.configuration.schema",
        _SPECS, "config", dict, fits=_schema,
    ),
    Row(
        "connect.specs.input connect.schemas.endpoint-input connect.invocation.input-schema",
        _SPECS, "input", dict, fits=_schema,
    ),
    Row("connect.specs.output connect.schemas.endpoint-output", _SPECS, "output", dict, fits=_schema),
    *(Row(_CONSUMED, _SPECS, name, dict, fits=_schema) for name in ("config", "input", "output")),
    Row(_CONSUMED, _SPECS, "capabilities", dict),
    calm=True,
)  # fmt: skip


@suite.check("connect.descriptor.identifies", "connect.metadata.identification", calm=True)
async def a_descriptor_says_whose_it_is(d: Driver) -> None:
    for agent, told in await described(d):
        where = f"the descriptor of {agent.name}"
        for name in ("name", "version"):
            here = member(told, f"metadata.ref.{name}", str, where)
            there = member(agent.item, f"metadata.ref.{name}", str, f"{agent.name} in the search")
            expect(here == there, f"{where} has the {name} {here}, and the search has {there}")


@suite.check("connect.metadata.ref-url", calm=True)
async def the_url_of_an_agent_is_an_address(d: Driver) -> None:
    refs = [member(told, "metadata.ref", dict, f"the descriptor of {agent.name}") for agent, told in await described(d)]
    given = [ref for ref in refs if ref.get("url") is not None]
    applies(given, "no descriptor has an address")
    for ref in given:
        url = member(ref, "url", str, "metadata.ref")
        try:
            address = urlsplit(url)
        except ValueError:
            address = urlsplit("")
        expect(address.scheme or address.path, f"metadata.ref.url is no address: {shown(url)}")


# -- what it can do -------------------------------------------------------------------------------------------


@suite.check("connect.openapi.descriptor-rules", calm=True)
async def capabilities_and_schemas_agree(d: Driver) -> None:
    for where, specs in await all_specs(d):
        able = capabilities(specs)
        has_state, has_custom = (specs.get(name) is not None for name in ("thread_state", "custom_streaming_update"))
        expect("threads" in able or not has_state, f"{where} has a thread_state, and no threads in its capabilities")
        expect(
            ("custom" in able) == has_custom,
            f"{where} has {'a' if has_custom else 'no'} custom_streaming_update, and streaming.custom is "
            f"{'true' if 'custom' in able else 'false'}",
        )
        interrupts = specs.get("interrupts") or []
        expect("interrupts" not in able or interrupts, f"{where} has the capability interrupts, and lists none")
        listed = member({"interrupts": interrupts}, "interrupts", list, f"specs of {where}")
        types = [member(entry, "interrupt_type", str, f"an interrupt of {where}") for entry in listed]
        expect(len(set(types)) == len(types), f"an interrupt_type is in {where} twice: {shown(types)}")


# -- the formats ----------------------------------------------------------------------------------------------


async def _interrupts(d: Driver) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for where, specs in await all_specs(d):
        if "interrupts" in capabilities(specs):
            listed = member(specs, "interrupts", list, f"specs of {where}")
            found += [(where, member(entry, "", dict, f"an interrupt of {where}")) for entry in listed]
            expect(listed, f"{where} has the capability interrupts, and lists none")
    applies(found, "no agent has the capability interrupts")
    return found


async def _custom(d: Driver) -> list[tuple[str, dict[str, Any]]]:
    given = [(where, specs) for where, specs in await all_specs(d) if "custom" in capabilities(specs)]
    applies(given, "no agent streams custom updates")
    return given


_INTERRUPT = Source(_interrupts, lambda pair: f"an interrupt of {pair[0]}", each=True, value=lambda pair: pair[1])
_OF_CUSTOM = Source(_custom, lambda pair: f"specs of {pair[0]}", each=True, value=lambda pair: pair[1])
add(
    suite,
    Row("connect.streaming.custom-schema", _OF_CUSTOM, "custom_streaming_update", dict, fits=_schema),
    Row("connect.threads.state-format-optional", _SPECS, "thread_state", dict, fits=_schema, **_MAY),
    Row("connect.specs.interrupts", _INTERRUPT, kind=dict),
    Row("connect.specs.interrupt-type", _INTERRUPT, "interrupt_type", str),
    Row("connect.specs.interrupt-payload", _INTERRUPT, "interrupt_payload", dict, fits=_schema),
    Row("connect.specs.interrupt-resume-payload", _INTERRUPT, "resume_payload", dict, fits=_schema),
    calm=True,
)

"""Checks descriptors: the identity of the agent, its capabilities, and the formats that it speaks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from ...base import applies, expect, member, shown
from ...remembering import once
from ...schemas import compiled
from ..driver import Agent, Driver, capabilities, descriptor, every_agent, suite

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


async def _schemas(d: Driver, name: str) -> None:
    """Every descriptor has this schema, and it is one."""
    for where, specs in await all_specs(d):
        compiled(member(specs, name, dict, f"specs of {where}"), f"specs.{name}")


# -- who it is ------------------------------------------------------------------------------------------------


@suite.check("connect.descriptor.identifies", "connect.metadata.identification", calm=True)
async def a_descriptor_says_whose_it_is(d: Driver) -> None:
    for agent, told in await described(d):
        where = f"the descriptor of {agent.name}"
        for name in ("name", "version"):
            here = member(told, f"metadata.ref.{name}", str, where)
            there = member(agent.item, f"metadata.ref.{name}", str, f"{agent.name} in the search")
            expect(here == there, f"{where} has the {name} {here}, and the search has {there}")


@suite.check("connect.metadata.ref-name", calm=True)
async def metadata_has_a_name(d: Driver) -> None:
    for agent, told in await described(d):
        where = f"the descriptor of {agent.name}"
        expect(member(told, "metadata.ref.name", str, where), f"metadata.ref.name of {where} is empty")


@suite.check("connect.metadata.ref-version", calm=True)
async def metadata_has_a_version(d: Driver) -> None:
    for agent, told in await described(d):
        where = f"the descriptor of {agent.name}"
        expect(member(told, "metadata.ref.version", str, where), f"metadata.ref.version of {where} is empty")


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


@suite.check("connect.metadata.description", calm=True)
async def metadata_has_a_description(d: Driver) -> None:
    for agent, told in await described(d):
        member(told, "metadata.description", str, f"the descriptor of {agent.name}")


# -- what it can do -------------------------------------------------------------------------------------------


@suite.check(
    "connect.descriptor.capabilities", "connect.specs.capabilities", "connect.requirements.capabilities",
    "connect.schemas.capabilities-endpoint", calm=True,
)  # fmt: skip
async def a_descriptor_lists_capabilities(d: Driver) -> None:
    for where, specs in await all_specs(d):
        member(specs, "capabilities", dict, f"specs of {where}")


async def _flag(d: Driver, name: str) -> None:
    for where, specs in await all_specs(d):
        able = member(specs, "capabilities", dict, f"specs of {where}")
        if able.get(name) is not None:  # one that is missing is false
            member(able, name, bool, f"specs.capabilities of {where}")


@suite.check("connect.specs.capability-threads", "connect.threads.signalled", calm=True)
async def threads_are_a_capability(d: Driver) -> None:
    await _flag(d, "threads")


@suite.check("connect.specs.capability-interrupts", calm=True)
async def interrupts_are_a_capability(d: Driver) -> None:
    await _flag(d, "interrupts")


@suite.check("connect.specs.capability-callbacks", "connect.callbacks.signalled", calm=True)
async def callbacks_are_a_capability(d: Driver) -> None:
    await _flag(d, "callbacks")


@suite.check("connect.specs.capability-streaming", calm=True)
async def modes_of_streaming_are_a_capability(d: Driver) -> None:
    for where, specs in await all_specs(d):
        able = member(specs, "capabilities", dict, f"specs of {where}")
        if able.get("streaming") is None:
            continue
        modes = member(able, "streaming", dict, f"specs.capabilities of {where}")
        for mode in ("values", "custom"):
            if modes.get(mode) is not None:
                member(modes, mode, bool, f"specs.capabilities.streaming of {where}")


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


@suite.check(
    "connect.specs.config", "connect.schemas.endpoint-config", "connect.configuration.schema", calm=True,
)  # fmt: skip
async def a_descriptor_has_the_schema_of_the_configuration(d: Driver) -> None:
    await _schemas(d, "config")


@suite.check("connect.specs.input", "connect.schemas.endpoint-input", "connect.invocation.input-schema", calm=True)
async def a_descriptor_has_the_schema_of_the_input(d: Driver) -> None:
    await _schemas(d, "input")


@suite.check("connect.specs.output", "connect.schemas.endpoint-output", calm=True)
async def a_descriptor_has_the_schema_of_the_output(d: Driver) -> None:
    await _schemas(d, "output")


@suite.check(
    "connect.descriptor.consume", "connect.agents.descriptor-use", "connect.requirements.schemas",
    "connect.schemas.agent-provides", calm=True,
)  # fmt: skip
async def a_descriptor_has_what_a_client_needs_to_use_the_agent(d: Driver) -> None:
    for name in ("config", "input", "output"):
        await _schemas(d, name)
    for _, specs in await all_specs(d):
        capabilities(specs)


@suite.check("connect.streaming.custom-schema", calm=True)
async def the_format_of_custom_updates_is_a_schema(d: Driver) -> None:
    given = [(where, specs) for where, specs in await all_specs(d) if "custom" in capabilities(specs)]
    applies(given, "no agent streams custom updates")
    for where, specs in given:
        compiled(member(specs, "custom_streaming_update", dict, f"specs of {where}"), "specs.custom_streaming_update")


@suite.check("connect.threads.state-format-optional", calm=True)
async def the_format_of_a_thread_state_is_a_schema(d: Driver) -> None:
    given = [(where, specs) for where, specs in await all_specs(d) if specs.get("thread_state") is not None]
    applies(given, "no descriptor defines a thread state")
    for where, specs in given:
        compiled(member(specs, "thread_state", dict, f"specs of {where}"), "specs.thread_state")


async def _interrupts(d: Driver) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for where, specs in await all_specs(d):
        if "interrupts" in capabilities(specs):
            listed = member(specs, "interrupts", list, f"specs of {where}")
            found += [(where, member(entry, "", dict, f"an interrupt of {where}")) for entry in listed]
            expect(listed, f"{where} has the capability interrupts, and lists none")
    applies(found, "no agent has the capability interrupts")
    return found


@suite.check("connect.specs.interrupts", calm=True)
async def a_descriptor_has_the_schemas_of_interrupts(d: Driver) -> None:
    await _interrupts(d)


@suite.check("connect.specs.interrupt-type", calm=True)
async def an_interrupt_has_a_type(d: Driver) -> None:
    for where, entry in await _interrupts(d):
        member(entry, "interrupt_type", str, f"an interrupt of {where}")


@suite.check("connect.specs.interrupt-payload", calm=True)
async def an_interrupt_has_the_schema_of_what_is_asked(d: Driver) -> None:
    for where, entry in await _interrupts(d):
        compiled(member(entry, "interrupt_payload", dict, f"an interrupt of {where}"), "interrupt_payload")


@suite.check("connect.specs.interrupt-resume-payload", calm=True)
async def an_interrupt_has_the_schema_of_what_resumes(d: Driver) -> None:
    for where, entry in await _interrupts(d):
        compiled(member(entry, "resume_payload", dict, f"an interrupt of {where}"), "resume_payload")

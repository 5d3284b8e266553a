"""Reads the handshakes and cards of the protocols, with care: strangers wrote them."""

from __future__ import annotations

from typing import Any

from ..protocols.editor import wire
from .findings import Listed, Spoken, first_line, flat, list_of, object_of, text_of


def described_mcp(result: dict[str, Any], target: str) -> Spoken:
    """Describes an MCP server by its initialize result."""
    able = object_of(result.get("capabilities"))
    info = object_of(result.get("serverInfo"))
    has_agents = any(isinstance(at, dict) and "agents" in at for at in (able, able.get("experimental")))
    can_be_mounted = has_agents or "tools" in able or "prompts" in able
    spoken = Spoken(
        protocol="mcp" if has_agents else "mcp-tools", target=target if can_be_mounted else None,
        name=text_of(info.get("name")), version=text_of(info.get("version")),
        protocol_versions=[text_of(result.get("protocolVersion"))], capabilities=flat(able),
    )  # fmt: skip
    if not can_be_mounted:
        spoken.notes.append("it has neither agents nor tools nor prompts to mount")
    elif not has_agents:
        spoken.notes.append(
            "each tool, and each prompt with arguments, is mounted as an agent; a team can also use its tools "
            "(mcp_bindings of a manifest)"
        )
    if not isinstance(result.get("protocolVersion"), str):
        spoken.wrong.append("its initialize result has no protocolVersion that is a text")
    return spoken


def mcp_lists(spoken: Spoken) -> list[str]:
    """Returns the kinds of agents that an MCP server lists: `agents`, or the tools and prompts that stand for them."""
    if spoken.protocol == "mcp":
        return ["agents"]
    return [kind for kind in ("tools", "prompts") if any(name.split(".")[0] == kind for name in spoken.capabilities)]


def add_mcp_list(spoken: Spoken, kind: str, result: dict[str, Any] | None) -> None:
    """Adds what `agents/list`, `tools/list` or `prompts/list` was answered with."""
    entries = result.get(kind) if result is not None else None
    if not isinstance(entries, list):
        spoken.wrong.append(f"it declares {kind}, and {kind}/list gives no list of them")
        return
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            spoken.wrong.append(f"it lists {'an' if kind == 'agents' else 'a'} {kind[:-1]} without a name")
        elif kind != "prompts" or entry.get("arguments"):
            spoken.agents.append(Listed(entry["name"], first_line(entry.get("description"))))


def described_peer(card: dict[str, Any], target: str) -> Spoken:
    """Describes a node by its AgentCard."""
    skills = list_of(card.get("skills"))
    spoken = Spoken(
        protocol="peer", target=target, name=text_of(card.get("name")), version=text_of(card.get("version")),
        protocol_versions=[text_of(card.get("acp_version"))], capabilities=flat(card.get("capabilities")),
        agents=[
            Listed(text_of(one.get("id")) or text_of(one.get("name")), first_line(one.get("description")))
            if isinstance(one, dict) else Listed(str(one)) for one in skills
        ],
    )  # fmt: skip
    if not skills:
        spoken.notes.append("its card names no skills: it is mounted as one agent, which takes messages")
    return spoken


def described_editor(result: dict[str, Any], target: str) -> Spoken:
    """Describes an editor agent by its initialize result."""
    info = object_of(result.get("agentInfo"))
    version = result.get("protocolVersion")
    spoken = Spoken(
        protocol="editor", target=target, name=text_of(info.get("name")), version=text_of(info.get("version")),
        protocol_versions=[str(version)], capabilities=flat(result.get("agentCapabilities")),
        agents=_editor_agents(result) or [Listed(text_of(info.get("name")) or "agent", text_of(info.get("title")))],
    )  # fmt: skip
    methods = result.get("authMethods")
    if isinstance(methods, list) and methods:
        names = ", ".join(str(one.get("id") if isinstance(one, dict) else one) for one in methods)
        spoken.notes.append(f"it may want a login first: {names}")
    if not isinstance(version, int) or isinstance(version, bool):
        spoken.wrong.append(f"its protocolVersion is {version!r}; it is an integer")
    return spoken


def _editor_agents(result: dict[str, Any]) -> list[Listed]:
    """Returns the agents that a session can choose on an Interlingua server. Other servers list theirs only in a
    session."""
    told = [object_of(one) for one in list_of(object_of(result.get("_meta")).get(wire.META_AGENTS))]
    names = [text_of(one.get("name")) for one in told]
    keys = [f"{name}@{text_of(one.get('version'))}" for name, one in zip(names, told, strict=True)]
    return [
        Listed(name if names.count(name) == 1 else key, first_line(one.get("description")))
        for name, key, one in zip(names, keys, told, strict=True)
        if name
    ]

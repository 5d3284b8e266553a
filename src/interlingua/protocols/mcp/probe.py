"""Recognises MCP, with agents or with tools alone, in every revision and over every transport."""

from __future__ import annotations

from typing import Any

from ...transports.jsonrpc.core import call_message
from ...transports.raw_client import Http, Pipes
from ..probing import (
    JSON_OR_STREAM,
    Listed,
    Probes,
    Spoken,
    first_line,
    flat,
    object_of,
    rpc_request,
    rpc_response,
    rpc_result,
    text_of,
)
from . import wire

_LATEST = "2025-11-25"  # of the revisions with a handshake
_PAIR = "2024-11-05"
_INITIALIZE = {"protocolVersion": _LATEST, "capabilities": {}, "clientInfo": {"name": "interlingua", "version": "0"}}
_INITIALIZED = call_message("notifications/initialized")


async def _http(http: Http, address: str, path: str) -> Spoken | None:
    answer = await http.ask("POST", path, rpc_request("initialize", _INITIALIZE), headers=JSON_OR_STREAM)
    result = rpc_result(answer)
    if result is None or "serverInfo" not in result:
        return await _modern(http, address, path) or await _pair(http, address, path)
    session = answer.headers.get("mcp-session-id")
    version = text_of(result.get("protocolVersion"))
    own = {**JSON_OR_STREAM, "mcp-protocol-version": version, **({"mcp-session-id": session} if session else {})}
    await http.ask("POST", path, _INITIALIZED, headers=own)
    spoken = _described(result, f"mcp+{address}")
    for kind in _lists(spoken):
        listed = rpc_result(await http.ask("POST", path, rpc_request(f"{kind}/list", {}), headers=own))
        _add_list(spoken, kind, listed)
    if session:
        await http.ask("DELETE", path, headers=own)
    return spoken


async def _modern(http: Http, address: str, path: str) -> Spoken | None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": wire.MODERN, "io.modelcontextprotocol/clientCapabilities": {},
    }  # fmt: skip
    headers = {**JSON_OR_STREAM, "mcp-protocol-version": wire.MODERN, "mcp-method": "server/discover"}
    request = rpc_request("server/discover", {"_meta": meta})
    result = rpc_result(await http.ask("POST", path, request, headers=headers))
    if result is None or "capabilities" not in result:
        return None
    spoken = _described(result, f"mcp+{address}")
    versions = result.get("supportedVersions")
    spoken.protocol_versions = (
        [version for version in versions if isinstance(version, str)] if isinstance(versions, list) else [wire.MODERN]
    )
    return spoken


async def _pair(http: Http, address: str, path: str) -> Spoken | None:
    """Looks for the pair of HTTP and SSE that came before: a stream whose first event says where to post."""
    for below in ("", "/sse"):
        async with http.stream("GET", path + below) as stream:
            if stream.status == 200 and stream.media_type == "text/event-stream":
                event = await stream.next()
                if event is not None and event.event == "endpoint":
                    note = f"over the HTTP+SSE pair of {_PAIR}; what it offers shows when it is mounted"
                    return Spoken(
                        protocol="mcp", target=f"mcp+{address}{below}", protocol_versions=[_PAIR], notes=[note]
                    )
    return None


async def _pipes(pipes: Pipes, command: str) -> Spoken | None:
    pipes.send(rpc_request("initialize", _INITIALIZE, 0))
    result = await rpc_response(pipes, 0)
    if result is None or "serverInfo" not in result:
        return None
    pipes.send(_INITIALIZED)
    spoken = _described(result, f"mcp:{command}")
    for number, kind in enumerate(_lists(spoken), 1):
        pipes.send(rpc_request(f"{kind}/list", {}, number))
        _add_list(spoken, kind, await rpc_response(pipes, number))
    return spoken


def _described(result: dict[str, Any], target: str) -> Spoken:
    """Describes a server by its initialize result."""
    able = object_of(result.get("capabilities"))
    info = object_of(result.get("serverInfo"))
    has_agents = any(isinstance(at, dict) and "agents" in at for at in (able, able.get("experimental")))
    can_be_mounted = has_agents or "tools" in able or "prompts" in able
    spoken = Spoken(
        protocol="mcp" if has_agents else "mcp-tools", title="" if has_agents else "MCP, without agents",
        target=target if can_be_mounted else None, name=text_of(info.get("name")), version=text_of(info.get("version")),
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


def _lists(spoken: Spoken) -> list[str]:
    """Returns the kinds of agents that a server lists: `agents`, or the tools and prompts that stand for them."""
    if spoken.protocol == "mcp":
        return ["agents"]
    able = {name.split(".")[0] for name in spoken.capabilities}
    return [kind for kind in ("tools", "prompts") if kind in able]


def _add_list(spoken: Spoken, kind: str, result: dict[str, Any] | None) -> None:
    """Adds the entries of `agents/list`, `tools/list` or `prompts/list`."""
    entries = result.get(kind) if result is not None else None
    if not isinstance(entries, list):
        spoken.wrong.append(f"it declares {kind}, and {kind}/list gives no list of them")
        return
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            spoken.wrong.append(f"it lists {'an' if kind == 'agents' else 'a'} {kind[:-1]} without a name")
        elif kind != "prompts" or entry.get("arguments"):
            spoken.agents.append(Listed(entry["name"], first_line(entry.get("description"))))


probes = Probes(http=_http, pipes=_pipes)

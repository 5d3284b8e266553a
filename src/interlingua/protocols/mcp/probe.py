"""Recognises MCP, with agents or with tools alone, in every revision and over every transport."""

from __future__ import annotations

from typing import Any

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
_INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


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
    if spoken.protocol == "mcp":
        listed = rpc_result(await http.ask("POST", path, rpc_request("agents/list", {}), headers=own))
        _add_agents(spoken, listed)
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
    if spoken.protocol == "mcp":
        pipes.send(rpc_request("agents/list", {}, 1))
        _add_agents(spoken, await rpc_response(pipes, 1))
    return spoken


def _described(result: dict[str, Any], target: str) -> Spoken:
    """Describes a server by its initialize result."""
    able = object_of(result.get("capabilities"))
    info = object_of(result.get("serverInfo"))
    has_agents = any(isinstance(at, dict) and "agents" in at for at in (able, able.get("experimental")))
    spoken = Spoken(
        protocol="mcp" if has_agents else "mcp-tools", title="" if has_agents else "MCP, without agents",
        target=target if has_agents else None, name=text_of(info.get("name")), version=text_of(info.get("version")),
        protocol_versions=[text_of(result.get("protocolVersion"))], capabilities=flat(able),
    )  # fmt: skip
    if not has_agents:
        spoken.notes.append("it has no agents to mount; a team can use its tools (mcp_bindings of a manifest)")
    if not isinstance(result.get("protocolVersion"), str):
        spoken.wrong.append("its initialize result has no protocolVersion that is a text")
    return spoken


def _add_agents(spoken: Spoken, listed: dict[str, Any] | None) -> None:
    agents = listed.get("agents") if listed is not None else None
    if not isinstance(agents, list):
        spoken.wrong.append("it declares agents, and agents/list gives no list of them")
        return
    for agent in agents:
        if not isinstance(agent, dict) or not isinstance(agent.get("name"), str):
            spoken.wrong.append("it lists an agent without a name")
            continue
        spoken.agents.append(Listed(agent["name"], first_line(agent.get("description"))))


probes = Probes(http=_http, pipes=_pipes)

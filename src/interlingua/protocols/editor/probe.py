"""Recognises the Agent Client Protocol."""

from __future__ import annotations

from typing import Any

from ...transports.raw_client import Http, Pipes
from ...transports.raw_client.websocket import Socket
from ..probing import (
    JSON_OR_STREAM,
    Listed,
    Probes,
    Spoken,
    first_line,
    flat,
    list_of,
    object_of,
    rpc_request,
    rpc_response,
    rpc_result,
    text_of,
)
from . import wire

_INITIALIZE = {"protocolVersion": 1, "clientCapabilities": {}}
_MARKS = {"agentCapabilities", "agentInfo", "authMethods"}


async def _http(http: Http, address: str, path: str) -> Spoken | None:
    answer = await http.ask("POST", path, rpc_request("initialize", _INITIALIZE), headers=JSON_OR_STREAM)
    result = rpc_result(answer)
    if result is None or not {"agentCapabilities", "agentInfo"} & set(result):
        return None
    connection = answer.headers.get("acp-connection-id")
    if connection:
        await http.ask("DELETE", path, headers={"acp-connection-id": connection})
    return _described(result, f"editor+{address}")


async def _socket(socket: Socket, address: str) -> Spoken | None:
    await socket.put(rpc_request("initialize", _INITIALIZE, 0))
    response = await socket.until(lambda m: m.get("id") == 0, "an answer to initialize")
    result = response.get("result")
    return _described(result, f"editor+{address}") if isinstance(result, dict) else None


async def _pipes(pipes: Pipes, command: str) -> Spoken | None:
    pipes.send(rpc_request("initialize", _INITIALIZE, 0))
    result = await rpc_response(pipes, 0)
    if result is None or "serverInfo" in result or not _MARKS & set(result):
        return None
    return _described(result, f"editor:{command}")


def _described(result: dict[str, Any], target: str) -> Spoken:
    """Describes an agent by its initialize result."""
    info = object_of(result.get("agentInfo"))
    version = result.get("protocolVersion")
    spoken = Spoken(
        protocol="editor", target=target, name=text_of(info.get("name")), version=text_of(info.get("version")),
        protocol_versions=[str(version)], capabilities=flat(result.get("agentCapabilities")),
        agents=_agents(result) or [Listed(text_of(info.get("name")) or "agent", text_of(info.get("title")))],
    )  # fmt: skip
    methods = result.get("authMethods")
    if isinstance(methods, list) and methods:
        names = ", ".join(str(method.get("id") if isinstance(method, dict) else method) for method in methods)
        spoken.notes.append(f"it may want a login first: {names}")
    if not isinstance(version, int) or isinstance(version, bool):
        spoken.wrong.append(f"its protocolVersion is {version!r}; it is an integer")
    return spoken


def _agents(result: dict[str, Any]) -> list[Listed]:
    """Returns the agents that a session can choose on an Interlingua server. Other servers list theirs only in a
    session."""
    agents = [object_of(agent) for agent in list_of(object_of(result.get("_meta")).get(wire.META_AGENTS))]
    names = [text_of(agent.get("name")) for agent in agents]
    keys = [f"{name}@{text_of(agent.get('version'))}" for name, agent in zip(names, agents, strict=True)]
    return [
        Listed(name if names.count(name) == 1 else key, first_line(agent.get("description")))
        for name, key, agent in zip(names, keys, agents, strict=True)
        if name
    ]


probes = Probes(http=_http, socket=_socket, pipes=_pipes)

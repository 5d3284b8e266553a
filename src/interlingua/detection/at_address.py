"""Looks at the server at an address: tries each protocol there, and below the prefix that servers often have.

Sends only requests that change nothing: lists and handshakes. Any answer of a stranger ends in a finding or in none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import urljoin

import httpx2

from ..model.errors import InterlinguaError, Unavailable
from ..security.redaction import redact_text
from ..transports.raw_client import LONG_HEADERS, Answer, Broken, Endpoint, Gone, Http, megabytes
from . import strangers
from .cards import add_mcp_list, described_editor, described_mcp, described_peer, mcp_lists
from .findings import LOCKED, MOST, Listed, Spoken, first_line, object_of, text_of

Probe = Callable[[Http, str, str], Awaitable[Spoken | None]]

_BOTH = {"accept": "application/json, text/event-stream"}
_LATEST_MCP = "2025-11-25"
_UPGRADE = 426


async def look(
    url: str, headers: dict[str, str] | None = None, patience: float = 5.0
) -> tuple[list[Spoken], list[str]]:
    """Finds every protocol that is spoken at or below an address; if there is none, describes what is there instead.
    Raises Unavailable if nothing answers."""
    base = url.rstrip("/")
    subject = Endpoint(address=base, headers=headers or {}, patience=patience, most=MOST)
    async with Http(subject) as http:
        instead = await _first_look(http, base)
        tries = [
            _first(probe, http, base, prefix)
            for probe, prefix in (
                (_connect, "/connect"), (_mcp, "/mcp"), (_peer, "/peer"), (_editor, "/editor"), (_cap, "/cap"),
                (strangers.a2a, ""), (strangers.beeai, ""), (strangers.relay, ""),
            )
        ]  # fmt: skip
        found, slow = await _within(3 * patience, tries)
        odd = [] if found else [instead]
        if http.overlong:
            odd.append(f"{min(http.overlong)} was answered with more than {megabytes(MOST)}, which is not read")
        if slow:
            odd.append(f"it answers so slowly that not all could be tried within {3 * patience:g} s")
    return found, odd


async def _within(seconds: float, tries: list[Coroutine[Any, Any, Spoken | None]]) -> tuple[list[Spoken], bool]:
    """Returns what the tries find within a time, and whether some of them were not done by then."""
    tasks = [asyncio.ensure_future(one) for one in tries]
    try:
        _, slow = await asyncio.wait(tasks, timeout=seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    found = [spoken for task in tasks if not task.cancelled() and (spoken := task.result()) is not None]
    return found, bool(slow)


async def _first_look(http: Http, base: str) -> str:
    """Describes in words what answers at the address."""
    try:
        async with http.stream("GET", "", headers={"accept": "*/*"}) as answer:
            status, kind, onward = answer.status, answer.media_type, answer.headers.get("location")
    except Gone as error:
        if "was not answered" in str(error):
            return f"something listens at {base}, and has answered nothing within {http.subject.patience:g} s"
        if LONG_HEADERS in str(error):
            raise Unavailable(f"what listens at {base} answers with {LONG_HEADERS}", transient=False) from None
        other = base.replace("http://", "https://", 1)
        hint = f"; if it speaks TLS: {other}" if base.startswith("http://") else ""
        raise Unavailable(f"what listens at {base} answers with no HTTP: {error}{hint}", transient=False) from None
    except Unavailable as error:
        if base.startswith("https://") and "[SSL" in error.message:
            other = base.replace("https://", "http://", 1)
            raise Unavailable(f"{error.message}; if it speaks no TLS: {other}", transient=False) from None
        raise
    if onward is not None and 300 <= status < 400:
        there = urljoin(base + "/", onward)
        if there.rstrip("/") == base:
            return f"it answers {status} and sends on to where it was asked: nobody would ever arrive"
        return f"it sends on to another address: look there, at {redact_text(there)}"
    if status == _UPGRADE:
        node = base.replace("http", "acp", 1) + "/TOKEN"
        return (
            f"it answers {status}: it wants a WebSocket. A node is looked at by its link: interlingua inspect '{node}'"
        )
    if _status_locked(status):
        return f"it answers {status}: {LOCKED}"
    what = "a web page, for people" if kind == "text/html" else kind or "nothing"
    return f"GET {base} is answered with {status} and {what}"


async def _first(probe: Probe, http: Http, base: str, prefix: str) -> Spoken | None:
    """Returns what a probe finds at the address itself, else below the usual prefix."""
    for path in ("", prefix) if prefix and not base.endswith(prefix) else ("",):
        try:
            async with asyncio.timeout(2 * http.subject.patience):
                found = await probe(http, base + path, path)
        except (Broken, Gone, InterlinguaError, httpx2.HTTPError, TimeoutError):
            continue
        if found is not None:
            return found
    return None


def _scheme(kind: str, address: str) -> str:
    return f"{kind}+{address}"


def _locked(answer: Answer) -> bool:
    return _status_locked(answer.status)


def _status_locked(status: int) -> bool:
    return status in (401, 403)


async def _connect(http: Http, address: str, path: str) -> Spoken | None:
    answer = await http.ask("POST", f"{path}/agents/search", {})
    if _locked(answer):
        schemes = await http.ask("GET", f"{path}/auth")
        if schemes.status != 200:
            return None
        return Spoken(protocol="connect", target=_scheme("connect", address), notes=[LOCKED])
    if answer.status != 200:
        return None
    told = answer.json()
    if not isinstance(told, list) or not all(isinstance(one, dict) and "agent_id" in one for one in told):
        return None
    spoken = Spoken(protocol="connect", target=_scheme("connect", address))
    for one in told:
        described = object_of(one.get("metadata"))
        ref = object_of(described.get("ref"))
        spoken.agents.append(
            Listed(text_of(ref.get("name")) or str(one["agent_id"]), first_line(described.get("description")))
        )
    document = await http.ask("GET", f"{path}/openapi.json")
    paths: set[str] = set()
    if document.status == 200 and isinstance(page := document.json(), dict):
        info, paths = object_of(page.get("info")), set(object_of(page.get("paths")))
        spoken.name, spoken.version = text_of(info.get("title")), text_of(info.get("version"))
        spoken.capabilities = [name for name in ("agents", "runs", "threads") if f"/{name}/search" in paths]
    if not told and "/agents/search" not in paths:
        return None  # anyone could answer with an empty list
    return spoken


async def _mcp(http: Http, address: str, path: str) -> Spoken | None:
    params = {"protocolVersion": _LATEST_MCP, "capabilities": {}, "clientInfo": {"name": "interlingua", "version": "0"}}
    answer = await http.ask("POST", path, _request("initialize", params), headers=_BOTH)
    result = _result(answer)
    if result is None or "serverInfo" not in result:
        return await _modern_mcp(http, address, path) or await _old_mcp(http, address, path)
    session = answer.headers.get("mcp-session-id")
    version = text_of(result.get("protocolVersion"))
    own = {**_BOTH, "mcp-protocol-version": version, **({"mcp-session-id": session} if session else {})}
    await http.ask("POST", path, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=own)
    spoken = described_mcp(result, _scheme("mcp", address))
    for kind in mcp_lists(spoken):
        add_mcp_list(spoken, kind, _result(await http.ask("POST", path, _request(f"{kind}/list", {}), headers=own)))
    if session:
        await http.ask("DELETE", path, headers=own)
    return spoken


async def _modern_mcp(http: Http, address: str, path: str) -> Spoken | None:
    version = "2026-07-28"
    meta = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}
    headers = {**_BOTH, "mcp-protocol-version": version, "mcp-method": "server/discover"}
    result = _result(await http.ask("POST", path, _request("server/discover", {"_meta": meta}), headers=headers))
    if result is None or "capabilities" not in result:
        return None
    spoken = described_mcp(result, _scheme("mcp", address))
    told = result.get("supportedVersions")
    spoken.protocol_versions = [one for one in told if isinstance(one, str)] if isinstance(told, list) else [version]
    return spoken


async def _old_mcp(http: Http, address: str, path: str) -> Spoken | None:
    """The pair of HTTP and SSE that came before: a stream whose first event says where to post."""
    for below in ("", "/sse"):
        async with http.stream("GET", path + below) as stream:
            if stream.status == 200 and stream.media_type == "text/event-stream":
                event = await stream.next()
                if event is not None and event.event == "endpoint":
                    note = "over the HTTP+SSE pair of 2024-11-05; what it offers shows when it is mounted"
                    return Spoken(
                        protocol="mcp", target=_scheme("mcp", address + below), protocol_versions=["2024-11-05"],
                        notes=[note],
                    )  # fmt: skip
    return None


async def _peer(http: Http, address: str, path: str) -> Spoken | None:
    answer = await http.ask("GET", f"{path}/.well-known/acp.json")
    if answer.status != 200 or not isinstance(told := answer.json(), dict):
        return None
    card = object_of(told.get("self")) or told
    if "acp_version" not in card and card.get("protocol") != "acp":
        return None
    return described_peer(card, _scheme("peer", address))


async def _editor(http: Http, address: str, path: str) -> Spoken | None:
    params = {"protocolVersion": 1, "clientCapabilities": {}}
    answer = await http.ask("POST", path, _request("initialize", params), headers=_BOTH)
    result = _result(answer)
    if result is None or not ({"agentCapabilities", "agentInfo"} & set(result)):
        return None
    connection = answer.headers.get("acp-connection-id")
    if connection:
        await http.ask("DELETE", path, headers={"acp-connection-id": connection})
    return described_editor(result, _scheme("editor", address))


async def _cap(http: Http, address: str, path: str) -> Spoken | None:
    answer = await http.ask("GET", f"{path}/agents")
    if answer.status != 200 or not isinstance(told := answer.json(), dict):
        return None
    agents = told.get("agents")
    marks = {"system_prompt", "allowed_agents", "overseer", "mcp_bindings"}
    if not isinstance(agents, list) or not agents or not all(isinstance(a, dict) and marks & set(a) for a in agents):
        return None
    return Spoken(
        protocol="cap", target=_scheme("cap", address),
        agents=[Listed(text_of(one.get("id")), first_line(one.get("system_prompt"))) for one in agents],
        capabilities=[
            name for name, used in (
                ("delegation", any(one.get("allowed_agents") for one in agents)),
                ("oversight", any(one.get("overseer") for one in agents)),
                ("tools", any(one.get("mcp_bindings") for one in agents)),
            ) if used
        ],
    )  # fmt: skip


# -- JSON-RPC over HTTP ---------------------------------------------------------------------------------------


def _request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _result(answer: Answer) -> dict[str, Any] | None:
    """The result in an answer, plain or the last of a stream."""
    if answer.status != 200:
        return None
    told: Any = None
    if answer.media_type == "text/event-stream":
        for line in answer.body.decode(errors="replace").splitlines():
            if line.startswith("data:") and line[5:].strip():
                try:
                    told = json.loads(line[5:])
                except ValueError:
                    return None
    else:
        told = answer.json()
    result = told.get("result") if isinstance(told, dict) else None
    return result if isinstance(result, dict) else None

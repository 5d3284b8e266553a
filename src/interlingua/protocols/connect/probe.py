"""Recognises the Agent Connect Protocol."""

from __future__ import annotations

from ...transports.raw_client import Http
from ..probing import LOCKED, Listed, Probes, Spoken, first_line, object_of, text_of


async def _http(http: Http, address: str, path: str) -> Spoken | None:
    answer = await http.ask("POST", f"{path}/agents/search", {})
    if answer.status in (401, 403):
        schemes = await http.ask("GET", f"{path}/auth")
        return _spoken(address, notes=[LOCKED]) if schemes.status == 200 else None
    if answer.status != 200:
        return None
    agents = answer.json()
    if not isinstance(agents, list) or not all(isinstance(agent, dict) and "agent_id" in agent for agent in agents):
        return None
    spoken = _spoken(address)
    for agent in agents:
        metadata = object_of(agent.get("metadata"))
        ref = object_of(metadata.get("ref"))
        name = text_of(ref.get("name")) or str(agent["agent_id"])
        spoken.agents.append(Listed(name, first_line(metadata.get("description"))))
    document = await http.ask("GET", f"{path}/openapi.json")
    paths: set[str] = set()
    if document.status == 200 and isinstance(page := document.json(), dict):
        info, paths = object_of(page.get("info")), set(object_of(page.get("paths")))
        spoken.name, spoken.version = text_of(info.get("title")), text_of(info.get("version"))
        spoken.capabilities = [name for name in ("agents", "runs", "threads") if f"/{name}/search" in paths]
    if not agents and "/agents/search" not in paths:
        return None  # anyone could answer with an empty list
    return spoken


def _spoken(address: str, notes: list[str] | None = None) -> Spoken:
    return Spoken(protocol="connect", target=f"connect+{address}", notes=notes or [])


probes = Probes(http=_http)

"""Looks for protocols that are not spoken here, and are often taken for one that is."""

from __future__ import annotations

from ..protocols.probing import Listed, Spoken, first_line, flat, list_of, text_of
from ..transports.raw_client import Http


async def a2a(http: Http, address: str, path: str) -> Spoken | None:
    for name in ("agent-card.json", "agent.json"):
        answer = await http.ask("GET", f"/.well-known/{name}")
        if answer.status == 200 and isinstance(card := answer.json(), dict) and "skills" in card and "url" in card:
            skills = list_of(card["skills"])
            return Spoken(
                protocol="a2a", title="A2A", target=None, name=text_of(card.get("name")),
                version=text_of(card.get("version")),
                protocol_versions=[text_of(card.get("protocolVersion"))], capabilities=flat(card.get("capabilities")),
                agents=[
                    Listed(text_of(skill.get("id")), first_line(skill.get("description")))
                    for skill in skills if isinstance(skill, dict)
                ],
                notes=["A2A is not spoken here; its cards look like those of the Agent Communication Protocol"],
            )  # fmt: skip
    return None


async def beeai(http: Http, address: str, path: str) -> Spoken | None:
    answer = await http.ask("GET", "/agents")
    if (
        answer.status != 200
        or not isinstance(listing := answer.json(), dict)
        or not isinstance(listing.get("agents"), list)
    ):
        return None
    agents = [agent for agent in listing["agents"] if isinstance(agent, dict) and isinstance(agent.get("name"), str)]
    if not agents or any("system_prompt" in agent for agent in agents):
        return None
    return Spoken(
        protocol="beeai-rest", title="BeeAI's later ACP (REST)", target=None,
        agents=[Listed(agent["name"], first_line(agent.get("description"))) for agent in agents],
        notes=["BeeAI's ACP was agents over MCP first, which is spoken here, and this REST API later, which is not"],
    )  # fmt: skip

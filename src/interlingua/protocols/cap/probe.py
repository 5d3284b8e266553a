"""Recognises CAP."""

from __future__ import annotations

from ...transports.raw_client import Http, Pipes
from ..probing import Listed, Probes, Spoken, first_line, text_of

_MARKS = {"system_prompt", "allowed_agents", "overseer", "mcp_bindings"}
_ABLE = {"delegation": "allowed_agents", "oversight": "overseer", "tools": "mcp_bindings"}
_TYPES = ("message", "error_response", "delegation_notice", "oversight_inquiry")


async def _http(http: Http, address: str, path: str) -> Spoken | None:
    answer = await http.ask("GET", f"{path}/agents")
    if answer.status != 200 or not isinstance(document := answer.json(), dict):
        return None
    agents = document.get("agents")
    if not isinstance(agents, list) or not agents or not all(isinstance(a, dict) and _MARKS & set(a) for a in agents):
        return None
    return Spoken(
        protocol="cap", target=f"cap+{address}",
        agents=[Listed(text_of(agent.get("id")), first_line(agent.get("system_prompt"))) for agent in agents],
        capabilities=[name for name, field in _ABLE.items() if any(agent.get(field) for agent in agents)],
    )  # fmt: skip


async def _pipes(pipes: Pipes, command: str) -> Spoken | None:
    """Sends a message to a recipient that does not exist: a program that speaks CAP answers it in CAP, if only with an
    error."""
    pipes.send({
        "type": "message", "task_id": "T0", "sender_id": "user", "recipient_id": "nobody", "content": "who is there?",
    })  # fmt: skip
    answer = await pipes.until(lambda m: m.get("type") in _TYPES and "sender_id" in m, "a message of CAP")
    sender = str(answer["sender_id"])
    agents = [Listed(sender)] if sender not in ("user", "orchestrator") else []
    return Spoken(protocol="cap", target=f"cap:{command}", agents=agents)


probes = Probes(http=_http, pipes=_pipes)

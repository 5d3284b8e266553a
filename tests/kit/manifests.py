"""Manifests of the team that the protocol's document tells of, and of any others."""

from __future__ import annotations

import copy
from typing import Any

from interlingua.model.team.manifest import (
    Server,
    Team,
    read_manifest,
)

PM: dict[str, Any] = {
    "id": "pm-1",
    "system_prompt": "You manage projects: split what comes in, and give the parts to specialists.",
    "allowed_agents": ["analyst-1"],
    "delegate_rules": {"analyst-1": {"when_to_delegate": "When planning is not enough and data must be analysed."}},
    "overseer": None,
    "mcp_bindings": [
        {
            "server_id": "DocsServer",
            "description": "Specifications, to read and to sum up.",
            "scopes": ["read:docs", "write:summary"],
            "allowed_tools": ["list_documents", "read_file", "create_summary"],
        },
        {
            "server_id": "DataServer",
            "description": "Raw sales.",
            "scopes": ["read:data"],
            "allowed_tools": ["query_data"],
        },
    ],
}


ANALYST: dict[str, Any] = {
    "id": "analyst-1",
    "system_prompt": "You analyse data in depth, and report what you find.",
    "allowed_agents": ["qa-1"],
    "delegate_rules": {"qa-1": {"when_to_delegate": "When the analysis is done and must be verified."}},
    "overseer": "qa-1",
    "mcp_bindings": [
        {
            "server_id": "DataServer",
            "description": "Raw data, for analysis.",
            "scopes": ["read:data", "write:analysis"],
            "allowed_tools": ["query_data", "process_data"],
        }
    ],
}


QA: dict[str, Any] = {
    "id": "qa-1",
    "system_prompt": "You verify that the work of others is complete and right.",
    "allowed_agents": [],
    "delegate_rules": {},
    "overseer": None,
    "mcp_bindings": [
        {
            "server_id": "SummaryServer",
            "description": "Summaries that people can read.",
            "scopes": ["write:summary"],
            "allowed_tools": ["create_summary"],
        }
    ],
}


SERVERS = {name: Server(command=f"{name.lower()}-mcp") for name in ("DocsServer", "DataServer", "SummaryServer")}


def team_of(*manifests: dict[str, Any], servers: dict[str, Server] | None = None, **members: Any) -> Team:
    team = Team("sales", servers=dict(SERVERS if servers is None else servers), file="team.toml", **members)
    for one in manifests:
        team.add(read_manifest(one, f"{one['id']}.json"))
    return team


def agent(id_: str, *delegates: str, overseer: str | None = None, **members: Any) -> dict[str, Any]:
    rules = {target: {"when_to_delegate": f"When {target} is needed."} for target in delegates}
    return {
        "id": id_, "system_prompt": f"You are {id_}.", "allowed_agents": list(delegates), "delegate_rules": rules,
        "overseer": overseer, "mcp_bindings": [], **members,
    }  # fmt: skip


def changed(path: str, value: Any = ..., of: dict[str, Any] = PM) -> dict[str, Any]:
    """A manifest with another value at a path, or with none."""
    manifest = copy.deepcopy(of)
    *way, last = [int(step) if step.isdigit() else step for step in path.strip("/").split("/")]
    holder: Any = manifest
    for step in way:
        holder = holder[step]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return manifest

"""Agents that want their user to log in before they work (a coding agent with an account). Mounts have them; a Python
agent gets one by `agent.login = …`. Doors that know logging in show the methods; the others say what is missing."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class LoginMethod(msgspec.Struct):
    id: str
    name: str
    description: str = ""
    kind: str = "agent"  # the agent does it itself, or "terminal": the user runs a command
    args: list[str] = []  # of that command, after the agent's own
    env: dict[str, str] = {}


class Login(Protocol):
    methods: list[LoginMethod]

    async def needed(self) -> bool:
        """Whether nothing can be done before somebody has logged in."""
        ...

    async def login(self, method: str) -> None: ...

    async def logout(self) -> None: ...


def methods_of(agents: Any) -> list[tuple[Login, LoginMethod]]:
    """Every way to log in to one of some agents, each id once."""
    found: dict[str, tuple[Login, LoginMethod]] = {}
    for agent in agents:
        if agent.login is not None:
            for method in agent.login.methods:
                found.setdefault(method.id, (agent.login, method))
    return list(found.values())

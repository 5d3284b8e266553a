"""Logins of agents whose user must log in before they work (a coding agent with an account).

Mounts set them; a Python agent gets one by `agent.login = …`. Doors with a login on their wire show the methods; the
others report the missing login.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class LoginMethod(msgspec.Struct):
    id: str
    name: str
    description: str = ""
    kind: str = "agent"  # the agent logs in itself; "terminal": the user runs a command
    args: list[str] = []  # of that command, after the agent's arguments
    env: dict[str, str] = {}


class Login(Protocol):
    methods: list[LoginMethod]

    async def needed(self) -> bool:
        """True if the agent cannot work before a login."""
        ...

    async def login(self, method: str) -> None: ...

    async def logout(self) -> None: ...


def methods_of(agents: Any) -> list[tuple[Login, LoginMethod]]:
    """Lists the login methods of some agents, each id once."""
    methods: dict[str, tuple[Login, LoginMethod]] = {}
    for agent in agents:
        if agent.login is not None:
            for method in agent.login.methods:
                methods.setdefault(method.id, (agent.login, method))
    return list(methods.values())

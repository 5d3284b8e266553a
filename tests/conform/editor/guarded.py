"""An agent that wants a login."""

from __future__ import annotations

import interlingua as il
from interlingua.engine.agents.logins import LoginMethod


class Door:
    methods = (
        LoginMethod("badge", "Show a badge"),
        LoginMethod("shell", "In a shell", kind="terminal", args=["login"]),
    )

    async def needed(self) -> bool:
        return True

    async def login(self, method: str) -> None:
        raise il.AgentError(f"nobody has a {method}")

    async def logout(self) -> None:
        return


@il.agent
async def guarded(text: str) -> str:
    """Lets nobody in."""
    return text


guarded.login = Door()

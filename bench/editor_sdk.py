"""The agent of `editor_ours.py` on the published SDK `agent-client-protocol`, in whose virtualenv this file runs.

It keeps nothing: a turn is forgotten when it ends.
"""

import asyncio
from typing import Any

import acp


class Counter:
    def __init__(self) -> None:
        self._sessions = 0

    def on_connect(self, conn: Any) -> None:
        self._conn = conn

    async def initialize(self, protocol_version: int, **rest: Any) -> Any:
        return acp.InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd: str, **rest: Any) -> Any:
        self._sessions += 1
        return acp.NewSessionResponse(session_id=f"session-{self._sessions}")

    async def prompt(self, prompt: list[Any], session_id: str, **rest: Any) -> Any:
        text = prompt[0].text
        count, width, every, pause = [float(word) for word in text.split()] if " " in text else (float(text), 0, 0, 0)
        for index in range(int(count)):
            token = f"token{index}".ljust(int(width)) + " "
            await self._conn.session_update(session_id, acp.update_agent_message(acp.text_block(token)))
            if every and not (index + 1) % every:
                await asyncio.sleep(pause)
        return acp.PromptResponse(stop_reason="end_turn")


asyncio.run(acp.run_agent(Counter()))  # type: ignore[arg-type]  # it has all of an agent that is called here

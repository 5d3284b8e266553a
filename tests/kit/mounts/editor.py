"""A fake agent as a mount of an engine, and short ways to say what it shall do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import interlingua as il
from interlingua.mounts.loader import local_agents
from interlingua.protocols.editor.config import MountSettings
from interlingua.protocols.editor.mount.server import EditorServer
from interlingua.protocols.editor.mount.sessions import source_of
from tests.kit.engines import engine
from tests.kit.mounts.watch import SETTINGS

FAKE = Path(__file__).parents[1] / "fake_remotes" / "editor_agent.py"
AGENT = "fake-agent"
SILENCE = 0.05  # seconds; the fake agent says what it has to say at once


def command(given: dict[str, Any] | None = None) -> str:
    return shlex.join([sys.executable, str(FAKE), json.dumps(given or {})])


def mount(given: dict[str, Any] | None = None, *, line: str | None = None, **settings: Any) -> EditorServer:
    made = MountSettings(**{"silence_after_answer": SILENCE, **settings})
    return EditorServer(source_of("editor", line or command(given), made), made)


async def agent_of(server: EditorServer, wanted: str | None = None) -> il.Agent[..., Any]:
    """The wanted agent, or the only one."""
    return (await local_agents(server, wanted))[0]


@contextlib.asynccontextmanager
async def mounted(
    store: Path, given: dict[str, Any] | None = None, *others: il.Agent[..., Any], line: str | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[il.Engine, EditorServer]]:  # fmt: skip
    made = mount(given, line=line, **settings)
    agent = await agent_of(made)
    try:
        async with engine(store, agent, *others, settings=SETTINGS) as eng:
            yield eng, made
    finally:
        await made.close()


def script(*lines: str) -> dict[str, Any]:
    return {"text": "\n".join(lines)}


def act(word: str, method: str = "", /, **params: Any) -> str:
    """One line of a script that carries JSON."""
    return " ".join(part for part in (word, method, json.dumps(params)) if part)


def update(name: str, /, **members: Any) -> str:
    return act("update", sessionUpdate=name, **members)


PERMISSION = act(
    "call",
    "session/request_permission",
    toolCall={"toolCallId": "t1", "title": "Remove the file", "kind": "delete", "rawInput": {"path": "/a"}},
    options=[
        {"optionId": "yes", "name": "Remove it", "kind": "allow_once"},
        {"optionId": "no", "name": "Keep it", "kind": "reject_once"},
        {"optionId": "never", "name": "Keep it for ever", "kind": "reject_always"},
    ],
)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not. It may go at any moment, also while it is
    looked at."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int, within: float = 60.0) -> bool:
    async with asyncio.timeout(within):
        while alive(pid):
            await asyncio.sleep(0.02)
    return True

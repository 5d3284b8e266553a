"""The editor of a caller, as it is offered to the agent: its folders, its unsaved files, its terminals.

A door that has such a caller registers one under the thread; agents find it as `ctx.editor`. It lives only as long as
the caller's connection: an agent that is entered again elsewhere finds None, so what it does there belongs into steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

Offer = Callable[[bytes, str, str | None], tuple[str, Awaitable[object]]]
"""Offers a file: bytes, media type, name → an address, and what to wait for before it is told to anybody."""


class TerminalOutput(msgspec.Struct):
    output: str
    truncated: bool = False  # the beginning is missing
    exit_code: int | None = None
    signal: str | None = None
    exited: bool = False


class Terminal(Protocol):
    """A command that runs in the editor's terminal."""

    id: str

    async def output(self) -> TerminalOutput:
        """The output that it has written so far."""
        ...

    async def wait(self) -> TerminalOutput:
        """Wait for its end, and give all that it wrote."""
        ...

    async def kill(self) -> None:
        """End the command; its output can still be read."""
        ...

    async def release(self) -> None:
        """End it and forget it."""
        ...


class Editor(Protocol):
    cwd: str
    directories: list[str]  # further roots of the workspace
    mcp_servers: list[dict[str, Any]]  # tool servers that the user has configured, as the editor described them
    can_read: bool
    can_write: bool
    can_run: bool

    async def read(self, path: str, *, line: int | None = None, limit: int | None = None) -> str:
        """A text file as the editor has it, unsaved changes included; from `line` (1 is the first), `limit` lines."""
        ...

    async def write(self, path: str, text: str) -> None: ...

    async def run(
        self,
        command: str,
        *args: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        output_limit: int | None = None,
    ) -> Terminal: ...


class Workspaces:
    """The workspaces that callers offer at the moment, by thread."""

    def __init__(self) -> None:
        self._attached: dict[str, Editor] = {}

    def __len__(self) -> int:
        return len(self._attached)

    def attach(self, thread: str, workspace: Editor) -> None:
        """Offers a workspace to agents that run on a thread. Of several callers, the last one offers its own."""
        self._attached[thread] = workspace

    def detach(self, thread: str, workspace: Editor) -> None:
        """Ends the offer, where it is still this workspace's."""
        if self._attached.get(thread) is workspace:
            del self._attached[thread]

    def find(self, *threads: str | None) -> Editor | None:
        """Returns the workspace of the first of these threads that has one."""
        return next((found for thread in threads if thread and (found := self._attached.get(thread))), None)

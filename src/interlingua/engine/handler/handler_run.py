"""A run as its handler's context sees it: its parts, as Protocols where they are made elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ...model.content import Message, Part
from ...model.events import BlockReason
from ...model.team.authority import Scope
from ...model.team.oversight import ReviewVerdict
from ...model.team.tools import ToolSpec
from .child_runs import ChildRuns
from .context_use import ContextUse
from .mailbox import Mailbox
from .output import Output
from .questions import Questions
from .run_data import RunData
from .steps import Steps
from .thread_state import ThreadState
from .threads import HandlerThreads
from .waits import Waits
from .workspace import Editor

if TYPE_CHECKING:
    from ..agents.process_pool import ProcessPool

OnInquiry = Callable[[ReviewVerdict], Awaitable[str | None]]
"""Answers what an overseer asks about a result that was proposed to it."""

OnMessage = Callable[[Message], Awaitable[str | None]]
"""Answers what an agent sends that has a task of this run."""


class MemberPart(Protocol):
    """The run in its team."""

    async def delegate(
        self, target: str, summary: str, attachments: list[Part | str], rule: str | None, reason: str | None,
        scope: Scope | None, inputs: dict[str, Any], output: Any, on_inquiry: OnInquiry | None,
        on_message: OnMessage | None, timeout: float | None, key: str | None,
    ) -> Any: ...  # fmt: skip
    async def hand_over(
        self, name: str, input_: Any, inputs: dict[str, Any], config: Any, thread: str | None, timeout: float | None,
        key: str | None,
    ) -> Any: ...  # fmt: skip
    async def send(self, recipient: str, content: str, attachments: list[Part | str], key: str | None) -> None: ...
    async def call_tool(
        self, server: str, tool: str, arguments: dict[str, Any] | None, key: str | None, timeout: float | None
    ) -> Any: ...
    async def list_tools(self) -> list[ToolSpec]: ...


class Exempting(Protocol):
    """Says when a run is parked."""

    def exempt(self) -> AbstractContextManager[None]:
        """Keep the run in memory, where not too many are."""
        ...


class HandlerRun(Protocol):
    """A run whose handler executes here."""

    data: RunData
    waits: Waits
    output: Output
    steps: Steps
    questions: Questions
    mailbox: Mailbox
    children: ChildRuns
    thread: ThreadState
    threads: HandlerThreads
    use: ContextUse
    bound: bool  # the input has become the arguments of the handler

    @property
    def member(self) -> MemberPart: ...
    @property
    def parking(self) -> Exempting: ...
    @property
    def processes(self) -> ProcessPool: ...
    @property
    def editor(self) -> Editor | None: ...
    @property
    def engine(self) -> Any:
        """The engine that the run executes in, for mounts."""
        ...

    async def is_member(self, agent: str) -> bool:
        """Tells whether a call of this agent goes through a team's gate: the run works for a team, or the agent is of
        one."""
        ...

    async def pull_inbox(self) -> None: ...
    def block_run(self, reason: BlockReason, message: str, details: Any = None) -> NoReturn: ...

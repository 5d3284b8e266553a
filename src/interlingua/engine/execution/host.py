"""Ports of an execution to the worker and the engine."""

from __future__ import annotations

from typing import Any, Protocol

from ...model.errors import ErrorInfo
from ..agents.process_pool import ProcessPool
from ..handler.child_runs import Cards, Submitter
from ..handler.run_data import Host
from ..handler.workspace import Workspaces
from ..observe.run_metrics import RunMetrics
from ..teams.finished_work import RunLogs
from ..teams.ports import Directory, Gate, Participants
from .agent_limit import AgentLimit
from .parking import Listeners


class TeamGatePort(Directory, Gate, Participants, Protocol):
    """The teams of this process, and the gate of their delegations."""


class ExecutionEngine(Protocol):
    """The objects of the engine that an execution uses."""

    @property
    def runs(self) -> Submitter: ...
    @property
    def agents(self) -> Cards: ...
    @property
    def gate(self) -> TeamGatePort: ...
    @property
    def workspaces(self) -> Workspaces: ...
    @property
    def facade(self) -> Any:
        """The facade of the engine, for mounts."""
        ...


class ExecutionHost(Host, RunLogs, Protocol):
    id: str
    abandoned: int  # handlers that would not stop

    @property
    def engine(self) -> ExecutionEngine: ...
    @property
    def meters(self) -> RunMetrics: ...
    @property
    def listeners(self) -> Listeners: ...
    @property
    def processes(self) -> ProcessPool: ...

    def set_idle(self, limit: AgentLimit | None, idle: bool) -> None:
        """Note that a handler begins to wait, which takes no slot, or that it goes on."""
        ...

    def ended(self, execution: Any) -> None:
        """Note that an execution is over, and free its slot."""
        ...

    def hand_back_soon(self, run: str, error: BaseException) -> None:
        """Give up a run that could not be handled here."""
        ...

    def fail_soon(self, run: str, error: ErrorInfo) -> None:
        """End a run whose own ending the store refused."""
        ...

"""The data that all parts of a run share: its log, its history, its agent and its request."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from ...model.content import Message, Part
from ...model.run import Answer, Question, RunRequest
from ...model.team.authority import Authority
from ...store.changes import Change
from ...store.ports import Store
from ..alarm_clock import AlarmClock
from ..log.received_messages import MailKind
from ..log.replay import Replay
from ..log.run_log import RunLog
from ..settings import Settings

if TYPE_CHECKING:
    import asyncio

    from ..agents.agent import Agent


class Host(Protocol):
    """The process that a run executes in, as the parts of the run need it."""

    threads: int  # plain functions that are running

    @property
    def store(self) -> Store: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def clock(self) -> AlarmClock: ...
    @property
    def is_ending(self) -> bool:
        """True when a run that is cut short here ends with the process."""
        ...

    @property
    def thread_slots(self) -> asyncio.Semaphore: ...
    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something in a task that the handler cannot cancel."""
        ...


class TeamPart(Protocol):
    """The team that a run works for. It puts into the team's conversation what the run says and is told."""

    def asked(self, place: str, question: Question, attachments: Iterable[Part | str]) -> None:
        """Tell the team what a member asks."""
        ...

    def answered(self, place: str, question: Question, answer: Answer) -> None:
        """Tell the team what a member is answered."""
        ...

    def received(self, message: Message, kind: MailKind) -> list[Change]:
        """Mark a message from outside, and return what tells the team of it."""
        ...

    def attached(self, attachments: Iterable[Part | str]) -> list[Part]:
        """Return attachments as parts. A tool's result that this run did not get is marked."""
        ...

    def with_checked_attachments(self, output: Any) -> Any:
        """Return the output of the run. Where it is a verdict, its attachments are marked as others are."""
        ...


class RunData:
    """The data of one run in this process."""

    __slots__ = ("agent", "cancelling", "host", "log", "replay", "request", "rollback", "row", "team")

    def __init__(self, host: Host, agent: Agent[..., Any] | None, log: RunLog, replay: Replay) -> None:
        assert replay.created is not None
        self.host = host
        self.agent = agent
        self.log = log
        self.row = log.row
        self.replay = replay
        self.request: RunRequest = replay.created.request
        self.cancelling = replay.cancelled  # somebody wants the run to stop
        self.rollback = replay.rollback  # and to be deleted
        self.team: TeamPart | None = None

    @property
    def clock(self) -> AlarmClock:
        return self.host.clock

    @property
    def authority(self) -> Authority | None:
        return self.request.authority

    @property
    def in_thread(self) -> bool:
        """True when the handler is a plain function in a thread of this process."""
        agent = self.agent
        return agent is not None and agent.shape.startswith("sync") and not agent.process

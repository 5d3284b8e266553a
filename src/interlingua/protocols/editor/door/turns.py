"""A turn: a run that a connection shows, from its prompt to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....model.errors import ErrorInfo
from ....model.events import Event, RunFinished
from ....model.status import Status
from ....transports.jsonrpc.core import RpcError
from .. import translate, wire
from ..projection import Projection, fed
from ..versions import Update
from .client_questions import TurnQuestions

if TYPE_CHECKING:
    from .sessions import Session


class Turn:
    """One run that this connection follows."""

    def __init__(self, session: Session, agent: str | None, run: str | None = None) -> None:
        """`agent` is the key of the agent, where it is known. `run` is None until the run is submitted."""
        self.run = run
        self._engine = session.engine
        self.questions = TurnQuestions(session, self, agent)
        self.cancelling = False
        self.projection: Projection | None = None
        self.cursor = 0
        self.finished: RunFinished | None = None
        self.rests = asyncio.Event()  # a question asked as text is open, or the run is over: the prompt can be answered
        self.left = False  # this connection no longer follows it
        self.failure: Exception | None = None  # it could not be followed
        self.awaited = False  # a prompt is open that this turn answers
        self.task: asyncio.Task[None] | None = None
        self.watches: set[asyncio.Task[None]] = set()

    async def replay(self, event: Event) -> Sequence[Update]:
        """Takes an event from before the connection followed the run, and returns its updates."""
        assert self.projection is not None
        self.cursor = event.seq
        self.questions.replay(event.body)
        if isinstance(event.body, RunFinished):
            self.finished = event.body
        return await fed(self._engine, self.projection, event)

    def forget(self) -> None:
        """Shows the turn no longer. Its run goes on."""
        self.questions.withdraw_all()
        for task in [self.task, *self.watches]:
            if task is not None:
                task.cancel()


class ResumedPrompt:
    """The params of a prompt that another process began to answer, and this process answers."""

    def __init__(self, session: Session, turn: Turn) -> None:
        self.session = session
        self.turn = turn


def outcome(turn: Turn) -> tuple[wire.StopReason, RpcError | None]:
    """Returns the end of a turn: its stop reason, or the error that explains why there is none."""
    finished = turn.finished
    if finished is None or finished.status is Status.SUCCEEDED:
        return "end_turn", None
    if finished.status is Status.CANCELLED:
        return "cancelled", None
    info = finished.error or ErrorInfo("run_failed", f"the run {finished.status.value}")
    return "end_turn", translate.run_error(info, turn.run)

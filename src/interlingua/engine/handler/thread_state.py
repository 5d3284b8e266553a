"""The thread that a run works on: its state and history, as every entry of the run begins with them, and its state at
the end."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from ...model import json_values
from ...model.content import Message, TextPart
from ...model.errors import Invalid, InvalidState
from ...model.run import Thread
from ...model.team.oversight import Assignment, Exchange, Proposal
from .run_data import RunData


class HasState(Protocol):
    """The context of a handler."""

    state: Any


class ThreadState:
    __slots__ = ("_data", "_state", "checkpoint", "context", "history", "version")

    def __init__(self, data: RunData) -> None:
        self._data = data
        self._state: Any = None
        self.checkpoint: str | None = None
        self.version = 0
        self.history: list[Message] = []
        self.context: HasState | None = None  # of a handler that takes one

    # -- the thread ---------------------------------------------------------------------------------------

    @property
    def id(self) -> str | None:
        """The thread of the run, or the one that its caller lent to it."""
        assignment = self._data.request.assignment
        return self._data.row.thread or (assignment.thread if assignment is not None else None)

    @property
    def exists(self) -> bool:
        """True when the run works on a thread."""
        assignment = self._data.request.assignment
        return self._data.row.thread is not None or (assignment is not None and assignment.lent)

    async def take(self, thread: Thread) -> None:
        """Begin with a thread as it was when the run took it."""
        self.checkpoint, self.version, self._state = thread.checkpoint, thread.version, thread.values
        if self.checkpoint is not None and self._wants_history:
            store = self._data.host.store
            checkpoint = await store.threads.checkpoint(self.checkpoint)
            upto = checkpoint.messages if checkpoint is not None else 0
            self.history = await store.threads.messages(thread.id, upto=upto)

    async def load(self) -> str | None:
        """Read the thread. Returns the run that has it, where that is another one."""
        store, row, replay = self._data.host.store, self._data.row, self._data.replay
        taken_by = None
        if row.thread is None:
            return None
        if replay.started:
            self.checkpoint, self.version = replay.checkpoint, replay.thread_version
        else:
            thread = await store.threads.get(row.thread)
            if thread is not None:
                self.checkpoint, self.version, self._state = thread.checkpoint, thread.version, thread.values
                taken_by = thread.active if thread.active != row.id else None
        if self.checkpoint is not None:
            checkpoint = await store.threads.checkpoint(self.checkpoint)
            if checkpoint is not None:
                self._state = checkpoint.values
                if self._wants_history:
                    self.history = await store.threads.messages(row.thread, upto=checkpoint.messages)
        return taken_by

    @property
    def _wants_history(self) -> bool:
        agent = self._data.agent
        return agent is not None and agent.reads_history

    # -- state --------------------------------------------------------------------------------------------

    @property
    def before(self) -> Any:
        """The state of the thread, as every entry of this run begins with it."""
        return self._state if isinstance(self._state, dict) else {}

    def decoded(self) -> Any:
        """The state as the handler gets it."""
        agent = self._data.agent
        assert agent is not None
        state = json_values.copy(self._state) if isinstance(self._state, dict) else {}
        return state if agent.state is None else agent.state.decode(state, InvalidState)

    def current(self) -> Any:
        """The state as the handler has it now; None where the run works on no thread."""
        return self.final() if self.exists else None

    def final(self) -> Any:
        """The state that the handler leaves behind; UNSET where the run works on no thread."""
        agent = self._data.agent
        if not self.exists:
            return msgspec.UNSET
        if self.context is None:
            return self._state if self._state is not None else {}
        assert agent is not None
        try:
            state = agent.state.encode(self.context.state) if agent.state is not None else self.context.state
        except Invalid as error:
            raise InvalidState(error.message) from error
        if agent.check_state is not None:
            agent.check_state.check(state, InvalidState)
        else:
            json_values.check(state, InvalidState, what="state")
        return state

    # -- lending ------------------------------------------------------------------------------------------

    def borrow(self, assignment: Assignment) -> None:
        """Work on the thread of the caller."""
        if assignment.lent:
            self._state, self.history = assignment.state, assignment.history

    def lend(
        self, *, sealed: bool = False, earlier: list[Exchange] | None = None, review: Proposal | None = None
    ) -> Assignment:
        """An assignment for the run that does the work of this one: it works on the same thread."""
        lent = self.exists
        return Assignment(
            sealed=sealed, lent=lent, thread=self.id if lent else None,
            state=json_values.copy(self.before) if lent else None, history=self.history if lent else [],
            earlier=earlier or [], review=review,
        )  # fmt: skip

    # -- conversation -------------------------------------------------------------------------------------

    def said(self, output: Any) -> list[Message]:
        """The messages that this run adds to the conversation of its thread."""
        request, agent = self._data.request, self._data.agent
        said = list(request.messages)
        card = agent.card if agent is not None else None
        if not said and card is not None and card.input_text and isinstance(request.input, dict):
            text = request.input.get(card.input_text)
            if isinstance(text, str):
                said.append(Message("user", [TextPart(text)]))
        said.extend(self._data.replay.emissions.sent)
        if card is not None and card.output_text and isinstance(output, dict):
            text = output.get(card.output_text)
            if isinstance(text, str) and text:
                said.append(Message("agent", [TextPart(text)]))
        return said

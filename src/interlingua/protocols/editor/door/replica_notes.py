"""Notes of an HTTP connection in the store, for another replica to take over when its process dies: the client, its
open sessions, and which prompts wait for which runs. The other replica goes on under the same id.

Descriptions of tool servers are left out, because they may hold secrets. An agent that needs them after a take-over
gets none, until the client opens its session again.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import msgspec

from ....doors.follow_log import read_back
from ....doors.replica_notes import Note
from ....model.errors import InterlinguaError
from ....transports.jsonrpc.core import Id
from . import operations_sessions as operations
from .sessions import Session
from .turns import ResumedPrompt, Turn

if TYPE_CHECKING:
    from .connection import EditorConnection
    from .http_clients import HttpConnection

_NOTED = 8  # prompts of a session, the newest


class Prompted(msgspec.Struct):
    """A prompt, and the run that answers it."""

    run: str
    request: Id | None = None


class Mark(msgspec.Struct):
    """The position of a client in a session's stream: an event of a run, and if the prompt was answered after it."""

    run: str
    seq: int
    answered: bool

    @classmethod
    def read(cls, text: str) -> Mark | None:
        run, _, rest = text.partition(".")
        seq, _, end = rest.partition(".")
        return cls(run, int(seq), end == "end") if seq.isdecimal() and len(seq) < 16 else None


class PromptNotes:
    """The prompts of one connection, as its note has them."""

    def __init__(self, client: HttpConnection) -> None:
        self._client = client
        self._lost: dict[str, list[Prompted]] = {}  # by session: prompts of processes before this one

    def extra(self) -> dict[str, list[Prompted]]:
        """Returns the newest prompts of each open session."""
        return {
            id_: [*self._lost.get(id_, []), *(Prompted(run, request) for run, request in session.prompted)][-_NOTED:]
            for id_, session in self._client.connection.sessions.items()
        }

    async def restore(self, note: Note) -> None:
        """Takes over a connection of another process. Its sessions are open; their turns are shown again when the
        client reads the streams and names its position."""
        connection = self._client.connection
        operations.begin(connection, note.params)
        for id_, prompts in msgspec.convert(note.extra, dict[str, list[Prompted]]).items():
            with contextlib.suppress(InterlinguaError):  # a session that was deleted meanwhile
                session = await operations.reopen(connection, id_)
                self._client.channel.add(id_)
                self._lost[id_] = prompts
                runs = [prompt.run for prompt in prompts]
                session.turns += [Turn(session, None, run) for run in runs if not await _is_over(connection, run)]

    async def show_again(self, id_: str, after: str) -> None:
        """Shows a session's turns to a client that reads its stream again, from its position on."""
        connection = self._client.connection
        session, prompted = connection.sessions.get(id_), self._lost.pop(id_, None)
        if session is None or not prompted:
            return
        mark = Mark.read(after)
        runs = [prompt.run for prompt in prompted]
        for turn in [turn for turn in session.turns if turn.task is None]:
            session.turns.remove(turn)  # it only stood there to be cancelled
        if mark is not None and mark.run in runs:
            prompted = prompted[runs.index(mark.run) :]
        elif mark is None and await _is_over(connection, runs[-1]):
            prompted = prompted[-1:]
        elif mark is None:
            prompted = [prompt for prompt in prompted if prompt.run == runs[-1]]
        for prompt in prompted:
            with contextlib.suppress(InterlinguaError):
                await self._show(session, prompt, mark)

    async def _show(self, session: Session, prompt: Prompted, mark: Mark | None) -> None:
        connection = self._client.connection
        after = None
        if mark is not None:
            after = mark.seq if mark.run == prompt.run else 0
        turn = await _shown(connection, session, prompt.run, after)
        answered = mark is not None and mark.run == prompt.run and mark.answered
        if turn.finished is not None and answered:
            return
        request = None if answered else prompt.request
        session.prompted.append((prompt.run, request))
        session.turns.append(turn)
        if turn.finished is not None:
            turn.rests.set()
        if request is not None and connection.dialect.number == 1:
            self._client.channel.asked(request, "session/prompt", session.id, True)
            connection.rpc.reopen([(request, "session/prompt", ResumedPrompt(session, turn))])
        else:
            connection.prompts.follow(session, turn)
        turn.questions.ask_left_open()


async def _is_over(connection: EditorConnection, run: str) -> bool:
    return (await connection.engine.runs.get(run)).status.final


async def _shown(connection: EditorConnection, session: Session, run: str, after: int | None) -> Turn:
    """Returns a turn whose events are shown up to an event; None means all events."""
    view = await connection.engine.runs.get(run)
    turn = session.turn_of(view)
    async for events in read_back(connection.engine, run, sys.maxsize if after is None else after):
        for event in events:
            await turn.replay(event)
    still = {question.id for question in view.questions}
    turn.questions.left_open = [question for question in turn.questions.left_open if question.id in still]
    return turn

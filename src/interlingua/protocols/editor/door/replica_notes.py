"""Notes of an HTTP connection in the store, for another replica to take over when its process dies: the client, its
open sessions, and which prompts wait for which runs. The other replica goes on under the same id.

Descriptions of tool servers are left out, because they may hold secrets. An agent that needs them after a take-over
gets none, until the client opens its session again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from ....engine.ports import SessionAffinity
from ....model.documents import Document
from ....model.errors import InterlinguaError
from ....model.events import QuestionAnswered, QuestionAsked, QuestionWithdrawn, RunFinished
from ....model.run import Caller, Question
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.core import Id
from .. import wire
from ..projection import Projection, fed
from .resumed_prompt import Again
from .sessions import Session, Turn

if TYPE_CHECKING:
    from .connection import EditorConnection
    from .http import HttpConnection

_NOTED = 8  # prompts of a session, the newest


class Prompted(msgspec.Struct):
    """A prompt, and the run that answers it."""

    run: str
    request: Id | None = None


class Client(msgspec.Struct):
    """A connection."""

    id: str
    caller: str
    scopes: list[str]
    params: Any  # of initialize
    sessions: dict[str, list[Prompted]] = {}


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


def is_of(note: Document, id_: str, caller: Caller) -> bool:
    client = msgspec.json.decode(note.body, type=Client)
    return client.id == id_ and client.caller == caller.id and set(client.scopes) == set(caller.scopes)


class Notes:
    """The note of one connection."""

    def __init__(self, connection: HttpConnection, placed: SessionAffinity, times: int) -> None:
        self._connection = connection
        self._placed = placed
        self._times = times
        self._params: Any = None
        self._lost: dict[str, list[Prompted]] = {}  # by session: prompts of processes before this one
        connection.editor.changed = self._note

    async def begin(self, params: Any) -> None:
        self._params = params
        await self._note()

    async def _note(self) -> None:
        connection = self._connection
        caller, editor = connection.caller, connection.editor
        sessions = {
            id_: [*self._lost.get(id_, []), *(Prompted(run, request) for run, request in session.prompted)][-_NOTED:]
            for id_, session in editor.sessions.items()
        }
        told = Client(connection.id, caller.id, list(caller.scopes), self._params, sessions)
        await self._placed.note(connection.id, msgspec.json.encode(told), caller.id, self._times)

    # -- taking over --------------------------------------------------------------------------------------

    async def restore(self, note: Document) -> None:
        """Takes over a connection of another process. Its sessions are open; their turns are shown again when the
        client reads the streams and names its position."""
        client, editor = msgspec.json.decode(note.body, type=Client), self._connection.editor
        self._params = client.params
        editor.met(params_.read(client.params, wire.InitializeRequest))
        editor.rpc.rpc.count_from(self._times * 1_000_000)
        for id_, prompted in client.sessions.items():
            with contextlib.suppress(InterlinguaError):  # one that is not there any more
                session = await editor.reopen(id_)
                self._connection.channel.add(id_)
                self._lost[id_] = prompted
                session.turns += [_unseen(one.run) for one in prompted if not await _is_over(editor, one.run)]

    async def go_on(self, id_: str, after: str) -> None:
        """Shows a session's turns to a client that reads its stream again, from its position on."""
        editor = self._connection.editor
        session, prompted = editor.sessions.get(id_), self._lost.pop(id_, None)
        if session is None or not prompted:
            return
        mark = Mark.read(after)
        runs = [one.run for one in prompted]
        for turn in [turn for turn in session.turns if turn.task is None]:
            session.turns.remove(turn)  # it only stood there to be cancelled
        if mark is not None and mark.run in runs:
            prompted = prompted[runs.index(mark.run) :]
        elif mark is None:
            prompted = prompted[-1:] if await _is_over(editor, runs[-1]) else _open_ones(prompted, runs[-1:])
        for one in prompted:
            with contextlib.suppress(InterlinguaError):
                await self._show(session, one, mark)

    async def _show(self, session: Session, one: Prompted, mark: Mark | None) -> None:
        editor = self._connection.editor
        seen = mark is not None and mark.run == one.run
        after = mark.seq if mark is not None and seen else 0 if mark is not None else None
        turn = await _shown(editor, session, one.run, after)
        answered = mark is not None and seen and mark.answered
        if turn.finished is not None and answered:
            return
        request = None if answered else one.request
        session.prompted.append((one.run, request))
        session.turns.append(turn)
        if turn.finished is not None:
            turn.rests.set()
        if request is not None and editor.dialect.number == 1:
            self._connection.channel.asked(request, "session/prompt", session.id, True)
            editor.rpc.reopen([(request, "session/prompt", Again(session, turn))])
        else:
            editor.prompts.follow(session, turn)
        session.ask_again(turn)


def _open_ones(prompted: list[Prompted], runs: list[str]) -> list[Prompted]:
    return [one for one in prompted if one.run in runs]


def _unseen(run: str) -> Turn:
    turn = Turn()
    turn.run = run
    return turn


async def _is_over(editor: EditorConnection, run: str) -> bool:
    return (await editor.engine.runs.get(run)).status.final


async def _shown(editor: EditorConnection, session: Session, run: str, after: int | None) -> Turn:
    """Returns a turn whose events are shown up to an event; None means all events. Each event is read by itself,
    because a reader that is behind gets several as one."""
    view = await editor.engine.runs.get(run)
    turn = _unseen(run)
    found = editor.engine.agents.find(view.agent, view.version)
    turn.projection = Projection(run, found.card if found is not None else None, editor.dialect)
    asked: dict[str, Question] = {}
    while page := await editor.engine.runs.page(run, turn.cursor, 500):
        for event in page:
            if after is not None and event.seq > after:
                break
            turn.cursor = event.seq
            await fed(editor.engine, turn.projection, event)
            body = event.body
            if isinstance(body, QuestionAsked):
                asked[body.question.id] = body.question
            elif isinstance(body, QuestionAnswered | QuestionWithdrawn):
                asked.pop(body.question, None)
            elif isinstance(body, RunFinished):
                turn.finished = body
        else:
            continue
        break
    still = {question.id for question in view.questions}
    turn.open = [question for question in asked.values() if question.id in still]
    return turn

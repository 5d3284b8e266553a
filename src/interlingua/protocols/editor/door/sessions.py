"""A session of the door: a thread, and the turns that this connection follows.

A turn is a run. Its log becomes updates as it grows; its questions are asked of the client. When the client goes, the
run goes on, and a client that loads the session later sees the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ....engine.ids import now
from ....model import trace_context
from ....model.card import AgentCard
from ....model.content import Message, Part
from ....model.errors import Conflict, ErrorInfo, InterlinguaError, InvalidAnswer, NotFound
from ....model.events import QuestionAnswered, QuestionAsked, QuestionWithdrawn, RunFinished
from ....model.filters import RunFilter
from ....model.run import Question, Run, RunRequest
from ....model.status import Status
from ....security import scopes
from ....transports.jsonrpc.connection import ConnectionLost
from ....transports.jsonrpc.core import INVALID_PARAMS, Id, RpcError
from .. import translate, wire
from ..projection import Projection, fed, usage
from ..translate import ConfigOption
from .workspace import ClientEditor

if TYPE_CHECKING:
    from .connection import EditorConnection

log = logging.getLogger("interlingua.editor")

_AGAIN = 3  # times that a form is shown again after an answer that does not fit


class Place(msgspec.Struct):
    """The working directories and tool servers of a session. The client gives them each time it opens the session. Tool
    servers may hold secrets, so they stay in memory."""

    cwd: str
    directories: list[str] = []
    mcp_servers: list[dict[str, Any]] = []


class Turn:
    """One run that this connection follows."""

    def __init__(self) -> None:
        self.run: str | None = None  # None until it is submitted
        self.cancelling = False
        self.projection: Projection | None = None
        self.cursor = 0
        self.finished: RunFinished | None = None
        self.spoken: Question | None = None  # asked as text: the next prompt is the answer
        self.rests = asyncio.Event()  # such a question is open, or the run is over: the prompt can be answered
        self.left = False  # this connection no longer follows it
        self.failure: Exception | None = None  # it could not be followed
        self.awaited = False  # a prompt is open that this turn answers
        self.asks: dict[str, asyncio.Task[None]] = {}
        self.open: list[Question] = []  # found open when the session was opened again
        self.task: asyncio.Task[None] | None = None
        self.watches: set[asyncio.Task[None]] = set()


class Session:
    def __init__(
        self, connection: EditorConnection, thread: str, place: Place, card: AgentCard, config: dict[str, Any],
        title: str | None,
    ) -> None:  # fmt: skip
        self.connection = connection
        self.engine = connection.door.engine
        self.id = thread
        self.place = place
        self.card = card
        self.config = config
        self.title = title
        self.turns: list[Turn] = []
        self.prompted: list[tuple[str, Id | None]] = []  # runs and the requests that they answer, the newest last
        self.editor = ClientEditor(
            connection.rpc, thread, connection.able, place.cwd, place.directories, place.mcp_servers
        )
        self.engine.workspaces.attach(thread, self.editor)

    def forget(self) -> None:
        """Removes the session from this connection. Its runs go on."""
        self.engine.workspaces.detach(self.id, self.editor)
        for turn in self.turns:
            for task in [turn.task, *turn.asks.values(), *turn.watches]:
                if task is not None:
                    task.cancel()

    def update(self, update: dict[str, Any]) -> None:
        self.connection.rpc.notify("session/update", {"sessionId": self.id, "update": update})

    def updates(self, updates: Sequence[dict[str, Any]]) -> None:
        for update in updates:
            self.update(update)

    async def updates_in_pieces(self, updates: Sequence[dict[str, Any]]) -> None:
        """Sends each update only when the reader has taken enough of the earlier ones."""
        for place, update in enumerate(updates):
            if place:
                await self.connection.rpc.drain(self.id)
            self.update(update)

    # -- configuration ------------------------------------------------------------------------------------

    def options(self) -> list[ConfigOption]:
        found: list[ConfigOption] = []
        agents = self.connection.agents()
        if len(agents) > 1:
            choices = [(card.key, _agent_name(card, agents), card.description) for card in agents]
            found.append(ConfigOption("agent", "Agent", self.card.key, choices, "Who answers", "mode"))
        return found + translate.config_options(self.card, self.config)

    def metadata(self) -> dict[str, Any]:
        """Returns the parts of this session that its thread keeps, so that another process can open it."""
        kept: dict[str, Any] = {
            "door": "editor",
            "cwd": self.place.cwd,
            "editor": {"agent": self.card.key, "config": self.config, "directories": self.place.directories},
        }
        if self.title:
            kept["title"] = self.title
        return kept

    async def keep(self) -> None:
        await self.engine.threads.patch(self.id, metadata=self.metadata())

    async def set_option(self, id_: str, value: Any) -> None:
        option = next((option for option in self.options() if option.id == id_), None)
        if option is None:
            known = ", ".join(o.id for o in self.options()) or "none"
            raise RpcError(INVALID_PARAMS, f"there is no option {id_!r}; there are: {known}")
        if option.choices:
            allowed: list[Any] = [choice[0] for choice in option.choices]
            fits = value in allowed
        else:
            allowed, fits = [True, False], type(value) is bool
        if not fits:
            raise RpcError(INVALID_PARAMS, f"option {id_} is {value!r}; it is one of {allowed}")
        if id_ == "agent":
            self.card = next(card for card in self.connection.agents() if card.key == value)
            self.config = {}
            self.update(self.connection.dialect.commands(self.card))
        else:
            self.config = {**self.config, id_: value}
        await self.keep()

    # -- prompting ----------------------------------------------------------------------------------------

    async def begin(self, turn: Turn, blocks: list[dict[str, Any]], meta: dict[str, Any] | None) -> str:
        """Submits a prompt as a run. Returns the id of the user's message."""
        connection = self.connection
        parts = translate.parts(blocks, open_types=connection.dialect.open_types)
        card = self.card
        scopes.require(connection.caller, "run", card.key)
        text = translate.prompt_text(parts)
        self.engine.workspaces.attach(self.id, self.editor)  # of several clients, the one that prompts
        request = RunRequest(
            card.name,
            card.version,
            translate.prompt_input(card, parts),
            self.config or None,
            messages=[Message("user", parts)],
            metadata=translate.metadata(meta),
            caller=connection.caller,
            thread=self.id,
            create_thread=True,
            when_busy="enqueue",
            trace=trace_context.read(meta),
        )
        naming: asyncio.Future[None] | None = None
        if not self.title and text.strip():
            self.title = translate.title(text)
            naming = asyncio.ensure_future(self.keep())  # its first turn comes with the run's: that is one commit
        try:
            made = await self.engine.runs.submit(request, watch=True)
        except BaseException:
            if naming is not None:
                naming.cancel()
                self.title = None
            raise
        turn.run = made.id
        turn.projection = Projection(made.id, card, connection.dialect)
        if naming is not None:
            await naming
            self.update({"sessionUpdate": "session_info_update", "title": self.title, "updatedAt": _stamp()})
        if turn.cancelling:
            await self.cancel_run(turn)
        return f"{made.id}-prompt"

    async def take_up(self, turn: Turn, parts: list[Part]) -> Literal["goes on", "asked again", "too late"]:
        """Takes a prompt as the answer to a question that was asked as text."""
        question = turn.spoken
        assert question is not None
        answer = translate.parse_answer(question, translate.prompt_text(parts))
        try:
            await self.engine.questions.answer(question.id, answer, by=self.connection.caller, door="editor")
        except InvalidAnswer as error:
            note = f"That does not answer the question: {error.message}\n\n{translate.question_text(question)}"
            self.say(f"{question.id}-again-{now()}", note)
            return "asked again"
        except (Conflict, NotFound):
            return "too late"  # another client answered: this prompt begins a turn
        self._written(turn)
        return "goes on"

    def _written(self, turn: Turn) -> None:
        turn.spoken = None
        turn.rests.clear()

    def say(self, message: str, text: str) -> None:
        self.update(self.connection.dialect.chunk("agent_message", message, {"type": "text", "text": text}))

    def spoken_to(self) -> Turn | None:
        """Returns the turn that waits for a written answer, if there is one."""
        return next((turn for turn in self.turns if turn.spoken is not None), None)

    async def follow(self, turn: Turn) -> None:
        """Shows a run to its end."""
        assert turn.run is not None
        assert turn.projection is not None
        rpc = self.connection.rpc
        mark = getattr(rpc.channel, "mark", None)
        async with contextlib.aclosing(self.engine.runs.events(turn.run, after=turn.cursor)) as events:  # type: ignore[type-var]
            async for event in events:
                turn.cursor = event.seq
                updates = await fed(self.engine, turn.projection, event)
                if mark is not None and len(updates) > 1:  # a client that has seen some of them has not seen the event
                    mark(self.id, turn.run, event.seq - 1)
                    for update in itertools.islice(updates, len(updates) - 1):
                        self.update(update)
                        await rpc.drain(self.id)
                    updates = updates[-1:]
                if mark is not None:
                    mark(self.id, turn.run, event.seq)
                await self.updates_in_pieces(updates)
                body = event.body
                if isinstance(body, QuestionAsked):
                    self._asked(turn, body.question)
                elif isinstance(body, QuestionAnswered | QuestionWithdrawn):
                    self._settled(turn, body.question)
                elif isinstance(body, RunFinished):
                    turn.finished = body
                    break
                del updates, event, body  # while a slow reader takes them, they are not held here
                await rpc.drain(self.id)
        for task in turn.asks.values():
            task.cancel()
        await self._after(turn)

    async def _after(self, turn: Turn) -> None:
        """Sends the updates at the end of a run: usage, and the thread's values."""
        assert turn.finished is not None
        error = outcome(turn)[1]
        if error is not None and not turn.awaited and self.connection.dialect.number == 1:
            self.say(f"{turn.run}-failed", f"The run failed: {error.message}")  # no answer is left that could say so
        used = usage(turn.finished.usage)
        if used is not None:
            self.update(used)
        if self.card.state is not None and turn.finished.status is Status.SUCCEEDED:
            with contextlib.suppress(NotFound):
                thread = await self.engine.threads.get(self.id)
                self.update(
                    {
                        "sessionUpdate": "session_info_update",
                        "updatedAt": _stamp(),
                        "_meta": {"interlingua": {"values": thread.values}},
                    }
                )

    async def cancel(self) -> None:
        """Cancels all runs of this session for this client. Prompts are answered when their runs have ended."""
        for turn in list(self.turns):
            turn.cancelling = True
            if turn.run is not None and turn.finished is None:
                await self.cancel_run(turn)

    async def cancel_run(self, turn: Turn) -> None:
        assert turn.run is not None
        with contextlib.suppress(Conflict, NotFound):
            await self.engine.runs.cancel(turn.run, by=self.connection.caller, reason="the user cancelled the turn")

    # -- questions ----------------------------------------------------------------------------------------

    def _asked(self, turn: Turn, question: Question) -> None:
        if question.answerer not in (None, self.connection.caller.id):
            return  # another caller must answer; here it only shows
        if translate.choices(question) is None and not self.connection.forms:
            self._speak(turn, question)
            return
        self.updates(self.connection.dialect.state("requires_action"))
        turn.asks[question.id] = asyncio.get_running_loop().create_task(self._ask(turn, question))

    def _speak(self, turn: Turn, question: Question) -> None:
        """Asks a question as text: the next prompt is the answer."""
        turn.spoken = question
        self.say(f"{question.id}-asked", translate.question_text(question))
        turn.rests.set()

    def _settled(self, turn: Turn, question: str) -> None:
        """Withdraws the open request of a question that was answered or withdrawn, here or elsewhere."""
        if turn.spoken is not None and turn.spoken.id == question:
            self._written(turn)
        task = turn.asks.pop(question, None)
        if task is not None:
            task.cancel()
            if not turn.asks:
                self.updates(self.connection.dialect.state("running"))

    async def _ask(self, turn: Turn, question: Question) -> None:
        try:
            with contextlib.suppress(ConnectionLost):
                await self._ask_client(turn, question)
        except (Conflict, NotFound) as error:  # the first answer wins, and another was first
            self.say(f"{question.id}-late", f"The answer was not taken: {error.message}")
        except InterlinguaError as error:
            self.say(f"{question.id}-failed", f"The answer was not taken: {error.message}")
            await self.cancel_run(turn)
        except Exception:  # this task is not awaited: unhandled, its error would let the turn wait for ever
            log.exception("question %s of run %s could not be asked", question.id, turn.run)
            self._speak(turn, question)

    async def _ask_client(self, turn: Turn, question: Question) -> None:
        choices = translate.choices(question)
        rpc, dialect = self.connection.rpc, self.connection.dialect
        if choices is None:
            await self._ask_form(turn, question)
            return
        try:
            told = await rpc.request("session/request_permission", dialect.permission(self.id, question, choices))
            response = msgspec.convert(told, wire.PermissionResponse)
        except (RpcError, msgspec.ValidationError):
            response = wire.PermissionResponse(wire.PermissionOutcome("failed"))  # whatever it was, no permission
        outcome, meta = response.outcome, response.meta
        if outcome.outcome == "selected" and outcome.option_id in choices.answers:
            whole = meta.get(wire.META_ANSWER) if isinstance(meta, dict) else None
            await self._answer(question, choices.full_answer(outcome.option_id, whole))
        elif outcome.outcome == "cancelled" or choices.rejection() is msgspec.UNSET:
            if not turn.cancelling:
                await self.cancel_run(turn)
        else:
            await self._answer(question, choices.rejection())

    async def _ask_form(self, turn: Turn, question: Question) -> None:
        message = question.prompt or question.type.replace("_", " ")
        wanted = translate.form(question.answer_schema)
        for _ in range(_AGAIN):
            params = self.connection.dialect.elicitation(self.id, question, wanted, message)
            try:
                told = msgspec.convert(
                    await self.connection.rpc.request("elicitation/create", params), wire.ElicitationResponse
                )
            except (RpcError, msgspec.ValidationError):
                break
            if told.action != "accept":
                break
            try:
                await self._answer(question, wanted.answer(told.content or {}))
                return
            except InvalidAnswer as error:
                message = f"{error.message}\n\n{question.prompt}"
        if not turn.cancelling:
            await self.cancel_run(turn)

    async def _answer(self, question: Question, value: Any) -> None:
        scopes.require(self.connection.caller, "answer")
        await self.engine.questions.answer(question.id, value, by=self.connection.caller, door="editor")

    # -- opening again ------------------------------------------------------------------------------------

    async def replay(self) -> Turn | None:
        """Shows the whole conversation. Returns the turn that is not over, if there is one."""
        unfinished = None
        for run in await self._runs():
            turn = await self._replay_run(run)
            if turn is not None:
                unfinished = turn
        return unfinished

    async def _runs(self) -> list[Run]:
        """Returns the runs of the session, oldest first."""
        found: list[Run] = []
        while True:
            page = await self.engine.runs.search(RunFilter(thread=self.id, limit=500, offset=len(found)))
            found += page
            if len(page) < 500:
                return found[::-1]

    async def _replay_run(self, listed: Run) -> Turn | None:
        run = await self.engine.runs.get(listed.id)
        dialect = self.connection.dialect
        turn = Turn()
        turn.run = run.id
        found = self.engine.agents.find(run.agent, run.version)
        turn.projection = Projection(run.id, found.card if found is not None else None, dialect)
        if run.request is not None:
            said = [block for message in run.request.messages for block in translate.said(message)]
            if not said and run.request.input:
                said = [{"type": "text", "text": _input_text(run.request.input, found.card if found else None)}]
            self.updates(dialect.user_message(f"{run.id}-prompt", said))
        del run  # while a slow reader takes what it said, its output is not held here
        open_: dict[str, Question] = {}
        async for event in self.engine.runs.events(listed.id, follow=False):
            turn.cursor = event.seq
            await self.updates_in_pieces(await fed(self.engine, turn.projection, event))
            if isinstance(event.body, QuestionAsked):
                open_[event.body.question.id] = event.body.question
            elif isinstance(event.body, QuestionAnswered | QuestionWithdrawn):
                open_.pop(event.body.question, None)
            elif isinstance(event.body, RunFinished):
                return None
            await self.connection.rpc.drain(self.id)
        turn.open = list(open_.values())
        return turn

    async def unfinished(self) -> Turn | None:
        """Returns the turn that is not over, without showing the conversation."""
        thread = await self.engine.threads.get(self.id)
        if thread.active is None:
            return None
        run = await self.engine.runs.get(thread.active)
        turn = Turn()
        turn.run = run.id
        found = self.engine.agents.find(run.agent, run.version)
        turn.projection = Projection(run.id, found.card if found is not None else None, self.connection.dialect)
        async for event in self.engine.runs.events(run.id, follow=False):
            await fed(self.engine, turn.projection, event)
            turn.cursor = event.seq
        turn.open = run.questions
        return turn

    async def ended_turn(self) -> Turn:
        """Returns the newest turn, which is over."""
        newest = await self.engine.runs.search(RunFilter(thread=self.id, limit=1))
        if not newest:
            raise NotFound(f"session {self.id} has had no prompt")
        run = await self.engine.runs.wait(newest[0].id)
        turn = Turn()
        turn.run, turn.finished = run.id, RunFinished(run.status, run.output, run.error)
        return turn

    def ask_again(self, turn: Turn) -> None:
        for question in turn.open:
            self._asked(turn, question)
        turn.open = []


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


def _agent_name(card: AgentCard, others: list[AgentCard]) -> str:
    """Returns the name of an agent, with its version where the name alone is ambiguous."""
    return card.key if sum(other.name == card.name for other in others) > 1 else card.name


def _input_text(input_: Any, card: AgentCard | None) -> str:
    field = card.input_text if card is not None else None
    text = input_.get(field) if field is not None and isinstance(input_, dict) else None
    return text if isinstance(text, str) else translate.json_block(input_)


def _stamp() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

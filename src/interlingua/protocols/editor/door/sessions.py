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
from typing import TYPE_CHECKING, Any

import msgspec

from ....model import trace_context
from ....model.card import AgentCard
from ....model.content import Message
from ....model.errors import Conflict, NotFound
from ....model.events import QuestionAnswered, QuestionAsked, QuestionWithdrawn, RunFinished
from ....model.filters import RunFilter
from ....model.run import Run, RunRequest
from ....model.status import Status
from ....security import scopes
from ....transports.jsonrpc.core import INVALID_PARAMS, Id, RpcError
from .. import translate
from ..projection import Projection, fed, usage
from ..translate import ConfigOption
from .turns import Turn, outcome
from .workspace import ClientEditor

if TYPE_CHECKING:
    from .connection import EditorConnection

log = logging.getLogger("interlingua.editor")


class Place(msgspec.Struct):
    """The working directories and tool servers of a session. The client gives them each time it opens the session. Tool
    servers may hold secrets, so they stay in memory."""

    cwd: str
    directories: list[str] = []
    mcp_servers: list[dict[str, Any]] = []


class Session:
    def __init__(
        self, connection: EditorConnection, thread: str, place: Place, card: AgentCard, config: dict[str, Any],
        title: str | None,
    ) -> None:  # fmt: skip
        self.connection = connection
        self.engine = connection.engine
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
            turn.forget()

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
        options: list[ConfigOption] = []
        agents = self.connection.agents()
        if len(agents) > 1:
            choices = [(card.key, _agent_name(card, agents), card.description) for card in agents]
            options.append(ConfigOption("agent", "Agent", self.card.key, choices, "Who answers", "mode"))
        return options + translate.config_options(self.card, self.config)

    def metadata(self) -> dict[str, Any]:
        """Returns the parts of this session that its thread keeps, so that another process can open it."""
        metadata: dict[str, Any] = {
            "door": "editor",
            "cwd": self.place.cwd,
            "editor": {"agent": self.card.key, "config": self.config, "directories": self.place.directories},
        }
        if self.title:
            metadata["title"] = self.title
        return metadata

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

    def say(self, message: str, text: str) -> None:
        self.update(self.connection.dialect.chunk("agent_message", message, {"type": "text", "text": text}))

    def asked_as_text(self) -> Turn | None:
        """Returns the turn that waits for a written answer, if there is one."""
        return next((turn for turn in self.turns if turn.questions.as_text is not None), None)

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
                    turn.questions.ask(body.question)
                elif isinstance(body, QuestionAnswered | QuestionWithdrawn):
                    turn.questions.settle(body.question)
                elif isinstance(body, RunFinished):
                    turn.finished = body
                    break
                del updates, event, body  # while a slow reader takes them, they are not held here
                await rpc.drain(self.id)
        turn.questions.withdraw_all()
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
        runs: list[Run] = []
        while True:
            page = await self.engine.runs.search(RunFilter(thread=self.id, limit=500, offset=len(runs)))
            runs += page
            if len(page) < 500:
                return runs[::-1]

    def turn_of(self, run: Run) -> Turn:
        """Returns the turn of an existing run, of which nothing is shown yet."""
        agent = self.engine.agents.find(run.agent, run.version)
        turn = Turn(self, f"{run.agent}@{run.version}", run.id)
        turn.projection = Projection(run.id, agent.card if agent is not None else None, self.connection.dialect)
        return turn

    async def _replay_run(self, listed: Run) -> Turn | None:
        run = await self.engine.runs.get(listed.id)
        turn = self.turn_of(run)
        if run.request is not None:
            blocks = [block for message in run.request.messages for block in translate.said(message)]
            if not blocks and run.request.input:
                agent = self.engine.agents.find(run.agent, run.version)
                text = _input_text(run.request.input, agent.card if agent is not None else None)
                blocks = [{"type": "text", "text": text}]
            self.updates(self.connection.dialect.user_message(f"{run.id}-prompt", blocks))
        del run  # while a slow reader takes what it said, its output is not held here
        async for event in self.engine.runs.events(listed.id, follow=False):
            await self.updates_in_pieces(await turn.replay(event))
            if turn.finished is not None:
                return None
            await self.connection.rpc.drain(self.id)
        return turn

    async def unfinished(self) -> Turn | None:
        """Returns the turn that is not over, without showing the conversation."""
        thread = await self.engine.threads.get(self.id)
        if thread.active is None:
            return None
        run = await self.engine.runs.get(thread.active)
        turn = self.turn_of(run)
        async for event in self.engine.runs.events(run.id, follow=False):
            await turn.replay(event)
        turn.questions.left_open = run.questions
        return turn

    async def ended_turn(self) -> Turn:
        """Returns the newest turn, which is over."""
        newest = await self.engine.runs.search(RunFilter(thread=self.id, limit=1))
        if not newest:
            raise NotFound(f"session {self.id} has had no prompt")
        run = await self.engine.runs.wait(newest[0].id)
        turn = self.turn_of(run)
        turn.finished = RunFinished(run.status, run.output, run.error)
        return turn


def _agent_name(card: AgentCard, others: list[AgentCard]) -> str:
    """Returns the name of an agent, with its version where the name alone is ambiguous."""
    return card.key if sum(other.name == card.name for other in others) > 1 else card.name


def _input_text(input_: Any, card: AgentCard | None) -> str:
    field = card.input_text if card is not None else None
    text = input_.get(field) if field is not None and isinstance(input_, dict) else None
    return text if isinstance(text, str) else translate.json_block(input_)


def _stamp() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

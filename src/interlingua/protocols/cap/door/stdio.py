"""The door over stdin and stdout: one message per line, both ways.

The peer that started the process is the user and the orchestrator of the agents here, also under a name of its own that
no agent has. It gets the messages that are addressed to it; of tasks whose notice says `"metadata": {"stream": true}`,
it gets everything that the stream of the HTTP door has. A line that is no message is answered with an error, and ends
nothing. An error is never answered with an error: two peers that did so would never stop.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from ....engine.engine import Engine
from ....model import json_values
from ....model.errors import AgentNotFound, InterlinguaError, InvalidRequest, TooLarge
from ....model.run import OWNER
from ....model.status import Status
from ....model.team.manifest import ORCHESTRATOR, USER
from ....transports import json_text
from ....transports.channel import Channel, TooLong
from ....transports.jsonrpc.connection import Trace
from .. import wire
from ..projection import Update
from .errors import addressed, error_message, refused
from .inbound_messages import Desk, Taken, log
from .task_updates import follow

_LOOK_EVERY = 0.2  # seconds, once the peer says no more
_ALL = 1_000_000


async def serve_pipes(engine: Engine, channel: Channel, trace: Trace | None) -> None:
    """Serves one peer until it ends its input."""
    await StdioDoor(engine, channel, trace).run()


class StdioDoor:
    def __init__(self, engine: Engine, channel: Channel, trace: Trace | None = None) -> None:
        self._engine = engine
        self._channel = channel
        self._trace = trace
        self._desk = Desk(engine)
        self._followed: dict[str, asyncio.Task[None]] = {}  # by run
        self._resting: set[str] = set()  # tasks that wait for an answer
        self._answered: set[str] = set()  # questions that were answered over this channel, or whose answer was sent
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Serves until the peer ends its input, and all runs that it began have ended or wait for an answer that cannot
        come."""
        try:
            while frames := await self._channel.receive():
                frames.reverse()
                while frames:  # each goes when it was taken, or a large one would stay until the next one comes
                    await self._take(frames.pop())
                await self._channel.drain()
            while await self._goes_on():
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY):
                        await self._news.wait()
        finally:
            for task in self._followed.values():
                task.cancel()
            await asyncio.gather(*self._followed.values(), return_exceptions=True)

    async def _goes_on(self) -> bool:
        """Tells if a run that was begun here may still send something without new input."""
        open_ = [run for run, task in self._followed.items() if not task.done() and run not in self._resting]
        for run in open_:
            if not await self._engine.runs.is_idle(run):
                return True
        return False

    async def _take(self, frame: bytes) -> None:
        if not frame.strip():
            return
        if self._trace is not None:
            self._trace.received(frame)
        value: Any = None
        try:
            if isinstance(frame, TooLong):
                value = json_text.members(frame, "task_id", "sender_id")
                raise TooLarge(frame.problem)
            value = _decoded(frame)
            message = wire.read(value)
            named = message.sender_id
            if not self._is_here(named):
                message = msgspec.structs.replace(message, sender_id=ORCHESTRATOR)
            if isinstance(message, wire.DelegationNotice):
                await self._begin(message, named)
            else:
                taken = await self._desk.take(message, OWNER)
                if taken.question is not None:
                    self._answered.add(taken.question)
        except InterlinguaError as error:
            if wire.is_error(value):
                log.warning("an error of the peer could not be used: %s", error.message)
            else:
                self._send(wire.write(error_message(error, *addressed(value or refused(error)))))

    def _is_here(self, id_: str) -> bool:
        """Tells if a name belongs to a participant here. Every other name is the peer's own."""
        agent = id_.partition("#")[0]
        members = {member for team in self._engine.teams.all() for member in team.manifests}
        return agent in (USER, ORCHESTRATOR, *members, *self._desk.book.ids().values())

    async def _begin(self, notice: wire.DelegationNotice, named: str) -> None:
        try:
            taken = await self._desk.take(notice, OWNER)
        except AgentNotFound:
            # The peer that started a process for one agent has chosen it, whatever its name is here.
            ids = list(self._desk.book.ids().values())
            if len(ids) != 1 or notice.sender_id not in (USER, ORCHESTRATOR):
                raise
            taken = await self._desk.take(msgspec.structs.replace(notice, recipient_id=ids[0]), OWNER)
        followed = self._followed.get(taken.run_id)
        if followed is None or followed.done():  # a repeated notice is followed again
            whole = (notice.metadata or {}).get("stream") is True
            task = asyncio.ensure_future(self._follow(taken, whole, named))
            task.add_done_callback(lambda _: self._news.set())
            self._followed[taken.run_id] = task

    async def _follow(self, taken: Taken, whole: bool, named: str) -> None:
        run = taken.run_id
        view = await self._desk.book.view(await self._engine.runs.get(run), taken.task_id, OWNER)
        async with contextlib.aclosing(follow(self._engine, run, view)) as updates:
            async for piece in updates:
                for update in piece:
                    self._note(run, update)
                    if update.kind == "message":
                        told = whole or update.data["recipient_id"] in (USER, ORCHESTRATOR)
                        if self._answered_elsewhere(update.data) or (
                            told and update.data["sender_id"] not in (USER, ORCHESTRATOR)
                        ):
                            to_it = update.data["recipient_id"] == ORCHESTRATOR
                            self._send({**update.data, "recipient_id": named} if to_it else update.data)
                    elif whole:
                        self._send({"type": update.kind, **update.data})
                await self._channel.drain()

    def _answered_elsewhere(self, message: dict[str, Any]) -> bool:
        """Tells if a message is an answer of the user that came another way. The peer speaks as the user and gets no
        copy of its own words, but it gets such an answer."""
        question = (message.get("metadata") or {}).get("question")
        if message["sender_id"] != USER or not isinstance(question, str) or question in self._answered:
            return False
        self._answered.add(question)
        return True

    def _note(self, run: str, update: Update) -> None:
        if update.kind == "status":
            waits = update.data["status"] == Status.WAITING.value
            (self._resting.add if waits else self._resting.discard)(run)
            self._news.set()

    def _send(self, message: dict[str, Any]) -> None:
        frame = json_values.encode(message)
        if self._trace is not None:
            self._trace.sent(frame)
        self._channel.send(frame)


def _decoded(frame: bytes) -> Any:
    try:
        return json_text.decode(frame, numbers="refuse")
    except json_text.Unreadable as error:
        refused = InvalidRequest(f"the line cannot be read: {error}")
        refused.refused_message = frame
        raise refused from None

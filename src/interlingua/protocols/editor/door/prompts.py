"""Prompts of one client: each begins a turn, which is shown while it runs and answered when it rests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from ....engine.ids import new_id
from ....model.content import Message
from ....model.events import RunFinished
from ....transports.jsonrpc import params as params_
from ....transports.jsonrpc.connection import Answer
from ....transports.jsonrpc.core import Id
from .. import translate, wire
from .sessions import Session
from .turns import ResumedPrompt, Turn, outcome

if TYPE_CHECKING:
    from .connection import EditorConnection

log = logging.getLogger("interlingua.editor")


class Prompts:
    """Begins the turns of a connection, shows them, and answers for them."""

    def __init__(self, connection: EditorConnection) -> None:
        self._connection = connection

    async def prompt(self, params: Any, id_: Id) -> Any:
        if isinstance(params, ResumedPrompt):
            await self._finish(params.session, params.turn)
            return self._ended(params.turn)
        request = params_.read(params, wire.PromptRequest)
        session = self._connection.session(request.session_id)
        if (request.meta or {}).get(wire.META_END_OF_LAST) is True:
            return await self._end_of_last(session)
        turn = session.asked_as_text()
        answered = "too late"
        if turn is not None:
            parts = translate.parts(request.prompt, open_types=self._connection.dialect.open_types)
            answered = await turn.questions.answer_as_text(parts)
        if turn is None or answered == "too late":
            turn = Turn(session, session.card.key)
            session.turns.append(turn)  # before anything waits: a cancel that comes now finds it
            try:
                message = await self._begun(session, turn, request)
            except BaseException:
                session.turns.remove(turn)
                raise
        else:
            message = f"{turn.run}-{new_id()}"
        if turn.run is not None:
            session.prompted = [
                *session.prompted[-3:],
                (turn.run, id_ if self._connection.dialect.number == 1 else None),
            ]
            await self._connection.sessions_changed()
        accepted = self._connection.dialect.accepted(message)
        if accepted is None:
            if answered != "asked again":
                await self._finish(session, turn)
            return self._ended(turn)
        begun = turn

        def begin() -> None:
            session.updates(self._connection.dialect.user_message(message, request.prompt))
            if answered == "asked again":
                session.updates(self._connection.dialect.state("idle", "end_turn"))
                return
            session.updates(self._connection.dialect.state("running"))
            self.spawn(session, begun)

        return Answer(accepted, begin)

    async def _end_of_last(self, session: Session) -> dict[str, Any]:
        """Waits for the end of the newest turn, which another connection began."""
        turn = next((turn for turn in session.turns[::-1] if turn.run is not None), None)
        if turn is None:
            turn = await session.ended_turn()
        elif self._connection.dialect.number == 1:
            await self._finish(session, turn)
        else:
            await self._pause_or_end(turn)
        return self._ended(turn)

    async def _begun(self, session: Session, turn: Turn, request: wire.PromptRequest) -> str:
        """Begins a turn. Where the client withdraws its prompt while the run is being submitted, this waits for the
        run, and cancels it. Where the client has gone, the run goes on."""
        beginning = asyncio.ensure_future(session.begin(turn, request.prompt, request.meta))
        while True:
            try:
                message = await asyncio.shield(beginning)
            except asyncio.CancelledError:
                if self._connection.rpc.lost or beginning.cancelled():
                    beginning.cancel()
                    raise
                turn.cancelling = True
            else:
                if turn.cancelling:
                    await session.cancel_run(turn)
                return message

    def follow(self, session: Session, turn: Turn) -> None:
        """Shows a turn that another process began."""
        session.updates(self._connection.dialect.state("running"))
        self.spawn(session, turn)

    def spawn(self, session: Session, turn: Turn) -> None:
        if turn.task is None:
            turn.task = asyncio.get_running_loop().create_task(self._follow(session, turn))
        if self._connection.dialect.number == 2:
            watch = asyncio.get_running_loop().create_task(self._send_end(session, turn))
            turn.watches.add(watch)
            watch.add_done_callback(turn.watches.discard)

    async def _follow(self, session: Session, turn: Turn) -> None:
        try:
            if turn.finished is None:
                await session.follow(turn)
        except asyncio.CancelledError:
            turn.left = True
            raise
        except Exception as error:
            turn.failure = error
            log.exception("run %s could not be followed", turn.run)
        finally:
            turn.rests.set()
            with contextlib.suppress(ValueError):
                session.turns.remove(turn)

    async def _send_end(self, session: Session, turn: Turn) -> None:
        """Sends the end of a turn, which is an update in version 2."""
        await self._pause_or_end(turn)
        stop, error = outcome(turn)
        update = self._connection.dialect.state("idle", stop)[0]
        if error is not None:
            update |= {"stopReason": "error", "error": error.plain()}
        session.update(update)

    async def _finish(self, session: Session, turn: Turn) -> None:
        """Waits for the end of a turn, in version 1. A client that withdraws its prompt cancels the turn, and gets its
        end."""
        self.spawn(session, turn)
        turn.awaited = True
        try:
            await self._pause_or_end(turn)
        except asyncio.CancelledError:
            if self._connection.rpc.lost:
                raise
            turn.cancelling = True
            await session.cancel_run(turn)
            await self._pause_or_end(turn)
        finally:
            turn.awaited = False

    async def _pause_or_end(self, turn: Turn) -> None:
        await turn.rests.wait()
        if turn.left and turn.run is not None and turn.finished is None:
            ended = await self._connection.engine.runs.wait(
                turn.run
            )  # the session was opened anew meanwhile, and is shown there
            turn.finished = RunFinished(ended.status, ended.output, ended.error)
        if turn.failure is not None:
            raise turn.failure

    def _ended(self, turn: Turn) -> dict[str, Any]:
        stop, error = outcome(turn)
        if error is not None:
            raise error
        meta: dict[str, Any] = {"run": turn.run}
        finished = turn.finished
        if finished is not None and finished.output is not None and _short(finished.output):
            meta["output"] = finished.output
        if turn.questions.as_text is not None:
            meta["question"] = turn.questions.as_text.id
        if finished is not None and finished.usage:
            meta["usage"] = finished.usage
        return {"stopReason": stop, "_meta": {"interlingua": meta}}

    async def steer(self, params: Any) -> dict[str, Any]:
        """Puts a message into the running turn. This is an extension that several agents have."""
        request = params_.read(params, wire.PromptRequest)
        session = self._connection.session(request.session_id)
        turn = next((turn for turn in session.turns if turn.run is not None and turn.finished is None), None)
        if turn is None or turn.run is None:
            return {"outcome": "failed"}
        parts = translate.parts(request.prompt, open_types=self._connection.dialect.open_types)
        await self._connection.engine.runs.send(turn.run, Message("user", parts))
        return {"outcome": "injected"}


def _short(output: Any) -> bool:
    """Tells if an output may also travel in an answer. Its text was shown already, and messages have limits."""
    try:
        return len(msgspec.json.encode(output)) <= 256 * 1024
    except RecursionError:
        return False

"""One run of a mounted agent: a prompt to one of its sessions, and all that comes of it.

The session is recorded before the prompt is sent, so the prompt is sent at most once. A run that is resumed, or whose
agent died, does not prompt again: it takes up the session, and goes on where the agent repeats an open question.
Otherwise it fails as transient, because it cannot know how far the agent came.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from ....engine.handler.context import Context
from ....engine.handler.mounted_run import step_place
from ....engine.handler.workspace import Editor
from ....model.errors import (
    InterlinguaError,
    NotFound,
    RunCancelled,
    RunLost,
    Unavailable,
)
from ....model.events import Emission, OutputDelta, ToolCall, Warned
from ....model.run import Option
from ....mounts.errors import RemoteError, no_such_run, our_failure
from ....mounts.remote_run import ENDED, RemoteRun, Stretch
from ....transports.jsonrpc.connection import ConnectionLost, RpcError
from ....transports.jsonrpc.core import CANCELLED, INTERNAL_ERROR, INVALID_PARAMS, Call
from .. import wire
from ..translate import AUTH_REQUIRED, NOT_FOUND
from .agent_card import prompt_of
from .questions import EditorQuestions
from .rpc_client import Place, Session
from .run_sessions import RunSessions
from .sessions import EditorKeeper
from .updates_in import Incoming, as_update, counts_of

_SILENCES = 10  # times the silence that a turn has to end with: an agent that never stops talking ends no turn
_OURS = "interlingua"  # a member in the `_meta` of an answer that no other agent sends
_STILL_BUSY = 30.0  # seconds for the turn before, which was cancelled and has not ended yet

_STOPPED = {
    "refusal": "the agent refused to go on",
    "max_tokens": "the agent stopped at its limit of tokens",
    "max_turn_requests": "the agent stopped at its limit of requests",
}


class Handle(msgspec.Struct):
    """The session of the turn, recorded before the turn begins."""

    session: str
    asks_again: bool = False
    """The agent is at an Interlingua server, which keeps its open questions, and asks them again after a restart."""


class EditorRun(RemoteRun):
    handle_key = "session"
    step = "turn"
    cancel_within = 3600.0  # the grace of a cancelled run is shorter, and counts

    def __init__(
        self, keeper: EditorKeeper, agent: str | None, ctx: Context[Any, Any], input_: dict[str, Any],
        existing: str | None = None,
    ) -> None:  # fmt: skip
        """`agent` is the value of the option `agent`, where the remote side has several. `existing` is a session at an
        Interlingua server, whose newest turn to go on with instead of prompting."""
        settings = keeper.settings
        super().__init__(ctx, input_, keeper.source.name, patience=0.0, answer_within=settings.answer_within)
        self._existing = existing
        self._before: list[dict[str, Any]] | None = None  # the newest turn, while the agent repeats it
        self._keeper = keeper
        self._agent = agent
        self._place = place_of(keeper, ctx)
        self._sessions = RunSessions(keeper, ctx, self.mounted, agent, self._place)
        self._asking = EditorQuestions(self.questions)
        self._incoming = Incoming(1, step_place(self.step))
        self._handle: Handle | None = None
        self._session: Session | None = None
        self._prompting: asyncio.Future[dict[str, Any]] | None = None
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: dict[str, dict[str, Any]] = {}  # the facts about tool calls, for permissions that only name one
        self._over = False
        self._ended_there = False
        self._spoke_at = 0.0  # by the loop's clock

    # -- the handle ---------------------------------------------------------------------------------------

    async def enter(self) -> None:
        self.resources.enter_context(self._keeper.using())

    async def handle_at_hand(self) -> Handle | None:
        if self._existing is not None or self.ctx.config:
            return None
        session = await self._sessions.at_hand()
        if session is None:
            return None
        self.mounted.onward()  # raises where the prompt must not go there
        self._adopt(session)
        return _handle(session)

    async def open(self) -> Handle:
        if self._existing is not None:
            return Handle(self._existing)
        self.mounted.onward()  # raises where the prompt must not go there
        peer = await self._keeper.connection()
        try:
            session = await self._sessions.opened(peer)
        except ConnectionLost as error:
            raise Unavailable(f"{self.where} is gone: {await self._keeper.why()}") from error
        if session.prompting is not None and not session.prompting.done():
            done, _ = await asyncio.wait({session.prompting}, timeout=_STILL_BUSY)
            if not done:
                raise Unavailable("the agent is still busy with a turn that was cancelled")
        self._adopt(session)
        return _handle(session)

    def opened(self, handle: Handle, shown: list[Any]) -> None:
        self._handle = handle
        if self._existing is not None:
            return  # the agent repeats the turn from its beginning
        self.output.goes_on()
        for body in shown:
            if isinstance(body, ToolCall):
                self._calls.setdefault(body.id, {}).update(as_update(body))
        self._incoming.go_on_from(shown)

    # -- the turn -----------------------------------------------------------------------------------------

    async def follow(self) -> Stretch:
        assert self._handle is not None
        if self._existing is not None:
            ended = await self._go_on(self._existing)
        elif self._session is None:
            ended = await self._take_up(self._handle, "this process ended while the agent worked")
        else:
            ended = await self._prompted(self._session, self._handle)
        return Stretch(ENDED, ended)

    async def _prompted(self, session: Session, handle: Handle) -> dict[str, Any]:
        """Prompts, and returns the end of the turn."""
        able = session.peer.able
        blocks, lost = prompt_of(
            self.input["text"], self.ctx.messages, image=able.image, audio=able.audio, embedded=able.embedded
        )
        for note in (*self._sessions.notes, *lost):
            await self._warn(note)
        if (late := session.take_late()) is not None:
            run, said = late
            await self._warn(f"the agent said more after run {run} was over", {"run": run, "text": said})
        await self.mounted.committed()
        self._found(session)
        try:
            return await self._until_done(self._send(session, blocks, self.trace))
        except ConnectionLost:
            ended_how = "the agent died" if self._keeper.source.command else "the agent was lost"
            return await self._take_up(handle, f"{ended_how}: {await self._keeper.why()}")

    async def _go_on(self, id_: str) -> dict[str, Any]:
        """Shows the newest turn of a session so far, and waits for the end of that turn."""
        peer = await self._keeper.connection()
        self._incoming.speaks(peer.version)
        self._before = []
        try:
            session = await peer.take_up(id_, self._place, self, replay=True)
            self._adopt(session)
            self._found(session)
            before, self._before = self._before, None
            for update in before:
                await self.told(update)
            return await self._until_done(self._send(session, [], {wire.META_END_OF_LAST: True}))
        except ConnectionLost as error:
            raise RunLost(f"{self.where} is gone: {await self._keeper.why()}") from error
        except RpcError as error:
            if error.code == NOT_FOUND:
                raise no_such_run(id_, self.where) from error
            raise self._failure(error) from error

    def _found(self, session: Session) -> None:
        if session.peer.is_ours:
            self.mounted.found_at_server(session.id)

    async def _until_done(self, ending: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        either: set[asyncio.Future[Any]] = {ending, self._broken}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            if self._session is not None and not ending.done():
                self._session.cancel()
            self._broken.result()
        try:
            return ending.result()
        except RpcError as error:
            if error.code == CANCELLED:
                return {"stopReason": "cancelled"}
            raise self._failure(error) from error

    # -- sessions -----------------------------------------------------------------------------------------

    def _adopt(self, session: Session) -> None:
        self._session = session
        session.listener = self
        session.servant.asker = self  # type: ignore[attr-defined]
        self.questions.is_gone = lambda: session.peer.rpc.lost
        self._incoming.speaks(session.peer.version)

    def _send(
        self, session: Session, blocks: list[dict[str, Any]], meta: dict[str, Any]
    ) -> asyncio.Future[dict[str, Any]]:
        if self.ctx.metadata:
            meta = {wire.META_METADATA: self.ctx.metadata, **meta}
        ending = asyncio.ensure_future(session.prompt(blocks, meta))
        self._prompting = session.prompting = ending
        session.run = self.ctx.run_id
        ending.add_done_callback(_noticed)
        return ending

    # -- after a death ------------------------------------------------------------------------------------

    async def _take_up(self, handle: Handle, why: str) -> dict[str, Any]:
        """Goes on with a turn that was cut off, if the agent does."""
        if not handle.asks_again:
            self.questions.withdraw_all(why)
        if not self.questions.undelivered:
            raise RunLost(f"{why}, in the middle of a turn")
        settings = self._keeper.settings
        try:
            peer = await self._keeper.connection()
            session = await peer.take_up(handle.session, self._place, self)
        except (ConnectionLost, RpcError, InterlinguaError) as error:
            raise RunLost(f"{why}, and its session cannot be taken up again: {error}") from error
        self._adopt(session)
        try:
            async with asyncio.timeout(settings.ask_again_within):
                await self.questions.asked_again.wait()
        except TimeoutError as error:
            session.cancel()
            raise RunLost(f"{why}, and the agent does not ask again what it had asked") from error
        ending = asyncio.ensure_future(self._end_of(session))
        try:
            return await self._until_done(ending)
        except ConnectionLost as error:
            raise RunLost("the agent died again, in the middle of a turn") from error
        finally:
            ending.cancel()

    async def _end_of(self, session: Session) -> dict[str, Any]:
        """Returns the end of a turn for which no prompt of ours is open."""
        if session.peer.version == 2:
            return await session.idle()
        quiet, seen = 0.0, -1
        pause = self._keeper.settings.quiet_after / 10
        while quiet < self._keeper.settings.quiet_after:
            await asyncio.sleep(pause)
            if session.peer.rpc.lost:
                raise ConnectionLost("the agent is gone")
            busy = self.questions.busy or session.news != seen
            quiet, seen = 0.0 if busy else quiet + pause, session.news
        await self._warn("the agent was started again in the middle of this turn; its end was told by its silence")
        return {"stopReason": "end_turn"}

    # -- the end ------------------------------------------------------------------------------------------

    async def finish(self, data: dict[str, Any]) -> dict[str, Any]:
        session, ended = self._session, data
        assert session is not None
        if _OURS in (ended.get("_meta") or {}):
            session.peer.ours = True  # it says everything before the answer
        else:
            await self._hear_the_rest()
        self._ended_there = True
        for message, details in self._keeper.notes():
            await self._warn(message, details)
        counts = {**self._incoming.usage, **counts_of(ended)}
        if counts:
            self.ctx.usage(**counts)
        if session.title and session.title != session.named_after:
            await self._name_thread(session.title)
            session.named_after = session.title
        reason = ended.get("stopReason") or "end_turn"
        if reason == "cancelled":
            raise RunCancelled("the agent says that the turn was cancelled")
        if reason == "error":
            raise _reported(ended)
        if reason != "end_turn":
            await self._warn(_STOPPED.get(str(reason), f"the agent stopped: {reason}"), {"stop_reason": reason})
        return {"text": self._incoming.text}

    async def _hear_the_rest(self, within: float | None = None) -> None:
        """Waits until the agent has been silent for a moment: many agents send text after the answer to a prompt."""
        loop, silence = asyncio.get_running_loop(), self._keeper.settings.silence_after_answer
        answered_at = loop.time()
        latest = answered_at + (_SILENCES * silence if within is None else within)
        while True:
            end = min(latest, max(answered_at, self._spoke_at) + silence)
            if end <= loop.time():
                return
            await asyncio.sleep(end - loop.time())

    async def _name_thread(self, title: str) -> None:
        thread, engine = self.ctx.thread_id, self.mounted.engine
        if thread is not None:
            with contextlib.suppress(NotFound):
                if not (await engine.threads.get(thread)).metadata.get("title"):
                    await engine.threads.patch(thread, metadata={"title": title})

    async def _warn(self, message: str, details: Any = None) -> None:
        await self._show(Warned(message, details))

    async def _show(self, body: Emission) -> None:
        if isinstance(body, OutputDelta):
            await self.output.delta(body.delta)
        else:
            await self.output.emit(body)

    def _failure(self, error: RpcError) -> InterlinguaError:
        data = error.data if isinstance(error.data, dict) else {}
        if error.code == AUTH_REQUIRED and self._session is not None and "run" not in data:  # else its run says so
            return self._keeper.refusal(error, self._session.peer, "session/prompt")  # type: ignore[return-value]
        if (ours := our_failure(error.message, data)) is not None:
            return ours
        code, transient = data.get("code"), data.get("transient")
        return RemoteError(
            error.full_message,
            code=code if isinstance(code, str) else "invalid_input" if error.code == INVALID_PARAMS else None,
            transient=transient is True,
            details={"code": error.code, **({} if error.data is None else {"data": error.data})},
        )

    async def cancel(self) -> None:
        """Cancels the turn at the agent, and reads its last updates."""
        session, prompting = self._session, self._prompting
        if session is None or session.peer.rpc.lost or self._ended_there:
            await self.questions.settle()
            return
        if prompting is not None and not prompting.done():
            session.cancel()
        await self.questions.settle()
        if prompting is not None:
            grace = self.mounted.engine.settings.cancel_grace
            await asyncio.wait({prompting}, timeout=0.8 * grace)
            await self._hear_the_rest(within=0.1 * grace)

    async def leave(self) -> None:
        self._over = True
        session = self._session
        if session is None:
            return
        if session.listener is self:
            session.listener = None
            session.servant.asker = None  # type: ignore[attr-defined]
        done = self._prompting is None or self._prompting.done()
        if self.ctx.thread_id is None and done and self.mounted.leaving != "hand_back":
            self._keeper.spawn(session.close())  # no later run uses it
            self._keeper.prepare(session.peer, self._place, self._agent)

    # -- updates of the session ---------------------------------------------------------------------------

    @property
    def editor(self) -> Editor | None:
        return self.ctx.editor

    async def choose(self, kind: str, prompt: str, payload: dict[str, Any], options: list[Option]) -> str | None:
        return await self._asking.choose(kind, prompt, payload, options)

    async def told(self, update: dict[str, Any]) -> None:
        if self._before is not None:
            if str(update.get("sessionUpdate")).startswith("user_message"):
                self._before.clear()  # another turn begins
            self._before.append(update)
            return
        id_ = update.get("toolCallId")
        if isinstance(id_, str) and update.get("sessionUpdate") in ("tool_call", "tool_call_update"):
            changes = {name: value for name, value in update.items() if value is not None}
            self._calls.setdefault(id_, {}).update(changes)
        try:
            for body in self._incoming.take(update):
                self._spoke_at = asyncio.get_running_loop().time()
                if not self._over:
                    await self._show(body)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            # The run is being left, and takes no more; the connection goes on.
        except InterlinguaError as error:
            if not self._broken.done():
                self._broken.set_exception(error)

    async def asked(self, call: Call) -> Any:
        params = call.params if isinstance(call.params, dict) else {}
        subject = params.get("subject")
        about = params.get("toolCall") or (subject.get("toolCall") if isinstance(subject, dict) else None)
        known: dict[str, Any] = {}
        if isinstance(about, dict):
            before = self._calls.get(str(about.get("toolCallId")), {})
            if any(before.get(name) != value for name, value in about.items()):  # it differs from the earlier updates
                await self.told({"status": "pending", **about, "sessionUpdate": "tool_call_update"})
            known = self._calls.get(str(about.get("toolCallId")), about)
        return await self._asking.answer(call, known, self._incoming)


def _handle(session: Session) -> Handle:
    return Handle(session.id, bool(session.peer.agents))


def place_of(keeper: EditorKeeper, ctx: Context[Any, Any] | None) -> Place:
    """Returns the working directory of a run: that of its editor, or that of the mount."""
    editor = ctx.editor if ctx is not None else None
    if editor is None:
        return keeper.place
    return Place(editor.cwd, tuple(editor.directories), tuple(editor.mcp_servers))


def _reported(ended: dict[str, Any]) -> RemoteError:
    error = ended.get("error")
    reported = error if isinstance(error, dict) else {}
    message = reported.get("message")
    message = message if isinstance(message, str) else "the agent stopped because of an error"
    return our_failure(message, reported.get("data")) or RemoteError(
        RpcError(INTERNAL_ERROR, message, reported.get("data")).full_message,
        details={"code": reported.get("code"), "data": reported.get("data")} if reported else None,
    )


def _noticed(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # the run may be over by then

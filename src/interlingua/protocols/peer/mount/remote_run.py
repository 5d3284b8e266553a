"""One run of a mounted agent: a task at a remote node, or a message and its reply, and all that comes of it.

Our identity at the remote is recorded before anything is sent, and all ids follow from the run's own id: a repeated
frame means the same there. So a run that is resumed finds its task as it stands, and does not begin it twice.

A node that takes no tasks (the reference) is sent a message and has some time to reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import uuid
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from ....engine.handler.context import Context
from ....engine.handler.mounted_run import LeftRun
from ....model.content import Part
from ....model.errors import (
    AlreadyAnswered,
    InterlinguaError,
    InvalidRequest,
    NotFound,
    RunLost,
)
from ....model.events import Emission
from ....mounts import caller_parts
from ....mounts.errors import RemoteError, no_such_run
from ....mounts.remote_questions import Asked
from ....mounts.remote_run import ENDED, Disconnected, RemoteRun, Stretch
from ..translate import parts, task_states
from ..translate.task_errors import failure
from ..wire import frames
from ..wire.links import HTTP
from .agent_card import Described, along_of, beside_of, input_parts, output_of
from .connection import Connection, Inbox, Remote
from .identity import seal, unseal
from .questions import TaskQuestions, named_by
from .stale_updates import Standing
from .updates_in import UpdatesIn

if TYPE_CHECKING:
    from ....engine.engine import Engine
    from .server import PeerServer

log = logging.getLogger("interlingua.peer")

_THREADS = uuid.UUID("7b8a5c0f-6d0e-5a6f-9c58-4a2f0f3f1c11")  # names remote contexts after local threads

_WRITTEN_DOWN = (0.02, 0.1, 0.3)  # seconds in which a node that was asked has a task, if it will have it at all
_LINGER = 0.5  # seconds
_KNOWN_BY = "~"  # stands between the id of a task and the identity of its peer

Frame = dict[str, Any]


class Handle(msgspec.Struct):
    """The record that is written before anything is sent."""

    task: bool  # delegated; else it is a message
    known_by: str | None = None  # our identity at the node, sealed


class Existing(msgspec.Struct, frozen=True):
    """A task that another process began before."""

    task: str
    known_by: str | None = None  # as in the handle of the run that began it

    @classmethod
    def parse(cls, server: PeerServer, id_: str) -> Existing:
        """Reads the id that `MountedRun.found_at_server` was given. Raises NotFound."""
        if server.link.scheme in HTTP:
            return cls(id_)
        task, mark, known_by = id_.partition(_KNOWN_BY)
        if not mark:
            raise NotFound(
                f"over {server.link.scheme}:// a node shows a task only to the peer that began it, and {id_!r} does "
                "not say which peer that was: give the whole id that the first command printed"
            )
        return cls(task, known_by)

    def handle(self, server: PeerServer) -> Handle:
        try:
            handle = Handle(True, self.known_by)
            known_by(server, handle)
        except ValueError:  # it was not made by us
            raise no_such_run(self.task, server.link.shown) from None
        return handle


class Ended(msgspec.Struct):
    output: dict[str, Any]
    artifacts: Any = None
    beside: list[dict[str, Any]] = []  # parts
    in_order: bool = True  # all that was said before has come


class PeerRun(RemoteRun):
    """A local run, and the task or the message that does its work."""

    step = "task"
    _remote: Remote
    _handle: Handle
    _frame: Frame  # begins the task, or asks how it stands

    def __init__(
        self, server: PeerServer, agent: Described, ctx: Context[Any, Any], input_: dict[str, Any],
        existing: Existing | None,
    ) -> None:  # fmt: skip
        """`existing` is a task at the node, to go on with instead of beginning one."""
        super().__init__(ctx, input_, server.link.shown, patience=server.settings.patience)
        self.cancel_within = server.settings.cancel_within
        self._existing = existing
        self._server = server
        self._settings = server.settings
        self._agent = agent
        self._updates = UpdatesIn(self.output, agent)
        self._inbox = Inbox()
        self._asking = TaskQuestions(self.questions, self.mounted.asked(), self._send_answer, self._inbox.put)
        self._answers: dict[str, Asked] = {}  # message id → the question that it answers
        self._known_by: str | None = None
        self._connection: Connection | None = None
        self._task_id = task_of(ctx.run_id) if existing is None else existing.task
        self._message_id = _id(ctx.run_id, "request")
        self._context = None if ctx.thread_id is None else f"ctx_{uuid.uuid5(_THREADS, ctx.thread_id).hex}"
        self._state = "submitted"
        self._standing = Standing(self._ask_again)
        self._delegated: Frame | None = None
        self._met_before = self.resumed or existing is not None  # the task may have begun over another connection
        self._known = existing is not None  # the remote has the task
        self._last_said = ""
        self._not_sent: list[str] = []  # names of files

    # -- the handle ---------------------------------------------------------------------------------------

    async def handle_at_hand(self) -> Handle | None:
        if self._existing is not None:
            return None
        connection = (await self._server.own(self.mounted.engine)).standing
        return None if connection is None else self._handle_of(connection)

    async def open(self) -> Handle:
        if self._existing is not None:
            return self._existing.handle(self._server)
        remote = await self._server.own(self.mounted.engine)
        async with remote.using(self._inbox):
            return self._handle_of(await remote.connection(patient=False))

    def _handle_of(self, connection: Connection) -> Handle:
        token = connection.token
        return Handle(connection.ours, None if token is None else seal(self._server.link, token))

    def opened(self, handle: Handle, shown: list[Emission]) -> None:
        self._handle = handle
        self._known_by = known_by(self._server, handle)
        if self.resumed:
            self._updates.resumed(shown)

    async def begin(self) -> None:
        self._remote = await self._server.remote(self.mounted.engine, self._known_by)
        given = await self._given(self.input) if self._existing is None else [parts.text("")]
        self._frame = self._delegation(given) if self._handle.task else self._request(given)
        await self.resources.enter_async_context(self._remote.using(self._inbox, self._task_id, self._message_id))

    async def follow(self) -> Stretch:
        return Stretch(ENDED, await (self._follow() if self._handle.task else self._converse()))

    async def finish(self, data: Ended) -> dict[str, Any]:
        for name in self._not_sent:
            await self.output.warn_once(f"{name} was not sent: files travel by address, and no server here offers them")
        await self._updates.finish(data.output, data.artifacts, data.beside)
        return data.output

    async def cancel(self) -> None:
        if self._handle.task and self._state not in _OVER:
            await cancel_task(self._remote, self._inbox, self._task_id, known=self._known)

    async def leave(self) -> None:
        await self._asking.leave()
        del self._asking, self._standing  # they hold on to this, and so to the whole run

    async def _given(self, input_: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the parts to send. Bytes are sent as addresses: a door of this process offers them, where there is
        one."""
        engine: Engine = self.mounted.engine
        files = engine.files
        kept: list[Awaitable[object]] = []

        def publish(body: bytes, media_type: str, name: str | None) -> str:
            address, keeping = files.publish(body, media_type, name)
            kept.append(keeping)
            return address

        ways = publish if files.available else None
        beside = caller_parts.beside(self.ctx, input_)
        # An Interlingua node derives the same input from the message as we did: then only the message is sent.
        said: list[Part] = []
        if self._agent.structured and beside:
            said = caller_parts.instead_of(self.ctx, self._agent.card, input_)
        along, stays = along_of(said, ways)
        whole = bool(said) and len(along) == len(said)
        if not whole:
            along, stays = along_of(beside, ways)
        for keeping in kept:
            await keeping
        self._not_sent = stays
        return along if whole else input_parts(self._agent, input_, along)

    async def _connected(self) -> Connection:
        assert self._remote is not None
        assert self._handle is not None
        connection = await self._remote.connection()
        if connection.token != self._known_by:
            raise RunLost(f"{self._remote.where} no longer knows us, and so none of what it did for us")
        if connection.ours != self._handle.task:
            if self._existing is not None:
                raise RemoteError(f"{self._remote.where} takes no tasks, so there is none to go on with")
            raise RunLost(f"{self._remote.where} is another kind of node now")
        self._connection = connection
        return connection

    # -- as a task ----------------------------------------------------------------------------------------

    async def _follow(self) -> Ended:
        """Follows the task over one connection."""
        if self._existing is None:
            self._found()
        connection = await self._connected()
        self._updates.reconnected(repeats=connection.replays)
        self._standing.asked(again=self._met_before and not connection.replays)
        self._met_before = True
        known = self._known or self.output.has_shown or bool(self.mounted.asked())
        self._delegated = {**self._frame, "again": True} if known else self._frame
        await self.mounted.committed()
        connection.send(self._delegated)
        await connection.drain()
        ended = await self._listen()
        if ended is None:
            raise Disconnected("hangs up again and again")
        if not ended.in_order:
            await self._linger()
        return ended

    def _found(self) -> None:
        known_by = self._handle.known_by
        # Only the peer that began a task finds it. Over a connection a peer is known by its token.
        self.mounted.found_at_server(self._task_id if known_by is None else f"{self._task_id}{_KNOWN_BY}{known_by}")

    async def _listen(self) -> Ended | None:
        """Follows the task over one connection. Returns None where the connection was lost."""
        while (frame := await self._inbox.get()) is not None:
            self.patience.reset()
            ended = await self._take(frame)
            if ended is not None:
                return ended
        return None

    async def _linger(self) -> None:
        """Shows messages that were still waiting at the node. The answer to a status request overtakes them; the task's
        end is sent once more after them, unless it was read before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while (frame := await self._inbox.get()) is not None:
                    if frame.get("type") == "acp.message":
                        await self._said(frame)
                    elif frame.get("status") in task_states.TERMINAL:
                        return

    def _delegation(self, given: list[dict[str, Any]]) -> Frame:
        payload: dict[str, Any] = {"role": "user", "input": {"parts": given}}
        about = {**self.ctx.metadata, **self.trace}
        for name, value in (("skill_id", self._agent.skill), ("context_id", self._context), ("metadata", about)):
            if value is not None:
                payload[name] = value
        return frames.delegate(
            self._settings.name, self._task_id, payload, message_id=self._message_id, context_id=self._context
        )

    async def _take(self, frame: Frame) -> Ended | None:
        match frame.get("type"):
            case "task.updated":
                if isinstance(frame.get("chunk"), dict):
                    await self._updates.chunk(frame["chunk"], frame.get("chunk_number"))
                elif "activity" in frame:
                    await self._updates.activity(frame["activity"])
                else:
                    return await self._moved(frame)
            case "acp.message":
                await self._said(frame)
            case "acp.delivered" if frame.get("message_id") == self._message_id:
                self._standing.confirmed()
            case "error":
                self._refused(frame)
                asked = self._answers.get(frame.get("message_id", ""))
                if asked is not None and frame.get("code") == AlreadyAnswered.code:
                    await self.output.emit(self.questions.too_late(asked.place, step=self.step), new=True)
        return None

    def _ask_again(self) -> None:
        if self._connection is not None and not self._connection.over and self._delegated is not None:
            self._connection.send(self._delegated)

    async def _said(self, frame: Frame) -> None:
        try:
            message = frames.read(frame)
        except InvalidRequest:
            return
        if isinstance(message, frames.Message):
            self._last_said = parts.text_of(message.parts)
            await self._updates.message(message.parts, message.message_id)

    def _refused(self, frame: Frame) -> None:
        why = str(frame.get("message") or frame.get("code"))[:1000]
        id_ = frame.get("message_id")
        if id_ == self._message_id:
            raise RemoteError(f"{self.where} did not take it: {why}", code=str(frame.get("code"))[:100])
        if id_ in self._answers and frame.get("code") != AlreadyAnswered.code:  # then the task goes on, and tells how
            self._asking.refused(self._answers[id_], why)

    async def _moved(self, frame: Frame) -> Ended | None:
        try:
            news = frames.read(frame)
        except InvalidRequest as error:
            log.info("%s: %s", self.where, error.message)
            return None
        assert isinstance(news, frames.Updated)
        if self._existing is not None:
            self._check_there(frame)
        self._known = True
        if not self._standing.counts(frame) or (self._state == "cancelling" and news.status not in _OVER):
            return None
        self._state = news.status
        if news.status == "input_required":
            self._asking.asked(frame.get("question"), self._last_said)
        else:
            self._asking.moved_on()
        match news.status:
            case "failed" | "canceled":
                raise failure(news.status, news.error, frame.get("error_info"))
            case "completed":
                given = news.artifact["parts"] if news.artifact is not None else []
                assert self._connection is not None
                in_order = self._connection.replays or "server_seq" in frame
                output, beside = output_of(self._agent, given), beside_of(self._agent, given)
                return Ended(output, frame.get("artifacts"), beside, in_order)
        return None

    def _check_there(self, frame: Frame) -> None:
        info = frame.get("error_info")
        if isinstance(info, dict) and info.get("code") == frames.LOST:
            raise no_such_run(self._task_id, self.where)
        self._found()

    def _send_answer(self, asked: Asked, given: list[dict[str, Any]]) -> None:
        """Sends an answer to the task. Where the connection is lost, the task asks again over the next one."""
        connection = self._connection
        if connection is None or connection.over:
            return
        id_ = _id(self.ctx.run_id, asked.place)
        named = named_by(asked.key)
        frame = frames.message(
            self._settings.name, "user", given, message_id=id_, task_id=self._task_id, context_id=self._context,
            metadata=None if named is None else {frames.QUESTION: named},
        )  # fmt: skip
        self._answers[id_] = asked
        self._remote.expect(id_, self._inbox)
        try:
            connection.send(frame)
        except InterlinguaError as error:  # it is too large
            self._inbox.put(error)

    # -- as a message -------------------------------------------------------------------------------------

    def _request(self, given: list[dict[str, Any]]) -> Frame:
        return frames.message(
            self._settings.name, "user", given, message_id=self._message_id, correlation_id=self._message_id,
            context_id=self._context, skill_id=self._agent.skill, metadata={**self.ctx.metadata, **self.trace},
        )  # fmt: skip

    async def _converse(self) -> Ended:
        within = self._settings.reply_within
        try:
            async with asyncio.timeout(within):
                while True:
                    connection = await self._connected()
                    await self.mounted.committed()
                    # The same message again is known by its id, and a reply to it comes over any connection.
                    connection.send(self._frame)
                    while (got := await self._inbox.get()) is not None:
                        ended = self._reply(got)
                        if ended is not None:
                            return ended
        except TimeoutError:
            raise RemoteError(
                f"{self.where} did not reply within {within:g} s", code="no_reply", transient=True
            ) from None

    def _reply(self, frame: Frame) -> Ended | None:
        kind = frame.get("type")
        if kind == "error":
            self._refused(frame)
        if kind not in ("acp.reply", "acp.message") or frame.get("correlation_id") != self._message_id:
            return None
        told = frame.get("error")
        if isinstance(told, dict):
            raise failure("failed", None, told)
        try:
            said: list[dict[str, Any]] | None = getattr(frames.read(frame), "parts", None)
        except InvalidRequest as error:
            log.info("%s sent a reply that is none: %s", self.where, error.message)
            return None
        if said is None:
            content = frame.get("content")
            said = [parts.text(content) if isinstance(content, str) else parts.data(content)]
        return Ended(output_of(self._agent, said), beside=beside_of(self._agent, said))


_OVER = frozenset({"cancelling", *task_states.TERMINAL})  # states in which a task cannot be cancelled, or is being


async def cancel_task(remote: Remote, inbox: Inbox, task: str, *, known: bool = True) -> None:
    """Cancels the task at the node, and waits until the node has heard it. `known` means that the node has confirmed
    the task. Else it may be about to record it, and the cancel is repeated."""
    pauses = enumerate(() if known else _WRITTEN_DOWN)
    frame = frames.cancel(remote.settings.name, task, message_id=_id(task, "cancel"))
    remote.expect(frame["message_id"], inbox)
    while True:
        connection = await remote.connection()
        connection.send(frame)
        while (heard := await inbox.get()) is not None:
            if heard.get("status") in _OVER:
                return
            if heard.get("message_id") != frame["message_id"]:
                continue
            number, pause = next(pauses, (0, None)) if heard.get("type") == "error" else (0, None)
            if pause is None:
                return
            await asyncio.sleep(pause)
            frame = {**frame, "message_id": _id(task, f"cancel-{number}")}
            remote.expect(frame["message_id"], inbox)
            connection.send(frame)


async def cancel_left(server: PeerServer, left: LeftRun, existing: Existing | None = None) -> None:
    """Cancels the task of a run that was cancelled while its handler was not here."""
    started = left.recorded(PeerRun.handle_key)
    if started is None:
        return
    handle = msgspec.convert(started, Handle)
    if not handle.task:
        return  # a message cannot be taken back
    token = known_by(server, handle)
    remote = await server.remote(None, token)
    task, inbox = task_of(left.id) if existing is None else existing.task, Inbox()
    async with remote.using(inbox, task):
        connection = await remote.connection()
        if connection.token == token:
            async with asyncio.timeout(server.settings.cancel_within):
                await cancel_task(remote, inbox, task)


def known_by(server: PeerServer, handle: Handle) -> str | None:
    if handle.known_by is None:
        return None
    token = unseal(server.link, handle.known_by)
    if token is None:
        raise RunLost(f"the run was begun with another link than {server.link.shown}")
    return token


def task_of(run: str) -> str:
    """Returns the id of the task that does the work of a run: always the same for one run."""
    return f"task_{hashlib.sha256(run.encode()).hexdigest()[:24]}"


def _id(run: str, what: str) -> str:
    return f"msg_{hashlib.sha256(f'{run}|{what}'.encode()).hexdigest()[:16]}"

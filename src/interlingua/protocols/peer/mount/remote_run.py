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
from ....engine.handler.mounted_run import LeftRun, MountedRun
from ....model.errors import (
    AlreadyAnswered,
    InterlinguaError,
    Invalid,
    InvalidOutput,
    InvalidRequest,
    NotFound,
    QuestionExpired,
    RunLost,
    StepFailed,
    Unavailable,
)
from ....model.schemas import Validator
from ....mounts.errors import RemoteError, no_such_run
from ....mounts.remote_output import RemoteOutput
from ..translate import parts, task_states
from ..translate.task_errors import failure
from ..wire import frames
from ..wire.links import HTTP
from .agent_card import Described, along_of, beside_of, input_parts, output_of
from .connection import Connection, Inbox, Remote
from .identity import seal, unseal
from .questions import STEP, Asking, named_by
from .stale_updates import Standing
from .updates_in import UpdatesIn

if TYPE_CHECKING:
    from ....engine.engine import Engine
    from .server import Mount

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
    def parse(cls, mount: Mount, id_: str) -> Existing:
        """Reads the id that `MountedRun.found_at_server` was given. Raises NotFound."""
        if mount.link.scheme in HTTP:
            return cls(id_)
        task, mark, known_by = id_.partition(_KNOWN_BY)
        if not mark:
            raise NotFound(
                f"over {mount.link.scheme}:// a node shows a task only to the peer that began it, and {id_!r} does not "
                "say which peer that was: give the whole id that the first command printed"
            )
        return cls(task, known_by)

    def handle(self, mount: Mount) -> Handle:
        try:
            handle = Handle(True, self.known_by)
            known_by(mount, handle)
        except ValueError:  # it was not made by us
            raise no_such_run(self.task, mount.link.shown) from None
        return handle


class Ended(msgspec.Struct):
    output: dict[str, Any]
    artifacts: Any = None
    beside: list[dict[str, Any]] = []  # parts
    in_order: bool = True  # all that was said before has come


class Attachment:
    def __init__(
        self, mount: Mount, agent: Described, schema: Validator, ctx: Context[Any, Any],
        existing: Existing | None = None,
    ) -> None:  # fmt: skip
        """`existing` is a task at the node, to go on with instead of beginning one."""
        self._existing = existing
        self._mount = mount
        self._settings = mount.settings
        self._agent = agent
        self._schema = schema
        self._ctx = ctx
        self._mounted = MountedRun(ctx)
        self._output = RemoteOutput(self._mounted)
        self._updates = UpdatesIn(self._output, agent)
        self._inbox = Inbox()
        self._asking = Asking(self._mounted, self._answer, self._inbox.put)
        self._answers: dict[str, str] = {}  # message id → the key of the question that it answers
        self._remote: Remote | None = None
        self._handle: Handle | None = None
        self._known_by: str | None = None
        self._connection: Connection | None = None
        self._task_id = task_of(ctx.run_id) if existing is None else existing.task
        self._message_id = _id(ctx.run_id, "request")
        self._context = None if ctx.thread_id is None else f"ctx_{uuid.uuid5(_THREADS, ctx.thread_id).hex}"
        self._trace: dict[str, Any] = {}
        self._state = "submitted"
        self._standing = Standing(self._ask_again)
        self._delegated: Frame | None = None
        self._heard = False  # something of the task, since it was last asked for
        self._known = existing is not None  # the remote has the task
        self._last_said = ""
        self._not_sent: list[str] = []  # names of files

    async def run(self, input_: dict[str, Any]) -> dict[str, Any]:
        try:
            async with self._mounted.telling_unused():
                return await self._run(input_)
        except StepFailed as failure:
            error = failure.error
            raise RemoteError(
                error.message, code=error.code, transient=error.transient, details=error.details
            ) from failure
        finally:
            await self._asking.leave()
            del self._asking, self._standing  # they hold on to this, and so to the whole run

    async def _run(self, input_: dict[str, Any]) -> dict[str, Any]:
        self._trace = self._mounted.onward()
        existing = self._existing
        entered_again = self._mounted.recorded("start")
        if (
            existing is None
            and not entered_again
            and (connection := (await self._mount.own(self._mounted.engine)).standing) is not None
        ):
            self._mounted.record("start", self._handle_of(connection))
        self._handle = handle = await self._ctx.step("start", self._start, key="start")
        self._known_by = known_by(self._mount, handle)
        remote = self._remote = await self._mount.remote(self._mounted.engine, self._known_by)
        shown = await self._output.begin(STEP)
        if entered_again:
            self._updates.resumed(shown)
        given = await self._given(input_) if existing is None else [parts.text("")]
        async with remote.using(self._inbox, self._task_id, self._message_id):
            try:
                ended = await (self._follow(given, entered_again) if handle.task else self._converse(given))
            except QuestionExpired:
                if handle.task and self._state not in _OVER:
                    await cancel_task(remote, self._inbox, self._task_id)  # there it would wait for ever
                raise
            except asyncio.CancelledError:
                # A run that is only parked is found again later.
                if self._mounted.leaving_for_good and handle.task and self._state not in _OVER:
                    await cancel_task(remote, self._inbox, self._task_id, known=self._known)
                raise
        for name in self._not_sent:
            await self._output.warn_once(
                f"{name} was not sent: files travel by address, and no server here offers them"
            )
        await self._updates.finish(ended.output, ended.artifacts, ended.beside)
        try:
            self._schema.check(ended.output, InvalidOutput)
        except Invalid as error:
            await self._output.warn_once(f"the output does not fit the schema that the node tells: {error.message}")
        return ended.output

    async def _given(self, input_: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the parts to send. Bytes are sent as addresses: a door of this process offers them, where there is
        one."""
        engine: Engine = self._mounted.engine
        files = engine.files
        kept: list[Awaitable[object]] = []

        def publish(body: bytes, media_type: str, name: str | None) -> str:
            address, keeping = files.publish(body, media_type, name)
            kept.append(keeping)
            return address

        ways = publish if files.available else None
        beside = self._mounted.beside(input_)
        # An Interlingua node derives the same input from the message as we did: then only the message is sent.
        said = self._mounted.said_as(self._agent.card, input_) if self._agent.structured and beside else []
        along, stays = along_of(said, ways)
        whole = bool(said) and len(along) == len(said)
        if not whole:
            along, stays = along_of(beside, ways)
        for keeping in kept:
            await keeping
        self._not_sent = stays
        return along if whole else input_parts(self._agent, input_, along)

    async def _start(self) -> Handle:
        """Returns the handle. Nothing has been sent yet that would have to be found again."""
        if self._existing is not None:
            return self._existing.handle(self._mount)
        remote = await self._mount.own(self._mounted.engine)
        async with remote.using(self._inbox):
            return self._handle_of(await remote.connection(patient=False))

    def _handle_of(self, connection: Connection) -> Handle:
        token = connection.token
        return Handle(connection.ours, None if token is None else seal(self._mount.link, token))

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

    async def _follow(self, given: list[dict[str, Any]], entered_again: bool) -> Ended:
        """Follows the task until it has ended, over any number of connections."""
        if self._existing is None:
            self._found()
        loop = asyncio.get_running_loop()
        frame = self._delegation(given)
        lost_at: float | None = None
        again = entered_again or self._existing is not None
        while True:
            connection = await self._connected()
            self._updates.reconnected(repeats=connection.replays)
            self._standing.asked(again=again and not connection.replays)
            again = True
            known = self._known or self._output.has_shown or bool(self._mounted.asked())
            self._delegated = {**frame, "again": True} if known else frame
            await self._mounted.committed()
            connection.send(self._delegated)
            await connection.drain()
            ended = await self._listen()
            if ended is not None:
                if not ended.in_order:
                    await self._linger()
                return ended
            lost_at = None if self._heard else lost_at or loop.time()
            self._heard = False
            if lost_at is not None and loop.time() - lost_at > self._settings.patience:
                raise Unavailable(f"{self._where} hangs up again and again")

    def _found(self) -> None:
        assert self._handle is not None
        known_by = self._handle.known_by
        # Only the peer that began a task finds it. Over a connection a peer is known by its token.
        self._mounted.found_at_server(self._task_id if known_by is None else f"{self._task_id}{_KNOWN_BY}{known_by}")

    async def _listen(self) -> Ended | None:
        """Follows the task over one connection. Returns None where the connection was lost."""
        while (frame := await self._inbox.get()) is not None:
            self._heard = True
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
        about = {**self._ctx.metadata, **self._trace}
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
                key = self._answers.get(frame.get("message_id", ""))
                if key is not None and frame.get("code") == AlreadyAnswered.code:
                    await self._output.emit(self._asking.too_late(key), new=True)
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
            raise RemoteError(f"{self._where} did not take it: {why}", code=str(frame.get("code"))[:100])
        if id_ in self._answers and frame.get("code") != AlreadyAnswered.code:  # then the task goes on, and tells how
            self._asking.refused(self._answers[id_], why)

    async def _moved(self, frame: Frame) -> Ended | None:
        try:
            news = frames.read(frame)
        except InvalidRequest as error:
            log.info("%s: %s", self._where, error.message)
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
        late, self._asking.late = self._asking.late, []
        for warning in late:
            await self._output.emit(warning, new=True)
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
            raise no_such_run(self._task_id, self._where)
        self._found()

    def _answer(self, key: str, given: list[dict[str, Any]]) -> None:
        """Sends an answer to the task. Where the connection is lost, the task asks again over the next one."""
        connection, remote = self._connection, self._remote
        if connection is None or connection.over or remote is None:
            return
        id_ = _id(self._ctx.run_id, f"{key}.{self._asking.again(key)}")
        named = named_by(key)
        frame = frames.message(
            self._settings.name, "user", given, message_id=id_, task_id=self._task_id, context_id=self._context,
            metadata=None if named is None else {frames.QUESTION: named},
        )  # fmt: skip
        self._answers[id_] = key
        remote.expect(id_, self._inbox)
        try:
            connection.send(frame)
        except InterlinguaError as error:  # it is too large
            self._inbox.put(error)

    # -- as a message -------------------------------------------------------------------------------------

    async def _converse(self, given: list[dict[str, Any]]) -> Ended:
        frame = frames.message(
            self._settings.name, "user", given, message_id=self._message_id, correlation_id=self._message_id,
            context_id=self._context, skill_id=self._agent.skill, metadata={**self._ctx.metadata, **self._trace},
        )  # fmt: skip
        within = self._settings.reply_within
        try:
            async with asyncio.timeout(within):
                while True:
                    connection = await self._connected()
                    await self._mounted.committed()
                    # The same message again is known by its id, and a reply to it comes over any connection.
                    connection.send(frame)
                    while (got := await self._inbox.get()) is not None:
                        ended = self._reply(got)
                        if ended is not None:
                            return ended
        except TimeoutError:
            raise RemoteError(
                f"{self._where} did not reply within {within:g} s", code="no_reply", transient=True
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
            log.info("%s sent a reply that is none: %s", self._where, error.message)
            return None
        if said is None:
            content = frame.get("content")
            said = [parts.text(content) if isinstance(content, str) else parts.data(content)]
        return Ended(output_of(self._agent, said), beside=beside_of(self._agent, said))

    @property
    def _where(self) -> str:
        return self._mount.link.shown


_OVER = frozenset({"cancelling", *task_states.TERMINAL})  # states in which a task cannot be cancelled, or is being


async def cancel_task(remote: Remote, inbox: Inbox, task: str, *, known: bool = True) -> None:
    """Cancels the task at the node, and waits until the node has heard it. `known` means that the node has confirmed
    the task. Else it may be about to record it, and the cancel is repeated."""
    pauses = enumerate(() if known else _WRITTEN_DOWN)
    frame = frames.cancel(remote.settings.name, task, message_id=_id(task, "cancel"))
    remote.expect(frame["message_id"], inbox)
    try:
        async with asyncio.timeout(remote.settings.cancel_within):
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
    except TimeoutError:
        log.warning("%s could not be told in time that a task is cancelled", remote.where)
    except InterlinguaError as error:
        log.warning("%s could not be told that a task is cancelled: %s", remote.where, error.message)


async def cancel_left(mount: Mount, left: LeftRun, existing: Existing | None = None) -> None:
    """Cancels the task of a run that was cancelled while its handler was not here."""
    started = left.recorded("start")
    if started is None:
        return
    handle = msgspec.convert(started, Handle)
    if not handle.task:
        return  # a message cannot be taken back
    token = known_by(mount, handle)
    remote = await mount.remote(None, token)
    task, inbox = task_of(left.id) if existing is None else existing.task, Inbox()
    async with remote.using(inbox, task):
        connection = await remote.connection()
        if connection.token == token:
            await cancel_task(remote, inbox, task)


def known_by(mount: Mount, handle: Handle) -> str | None:
    if handle.known_by is None:
        return None
    token = unseal(mount.link, handle.known_by)
    if token is None:
        raise RunLost(f"the run was begun with another link than {mount.link.shown}")
    return token


def task_of(run: str) -> str:
    """Returns the id of the task that does the work of a run: always the same for one run."""
    return f"task_{hashlib.sha256(run.encode()).hexdigest()[:24]}"


def _id(run: str, what: str) -> str:
    return f"msg_{hashlib.sha256(f'{run}|{what}'.encode()).hexdigest()[:16]}"

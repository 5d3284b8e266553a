"""The mount's connection to a remote node: one for any number of runs, opened on demand, kept while runs wait, and
closed when it is idle.

Frames go to their runs, by the ids of tasks and messages; `remote_run` interprets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ....model.errors import InvalidRequest, TooLarge, Unavailable
from ....mounts.errors import RemoteError
from ....transports import wire_tap
from ....transports.channel import Channel
from ..bindings.dial import Backoff
from ..config import MountSettings
from ..wire import card as cards
from ..wire import frames
from ..wire.links import Link
from ..wire.signatures import Trust
from .credentials import check_card, dial_link, our_card, read_frame, received, trust_of

log = logging.getLogger("interlingua.peer")

_FULL = 2000  # frames that wait for a run; no more transient ones are kept

Frame = dict[str, Any]


class Inbox:
    """The frames for one run, in order. None means that the connection ended."""

    def __init__(self) -> None:
        self._frames: deque[Frame | BaseException | None] = deque()
        self._news = asyncio.Event()

    def put(self, frame: Frame | BaseException | None) -> None:
        if len(self._frames) >= _FULL and isinstance(frame, dict) and ("chunk" in frame or "activity" in frame):
            return  # a run that cannot keep up gets the whole at the end
        self._frames.append(frame)
        self._news.set()

    async def get(self) -> Frame | None:
        while not self._frames:
            self._news.clear()
            await self._news.wait()
        found = self._frames.popleft()
        if isinstance(found, BaseException):
            raise found
        return found


class Connection:
    """An established connection: both sides have sent their cards."""

    def __init__(self, channel: Channel, trust: Trust, where: str) -> None:
        self.channel = channel
        self.card: dict[str, Any] = {}
        self.token: str | None = None  # our identity on it
        self.fresh_token: str | None = None
        self.over = False
        self.began = time.monotonic()
        self.replays = bool(getattr(channel, "replays", False))
        self._trust = trust
        self._where = where

    def able(self, flag: str) -> bool:
        return cards.has(self.card, flag)

    @property
    def ours(self) -> bool:
        """Tells if the node takes tasks, and reports their progress."""
        return self.able("task_delegation")

    def send(self, frame: Frame) -> None:
        data = frames.encode(self._trust.sign(frame) if frame["type"] in frames.SIGNED else frame)
        limit = cards.largest(self.card)
        if self.card and len(data) > limit:
            raise TooLarge(
                f"{self._where} takes at most {limit} bytes in one message, and this has {len(data)}; what is "
                "large can be given as a file, which travels by its address"
            )
        if wire_tap.current is not None:
            wire_tap.current.sent(data)
        self.channel.send(data)

    async def drain(self) -> None:
        """Waits while the node is slow, before another task begins there."""
        with contextlib.suppress(ConnectionError):
            await self.channel.drain()


class Remote:
    """One node, and our identity there. It belongs to an event loop, and ends with it."""

    def __init__(
        self,
        link: Link,
        settings: MountSettings,
        *,
        token: str | None = None,
        keep: Callable[[str], Awaitable[None]] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        self.link = link
        self.settings = settings
        self.where = link.shown
        self.token = token  # our identity there
        self._keep = keep
        self._lost = lost  # called when the node hung up, or cannot be reached
        self._impatient: list[asyncio.Future[None]] = []  # callers that give up as soon as the node is away
        self._trust = trust_of(settings)
        self._inboxes: dict[str, Inbox] = {}
        self._current: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._backoff = Backoff(0.2, 5.0)
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self.connects = 0

    # -- for runs -----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def using(self, inbox: Inbox, *ids: str) -> AsyncIterator[None]:
        """Marks the node as busy for the time of this context, and puts frames about these ids into the inbox."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._inboxes |= dict.fromkeys(ids, inbox)
        try:
            yield
        finally:
            for id_ in [id_ for id_, other in self._inboxes.items() if other is inbox]:
                del self._inboxes[id_]
            self._users -= 1
            self._rest()

    def expect(self, id_: str, inbox: Inbox) -> None:
        """Puts frames about this id into an inbox, too."""
        self._inboxes[id_] = inbox

    @property
    def standing(self) -> Connection | None:
        """Returns the connection, where there is one."""
        return self._current if self._current is not None and not self._current.over else None

    async def connection(self, *, patient: bool = True) -> Connection:
        """Returns the present connection, or the next one. Raises Unavailable when the node is away for too long; for
        an impatient caller, when it is away at all."""
        if self.standing is not None:
            return self.standing
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening.done():
            self._opening = loop.create_task(self._open())
            self._opening.add_done_callback(_noticed)
        if not patient:
            away: asyncio.Future[None] = loop.create_future()
            self._impatient.append(away)
            either: set[asyncio.Future[Any]] = {self._opening, away}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                with contextlib.suppress(ValueError):
                    self._impatient.remove(away)
            if away.done() and not self._opening.done():
                away.result()
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        for task in (self._opening, self._reading):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _rest(self) -> None:
        if not self._users and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(self.settings.idle_timeout, self._too_idle)

    def _too_idle(self) -> None:
        self._idle = None
        if not self._users and self._reading is not None:
            self._reading.cancel()

    # -- connecting ---------------------------------------------------------------------------------------

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        if self._reading is not None:
            await asyncio.wait({self._reading})  # the connection before it is ended first
        deadline = loop.time() + self.settings.patience
        while True:
            try:
                return await self._reach()
            except ConnectionError as error:
                self._is_away(error)
                wait = self._backoff.next()
                if loop.time() + wait > deadline:
                    raise Unavailable(str(error)) from error
                log.info("%s, and is tried again", error)
            await asyncio.sleep(wait)

    def _is_away(self, error: ConnectionError) -> None:
        impatient, self._impatient = self._impatient, []
        for waits in impatient:
            if not waits.done():
                waits.set_exception(Unavailable(str(error)))
                waits.exception()  # it may have left
        if self._lost is not None:
            self._lost()

    async def _reach(self) -> Connection:
        channel = await dial_link(self.link, self.settings)
        connection = Connection(channel, self._trust, self.where)
        try:
            async with asyncio.timeout(self.settings.start_timeout):
                early = await self._greet(connection)
        except TimeoutError:
            await channel.close()
            raise ConnectionError(f"{self.where} did not tell who it is") from None
        except BaseException:
            await channel.close()
            raise
        self._current = connection
        self.connects += 1
        self._reading = asyncio.get_running_loop().create_task(self._read(connection))
        for frame in early:
            self._took(connection, frame)
        self._rest()
        return connection

    async def _greet(self, connection: Connection) -> list[Frame]:
        """Sends our card, and reads the node's. Other frames are kept for later."""
        if self.token is not None:
            connection.send({"type": "acp.resume", "token": self.token})
        connection.send(frames.agent_card(our_card(self.settings.name, self._trust, self.settings.max_bytes)))
        early: list[Frame] = []
        nonce: str | None = None
        greeted = False
        while not greeted:
            for frame in await received(connection.channel, self.where):
                match frame.get("type"):
                    case "acp.agent_card" if not connection.card:
                        connection.card = check_card(frame, self._trust, self.where)
                        greeted = not connection.ours
                        if connection.ours:
                            # Answers keep their order: a new identity comes before the answer to this.
                            ping = frames.ping(self.settings.name)
                            nonce = ping["nonce"]
                            connection.send(ping)
                    case "acp.session":
                        given = frame.get("resume")
                        connection.fresh_token = given if isinstance(given, str) else None
                    case "acp.pong" if nonce is not None and frame.get("nonce") == nonce:
                        await self._known_as(connection)
                        greeted = True
                    case _:
                        early.append(frame)
        return early

    async def _known_as(self, connection: Connection) -> None:
        """Takes a new token for the next connection from a node, which means that it has forgotten this side, or never
        knew it."""
        fresh = connection.fresh_token
        if fresh is not None:
            self.token = fresh
            if self._keep is not None:
                await self._keep(fresh)
        connection.token = self.token

    # -- reading ------------------------------------------------------------------------------------------

    async def _read(self, connection: Connection) -> None:
        channel, by_itself = connection.channel, True
        try:
            while batch := await channel.receive():
                for data in batch:
                    frame = read_frame(data)
                    if frame is not None:
                        self._took(connection, frame)
                del batch, data, frame  # nothing is held until the next message
        except ConnectionError as error:
            log.info("the connection with %s ended: %s", self.where, error)
        except asyncio.CancelledError:  # it was closed here
            by_itself = False
            raise
        except Exception:
            log.exception("the connection with %s failed", self.where)
        finally:
            connection.over = True
            if by_itself and self._lost is not None:
                self._lost()
            self._backoff.lasted(time.monotonic() - connection.began)
            for inbox in {id(inbox): inbox for inbox in self._inboxes.values()}.values():
                inbox.put(None)
            ending = asyncio.ensure_future(channel.close())
            while not ending.done():
                with contextlib.suppress(asyncio.CancelledError):  # a few seconds at most, and must be done
                    await asyncio.shield(ending)

    def _took(self, connection: Connection, frame: Frame) -> None:
        kind, id_ = frame.get("type"), frame.get("message_id")
        match kind:
            case "acp.ping":
                connection.send(frames.pong(self.settings.name, str(frame.get("nonce"))))
            case "acp.agent_card":
                with contextlib.suppress(Unavailable, InvalidRequest):
                    connection.card = check_card(frame, self._trust, self.where)
            case "acp.delivered" | "acp.ack" | "error":
                named = id_ or frame.get("ack_message_id")
                inbox = self._inboxes.get(named) if isinstance(named, str) else None
                if inbox is not None:
                    inbox.put(frame)
                elif kind == "error":
                    log.info("%s says: %s", self.where, str(frame.get("message") or frame.get("code"))[:500])
            case "acp.message" | "acp.reply" | "task.updated":
                self._told(connection, frame)
            case "unreadable" if "chunk" not in frame and "activity" not in frame:  # those are made up for at the end
                self._unreadable(frame)
            case "task.delegate":
                wanted, why = str(frame.get("task_id")), "this side only calls, and takes no tasks"
                connection.send(frames.updated(self.settings.name, wanted, "failed", error=why))

    def _unreadable(self, frame: Frame) -> None:
        """Ends the run that waits for an unreadable frame. Where that run is unknown, ends all: a failure is better
        than a hang."""
        named = [self._inboxes.get(id_) for id_ in map(frame.get, ("task_id", "correlation_id", "message_id")) if id_]
        found = [inbox for inbox in named if inbox is not None]
        for inbox in {id(inbox): inbox for inbox in found or (() if any(named) else self._inboxes.values())}.values():
            inbox.put(RemoteError(f"an answer of {self.where} cannot be read: {frame['why']}"))

    def _told(self, connection: Connection, frame: Frame) -> None:
        """Takes a frame of a run. It is confirmed at once: a run that dies before it acts on it will ask how the task
        stands."""
        checked = self._trust.check(frame, connection.card) if "sig" in frame or "identity" in frame else None
        for warning in checked.warnings if checked is not None else ():
            log.warning("%s: %s", self.where, warning)
        id_ = frame.get("message_id")
        passes_by = "chunk" in frame or "activity" in frame
        if isinstance(id_, str) and not passes_by and connection.able("delivery_ack"):
            connection.send(frames.delivered(self.settings.name, id_))
        for named in (frame.get("task_id"), frame.get("correlation_id")):
            inbox = self._inboxes.get(named) if isinstance(named, str) else None
            if inbox is not None:
                inbox.put(frame)
                return


def _noticed(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # perhaps no caller waits any more

"""A fake of the published reference, for tests: a peer that behaves on the wire as versions 2.19 and 2.48 do, with
their quirks.

It is written with nothing but `websockets`, as the reference is, and knows nothing of the code under test. What was
seen of the reference and is repeated here:

- both sides send their cards at once, and neither waits for the other; a host flushes what it queued after its card;
- a wrong token is answered after the upgrade, with an error frame and close 1000;
- a binary frame, an array, a number, or an `identity` or `card` that is no object ends the connection (1011);
- 2.19 confirms nothing, and takes every frame that it does not know for a message of its owner's (`recv`);
- 2.48 confirms every message with an id, whatever it is asked, and dies where `from` is not the name on the card;
- replies come only by `/reply`; a message with a correlation_id resolves no wait;
- a task.delegate makes no task; task.updated counts only for tasks that are known;
- with a secret, a frame whose signed time is old or no text is dropped in silence, and one with an offset ends the
  connection;
- the same message_id again is dropped, whoever sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import websockets
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

Frame = dict[str, Any]
Version = Literal["2.19", "2.48"]
Socket = Any  # a connection of either side
WAIT = 60.0


class Dies(Exception):
    """The reference's handler of a connection ends by this."""


class Reference:
    """One reference node. `host` and `join` make one that is connected, or waits to be."""

    def __init__(
        self, name: str = "RefAgent", version: Version = "2.19", *, skills: tuple[str, ...] = (), secret: str = ""
    ) -> None:
        self.name = name
        self.version = version
        self.skills = skills
        self.secret = secret
        self.token = f"tok_{secrets.token_hex(8)}"
        self.port = 0
        self.sockets: list[Socket] = []
        self.frames: list[Frame] = []  # everything that came and was an object, in order
        self.messages: list[Frame] = []  # what its owner reads at /recv: messages, and what it takes for some
        self.recv: list[Frame] = []  # of those, what only pollutes it
        self.peer_card: Frame | None = None
        self.tasks: dict[str, Frame] = {}
        self.queue: list[Frame] = []  # for whoever connects first
        self.closes: list[int] = []  # how connections ended
        self.answers: Callable[[Frame], Any] | None = None  # the app behind it: what it posts to /reply
        self._seen: set[str] = set()
        self._pending: dict[str, asyncio.Future[Frame]] = {}
        self._seq = 0
        self._news = asyncio.Event()
        self._last_received: str | None = None

    # -- being there --------------------------------------------------------------------------------------

    @property
    def link(self) -> str:
        return f"acp://127.0.0.1:{self.port}/{self.token}"

    @contextlib.asynccontextmanager
    async def host(self, port: int = 0) -> AsyncIterator[Reference]:
        """Listening for guests."""
        async with serve(self._hosted, "127.0.0.1", port, ping_interval=20, ping_timeout=20) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            yield self

    @contextlib.asynccontextmanager
    async def join(self, link: str) -> AsyncIterator[Reference]:
        """A guest of whoever has this link. It does not listen then."""
        host, _, token = link.removeprefix("acp://").partition("/")
        guest = asyncio.ensure_future(self._guest(f"ws://{host}/{token}"))
        try:
            yield self
        finally:
            guest.cancel()
            await asyncio.gather(guest, return_exceptions=True)

    async def _hosted(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        if socket.request.path.strip("/") != self.token:
            await socket.send(json.dumps({"type": "error", "code": "invalid_token"}))
            await socket.close(1000)
            return
        await self._talk(socket, flush=True)

    async def _guest(self, url: str) -> None:
        while True:
            with contextlib.suppress(OSError, websockets.WebSocketException):
                async with connect(url, ping_interval=20, ping_timeout=10) as socket:
                    await self._talk(socket, flush=False)
            await asyncio.sleep(0.05)  # 2 s in the reference

    async def _talk(self, socket: Socket, *, flush: bool) -> None:
        self.sockets.append(socket)
        try:
            with contextlib.suppress(websockets.ConnectionClosed):  # what came before the end is read all the same
                await self._send(socket, self._card_frame())
            while flush and self.queue:
                await self._send(socket, {**self.queue.pop(0), "_was_queued": True})
            async for data in socket:
                await self._took(socket, data)
        except Dies:
            await socket.close(1011)
        except websockets.ConnectionClosed:
            pass
        finally:
            self.sockets.remove(socket)
            self.closes.append(socket.close_code or 0)
            self._news.set()

    # -- what it sends ------------------------------------------------------------------------------------

    def card(self) -> Frame:
        newer = self.version == "2.48"
        capabilities: Frame = {
            "streaming": True, "push_notifications": True, "input_required": True,
            "part_types": ["text", "file", "data"], "max_msg_bytes": 1048576, "query_skill": True, "server_seq": True,
            "multi_session": True, "error_codes": True, "hmac_signing": bool(self.secret), "lan_discovery": False,
            "context_id": True, "identity": "none", "supported_transports": ["http", "ws"],
        }  # fmt: skip
        if newer:
            capabilities |= {
                "peer_ping": True, "delivery_ack": True, "read_receipt": True, "typing_indicator": True,
                "message_priority": True, "tasks_pagination": True, "well_known_rfc8615": True,
                "groups": {
                    "messaging": {"priority": True, "long_poll": True, "history": True, "broadcast": True,
                                  "delivery_ack": True},
                    "tasks": {"pagination": True, "filtering": True, "state_machine": True},
                },
            }  # fmt: skip
        return {
            "name": self.name, "acp_version": f"{self.version}.0", "timestamp": self.now(),
            "skills": [{"id": one, "name": one} for one in self.skills], "transport_modes": ["p2p", "relay"],
            "extensions": [], "capabilities": capabilities, "identity": None,
            "trust": {"scheme": "hmac-sha256" if self.secret else "none", "enabled": bool(self.secret)},
            "auth": {"schemes": ["none"]}, "endpoints": {"send": "/message:send", "stream": "/stream"},
            "a_member_of_a_later_version": {"x": 1},
        }  # fmt: skip

    def now(self) -> str:
        now = datetime.datetime.now(datetime.UTC)
        digits = 6 if self.version == "2.19" else 3
        return now.strftime("%Y-%m-%dT%H:%M:%S.%f")[: 20 + digits] + "Z"

    @staticmethod
    def id(kind: str = "msg") -> str:
        return f"{kind}_{secrets.token_hex(6)}"

    def _card_frame(self) -> Frame:
        return {"type": "acp.agent_card", "message_id": self.id("card"), "ts": self.now(), "card": self.card()}

    def introduction(self) -> str:
        """Its card, for a test that speaks in its place."""
        return json.dumps(self._card_frame())

    def message(self, text: str, **more: Any) -> Frame:
        """A message as `/message:send` makes one."""
        self._seq += 1
        frame: Frame = {
            "type": "acp.message", "message_id": self.id(), "server_seq": self._seq, "ts": self.now(),
            "from": self.name, "role": "agent", "parts": [{"type": "text", "content": text}],
        }  # fmt: skip
        if self.version == "2.48":
            frame["priority"] = "normal"
        return self._signed({**frame, **more})

    def _signed(self, frame: Frame) -> Frame:
        if self.secret:
            signed = f"{frame['message_id']}:{frame['ts']}".encode()
            frame["sig"] = hmac.new(self.secret.encode(), signed, hashlib.sha256).hexdigest()
        return frame

    async def send(self, text: str, **more: Any) -> Frame:
        """`/message:send`; what there is nobody for waits."""
        frame = self.message(text, **more)
        if not self.sockets:
            self.queue.append(frame)
        else:
            await self._send(self.sockets[-1], frame)
            if self.version == "2.48" and self._last_received is not None:
                read, self._last_received = self._last_received, None
                await self.raw({"type": "acp.read", "message_id": read, "from": self.name, "ts": self.now()})
        return frame

    async def ask(self, text: str, **more: Any) -> Frame:
        """`/message:send` with sync: waits for the reply."""
        id_ = self.id()
        waiting = self._pending[id_] = asyncio.get_running_loop().create_future()
        await self.send(text, message_id=id_, correlation_id=id_, **more)
        async with asyncio.timeout(WAIT):
            return await waiting

    async def reply(self, correlation_id: str, content: Any = None, parts: list[Frame] | None = None) -> None:
        """`/reply`."""
        await self.raw(
            self._signed(
                {"type": "acp.reply", "message_id": self.id(), "ts": self.now(), "from": self.name,
                 "correlation_id": correlation_id, "content": content, "parts": parts}
            )
        )  # fmt: skip

    async def update(self, task: str, status: str, artifact: Frame | None = None) -> None:
        """`/tasks/{id}:update`: any status will do."""
        await self.raw(
            self._signed(
                {"type": "task.updated", "message_id": self.id(), "ts": self.now(), "from": self.name,
                 "task_id": task, "status": status, "artifact": artifact}
            )
        )  # fmt: skip

    async def delegate(self, payload: Frame, task: str | None = None) -> str:
        """`/tasks` with delegate."""
        task = task or self.id("task")
        self.tasks[task] = {"id": task, "status": "submitted", "artifacts": []}
        await self.raw(
            self._signed(
                {"type": "task.delegate", "message_id": self.id(), "ts": self.now(), "from": self.name,
                 "task_id": task, "payload": payload}
            )
        )  # fmt: skip
        return task

    async def raw(self, frame: Any) -> None:
        """Whatever it is, over the newest connection."""
        await self._send(self.sockets[-1], frame)

    @staticmethod
    async def _send(socket: Socket, frame: Any) -> None:
        await socket.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))

    @staticmethod
    def relayed(frame: Frame, seq: int = 1) -> Frame:
        """A frame as it comes out of the reference's relay: with another ts, which is a number."""
        now = int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)
        return {**frame, "ts": now, "seq": seq, "id": frame.get("id", f"id_{secrets.token_hex(6)}")}

    # -- what it does with what comes ---------------------------------------------------------------------

    async def _took(self, socket: Socket, data: Any) -> None:
        if isinstance(data, bytes):
            raise Dies("a binary frame")
        try:
            frame = json.loads(data)
        except ValueError:
            return
        if not isinstance(frame, dict):
            raise Dies("no object")
        if not isinstance(frame.get("identity") or {}, dict) or not isinstance(frame.get("card") or {}, dict):
            raise Dies("no object where one is needed")
        self.frames.append(frame)
        try:
            await self._act(socket, frame)
        finally:
            self._news.set()

    async def _act(self, socket: Socket, frame: Frame) -> None:
        kind, id_ = frame.get("type"), frame.get("message_id")
        if self.secret and frame.get("sig") and not self._in_time(frame):
            return
        if kind == "acp.agent_card":
            self.peer_card = frame["card"]
        elif kind == "acp.reply":
            waiting = self._pending.pop(str(frame.get("correlation_id")), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
        elif kind == "task.updated":
            task = self.tasks.get(str(frame.get("task_id")))
            if task is not None:
                task["status"] = frame.get("status")
                task["artifacts"] += [frame["artifact"]] if frame.get("artifact") else []
        elif self.version == "2.48" and kind in ("acp.ping", "acp.pong", "acp.delivered", "acp.read", "acp.typing"):
            if kind == "acp.ping":
                await self._to_sender(socket, frame, {"type": "acp.pong", "nonce": frame.get("nonce")})
        elif isinstance(frame.get("parts"), list):
            await self._message(socket, frame, id_)
        else:  # acp.ping and the like too, in 2.19; and task.delegate in both
            self.recv.append(frame)
            self.messages.append({"id": self.id(), "message_id": id_, "content": frame})

    async def _message(self, socket: Socket, frame: Frame, id_: Any) -> None:
        if id_ in self._seen:
            return
        self._seen.add(id_)
        self._last_received = id_
        task = frame.get("task_id")
        if task is not None and task not in self.tasks:
            self.tasks[task] = {"id": task, "status": "working", "artifacts": [], "from_peer": True}
        invalid = bool(self.secret and frame.get("sig") and frame["sig"] != self._sig(frame))
        self.messages.append({**frame, **({"_sig_invalid": True} if invalid else {})})
        if self.version == "2.48" and id_:
            await self._to_sender(socket, frame, {"type": "acp.delivered", "message_id": id_})
        if self.answers is not None and frame.get("correlation_id"):
            said = self.answers(frame)
            if said is not None:
                whole = isinstance(said, list)
                await self.reply(str(frame["correlation_id"]), None if whole else said, said if whole else None)

    async def _to_sender(self, socket: Socket, frame: Frame, told: Frame) -> None:
        """2.48 looks for the sender by its name, and falls over where nobody has that name."""
        if self.peer_card is None or frame.get("from") != self.peer_card.get("name"):
            raise Dies("NameError: name '_ws_ctx' is not defined")
        await self._send(socket, {**told, "from": self.name, "ts": self.now()})

    def _sig(self, frame: Frame) -> str:
        signed = f"{frame.get('message_id')}:{frame.get('ts')}".encode()
        return hmac.new(self.secret.encode(), signed, hashlib.sha256).hexdigest()

    @staticmethod
    def _in_time(frame: Frame) -> bool:
        ts = frame.get("ts")
        if not isinstance(ts, str):
            return False
        if not ts.endswith("Z"):
            raise Dies("TypeError: can't subtract offset-naive and offset-aware datetimes")
        try:
            then = datetime.datetime.fromisoformat(ts.removesuffix("Z"))
        except ValueError:
            return False
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        return abs((now - then).total_seconds()) <= 300

    # -- for tests ----------------------------------------------------------------------------------------

    async def until(self, test: Callable[[], Any]) -> Any:
        """What a test finds, as soon as it finds something."""
        async with asyncio.timeout(WAIT):
            while not (found := test()):
                self._news.clear()
                await self._news.wait()
            return found

    async def came(self, kind: str, **members: Any) -> Frame:
        """The first frame of a type, with these members."""
        found: Frame = await self.until(
            lambda: next(
                (
                    frame
                    for frame in self.frames
                    if frame.get("type") == kind and all(frame.get(name) == members[name] for name in members)
                ),
                None,
            )
        )
        return found

    async def connected(self) -> None:
        """Both cards are there."""
        await self.until(lambda: self.sockets and self.peer_card)

"""A node of the peer protocol that is written by hand from the document, and can be told to break one of its rules.

Its programs say over PUT how tasks go, as with the published reference. It shares nothing with what is under test; its
HTTP API is in `broken_http`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import datetime
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import websockets
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.client import ClientConnection, connect

LIMIT = 100_000
SECRET = "shared"
TERMINAL = ("completed", "failed", "canceled")
MOVES = {
    "submitted": ("working", "cancelling"), "working": ("completed", "failed", "input_required", "cancelling"),
    "input_required": ("working", "cancelling"), "cancelling": ("canceled",),
}  # fmt: skip
KNOWN = {"role", "parts", "text", "content", "message_id", "task_id", "context_id", "priority", "delivery_ack"}


class Refused(Exception):
    def __init__(self, status: int, code: str, why: str, **more: Any) -> None:
        super().__init__(why)
        self.status, self.body = status, {"ok": False, "error_code": code, "error": why, **more}


def invalid(why: str) -> Refused:
    return Refused(400, "ERR_INVALID_REQUEST", why)


class Peer:
    def __init__(self, id_: str, link: str) -> None:
        self.id, self.link, self.name = id_, link, link
        self.connected, self.connected_at = False, ""
        self.sent = self.received = 0
        self.card: Any = None
        self.socket: ClientConnection | None = None


class Node:
    def __init__(self, defect: str = "") -> None:
        self.defect = defect
        self.key = Ed25519PrivateKey.generate()
        self.tasks: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.peers: dict[str, Peer] = {}
        self.inbox: list[dict[str, Any]] = []
        self.sent: dict[str, dict[str, Any]] = {}
        self.limitations: list[dict[str, Any]] = []
        self.jobs: set[asyncio.Task[None]] = set()
        self.news = asyncio.Condition()
        self.seq = self.number = 0
        self.started = self.now()

    def has(self, defect: str) -> bool:
        return self.defect == defect

    def spawn(self, job: Any) -> None:
        task = asyncio.ensure_future(job)
        self.jobs.add(task)
        task.add_done_callback(self.jobs.discard)

    def now(self) -> str:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
        return stamp if self.has("times without a zone") else stamp + "Z"

    # -- the card -----------------------------------------------------------------------------------------

    def card(self) -> dict[str, Any]:
        flat = {"streaming": True, "push_notifications": True, "input_required": True, "query_skill": True,
                "context_id": True, "tasks_pagination": True, "message_priority": True, "delivery_ack": True,
                "hmac_signing": True, "lan_discovery": False}  # fmt: skip
        groups = {
            "messaging": {"streaming": True, "push": True, "input_required": True, "message_priority": True,
                          "delivery_ack": True},
            "tasks": {"cancelling": True, "pagination": True, "context_id": True},
            "identity": {"ed25519": True, "hmac": True, "jwks": False, "did": False},
            "transport": {"sse": True, "http2": False, "p2p_direct": True, "dcutr": False, "relay_fallback": False},
            "discovery": {"lan_mdns": False, "skills_list": True, "query_skill": True},
        }  # fmt: skip
        if self.has("groups without flat flags"):
            del flat["delivery_ack"]
        card: dict[str, Any] = {
            "name": "Hand", "acp_version": "1.0", "timestamp": self.now(),
            "skills": [{"id": "summarize", "name": "summarize"}, {"id": "translate", "name": "translate"}],
            "transport_modes": ["p2p"],
            "extensions": [{"uri": "acp:ext:hmac-v1", "required": False, "params": {"scheme": "hmac-sha256"}}],
            "capabilities": {
                **flat, "part_types": ["text", "file", "data"], "max_msg_bytes": LIMIT, "server_seq": True,
                "multi_session": True, "error_codes": True, "identity": "ed25519",
                "supported_transports": ["http", "ws"], "well_known_rfc8615": True, "groups": groups,
            },
            "identity": {"scheme": "ed25519", "public_key": self.public()},
            "trust": {"scheme": "hmac-sha256", "enabled": True}, "auth": {"schemes": ["none"]},
            "endpoints": {
                "send": "/message:send", "stream": "/stream", "tasks": "/tasks", "agent_card": "/.well-known/acp.json",
                "skills_query": "/skills/query", "peers": "/peers", "peer_send": "/peer/{id}/send",
                "peers_connect": "/peers/connect",
            },
        }  # fmt: skip
        if self.has("an extension twice"):
            card["extensions"] *= 2
        if self.has("no extensions on the card"):
            del card["extensions"]
        return card

    def public(self) -> str:
        return base64.urlsafe_b64encode(self.key.public_key().public_bytes_raw()).decode().rstrip("=")

    # -- events -------------------------------------------------------------------------------------------

    async def tell(self, type_: str, **members: Any) -> None:
        async with self.news:
            self.seq += 2 if self.has("gaps in the count") and type_ == "message" else 1
            self.events.append({"type": type_, "ts": self.now(), "seq": self.seq, **members})
            self.news.notify_all()

    async def tell_state(self, task: dict[str, Any], state: str) -> None:
        task["status"], task["updated_at"] = state, self.now()
        more = {"error": task["error"]} if state == "failed" and not self.has("failures without a reason") else {}
        await self.tell("status", task_id=task["id"], state=state, context_id=task["context_id"], **more)

    async def tell_artifact(self, task: dict[str, Any], artifact: dict[str, Any]) -> None:
        named = {} if self.has("artifacts of no task") else {"task_id": task["id"]}
        await self.tell("artifact", **named, artifact=artifact)

    async def follow(self, task: str | None) -> AsyncIterator[str]:
        place, own = len(self.events), 0
        if task is not None:
            place = 0
        yield ": hello\n\n"
        while True:
            async with self.news:
                while len(self.events) <= place or self.has("a stream that tells nothing"):
                    await self.news.wait()
                fresh = self.events[place:]
            for event in fresh:
                place += 1
                own += 1
                if task is not None and event.get("task_id") != task:
                    continue
                name = {"status": "acp.task.status", "artifact": "acp.task.artifact"}.get(event["type"])
                if self.has("events without names"):
                    name = None
                told = {**event, "seq": own} if self.has("a count for each reader") else event
                yield (f"event: {name}\n" if name else "") + f"data: {json.dumps(told)}\n\n"

    # -- messages -----------------------------------------------------------------------------------------

    def read(self, body: Any) -> dict[str, Any]:
        if not isinstance(body, dict):
            raise invalid("the body is no object")
        role = body.get("role", "user" if self.has("a role by default") else None)
        if not isinstance(role, str) or role not in ("user", "agent"):
            raise invalid("role is user or agent")
        parts = body.get("parts")
        short = body.get("text", body.get("content"))
        if parts is None and isinstance(short, str):
            parts = [{"type": "text", "content": short}]
        if not isinstance(parts, list) or not parts:
            raise invalid("parts are missing")
        for part in parts:
            self.check_part(part)
        task = body.get("task_id")
        if task is not None and task not in self.tasks and not self.has("unknown tasks taken"):
            raise invalid("there is no such task")
        digits = 6 if self.has("short ids") else 8
        frame: dict[str, Any] = {
            "type": "acp.message", "message_id": body.get("message_id") or f"msg_{secrets.token_hex(digits)}",
            "ts": self.now(), "from": "Hand", "role": role, "parts": parts,
        }  # fmt: skip
        frame |= {name: body[name] for name in ("task_id", "context_id", "priority") if body.get(name) is not None}
        return frame

    def check_part(self, part: Any) -> None:
        if not isinstance(part, dict) or part.get("type") not in ("text", "file", "data"):
            raise invalid("a part is a text, a file or data")
        if part["type"] == "text" and not isinstance(part.get("content"), str):
            raise invalid("the content of a text is a text")
        if part["type"] == "file":
            url = part.get("url")
            schemes = ("http://", "https://", *(["ftp://"] if self.has("files from anywhere") else []))
            if not isinstance(url, str) or not url.startswith(schemes):
                raise invalid("the url of a file is an address of the web")
        if part["type"] == "data" and "content" not in part:
            raise invalid("data have a content")

    def signed(self, frame: dict[str, Any]) -> dict[str, Any]:
        over = f"{frame['message_id']}:{frame['ts']}"
        if self.has("a sig over the content"):
            over = json.dumps(frame["parts"])
        frame = {**frame, "sig": hmac.new(SECRET.encode(), over.encode(), hashlib.sha256).hexdigest()}
        spaces = (", ", ": ") if self.has("a signature over JSON with spaces") else (",", ":")
        data = json.dumps(frame, sort_keys=True, separators=spaces).encode()
        sig = base64.urlsafe_b64encode(self.key.sign(data)).decode().rstrip("=")
        return {**frame, "identity": {"scheme": "ed25519", "public_key": self.public(), "sig": sig}}

    async def send(self, body: Any, peer: Peer | None = None) -> dict[str, Any]:
        frame = self.read(body)
        if self.has("unknown members refused") and set(body) - KNOWN:
            raise invalid("there is an unknown member")
        id_ = frame["message_id"]
        if len(json.dumps(frame)) > LIMIT and not self.has("no limit"):
            raise Refused(413, "ERR_MSG_TOO_LARGE", "the message is too large", failed_message_id=id_)
        here = [one for one in self.peers.values() if one.connected]
        to = peer or (here[0] if here else None)
        if to is None or not to.connected:
            raise Refused(503, "ERR_NOT_CONNECTED", "no peer is connected")
        if id_ in self.sent:
            return {"ok": True, "message_id": id_, "server_seq": self.sent[id_]["server_seq"]}
        if peer is not None and self.has("contexts lost on the way to a peer"):
            frame.pop("context_id", None)
        self.number += 1
        frame["server_seq"] = self.number
        self.sent[id_] = frame
        await self.tell("message", **{n: frame[n] for n in frame if n not in ("type", "ts", "priority", "server_seq")})
        for one in here if self.has("everybody hears everything") else [to]:
            assert one.socket is not None
            one.sent += 1
            try:
                await one.socket.send(json.dumps(self.signed(frame)))
            except websockets.ConnectionClosed:
                raise Refused(503, "ERR_NOT_CONNECTED", "the peer has gone") from None
        return {"ok": True, "message_id": id_, "server_seq": self.number}

    # -- peers --------------------------------------------------------------------------------------------

    async def call(self, peer: Peer) -> None:
        host, _, token = peer.link.removeprefix("acp://").partition("/")
        taken = True
        while taken and not (peer.connected_at and self.has("no second connection")):
            with contextlib.suppress(OSError, websockets.WebSocketException):
                async with connect(f"ws://{host}/{token}", proxy=None) as peer.socket:
                    peer.connected, peer.connected_at = True, self.now()
                    await self.tell("peer", event="connected", peer_id=peer.id)
                    card = {"type": "acp.agent_card", "message_id": "card_1", "ts": self.now(), "card": self.card()}
                    await peer.socket.send(json.dumps(card))
                    async for data in peer.socket:
                        taken = await self.took(peer, json.loads(data))
                        if not taken:
                            break
            if peer.connected:
                peer.connected = False
                await self.tell("peer", event="disconnected", peer_id=peer.id)
            await asyncio.sleep(0.02)

    async def took(self, peer: Peer, frame: dict[str, Any]) -> bool:
        if frame.get("type") == "acp.agent_card":
            peer.card, peer.name = frame["card"], frame["card"]["name"]
            modes = peer.card.get("transport_modes", ["p2p"])
            return not (self.has("unknown modes minded") and set(modes) - {"p2p", "relay"})
        good = hmac.new(SECRET.encode(), f"{frame['message_id']}:{frame['ts']}".encode(), hashlib.sha256).hexdigest()
        marked = "sig" in frame and frame["sig"] != good
        if marked and self.has("bad signatures dropped"):
            return True
        peer.received += 1
        self.inbox.append({**frame, **({"_sig_invalid": True} if marked else {})})
        kept = ("message_id", "role", "parts", "task_id", "context_id")
        await self.tell("message", **{name: frame[name] for name in kept if name in frame})
        if frame.get("delivery_ack") is True and peer.socket is not None and not self.has("no acknowledgements"):
            await peer.socket.send(json.dumps({"type": "acp.delivered", "message_id": frame["message_id"]}))
        return True

    def view(self, peer: Peer) -> dict[str, Any]:
        return {
            "id": peer.id, "name": peer.name, "link": peer.link, "connected": peer.connected,
            "connected_at": peer.connected_at, "messages_sent": peer.sent, "messages_received": peer.received,
            "agent_card": peer.card,
        }  # fmt: skip

    # -- tasks --------------------------------------------------------------------------------------------

    async def create(self, body: Any) -> dict[str, Any]:
        frame = self.read({**body, "parts": body.get("input", body).get("parts")})
        now = self.now()
        task = {
            "id": f"task_{secrets.token_hex(6)}", "status": "submitted", "created_at": now, "updated_at": now,
            "input": {"parts": frame["parts"]}, "message_id": frame["message_id"],
            "context_id": frame.get("context_id"),
        }  # fmt: skip
        if self.has("another name for message_id"):
            task["origin_message_id"] = task.pop("message_id")
        self.tasks[task["id"]] = task
        await self.tell_state(task, "submitted")
        return copy.deepcopy(task)

    async def update(self, task: dict[str, Any], body: Any) -> None:
        state, artifact = body.get("status"), body.get("artifact")
        endless = self.has("ends that are none") and task["status"] in TERMINAL
        if state is not None and state not in MOVES.get(task["status"], ()) and not endless:
            raise invalid(f"a {task['status']} task does not become {state}")
        late = self.has("artifacts after the end")
        if artifact is not None:
            task["artifact"] = artifact
            if not late:
                await self.tell_artifact(task, artifact)
        if state is not None:
            task["error"] = body.get("error") or "no reason was given"
            if state != "failed":
                del task["error"]
            await self.tell_state(task, state)
        if artifact is not None and late:
            await self.tell_artifact(task, artifact)

    async def cancel(self, task: dict[str, Any]) -> dict[str, Any]:
        if task["status"] in ("completed", "failed"):
            raise invalid(f"the task is {task['status']}")
        if task["status"] in ("cancelling", "canceled"):
            if self.has("no second cancel"):
                raise Refused(409, "ERR_INVALID_REQUEST", "the task is being cancelled")
            return {"ok": True, "status": task["status"]}
        if self.has("canceled at once"):
            await self.tell_state(task, "canceled")
            return {"ok": True, "status": "canceled"}
        await self.tell_state(task, "cancelling")
        self.spawn(self.finish(task))
        return {"ok": True, "status": "cancelling"}

    async def finish(self, task: dict[str, Any]) -> None:
        await asyncio.sleep(0.03)
        await self.tell_state(task, "canceled")

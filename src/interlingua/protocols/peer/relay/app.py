"""A relay, at which peers that cannot reach each other leave messages for each other, over plain HTTP.

It is an ASGI app of its own that behaves like the reference's (acp_worker.js 2.1), and knows no node. A session is a
short log of messages, in memory. Its token gives full access and cannot be found out: sessions are not listed, all
wrong tokens get the same answer, and only a few tries are allowed. Three things are added for peers that know them: a
poll may wait for news (`wait`), the log never outruns a reader that gives its id (`reader`; senders get 429 instead),
and /new and /join announce both.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ....model.errors import InvalidRequest, TooLarge
from ....transports import json_text
from ....transports.http.body import HttpLimits, SlowBody, json_response, read_body
from .sessions import Full, Refused, RelaySettings, Session, Sessions, WriteResult, after_of, gone, key_of

__all__ = ["RelaySettings", "relay_app"]

_TOKEN = re.compile(r"[A-Za-z0-9_-]{6,64}")
_ANNOUNCED = re.compile(r"[A-Za-z0-9_-]{4,64}")
_SECRET = 16  # characters from which on a token cannot be guessed
_POLL_BYTES = 4 * 1024 * 1024

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class _Relay:
    """The endpoints."""

    def __init__(self, settings: RelaySettings) -> None:
        self.settings = settings
        self.sessions = Sessions(settings)
        self._announced: OrderedDict[bytes, tuple[float, dict[str, Any]]] = OrderedDict()
        self._limits = HttpLimits(max_body_bytes=settings.message_bytes, body_timeout=30.0)

    def _find(self, request: Request) -> Session:
        return self.sessions.find(request.path_params["token"], _address(request))

    async def new(self, request: Request) -> Response:
        wanted = request.query_params.get("token", "")
        token = wanted if _TOKEN.fullmatch(wanted) else f"tok_{secrets.token_hex(8)}"
        key = key_of(token)
        session = self.sessions.living(key)
        existed = session is not None
        if session is None:
            session = self.sessions.begin(key, _address(request))
        self.sessions.used(key, session)
        host = self.settings.public_host or request.headers.get("host", "")
        scheme = "acp+wss" if request.url.scheme == "https" or self.settings.public_host else "acp+ws"
        # A token that can be guessed does not reveal if others use it.
        told = existed and len(token) >= _SECRET
        answer = {"token": token, "link": f"{scheme}://{host}/acp/{token}", "existed": told}
        return json_response({**answer, **self._offers()})

    def _offers(self) -> dict[str, Any]:
        return {"wait": self.settings.wait, "readers": True}

    async def join(self, request: Request) -> Response:
        session = self._find(request)
        body = await self._object(request)
        name = _text(body.get("name"))[:64] or f"agent_{secrets.token_hex(3)}"
        if name not in session.agents and len(session.agents) >= self.settings.agents:
            session.agents.pop(
                next(iter(session.agents))
            )  # a leaving guest says nothing: the first has most likely left
        card = body.get("card", msgspec.Raw(b"null"))
        kept = self.sessions.append(
            session, secrets.token_hex(8), {"type": "acp.agent_joined", "from": name, "card": card}
        )
        session.agents.pop(name, None)
        session.agents[name] = kept.ms
        answer = {"ok": True, "session_id": request.path_params["token"], "seq": kept.seq, "agent_name": name}
        return json_response({**answer, **self._offers()})

    async def send(self, request: Request) -> Response:
        self._find(request)
        body = await self._object(request)
        session = self._find(request)  # again: a body takes its time
        identity = _text(body.get("id"))[:200] or secrets.token_hex(8)
        if identity in session.ids:
            return json_response({"ok": True, "deduped": True, "id": identity})
        kept = self.sessions.append(session, identity, body)
        return json_response({"ok": True, "id": kept.id, "seq": kept.seq})

    async def poll(self, request: Request) -> Response:
        session = self._find(request)
        query = request.query_params
        after = query.get("after_id") or None
        since = _number(query.get("since"), 0.0)
        limit = int(max(1, min(_number(query.get("limit"), 50.0) or 50, self.settings.messages)))
        wait = max(0.0, min(_number(query.get("wait"), 0.0), self.settings.wait))
        reader = query.get("reader", "")[:100]
        if reader:
            # A reader asks for the messages that it has not read; one that asks for no position has read nothing.
            self.sessions.came(session, reader, session.ids.get(after or "", 0))
        found = after_of(session, after, since)
        if not found and wait and len(session.waiting) < self.settings.waiting:
            await self._news(session, wait, request)
            if self.sessions.living(key_of(request.path_params["token"])) is not session:
                raise gone()
            found = after_of(session, after, since)
        kept: list[WriteResult] = []
        size = 0
        for message in found[:limit]:
            size += len(message.body)
            if kept and size > _POLL_BYTES:
                break
            kept.append(message)
        last = kept[-1].id if kept else after
        rest = _encode({"count": len(kept), "last_id": last, "server_seq": session.seq})
        body = b'{"messages":[' + b",".join(message.body for message in kept) + b"]," + rest[1:]
        return Response(body, media_type="application/json")

    @staticmethod
    async def _news(session: Session, seconds: float, request: Request) -> None:
        """Waits until there may be something to read. A reader that leaves stops waiting, and makes room for others."""
        future = asyncio.get_running_loop().create_future()
        leaving = asyncio.ensure_future(_left(request))
        session.waiting.add(future)
        try:
            await asyncio.wait({future, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            session.waiting.discard(future)

    async def status(self, request: Request) -> Response:
        session = self._find(request)
        return json_response(
            {
                "token": request.path_params["token"],
                "agents": list(session.agents),
                "agent_count": len(session.agents),
                "message_count": len(session.log),
                "server_seq": session.seq,
                "created": int(session.created * 1000),
                "last_active": int(session.active * 1000),
                "idle_s": round(time.time() - session.active),
                "ttl_s": round(self.settings.ttl),
            }
        )

    async def delete(self, request: Request) -> Response:
        token = request.path_params["token"]
        with contextlib.suppress(Refused):  # the answer is the same whether there was one
            session = self._find(request)
            self.sessions.end(key_of(token), session)
        return json_response({"ok": True, "deleted": token})

    async def my_ip(self, request: Request) -> Response:
        return json_response({"ip": request.client.host if request.client else "unknown", "ts": _now()})

    async def announce(self, request: Request) -> Response:
        body = await self._object(request)
        token, ip = _text(body.get("token")), _text(body.get("ip"))[:64]
        port = _integer(body.get("port"))
        if not token or not ip or not 0 < port < 65536:
            raise Refused(400, "token, ip, port are required")
        if not _ANNOUNCED.fullmatch(token):
            raise Refused(400, "invalid token format")
        nat = _text(body.get("nat_type"))[:32] or "unknown"
        self._announced[key_of(token)] = (time.monotonic(), {"ip": ip, "port": port, "nat_type": nat, "ts": _now()})
        if len(self._announced) > 2 * self.settings.sessions:
            self._announced.popitem(last=False)
        return json_response({"ok": True, "token": token, "expires_in": round(self.settings.announce_ttl)})

    async def peer(self, request: Request) -> Response:
        token = request.query_params.get("token")
        if not token:
            raise Refused(400, "token query param required")
        address = _address(request)
        self.sessions.check(address)
        when, record = self._announced.pop(key_of(token), (0.0, {}))  # read once
        if not record or time.monotonic() - when > self.settings.announce_ttl:
            self.sessions.wrong(address)
            raise Refused(404, "peer not found or announcement expired")
        return json_response({"ok": True, "token": token, **record, "fetched_at": _now()})

    async def nothing(self, request: Request) -> Response:
        raise Refused(404, "not_found", "Use /acp/new to create a session")

    async def unknown(self, request: Request) -> Response:
        raise Refused(400, "unknown_action")

    async def _object(self, request: Request) -> dict[str, msgspec.Raw]:
        body = await read_body(request, self._limits)
        try:
            return json_text.decode_as(body or b"{}", _object.decode, numbers="refuse")
        except msgspec.ValidationError:
            raise Refused(400, "invalid_body", "The body is not a JSON object") from None
        except json_text.Unreadable as error:
            raise Refused(400, "invalid_body", f"The body cannot be read: {error}") from None


def relay_app(settings: RelaySettings | None = None) -> Starlette:
    """The relay as an ASGI app."""
    relay = _Relay(settings or RelaySettings())

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, Refused):
            told = {"error": error.error} if error.hint is None else {"error": error.error, "hint": error.hint}
            return json_response(told, error.status)
        if isinstance(error, Full):
            return json_response({"error": "full", "hint": "Readers are behind; try again"}, 429, {"retry-after": "1"})
        if isinstance(error, TooLarge):
            return json_response({"error": "too_large", "max_bytes": relay.settings.message_bytes}, 413)
        return json_response({"error": "invalid_body", "hint": str(error)}, 408 if isinstance(error, SlowBody) else 400)

    return Starlette(
        routes=[
            Route("/acp/new", relay.new, methods=["POST"]),
            Route("/acp/myip", relay.my_ip, methods=["GET"]),
            Route("/acp/announce", relay.announce, methods=["POST"]),
            Route("/acp/peer", relay.peer, methods=["GET"]),
            Route("/acp/rooms", relay.nothing),
            Route("/acp/{token}", relay.status, methods=["GET"]),
            Route("/acp/{token}", relay.delete, methods=["DELETE"]),
            Route("/acp/{token}/join", relay.join, methods=["POST"]),
            Route("/acp/{token}/send", relay.send, methods=["POST"]),
            Route("/acp/{token}/poll", relay.poll, methods=["GET"]),
            Route("/acp/{token}/status", relay.status, methods=["GET"]),
            Route("/acp/{token}/{action:path}", relay.unknown, methods=["GET", "POST"]),
            Route("/{path:path}", relay.nothing, methods=["GET", "POST", "DELETE", "PUT", "PATCH"]),
        ],
        exception_handlers=dict.fromkeys((Refused, Full, TooLarge, InvalidRequest), refused),
    )


def _address(request: Request) -> str:
    """Returns the address of a client, for counting: all IPv6 addresses of a network count as one."""
    host = request.client.host if request.client else "unknown"
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _text(raw: msgspec.Raw | None) -> str:
    value = None if raw is None else json_text.decode(bytes(raw))
    return value if isinstance(value, str) else ""


def _integer(raw: msgspec.Raw | None) -> int:
    value = None if raw is None else json_text.decode(bytes(raw))
    return value if type(value) is int else 0


def _number(text: str | None, default: float) -> float:
    try:
        number = float(text or default)
    except ValueError:
        return default
    return number if number == number and abs(number) < 1e18 else default


def _now() -> int:
    return int(time.time() * 1000)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

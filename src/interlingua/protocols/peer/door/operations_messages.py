"""Operations on messages: send, receive, read earlier messages.

On the owner's API messages go to peers and come from them; on the door they go to this node's agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ....doors import query
from ....doors.errors import about
from ....model.documents import Letter
from ....model.errors import InterlinguaError, InvalidRequest
from ....security.errors import OriginRefused
from ....transports.http.body import header, json_response, trace
from ..node.outbound import LONGEST_WAIT, entry
from ..node.tasks import Surface
from ..translate import parts
from ..wire import frames
from .api import Api, filled, listing, moment, newest_first

_LONGEST_POLL = 60.0
_SCAN, _SCAN_PAGE = 10_000, 100  # letters of a box that a reader of old messages can see, and those held at once
_OF_TASKS = ("task.delegate", "task.updated", "task.cancel")


class Handover:
    """An answer with messages: they count as received when the last byte is written and the reader is still
    connected."""

    def __init__(self, value: Any, settle: Callable[[bool], None]) -> None:
        self._body = msgspec.json.encode(value)
        self._settle = settle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(_left(receive))
        is_received = False
        try:
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self._body))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": self._body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": True})  # waits for a slow reader
            await asyncio.sleep(0)
            is_received = not leaving.done()
            if is_received:
                await send({"type": "http.response.body", "body": b""})
        except BaseException:
            is_received = False
            raise
        finally:
            leaving.cancel()
            self._settle(is_received)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Wanted(msgspec.Struct):
    """The filter for a list of old messages."""

    limit: int
    offset: int
    newest: bool
    role: str | None = None
    after: str | None = None  # a time
    since: int = 0  # a number of its box
    direction: str | None = None


class _Head(msgspec.Struct):
    """The head of a message as a peer sent it, unchecked."""

    type: Any = None
    role: Any = None


_head = msgspec.json.Decoder(_Head).decode


# -- sending ------------------------------------------------------------------------------------------


async def send_message(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return await _send(api, request, surface, None)


async def send_to_peer(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return await _send(api, request, surface, api.node.peers.get(request.path_params["id"]).id)


async def _send(api: Api, request: Request, surface: Surface, peer: str | None) -> ASGIApp:
    body = await api.body(request)
    try:
        if surface.door:
            return json_response(await api.door_sending.send(body, surface, trace(request)))
        return json_response(await api.node.sending.send(body, peer_id=peer))
    except InterlinguaError as error:
        about(error, body, "message_id")
        raise


async def send_legacy(api: Api, request: Request, surface: Surface) -> ASGIApp:
    """Sends a message in the form from before the envelope: any object, with its id in `id`."""
    body = await api.json_object(request)
    content_names = ("parts", "text", "content")
    content = {name: body[name] for name in content_names if body.get(name) is not None}
    if not content:
        content = {"parts": [parts.data({name: value for name, value in body.items() if name != "peer_id"})]}
    message = {"role": body.get("role") or "user", **content, "message_id": body.get("message_id") or body.get("id")}
    message |= {name: body[name] for name in ("peer_id", "context_id", "task_id", "priority") if body.get(name)}
    sent = await api.node.sending.send(message)
    return json_response({"ok": True, "id": sent["message_id"], **sent})


async def reply(api: Api, request: Request, surface: Surface) -> ASGIApp:
    return json_response(await api.node.sending.reply(await api.body(request)))


async def wait_reply(api: Api, request: Request, surface: Surface) -> ASGIApp:
    message_id, timeout = request.path_params["id"], _timeout(request)
    if surface.door:
        return json_response({"ok": True, **await api.door_sending.wait_reply(message_id, surface, timeout)})
    return json_response({"ok": True, "reply": await api.node.sending.wait_reply(message_id, timeout)})


async def typing(api: Api, request: Request, surface: Surface) -> ASGIApp:
    body = await api.json_object(request)
    typing = body.get("typing", True)
    if not isinstance(typing, bool):
        raise InvalidRequest(f"/typing is true or false, got {typing!r:.80}", path="/typing")
    peer = api.node.sending.choose(body.get("peer_id"))
    frame = frames.typing(api.node.name, typing)
    # A peer that does not know this frame would take it for a message.
    is_sent = peer.session is not None and peer.able("typing_indicator")
    if is_sent and peer.session is not None:
        peer.session.send(frame)
    return json_response({"ok": True, "typing": typing, "ts": frame["ts"], "peer_id": peer.id, "sent": is_sent})


# -- receiving ----------------------------------------------------------------------------------------


async def receive(api: Api, request: Request, surface: Surface) -> ASGIApp:
    """Returns each message once. With `ack` the messages stay until a later request confirms them: `ack=0` to begin
    with, then the `last_seq` of the answer before."""
    # A page of another site can have a browser fetch this as a picture, say, without an Origin. It sees nothing of
    # the answer, but the messages would be gone.
    if header(request, b"origin") is None and header(request, b"sec-fetch-site") in ("cross-site", "same-site"):
        raise OriginRefused("Web pages of other sites may not take messages")
    params = filled(request)
    limit = query.number(params, "limit", 50, 1, 500, lowers=True)
    wait = min(query.seconds(params, "wait", 0.0, LONGEST_WAIT), _LONGEST_POLL)
    ack = query.number(params, "ack", 0) if "ack" in request.query_params else None
    journal = api.node.journal
    box, owner = (journal.box_door, surface.scope) if surface.door else (journal.box_in, None)
    messages_, left, settle = await api.node.sending.receive(box, owner, limit, wait=wait, ack=ack)
    if surface.door:
        for message in messages_:
            message["peer_id"] = None
    page: dict[str, Any] = {"messages": messages_, "count": len(messages_), "remaining": left, "timed_out": False}
    if wait and not messages_:
        page["timed_out"] = True
    if messages_:
        page["last_seq"] = max(message["seq"] for message in messages_)
    return Handover(page, settle)


def _timeout(request: Request) -> float:
    return query.seconds(filled(request), "timeout", 30.0, LONGEST_WAIT)


# -- earlier messages ---------------------------------------------------------------------------------


async def messages(api: Api, request: Request, surface: Surface) -> ASGIApp:
    peer = request.query_params.get("peer_id")
    if peer is not None and not surface.door:
        api.node.peers.get(peer)
    search = _wanted(request)
    page, total = await _page(api, surface, search, peer=None if surface.door else peer)
    return _listed(request, page, total, search)


async def peer_messages(api: Api, request: Request, surface: Surface) -> ASGIApp:
    peer = api.node.peers.get(request.path_params["id"])
    search = _wanted(request)
    search.since = query.number(filled(request), "since_seq", 0)
    page, total = await _page(api, surface, search, peer=peer.id)
    return _listed(request, page, total, search, ok=True, peer_id=peer.id)


async def context_messages(api: Api, request: Request, surface: Surface) -> ASGIApp:
    context = request.path_params["context"]
    search = _wanted(request)
    search.newest = newest_first(request.query_params, False)
    search.since = query.number(filled(request), "since_seq", 0)
    page, total = await _page(api, surface, search, context=context)
    return _listed(request, page, total, search, context_id=context)


async def history(api: Api, request: Request, surface: Surface) -> ASGIApp:
    search = _Wanted(query.number(filled(request), "limit", 100, 1, 1000, lowers=True), 0, True)
    page, total = await _page(api, surface, search)
    return listing(request, "history", page[::-1], total=total, count=len(page))


def _wanted(request: Request) -> _Wanted:
    params, role = filled(request), request.query_params.get("role")
    direction = query.choice(request.query_params, "direction", ("all", "inbound", "outbound"), "all")
    return _Wanted(
        query.number(params, "limit", 50, 1, 500, lowers=True), query.number(params, "offset", 0),
        newest_first(params, True), None if role is None else frames.check_role(role),
        moment(params, "received_after"), 0, None if direction == "all" else direction,
    )  # fmt: skip


def _listed(request: Request, page: list[dict[str, Any]], total: int, search: _Wanted, **beside: Any) -> ASGIApp:
    reached = search.offset + len(page)
    more = reached < total
    return listing(
        request, "messages", page, count=len(page), total=total, has_more=more,
        next_offset=reached if more else None, **beside,
    )  # fmt: skip


async def _page(
    api: Api, surface: Surface, search: _Wanted, *, peer: str | None = None, context: str | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Returns a page of received and sent messages, by time, and their total number."""
    journal = api.node.journal
    boxes: list[tuple[str, str, dict[str, str | None]]]
    if surface.door:
        mine: dict[str, str | None] = {"owner": surface.scope, "topic": context}
        boxes = [("inbound", journal.box_asked, mine), ("outbound", journal.box_door, mine)]
    else:
        boxes = [
            ("inbound", journal.box_in, {"owner": peer, "topic": context}),
            ("outbound", journal.box_out, {"owner": context, "topic": peer}),
        ]
    places: list[tuple[int, int, str, str]] = []  # bodies may be large: only those of the page are held
    for direction, box, where in boxes:
        if search.direction in (None, direction):
            async for letter in _newest(api, box, where["owner"], where["topic"]):
                if _fits(letter, search):
                    places.append((letter.time, letter.number, box, direction))
    places.sort(reverse=search.newest)
    page = []
    for _, number_, box, direction in places[search.offset : search.offset + search.limit]:
        for letter in await api.node.engine.documents.letters(box, after=number_ - 1, limit=1):
            page.append(_shown(letter, direction, surface))
    return page, len(places)


async def _newest(api: Api, box: str, owner: str | None, topic: str | None) -> AsyncIterator[Letter]:
    after = seen = 0
    while seen < _SCAN:
        letters = await api.node.engine.documents.letters(
            box, owner=owner, topic=topic, after=after, limit=_SCAN_PAGE, newest=True
        )
        for letter in letters:
            yield letter
        if len(letters) < _SCAN_PAGE:
            return
        after = letters[-1].number
        seen += len(letters)


def _fits(letter: Letter, search: _Wanted) -> bool:
    if letter.number <= search.since or (search.after is not None and frames.stamp(letter.time) <= search.after):
        return False
    head = _head(letter.body)
    return head.type not in _OF_TASKS and (search.role is None or (head.role or "agent") == search.role)


def _shown(letter: Letter, direction: str, surface: Surface) -> dict[str, Any]:
    message = entry(letter)
    message["direction"] = direction
    message["server_seq"] = letter.number
    message["raw"].pop("_run", None)
    if message["role"] is None:
        message["role"] = "agent"
    if surface.door:
        message["peer_id"] = None
    elif direction == "outbound":
        message["peer_id"] = letter.topic
        message["state"] = letter.state
    return message

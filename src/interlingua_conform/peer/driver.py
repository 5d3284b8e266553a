"""Drives the node under test and keeps what it saw of it: its card, its streams, and the checker's peer that it talks
to.

Checks share one driver, and it remembers every observation. It reports and judges nothing: if something that other
checks need does not work, those checks do not apply, and the check of that thing fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from interlingua.model.errors import Unavailable
from interlingua.transports.raw_client import Answer, Http

from ..base import Broken, Gone, NotApplicable, Subject, applies, expect, shown
from ..remembering import once
from .feed import Feed
from .records import Connecting, Heard, Sent
from .shapes import listed, segment, text, told
from .wires import Frame, Host, Wire, guest, new_id, now, piped

NAME = "Looker"
OURS: Frame = {
    "name": NAME, "acp_version": "1.0", "timestamp": "2026-04-04T00:00:00Z", "skills": [],
    "transport_modes": ["p2p", "relay"], "extensions": [],
    "capabilities": {
        "streaming": False, "push_notifications": False, "input_required": False,
        "part_types": ["text", "file", "data"], "max_msg_bytes": 16 * 1024 * 1024, "server_seq": False,
        "context_id": True, "identity": "none",
        "supported_transports": ["ws"],
    },
    "identity": None, "trust": {"scheme": "none", "enabled": False}, "auth": {"schemes": ["none"]}, "endpoints": {},
}  # fmt: skip

_POLL = 0.02


class Node:
    def __init__(self, subject: Subject, kept: AsyncExitStack) -> None:
        self.subject = subject
        self.api: Http | None = None  # its HTTP API; none where a link or a command was given
        self.line: Wire | None = None  # the connection to it, where a link or a command was given
        self.first: Answer | None = None  # the answer of its well-known address at the beginning
        self.answers: list[tuple[str, Answer]] = []  # everything that it answered over HTTP
        self.received: list[dict[str, Any]] = []  # all that /message:recv gave
        self._kept = kept

    @property
    def lasting(self) -> bool:
        return self.line is None or not self.line.ended

    # -- over HTTP ----------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        applies(self.api is not None, "it is seen over the HTTP API alone: give its address")
        assert self.api is not None
        answer = await self.api.ask(method, path, body, **more)
        self.answers.append((f"{method} {path}", answer))
        return answer

    async def get(self, path: str) -> Any:
        """Returns the value at a path. The check does not apply if the server has none."""
        answer = await self.ask("GET", path)
        applies(answer.status == 200, f"GET {path} was answered with {told(answer)}")
        return answer.json()

    async def answer(self, method: str, path: str, body: Any = None) -> Any:
        """Returns the value of an answer that has to succeed."""
        answer = await self.ask(method, path, body)
        expect(answer.status == 200, f"{method} {path} is answered with {told(answer)}")
        return answer.json()

    async def opened(self, path: str) -> Feed:
        """A stream of its events, which stays open."""
        applies(self.api is not None, "it is seen over the HTTP API alone: give its address")
        assert self.api is not None
        return await self._kept.enter_async_context(Feed.open(self.subject, self.api.url(path)))

    # -- its card -----------------------------------------------------------------------------------------

    @once
    async def card(self) -> dict[str, Any]:
        """Its card: flat, or wrapped in `self`, which is another check's matter."""
        if self.line is not None:
            try:
                came = await self.line.until(lambda frame: isinstance(frame.get("card"), dict), "its card")
            except Gone as error:
                raise NotApplicable(str(error)) from None
            found: dict[str, Any] = came["card"]
            return found
        applies(self.first is not None, "it was not asked for its card")
        assert self.first is not None
        applies(self.first.status == 200, f"its card was answered with {told(self.first)}")
        try:
            body = self.first.json()
        except Broken as error:
            raise NotApplicable(str(error)) from None
        applies(isinstance(body, dict), f"its card is no JSON object: {shown(body)}")
        inner = body.get("self")
        return inner if isinstance(inner, dict) and "name" not in body else body

    async def flags(self) -> dict[str, Any]:
        flags = (await self.card()).get("capabilities")
        applies(isinstance(flags, dict), "its card has no capabilities")
        assert isinstance(flags, dict)
        return flags

    async def has(self, flag: str) -> bool:
        with contextlib.suppress(NotApplicable):
            return (await self.flags()).get(flag) is True
        return False

    async def offers(self, endpoint: str) -> bool:
        """Returns whether the card's map of endpoints names one. A card without a map is taken to offer everything."""
        with contextlib.suppress(NotApplicable):
            known = (await self.card()).get("endpoints")
            return endpoint in known if isinstance(known, dict) and known else True
        return True

    # -- its events ---------------------------------------------------------------------------------------

    @once
    async def feed(self) -> Feed:
        """Returns all events of the node, from the beginning of the look."""
        feed = await self.opened("/stream")
        applies(feed.streams, f"GET /stream was answered with {feed.status} and {feed.media_type or 'no type'}")
        return feed

    async def feed_if_any(self) -> Feed | None:
        try:
            return await self.feed()
        except (NotApplicable, Gone):
            return None

    # -- the checker's peer -----------------------------------------------------------------------------------------

    @once
    async def alone(self) -> Answer | None:
        """Returns the answer to a message while no peer is connected; None if a peer is, or if the list of peers cannot
        tell."""
        answer = await self.ask("GET", "/peers")
        if answer.status != 200 or any(peer.get("connected") is not False for peer in listed(answer.json(), "peers")):
            return None
        return await self.ask("POST", "/message:send", {"role": "user", "parts": [text("is anybody there?")]})

    @once
    async def connecting(self) -> Connecting:
        """Asks the node to connect to the checker's peer."""
        await self.feed_if_any()
        with contextlib.suppress(Broken, Gone):
            await self.alone()
        return await self._kept.enter_async_context(self.connected(OURS))

    @contextlib.asynccontextmanager
    async def connected(self, card: Frame) -> AsyncIterator[Connecting]:
        """Opens a peer with this card, and asks the node to connect to it."""
        async with Host.open(self.subject, card) as host:
            made = Connecting(host, await self.ask("POST", "/peers/connect", {"link": host.link}))
            if made.answer.status >= 300:
                made.why = f"POST /peers/connect was answered with {told(made.answer)}"
            else:
                try:
                    made.wire = await host.connected()
                except Gone as error:
                    made.why = str(error)
            yield made

    @contextlib.asynccontextmanager
    async def visited(self, card: Frame) -> AsyncIterator[Connecting]:
        """The same, for a peer that comes and goes: the node has seen it go in the end, and is as it was."""
        async with self.connected(card) as made:
            yield made
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.subject.patience):
                while await self._sees(made.host.link):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL)  # only the node knows when that is, and has to be asked

    async def _sees(self, link: str) -> bool:
        known = listed(await self.get("/peers"), "peers")
        return any(peer.get("connected") and peer.get("link") == link for peer in known)

    async def wire(self) -> Wire:
        """Returns the connection of the node with the checker's peer."""
        if self.line is not None:
            return self.line
        made = await self.connecting()
        applies(made.wire is not None, f"no peer of ours is connected: {made.why}")
        assert made.wire is not None
        return made.wire

    async def wire_if_any(self) -> Wire | None:
        try:
            return await self.wire()
        except (NotApplicable, Gone):
            return None

    async def peer(self, link: str | None = None) -> dict[str, Any]:
        """Returns the entry of the checker's peer in the node's list, once that peer is connected."""
        await self.wire()
        wanted = link or (await self.connecting()).host.link
        found: dict[str, Any] | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.subject.patience):
                while found is None or not found.get("connected"):
                    known = listed(await self.get("/peers"), "peers")
                    found = next((peer for peer in known if peer.get("link") == wanted), found)
                    await asyncio.sleep(_POLL)
        applies(found is not None, f"GET /peers does not list {wanted}")
        assert found is not None
        return found

    # -- messages to the checker's peer -----------------------------------------------------------------------------

    async def post(self, body: dict[str, Any], path: str = "/message:send") -> Answer:
        return await self.ask("POST", path, self.addressed(body))

    def addressed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Addresses a body to the agent that was named, if one was. Servers that do not know the member ignore it."""
        agent = self.subject.roles.agent
        return {"skill_id": agent, **body} if agent is not None and "skill_id" not in body else body

    async def say(self, body: dict[str, Any], path: str = "/message:send", *, wire: Wire | None = None) -> Sent:
        """Has the node send a message, whatever it answers. The parts of the message hold a mark by which it is
        recognized."""
        mark = f"mark {new_id('n')}"
        body = {name: _marked(value, mark) for name, value in body.items()}
        wire = wire or await self.wire_if_any()
        start = len(wire.messages) if wire is not None else 0
        sent = Sent(body, await self.post(body, path), why="no peer of ours is connected to see what is sent")
        if wire is None and sent.answer.status == 200:
            names = b'"message_id"' in sent.answer.body
            applies(names, f"{sent.why}, and POST {path} is answered without a message_id: {told(sent.answer)}")
        if wire is None or sent.answer.status != 200:
            sent.why = f"POST {path} was answered with {told(sent.answer)}" if sent.answer.status != 200 else sent.why
            return sent
        id_ = body.get("message_id")
        try:
            sent.frame = await wire.until(
                lambda frame: mark in json.dumps(frame) or (id_ is not None and frame.get("message_id") == id_),
                "the message", start,
            )  # fmt: skip
        except Gone as error:
            sent.why = f"{error}, although POST {path} was answered with {told(sent.answer)}"
        return sent

    @once
    async def basic(self) -> Sent:
        """The plainest message."""
        return await self.say({"role": "user", "parts": [text("{mark}")]})

    async def sends(self) -> None:
        """The plainest message gets through; where it does not, there is no sense in others."""
        basic = await self.basic()
        applies(basic.answer.status == 200, f"not even the plainest message is sent: {basic.why}")
        if await self.wire_if_any() is not None:
            applies(basic.frame is not None, f"not even the plainest message arrives: {basic.why}")

    async def send(self, **body: Any) -> Sent:
        """Has the node send a message."""
        await self.sends()
        return await self.say({"role": "user", "parts": [text("{mark}")], **body})

    @once
    async def to_peer(self) -> Sent:
        """Has the node send a message to the checker's peer by its id."""
        id_ = (await self.peer()).get("id")
        await self.sends()
        return await self.say({"role": "user", "parts": [text("{mark}")]}, f"/peer/{segment(id_)}/send")

    @once
    async def said(self) -> list[Frame]:
        """Returns some messages that the node sent to the checker's peer."""
        if self.line is None:
            made = [(await self.send(role=role)).arrived for role in ("user", "agent", "user")]
            basic = await self.basic()
            return [basic.arrived, *made]
        found = []
        for _ in range(2):
            heard = await self.hear()
            applies(heard.answer is not None, "no agent behind the node answers, so that it sends nothing")
            assert heard.answer is not None
            found.append(heard.answer)
        return found

    # -- messages from the checker's peer ---------------------------------------------------------------------------

    async def hear(self, *, entry: bool = False, **members: Any) -> Heard:
        """Sends the node a message as a peer, and checks that it is taken: on its stream, at /message:recv, or by an
        agent that answers. Raises Broken if it is not. With `entry` the message is searched at /message:recv if it can
        be there."""
        wire = await self.wire()
        mark = f"mark {new_id('n')}"
        frame = {
            "type": "acp.message", "message_id": new_id(), "ts": now(), "from": NAME, "role": "user",
            "parts": [text(mark)], **members,
        }  # fmt: skip
        heard = Heard(self.addressed(frame))
        start = len(wire.messages)
        feed = await self.feed_if_any() if self.api is not None else None
        await wire.put(heard.frame)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.subject.patience):
                await self._evidence(heard, wire, start, feed, entry)
        if heard.event is None and heard.entry is None and heard.answer is None:
            if self.line is not None:
                await self.answered()
            seen = "" if not wire.ended else "; the node ended the connection"
            raise Broken(f"a message of a peer was lost{seen}: {shown(frame)}")
        return heard

    @once
    async def answered(self) -> None:
        """An agent behind a link or a command answers: nothing else shows that a message was taken."""
        assert self.line is not None
        id_ = new_id()
        frame = {"type": "acp.message", "message_id": id_, "ts": now(), "from": NAME, "role": "user",
                 "parts": [text("hello there")]}  # fmt: skip
        start = len(self.line.messages)
        await self.line.put(self.addressed(frame))
        try:
            await self.line.until(lambda said: _answers(said, id_), "an answer", start)
        except Gone as error:
            raise NotApplicable(
                f"no agent behind the node answers, so that what it takes is not seen: {error}"
            ) from None

    async def _evidence(self, heard: Heard, wire: Wire, start: int, feed: Feed | None, entry: bool) -> None:
        id_ = heard.frame["message_id"]
        while not wire.ended:
            heard.answer = heard.answer or wire.find(lambda frame: _answers(frame, id_), start)
            if feed is not None and heard.event is None:
                heard.event = feed.find(lambda event: event.body.get("message_id") == id_)
            if self.api is not None and (entry or heard.event is None):
                heard.entry = await self._receive(id_)
            if heard.answer is not None or heard.entry is not None or (heard.event is not None and not entry):
                return
            await asyncio.sleep(_POLL)

    async def _receive(self, id_: str) -> dict[str, Any] | None:
        answer = await self.ask("GET", "/message:recv")
        if answer.status == 200:
            with contextlib.suppress(Broken):
                self.received += listed(answer.json(), "messages")
        return next((entry for entry in self.received if id_ in json.dumps(entry)), None)


def _answers(frame: Frame, id_: str) -> bool:
    """Returns whether a frame is the answer of an agent to a message. Some answers name the message, some only come
    after it."""
    if frame.get("type") not in ("acp.message", "acp.reply"):
        return False
    named = frame.get("correlation_id") or frame.get("in_reply_to") or frame.get("reply_to")
    return named is None or named == id_


def _marked(value: Any, mark: str) -> Any:
    """A value with the mark where it says so."""
    if isinstance(value, str):
        return value.replace("{mark}", mark)
    if isinstance(value, list):
        return [_marked(one, mark) for one in value]
    return {name: _marked(one, mark) for name, one in value.items()} if isinstance(value, dict) else value


@contextlib.asynccontextmanager
async def open_node(subject: Subject) -> AsyncIterator[Node]:
    """A look at a node: by the address of its HTTP API, by its acp:// link, or by a command that starts it."""
    async with AsyncExitStack() as kept:
        node = Node(subject, kept)
        if subject.command:
            node.line = await kept.enter_async_context(piped(subject, OURS))
        elif subject.address is not None and subject.address.startswith(("acp://", "acps://")):
            node.line = await kept.enter_async_context(guest(subject, OURS))
        elif subject.address is not None and subject.address.startswith(("http://", "https://")):
            node.api = await kept.enter_async_context(Http(subject))
            node.first = await node.ask("GET", "/.well-known/acp.json")
        else:
            raise Unavailable(
                f"{subject.address!r} is no address of a node: give http(s)://… of its API, or its acp:// link",
                transient=False,
            )
        yield node

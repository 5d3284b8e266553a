"""Sends the owner's messages to peers, and hands out theirs.

A message is recorded first, under its id: a repeated send is the same message, and its caller is told how it stands.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ....model.documents import Change, Letter, Post, Settle
from ....model.errors import InvalidRequest, NotFound, TooLarge
from ..translate import parts
from ..translate.errors import AMBIGUOUS, INVALID, NO_PEERS, NOT_CONNECTED, TIMEOUT, Refusal
from ..wire import frames
from .base import NodeBase
from .node_store import Said
from .peers import DELIVERED, QUEUED, RANKS, Peer
from .task_record import Task

LONGEST_WAIT = 600.0  # seconds that a request may wait
_PAGE = 100  # letters that are held at once
_OPTIONAL = ("skill_id", "metadata")
_PLAIN = frozenset({"role", "text", "content", "parts", "peer_id", "message_id"})  # of a message that has no wishes
_STEPS = struct.Struct(">256H")  # of ids that are made at once
_encode = msgspec.json.Encoder().encode


class Draft(msgspec.Struct):
    """A checked message that a client wants to send."""

    frame: dict[str, Any]
    data: bytes  # the frame as it was when it was checked
    given_id: bool
    sync: bool = False
    timeout: float = 30.0
    create_task: bool = False


class _Ids:
    """Ids of messages: the first is chosen at random of 2⁶⁴, and each one after is a little higher.

    So they are as good as random for others, and new letters lie beside each other on the shelf: letters in random
    places make the disk write a page for each.
    """

    def __init__(self) -> None:
        self._last = secrets.randbits(64)
        self._ready: list[str] = []  # the next one is the last

    def next(self) -> str:
        if not self._ready:
            self._ready = list(self._some())[::-1]
        return self._ready.pop()

    def _some(self) -> Iterator[str]:
        for step in _STEPS.unpack(os.urandom(_STEPS.size)):
            self._last = (self._last + step + 1) & 0xFFFF_FFFF_FFFF_FFFF
            yield f"msg_{self._last:016x}"


_ids = _Ids()


def draft(body: Any, sender: str, limit: int) -> Draft:
    """Returns the message in a body of `/message:send`. Raises InvalidRequest with the path of the fault."""
    if not isinstance(body, dict):
        raise InvalidRequest(f"the body is a JSON object, and this is {type(body).__name__}")
    role = frames.check_role(body.get("role"))
    text = body.get("text")
    said = [parts.text(text)] if type(text) is str and body.get("parts") is None else parts.parts_of(body)
    given = body.get("message_id")
    id_ = _ids.next() if given is None else frames.check_id(given, "message_id")
    if _PLAIN.issuperset(body):
        plain = {"type": "acp.message", "message_id": id_, "ts": frames.now_z(), "from": sender, "role": role,
                 "parts": said, "priority": "normal"}  # fmt: skip
        return _checked(Draft(plain, b"", given is not None), limit)
    optional: dict[str, Any] = {}
    for name in ("task_id", "context_id"):
        if body.get(name) is not None:
            optional[name] = frames.check_id(body[name], name)
    for name in _OPTIONAL:
        if body.get(name) is not None:
            optional[name] = body[name]
    if "skill_id" in optional:
        frames.check_id(optional["skill_id"], "skill_id")
    if "metadata" in optional and not isinstance(optional["metadata"], dict):
        raise InvalidRequest("/metadata is an object", path="/metadata")
    sync, ack, task = (_flag(body, name) for name in ("sync", "delivery_ack", "create_task"))
    frame = frames.message(
        sender, role, said, message_id=id_, priority=frames.check_priority(body.get("priority")),
        delivery_ack=ack or None, correlation_id=id_ if sync else None, **optional,
    )  # fmt: skip
    timeout = seconds(body.get("timeout"), "timeout", 30.0)
    return _checked(Draft(frame, b"", given is not None, sync, timeout, task), limit)


def _checked(wanted: Draft, limit: int) -> Draft:
    wanted.data = _encode(wanted.frame)
    if len(wanted.data) > limit:
        raise TooLarge(f"the message is larger than {limit} bytes", path="/parts")
    return wanted


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidRequest(f"/{name} is true or false, got {value!r:.80}", path=f"/{name}")
    return value


def seconds(value: Any, name: str, default: float) -> float:
    """Returns a time to wait, from a body or a query."""
    if value is None or value == "":
        return default
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= LONGEST_WAIT:
        raise InvalidRequest(
            f"/{name} is a number of seconds from 0 to {LONGEST_WAIT:g}, got {value!r:.80}", path=f"/{name}"
        )
    return number


class Sending:
    def __init__(self, node: NodeBase) -> None:
        self._node = node
        self._awaited: dict[tuple[str, str], set[asyncio.Future[dict[str, Any]]]] = {}
        self._giving: set[tuple[str, int]] = set()  # letters that are being handed out
        self._looking = asyncio.Lock()  # one call at a time looks for letters to hand out

    # -- sending ------------------------------------------------------------------------------------------

    async def send(self, body: Any, *, peer_id: str | None = None) -> dict[str, Any]:
        """Sends the owner's message to a peer. Returns the answer to `/message:send`."""
        node, journal = self._node, self._node.journal
        wanted = draft(body, node.name, node.settings.max_msg_bytes)
        frame, id_ = wanted.frame, wanted.frame["message_id"]
        before = await journal.letter(journal.box_out, id_) if wanted.given_id else None
        if before is not None:
            return await self._again(before, wanted)
        if "task_id" in frame and await journal.task_anywhere(frame["task_id"]) is None:
            raise InvalidRequest(f"/task_id: there is no task {frame['task_id']}", path="/task_id")
        named = peer_id if peer_id is not None else body.get("peer_id")
        peer = self.choose(named)
        if peer.missing:
            raise Refusal(
                INVALID, 400, f"{peer.name} requires extensions that are not there: {', '.join(peer.missing)}",
                missing_extensions=peer.missing,
            )  # fmt: skip
        if named is not None:
            frame["to_peer"] = peer.id
            wanted.data = _encode(frame)
        if peer.session is None and peer.outbox.waiting >= node.settings.max_queued:
            raise Refusal(
                NOT_CONNECTED, 503, f"{peer.name} is not connected, and {peer.outbox.waiting} messages wait already",
                queued=False,
            )  # fmt: skip
        task = self._task(wanted, peer) if wanted.create_task else None
        peer.check_size(len(wanted.data))
        waiting = self._await(peer, id_) if wanted.sync else None
        try:
            peer.outbox.settle_along()
            kept = await journal.keep(self._changes(peer, wanted, task), peer.outbox.heed)
            if isinstance(kept.stale, Post):
                assert kept.letter is not None
                return await self._again(kept.letter, wanted)
            number = kept.numbers[0]
            assert number is not None
            if peer.session is None:
                absent = "no peer is" if peer.known.expected else f"{peer.name} is not"
                raise Refusal(
                    NOT_CONNECTED, 503, f"{absent} connected; the message waits", queued=True,
                    message_id=id_, server_seq=number, peer_id=peer.id,
                )  # fmt: skip
            answer: dict[str, Any] = {
                "ok": True, "message_id": id_, "server_seq": number, "peer_id": peer.known.id,
                "queued": peer.outbox.holds(number),  # the peer does not read, or not fast enough
                "task": task.view() if task is not None else None,
            }  # fmt: skip
            if waiting is not None:
                answer["reply"] = await self._reply(peer, waiting, id_, wanted.timeout)
            return answer
        finally:
            if waiting is not None:
                self._give_up(peer, id_, waiting)

    def choose(self, named: Any) -> Peer:
        """Returns the named peer, or the only one."""
        peers = self._node.peers
        if named is not None:
            return peers.get(str(named))
        connected = [peer for peer in peers.connected if not peer.able("client_only")]
        if len(connected) == 1:
            return connected[0]
        if connected:
            raise Refusal(
                AMBIGUOUS, 400, "several peers are connected: say which one in peer_id",
                connected_peers=[peer.id for peer in connected],
            )  # fmt: skip
        known = list(peers)
        if len(known) > 1:
            raise Refusal(
                NOT_CONNECTED, 503, "no peer is connected; name one in peer_id, and the message waits for it",
                queued=False, known_peers=[peer.id for peer in known][:50],
            )  # fmt: skip
        return known[0] if known else peers.new("whoever comes first", expected=True)

    def _task(self, wanted: Draft, peer: Peer) -> Task:
        now, frame = frames.now_z(), wanted.frame
        task = Task(
            frames.new_id("task"), "submitted", now, now, {"parts": frame["parts"]}, "", "delegated", peer.id,
            role=frame["role"], context_id=frame.get("context_id"), message_id=frame["message_id"],
        )  # fmt: skip
        frame["task_id"] = task.id
        wanted.data = _encode(frame)
        return task

    def _changes(self, peer: Peer, wanted: Draft, task: Task | None) -> list[Change]:
        journal, frame, id_ = self._node.journal, wanted.frame, wanted.frame["message_id"]
        post = Post(
            journal.box_out, id_, wanted.data, RANKS[frame["priority"]], peer.id, QUEUED, frame.get("context_id") or ""
        )
        if "task_id" not in frame and "context_id" not in frame:
            said = Said(frame["ts"], id_, frame["role"], frame["parts"], self._node.name, peer.id, "outbound")
            return [post, journal.said(said)]
        changes: list[Change] = [post]
        if task is not None:
            from .run_reports import status_event

            changes += [journal.put_task(task), status_event(self._node, task, "submitted")]
        event: dict[str, Any] = {"message_id": id_, "role": frame["role"], "parts": frame["parts"]}
        if "task_id" in frame:
            event["task_id"] = frame["task_id"]
        if "context_id" in frame:
            event["context_id"] = frame["context_id"]
        event["from"], event["peer_id"], event["direction"] = self._node.name, peer.id, "outbound"
        changes.append(journal.event("message", event, task=frame.get("task_id") or "", ts=frame["ts"]))
        return changes

    async def _again(self, letter: Letter, wanted: Draft) -> dict[str, Any]:
        """Returns how a repeated message stands."""
        peer = self._node.peers.with_id(letter.topic)
        delivered = letter.state == DELIVERED
        flying = peer is not None and peer.outbox.in_flight(letter.number)
        told: dict[str, Any] = {
            "message_id": letter.key, "server_seq": letter.number, "deduplicated": True, "peer_id": letter.topic,
        }  # fmt: skip
        if not delivered and not flying and (peer is None or not peer.connected):
            raise Refusal(
                NOT_CONNECTED, 503, "the peer is not connected; the message waits for it", queued=True, **told
            )
        frame = msgspec.json.decode(letter.body)
        queued = not delivered and peer is not None and peer.outbox.holds(letter.number)
        answer = {"ok": True, **told, "delivered": delivered, "queued": queued, "task": None}
        if frame.get("task_id") is not None:
            task = await self._node.journal.task_anywhere(frame["task_id"])
            answer["task"] = task.view() if task is not None else None
        if wanted.sync and peer is not None:
            answer["reply"] = await self._reply_before(peer, letter.key, wanted.timeout)
        return answer

    # -- replies ------------------------------------------------------------------------------------------

    def _await(self, peer: Peer, id_: str) -> asyncio.Future[dict[str, Any]]:
        """Returns a future for a reply. Several callers may wait for one reply, and each gives up by itself."""
        waiting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault((peer.id, id_), set()).add(waiting)
        return waiting

    def _give_up(self, peer: Peer, id_: str, waiting: asyncio.Future[dict[str, Any]]) -> None:
        others = self._awaited[peer.id, id_]
        others.discard(waiting)
        if not others:
            del self._awaited[peer.id, id_]

    async def _reply(
        self, peer: Peer, waiting: asyncio.Future[dict[str, Any]], id_: str, timeout: float
    ) -> dict[str, Any]:
        done, _ = await asyncio.wait({waiting}, timeout=timeout)
        if not done:
            raise Refusal(TIMEOUT, 408, f"{peer.name} did not reply within {timeout:g} s", failed_message_id=id_)
        return waiting.result()

    def awaits(self, peer: Peer, id_: str) -> bool:
        return (peer.id, id_) in self._awaited

    def replied(self, peer: Peer, id_: str, frame: dict[str, Any]) -> None:
        for waiting in self._awaited.get((peer.id, id_), ()):
            if not waiting.done():
                waiting.set_result(frame)

    def refused(self, peer: Peer, id_: str, why: str) -> None:
        for waiting in self._awaited.get((peer.id, id_), ()):
            if not waiting.done():
                waiting.set_exception(Refusal(INVALID, 400, f"{peer.name} did not take the message: {why}"))

    async def wait_reply(self, id_: str, timeout: float) -> dict[str, Any]:
        """Waits for the reply to an earlier message."""
        journal = self._node.journal
        letter = await journal.letter(journal.box_out, id_)
        peer = None if letter is None else self._node.peers.with_id(letter.topic)
        if letter is None or peer is None:
            raise NotFound(f"no message {id_} was sent")
        return await self._reply_before(peer, id_, timeout)

    async def _reply_before(self, peer: Peer, id_: str, timeout: float) -> dict[str, Any]:
        """Returns the reply to an earlier message, where it has already come."""
        journal = self._node.journal
        waiting = self._await(peer, id_)
        try:
            before = await journal.letter(journal.box_in, f"{peer.id}|reply|{id_}")
            if before is not None:
                found: dict[str, Any] = msgspec.json.decode(before.body)
                return found
            return await self._reply(peer, waiting, id_, timeout)
        finally:
            self._give_up(peer, id_, waiting)

    async def reply(self, body: Any) -> dict[str, Any]:
        """Sends the owner's answer to a message whose peer waits for it."""
        node, journal = self._node, self._node.journal
        if not isinstance(body, dict):
            raise InvalidRequest("the body is a JSON object")
        asked = frames.check_id(body.get("correlation_id"), "correlation_id")
        said = parts.parts_of(body)
        named = body.get("peer_id")
        letters = [
            found
            for peer in ([node.peers.get(str(named))] if named is not None else node.peers)
            if (found := await journal.letter(journal.box_in, f"{peer.id}|{asked}"))
        ]
        if not letters:
            raise NotFound(f"no message {asked} came")
        if len(letters) > 1:  # ids are the senders' choice: one peer could else get a reply to another
            raise Refusal(
                AMBIGUOUS, 400, f"several peers sent a message {asked}: say which one in peer_id",
                connected_peers=[letter.owner for letter in letters],
            )  # fmt: skip
        peer = node.peers.get(letters[0].owner)
        content = body.get("content", parts.text_of(said) or None)
        frame = frames.reply(node.name, asked, parts=said, content=content)
        event = {"message_id": frame["message_id"], "role": "agent", "parts": said, "correlation_id": asked,
                 "from": node.name, "peer_id": peer.id, "direction": "outbound"}  # fmt: skip
        data = _encode(frame)
        peer.check_size(len(data))
        post = Post(journal.box_out, frame["message_id"], data, 1, peer.id, QUEUED, "")
        kept = await journal.keep([post, journal.event("message", event)])
        number = kept.numbers[0] or 0
        peer.outbox.posted(number, frame)
        return {"ok": True, "message_id": frame["message_id"], "peer_id": peer.id, "queued": peer.outbox.holds(number)}

    async def broadcast(self, body: Any) -> dict[str, Any]:
        """Sends one message to several peers: each gets its own, with an id of its own."""
        if not isinstance(body, dict):
            raise InvalidRequest("the body is a JSON object")
        metadata = body.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise InvalidRequest("/metadata is an object", path="/metadata")
        targets = body.get("target_peers")
        if targets is not None and not (isinstance(targets, list) and all(isinstance(one, str) for one in targets)):
            raise InvalidRequest("/target_peers is a list of peer ids", path="/target_peers")
        peers = (
            [self._node.peers.get(one) for one in targets]
            if targets
            else [peer for peer in self._node.peers.connected if not peer.able("client_only")]
        )
        if not peers:
            raise Refusal(NO_PEERS, 503, "no peer is connected")
        id_ = frames.new_id("bcast")
        plain = {name: value for name, value in body.items() if name not in ("target_peers", "message_id", "sync")}
        results = []
        for peer in peers:
            try:
                sent = await self.send(
                    {**plain, "metadata": {**(metadata or {}), "broadcast_id": id_}}, peer_id=peer.id
                )
                results.append({"peer_id": peer.id, "message_id": sent["message_id"], "ok": True, "error": None})
            except Refusal as error:
                said = error.extra.get("message_id")
                results.append({"peer_id": peer.id, "message_id": said, "ok": False, "error": error.message})
        good = sum(1 for result in results if result["ok"])
        return {"ok": True, "broadcast": True, "broadcast_id": id_, "delivered": good, "failed": len(results) - good,
                "total_peers": len(results), "results": results}  # fmt: skip

    # -- reading ------------------------------------------------------------------------------------------

    async def receive(
        self, box: str, owner: str | None, limit: int, *, wait: float = 0.0, ack: int | None = None
    ) -> tuple[list[dict[str, Any]], int, Callable[[bool], None]]:
        """Returns unread messages, the number of others, and a function to call when they were handed over (or were
        not). With `ack` the messages stay until they are confirmed: those up to that number are."""
        node, documents = self._node, self._node.engine.documents
        if ack:
            while given := await documents.letters(box, states=["new"], owner=owner, limit=_PAGE):
                numbers = [letter.number for letter in given if letter.number <= ack]
                if numbers:
                    await node.journal.keep([Settle(box, numbers, "done", only="new")])
                    node.read.set()
                if len(numbers) < _PAGE:
                    break
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            news = node.news()
            found = await self._take(box, owner, limit, confirmed=ack is not None)
            left = deadline - loop.time()
            if found or left <= 0:
                news.cancel()
                break
            await asyncio.wait({news}, timeout=left)
            news.cancel()
        numbers = [letter.number for letter in found]
        try:
            total = await documents.count_letters(box, states=["new"], owner=owner) if found else 0
        except BaseException:
            self._not_given(box, numbers)
            raise

        def settle(given: bool) -> None:
            if ack is None:
                if given:
                    node.spawn(self._done(box, numbers))
                else:
                    self._not_given(box, numbers)

        return [entry(letter) for letter in found], max(0, total - len(found)), settle

    async def _take(self, box: str, owner: str | None, limit: int, *, confirmed: bool) -> list[Letter]:
        """Takes letters to hand out: those that no other call is handing out, unless they stay until they are
        confirmed."""
        letters = self._node.engine.documents.letters
        if confirmed:  # to confirm is to confirm all up to a number: so those are given by number
            found = await letters(box, states=["new"], owner=owner, limit=limit, ranked=False)
            return sorted(found, key=lambda one: -one.rank)
        async with self._looking:
            before = set(self._giving)  # letters that are handed out while the shelf is read may look new there
            new = await letters(box, states=["new"], owner=owner, limit=limit + len(before), ranked=True)
            found = [one for one in new if (box, one.number) not in before][:limit]
            self._giving.update((box, one.number) for one in found)
        return sorted(found, key=lambda one: -one.rank)

    def _not_given(self, box: str, numbers: list[int]) -> None:
        self._giving.difference_update([(box, number) for number in numbers])
        self._node.woke()  # another call may wait for them

    async def _done(self, box: str, numbers: list[int]) -> None:
        if numbers:
            await self._node.journal.keep([Settle(box, numbers, "done", only="new")])
            self._node.read.set()
        self._giving.difference_update([(box, number) for number in numbers])


def entry(letter: Letter) -> dict[str, Any]:
    """Returns a message as its reader sees it."""
    frame = msgspec.json.decode(letter.body)
    told: dict[str, Any] = {
        "id": frame.get("message_id"),
        "message_id": frame.get("message_id"),
        "seq": letter.number,
        "received_at": frames.stamp(letter.time),
        "ts": frame.get("ts"),
        "from": frame.get("from"),
        "role": frame.get("role"),
        "parts": frame.get("parts"),
        "task_id": frame.get("task_id"),
        "context_id": frame.get("context_id"),
        "priority": frame.get("priority", "normal"),
        "peer_id": letter.owner,
        "direction": "inbound",
        "raw": frame,
    }
    if frame.get("correlation_id") is not None:
        told["correlation_id"] = frame["correlation_id"]
    return told

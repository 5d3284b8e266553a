"""Takes in the frames of identified peers: messages, replies, and tasks.

Everything is recorded before it has an effect, and confirmed only then. A message that comes twice from one peer has
one effect; a frame of one peer never counts as another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from ....model.documents import Change, Post, WriteResult
from ....model.errors import AlreadyAnswered, InterlinguaError
from ..translate import task_states
from ..wire import frames
from ..wire.signatures import MARKS, did_acp, unb64
from .peers import RANKS, Peer
from .run_reports import status_event, task_frame
from .task_record import Task

if TYPE_CHECKING:
    from .node import Node
    from .session import Session

log = logging.getLogger("interlingua.peer")

_LOOK_EVERY = 2.0
_ARTIFACTS = 1000  # of one task, remembered as completely reported


class Taking(msgspec.Struct):
    """A frame that is being taken in. A frame that needs a lookup first waits for those before it, to keep the order;
    all others are kept together: `kept` is under way, and `then` follows from it."""

    work: Coroutine[Any, Any, None] | None = None
    kept: asyncio.Future[WriteResult] | None = None
    then: Callable[[WriteResult], Coroutine[Any, Any, None] | None] | None = None


class Inbound:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.deduplicated = 0
        self.delegated: dict[str, Task] = {}  # the tasks that peers work on for us now
        self._chunks: dict[str, int] = {}  # by task: how many came in a row; -1 where some are missing
        self._unread: dict[str, int] = {}  # by peer, at most so many
        self._unbegun: dict[str, int] = {}  # by peer: tasks that no program has begun, at most so many
        self._told_whole: dict[str, set[str]] = {}  # by task: artifacts whose chunks were all reported

    def take(self, session: Session, peer: Peer, frame: dict[str, Any]) -> Taking | None:
        """Returns the job of taking a frame in; None where there is nothing to do."""
        content = frames.read(frame)
        if not self._trusted(session, peer, frame):
            return None
        peer = session.peer or peer  # a signature may have shown its real identity
        match content:
            case frames.Message():
                if content.task_id is not None or self._must_count(peer):
                    return Taking(self._message(session, peer, frame, content))
                return self._plain(session, peer, frame, content, None)
            case frames.Reply():
                if self._must_count(peer) and not self._node.sending.awaits(peer, content.correlation_id):
                    return Taking(self._late_reply(session, peer, frame, content))
                return self._reply(session, peer, frame, content)
            case frames.Delegate():
                return Taking(self._delegate(session, peer, frame, content))
            case frames.Updated():
                task = self.delegated.get(content.task_id)
                if task is not None and task.peer == peer.id and ("chunk" in frame or "activity" in frame):
                    return self._watched(task, frame)
                return Taking(self._updated(session, peer, frame, content))
            case frames.Cancel():
                return Taking(self._cancel(session, peer, content))
            case frames.Legacy():
                return self._legacy(session, peer, frame)
        return None

    def _legacy(self, session: Session, peer: Peer, frame: dict[str, Any]) -> Taking | None:
        """Takes a frame from before the envelope: its words are a message. Any other frame is of a later version."""
        said = frame.get("content", frame.get("text"))
        if said is None:
            log.debug("%s sent a frame of type %r, which is not known here", peer.id, frame.get("type"))
            return None
        given = [{"type": "text" if isinstance(said, str) else "data", "content": said}]
        return self.take(session, peer, {**frame, "type": "acp.message", "parts": given})

    def _trusted(self, session: Session, peer: Peer, frame: dict[str, Any]) -> bool:
        """Tells if a frame may count. Faults of its signatures are marked on it; marks of its sender are removed."""
        if "sig" not in frame and "identity" not in frame and self._node.trust.lenient:
            for mark in MARKS:
                frame.pop(mark, None)
            return True
        checked = self._node.trust.check(frame, peer.known.card)
        for warning in checked.warnings:
            log.warning("%s: %s", peer.id, warning)
        marked = checked.mark(frame)
        frame.clear()
        frame.update(marked)
        if checked.drop:
            session.complain("bad_signature", "; ".join(checked.warnings) or "it is not signed", frame)
            return False
        if checked.identity == "valid" and checked.public_key is not None and peer.known.did is None:
            self._prove(session, peer, frame, checked.public_key)
        return True

    def _prove(self, session: Session, peer: Peer, frame: dict[str, Any], public_key: str) -> None:
        """Takes a fresh signature as proof of a peer's key. A card is no proof, because any peer can pass it on."""
        key, said = unb64(public_key), frames.seconds_of(frame.get("ts"))
        if key is None or said is None or abs(time.time() - said) > self._node.trust.window:
            return
        did = did_acp(key)
        # It may have been signed for another peer, which sends it on. So this alone does not identify a peer that has a
        # token to come back with.
        same = self._node.peers.find(
            lambda one: one.known.did == did and not one.connected and one.known.resume is None
        )
        if same is not None and session.inbound and not session.replaced:
            same.known.card, same.known.verification = peer.known.card, peer.known.verification
            session.become(same)
            if peer.unused:
                self._node.peers.drop(peer)
        else:
            peer.known.did = did
            self._node.peers.changed(peer)

    def _confirm(self, session: Session, peer: Peer, frame: dict[str, Any]) -> None:
        id_ = frame.get("message_id")
        if isinstance(id_, str) and (peer.able("delivery_ack") or frame.get("delivery_ack") is True):
            session.confirm(id_)

    # -- messages -----------------------------------------------------------------------------------------

    async def _message(self, session: Session, peer: Peer, frame: dict[str, Any], message: frames.Message) -> None:
        """Takes a message of a task, or one for which there may be no room."""
        task = await self._task_of(peer, message.task_id)
        await self._room(peer)
        taking = self._plain(session, peer, frame, message, task)
        assert taking.kept is not None
        assert taking.then is not None
        more = taking.then(await taking.kept)
        if more is not None:
            await more

    def _plain(
        self, session: Session, peer: Peer, frame: dict[str, Any], message: frames.Message, task: Task | None
    ) -> Taking:
        node, journal = self._node, self._node.journal
        id_ = message.message_id or frames.new_id()
        asked = message.correlation_id
        answers = asked is not None and asked != id_  # never leads to a run: two agents would answer for ever
        runs = node.working.serves and not answers and (task is None or task.kind == "run")
        if not runs:
            self._unread[peer.id] = self._unread.get(peer.id, 0) + 1
        frame["message_id"], frame["role"], frame["parts"] = id_, message.role, message.parts
        event: dict[str, Any] = {"message_id": id_, "role": message.role, "parts": message.parts}
        event |= {"from": message.sender or peer.name, "peer_id": peer.id, "direction": "inbound"}
        if message.task_id is not None:
            event["task_id"] = message.task_id
        if message.context_id is not None:
            event["context_id"] = message.context_id
        if asked is not None:
            event["correlation_id"] = asked
        changes: list[Change] = [
            Post(
                journal.box_in, self._key(peer, id_), msgspec.json.encode(frame), RANKS[message.priority],
                message.context_id or "", "accepted" if runs else "new", peer.id,
            ),
            journal.event("message", event, task=message.task_id or ""),
        ]  # fmt: skip
        if message.task_id is not None and task is None and not runs and not answers:
            changes += self._adopt(peer, message.task_id, frame, id_)

        def then(kept: WriteResult) -> Coroutine[Any, Any, None] | None:
            self._confirm(session, peer, frame)
            if isinstance(kept.stale, Post):
                self.deduplicated += 1
                return None
            peer.known.received += 1
            node.peers.changed(peer)
            if answers and asked is not None:
                node.sending.replied(peer, asked, frame)
            node.woke()
            if not runs:
                return None
            number = kept.numbers[0]
            assert number is not None
            if task is not None:
                return self._continue(session, peer, task, frame, number)
            return node.working.message(peer, frame, number)

        return Taking(kept=journal.keep(changes), then=then)

    @staticmethod
    def _key(peer: Peer, id_: str) -> str:
        """Returns the key by which a repeated message is recognized. Senders choose ids, so each peer has a space of
        its own."""
        return f"{peer.known.id}|{id_}"

    async def has(self, peer: Peer, message_id: str) -> bool:
        """Tells if a message of a peer came before."""
        journal = self._node.journal
        return await journal.letter(journal.box_in, self._key(peer, message_id)) is not None

    def _must_count(self, peer: Peer) -> bool:
        limit = self._node.settings.max_unread
        return self._unread.get(peer.id, limit) >= limit

    async def _room(self, peer: Peer) -> None:
        """Waits until earlier messages of a peer were read: until then nothing more is read from it, and it keeps its
        frames."""
        journal, told = self._node.journal, False
        while self._must_count(peer):
            waiting = await self._node.engine.documents.count_letters(journal.box_in, states=["new"], owner=peer.id)
            self._unread[peer.id] = waiting
            if self._must_count(peer):
                if not told:
                    self._node.told_of_peer(peer, "inbox_full", waiting=waiting)
                told = True
                await self._reading()

    async def _reading(self) -> None:
        """Waits until a message was read, or may have been."""
        self._node.read.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY):  # another process may have read it
                await self._node.read.wait()

    async def _task_of(self, peer: Peer, id_: str | None) -> Task | None:
        if id_ is None:
            return None
        found = await self._node.journal.task(peer.scope, id_)
        if found is None:
            own = await self._node.journal.task("", id_)
            found = own if own is not None and own.peer == peer.id else None
        return found

    def _adopt(self, peer: Peer, id_: str, frame: dict[str, Any], message_id: str) -> list[Change]:
        """Returns the changes that take over a task that is not known here from a message about it: from now on the
        peer works on it with this node."""
        now = frames.now_z()
        task = Task(
            id_, "working", now, now, {"parts": frame["parts"]}, peer.scope, "received", peer.id,
            role=frame["role"], context_id=frame.get("context_id"), message_id=message_id,
        )  # fmt: skip
        node = self._node
        return [node.journal.put_task(task), status_event(node, task, "submitted"), status_event(node, task, "working")]

    async def _continue(self, session: Session, peer: Peer, task: Task, frame: dict[str, Any], number: int) -> None:
        """Takes a message on a task of a local agent as the answer to its question."""
        node = self._node
        try:
            await node.working.answer(task, frame["parts"], node.working.caller_of(peer), frames.answered_in(frame))
        except AlreadyAnswered as error:
            session.complain(AlreadyAnswered.code, error.message, frame)
        except InterlinguaError as error:
            session.complain("invalid_answer", error.message, frame)
        await node.journal.settle_in(number, "done")

    async def _late_reply(self, session: Session, peer: Peer, frame: dict[str, Any], reply: frames.Reply) -> None:
        """Takes a reply for which no request waits as an ordinary message, which waits for room like others."""
        await self._room(peer)
        taking = self._reply(session, peer, frame, reply)
        assert taking.kept is not None
        assert taking.then is not None
        taking.then(await taking.kept)

    def _reply(self, session: Session, peer: Peer, frame: dict[str, Any], reply: frames.Reply) -> Taking:
        """Takes the answer to a message of this node. Where no request waits for it any more, it is an ordinary
        message."""
        node, journal = self._node, self._node.journal
        id_ = reply.message_id or frames.new_id()
        said = reply.parts
        if said is None:
            content = reply.content
            said = [{"type": "text" if isinstance(content, str) else "data", "content": content}]
        frame["message_id"], frame["role"], frame["parts"] = id_, "agent", said
        awaited = node.sending.awaits(peer, reply.correlation_id)
        if not awaited:
            self._unread[peer.id] = self._unread.get(peer.id, 0) + 1
        event = {"message_id": id_, "role": "agent", "parts": said, "from": reply.sender or peer.name,
                 "peer_id": peer.id, "direction": "inbound", "correlation_id": reply.correlation_id}  # fmt: skip
        post = Post(
            journal.box_in, f"{peer.id}|reply|{reply.correlation_id}", msgspec.json.encode(frame), 1,
            frame.get("context_id") or "", "done" if awaited else "new", peer.id,
        )  # fmt: skip

        def then(kept: WriteResult) -> None:
            self._confirm(session, peer, frame)
            if isinstance(kept.stale, Post):
                self.deduplicated += 1
                return
            peer.known.received += 1
            node.sending.replied(peer, reply.correlation_id, frame)
            node.woke()

        return Taking(kept=journal.keep([post, journal.event("message", event)]), then=then)

    # -- tasks --------------------------------------------------------------------------------------------

    async def _delegate(self, session: Session, peer: Peer, frame: dict[str, Any], wanted: frames.Delegate) -> None:
        node, journal = self._node, self._node.journal
        known = await journal.task(peer.scope, wanted.task_id)
        if known is not None:
            self._confirm(session, peer, frame)
            if known.status != "submitted":  # it asks again because it does not know: tell it
                session.send(node.trust.sign(task_frame(node.name, known, known.status, known.artifact)))
            return
        if frame.get("again") is True:  # it was begun before, and must not be begun anew
            self._confirm(session, peer, frame)
            info = {"code": frames.LOST, "message": "this node no longer has the task", "transient": True}
            lost = frames.updated(node.name, wanted.task_id, "failed", error=info["message"], error_info=info)
            session.send(node.trust.sign(lost))
            return
        now, payload = frames.now_z(), wanted.payload
        task = Task(
            wanted.task_id, "submitted", now, now, {"parts": wanted.parts or []}, peer.scope,
            "run" if node.working.serves else "received", peer.id, skill_id=_text(payload.get("skill_id")),
            context_id=_text(payload.get("context_id")) or _text(frame.get("context_id")),
            message_id=wanted.message_id, payload=payload,
            metadata=found if isinstance(found := payload.get("metadata"), dict) else {},
        )  # fmt: skip
        if task.kind == "received":
            await self._task_room(peer)
        kept = await journal.keep([journal.put_task(task), status_event(node, task, "submitted")])
        self._confirm(session, peer, frame)
        if kept.stale is None and task.kind == "run":
            task.version += 1
            await node.working.delegated(peer, task)

    async def _task_room(self, peer: Peer) -> None:
        """Waits until earlier tasks of a peer were looked at: until then nothing more is read from it."""
        limit, journal, told = self._node.settings.max_unread, self._node.journal, False
        while self._unbegun.get(peer.id, limit) >= limit:
            self._unbegun[peer.id] = waiting = await self._node.engine.documents.count(
                journal.tasks_space, states=["submitted"], owner=peer.scope
            )
            if waiting >= limit:
                if not told:
                    self._node.told_of_peer(peer, "inbox_full", waiting=waiting)
                told = True
                await self._reading()
        self._unbegun[peer.id] += 1

    async def _updated(self, session: Session, peer: Peer, frame: dict[str, Any], news: frames.Updated) -> None:
        node, journal = self._node, self._node.journal
        task = await journal.task("", news.task_id)
        if task is None or task.peer != peer.id or task.kind != "delegated":
            await self._updated_ours(peer, news)
            self._confirm(session, peer, frame)
            return
        self.delegated[task.id] = task
        if "chunk" in frame or "activity" in frame:
            taking = self._watched(task, frame)
            if taking is not None and taking.kept is not None:
                await taking.kept
            return
        await self.apply(task, news.status, news.artifact, news.error, frame)
        self._confirm(session, peer, frame)
        node.woke()

    def _watched(self, task: Task, frame: dict[str, Any]) -> Taking | None:
        """Passes output and activity of a working peer on to its watchers. It is kept nowhere else."""
        journal, chunk, activity = self._node.journal, frame.get("chunk"), frame.get("activity")
        if isinstance(chunk, dict) and isinstance(chunk.get("parts"), list):
            if not self._in_a_row(task.id, frame.get("chunk_number"), chunk):
                return None  # the whole comes at the end
            told = journal.event("artifact", {"task_id": task.id, "artifact": chunk}, task=task.id)
        elif isinstance(activity, list):
            body = {"message_id": frames.new_id(), "role": "agent", "parts": activity, "task_id": task.id}
            told = journal.event("message", body, task=task.id)
        else:
            return None
        return Taking(kept=journal.keep([told]))

    def _in_a_row(self, task: str, number: Any, chunk: dict[str, Any]) -> bool:
        """Tells if no chunk is missing. A chunk that a slow connection could not carry is not sent again."""
        before = self._chunks.get(task, 0)
        if before < 0 or number != before + 1:
            self._chunks[task] = -1
            return False
        self._chunks[task] = before + 1
        if chunk.get("last_chunk") and (id_ := _artifact_id(chunk)) is not None:
            told = self._told_whole.setdefault(task, set())
            if len(told) < _ARTIFACTS:
                told.add(id_)
        return True

    async def _updated_ours(self, peer: Peer, news: frames.Updated) -> None:
        """Takes a peer's update of a task that is worked on here: it can only cancel the task."""
        task = await self._node.journal.task(peer.scope, news.task_id)
        if task is not None and news.status in ("canceled", "cancelling") and task.status not in task_states.TERMINAL:
            with contextlib.suppress(task_states.IllegalState):
                await self._node.tasking.cancel(task, self._node.working.caller_of(peer), tell_peer=False)

    async def apply(
        self, task: Task, status: str, artifact: dict[str, Any] | None, error: str | None, frame: dict[str, Any]
    ) -> None:
        """Applies a peer's update to a task that it works on for our owner. An impossible update is ignored."""
        node, journal = self._node, self._node.journal

        def change(task: Task) -> list[Change]:
            told: list[Change] = []
            way = task_states.route(task.status, status)
            if not way and status != task.status:
                log.info("task %s is %s: that it is %s now cannot be", task.id, task.status, status)
                return told
            for state in way[:-1]:
                told.append(status_event(node, task, state))
                task.status = state
            for one in _artifacts(frame, artifact):
                if task.status in task_states.TERMINAL:
                    break
                task.put_artifact(one)
                task.artifact = artifact or one
                if _artifact_id(one) not in self._told_whole.get(task.id, ()):
                    body = {"task_id": task.id, "artifact": {"append": False, "last_chunk": True, **one}}
                    told.append(journal.event("artifact", body, task=task.id))
            question = frame.get("question")
            task.question = question if status == "input_required" and isinstance(question, dict) else None
            if way:
                task.status = status
                if status == "failed":
                    task.error = error or "the peer said no more"
                    info = frame.get("error_info")
                    task.error_info = info if isinstance(info, dict) else None
                told.append(status_event(node, task, status))
            task.updated_at = frames.now_z()
            return told

        changed, _ = await journal.change_task(task, change)
        if changed.status in task_states.TERMINAL:
            self.ended(changed)

    def ended(self, task: Task) -> None:
        """Forgets the chunks of a task that has ended."""
        self.delegated.pop(task.id, None)
        self._chunks.pop(task.id, None)
        self._told_whole.pop(task.id, None)

    async def _cancel(self, session: Session, peer: Peer, wanted: frames.Cancel) -> None:
        node = self._node
        task = await node.journal.task(peer.scope, wanted.task_id)
        if task is not None:
            with contextlib.suppress(task_states.IllegalState):  # it has ended meanwhile, which is reported anyway
                await node.tasking.cancel(task, node.working.caller_of(peer), tell_peer=False)
        if wanted.message_id is not None and peer.able("delivery_ack"):
            session.confirm(wanted.message_id)


def _artifacts(frame: dict[str, Any], artifact: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The artifacts that a frame brings: several, else the one."""
    several = frame.get("artifacts")
    pieces = [one for one in several if isinstance(one, dict)] if isinstance(several, list) else []
    return [one for one in pieces if one.get("parts")] or ([artifact] if artifact is not None else [])


def _artifact_id(artifact: dict[str, Any]) -> str | None:
    """Returns the id of an artifact. It may have none; None where the value is no artifact at all."""
    id_ = artifact.get("artifact_id", "")
    return id_ if isinstance(id_, str) else "" if id_ is None else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

"""Turns the log of one run into reports: changes of its task, events of a feed, letters to a peer or to a caller of the
door.

The position in the log is kept together with its reports, so a crash in between repeats nothing and loses nothing.
`agent_runs` decides when the log is read; `run_feed` reports a run while it is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ....model.card import AgentCard
from ....model.documents import Change, Follow, Post, Put, Tell, WriteResult
from ....model.errors import ErrorInfo
from ....model.events import Event
from ....model.run import RunRequest
from ..projection import Act, Moved, Piece, Projection, Replied, Said, fed
from ..translate import parts
from ..wire import frames
from .base import NodeBase
from .peers import QUEUED, RANKS, Peer
from .task_record import Task

_HEADS = 512  # bytes of a frame around its content
_FILES = 16  # parts that become a file each; more become one
_SHORT = 1000  # characters of an error that is too long


class Origin(msgspec.Struct, omit_defaults=True):
    """The origin of a run, to which its reports go. It is stored with the run."""

    node: str
    scope: str = ""
    peer: str | None = None
    caller: str = ""  # of the door, whose feed gets the reports
    task: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None  # a sender waits for a reply to this
    context_id: str | None = None
    quiet: bool = False  # the sender gets the end as an answer, and not as a message
    replies: bool = False  # the task came with a message, which is answered as well


class Outcome(msgspec.Struct):
    """The outcome of a run: the reply to a caller of the door, and the task as it is now, where there is one."""

    reply: dict[str, Any] | None
    task: Task | None


class Draft(msgspec.Struct):
    """The changes for some events, and the effects after they are kept."""

    changes: list[Change]
    live: list[tuple[Post | None, dict[str, Any]]]  # for the peer, in order: letters, and transient frames
    task: Task | None
    touched: bool  # the task is another now
    outcome: bool  # it has come to its end, or asks


class Telling:
    """The reports of one run, and their destination."""

    def __init__(
        self, node: NodeBase, origin: Origin, card: AgentCard, run: str, request: RunRequest,
        came_to: Callable[[str, Outcome], None],
    ) -> None:  # fmt: skip
        self._node = node
        self._origin = origin
        self._run = run
        self._request = request
        self._came_to = came_to
        self._files = files = list[Put]()

        def publish(body: bytes, media_type: str, name: str | None) -> str:
            put, url = node.files.put(body, media_type, name)
            files.append(put)
            return url

        self._publish = publish
        self.projection = Projection(card, self._publish)
        self.task: Task | None = None  # as it was kept last
        self.outcome: Outcome | None = None  # the outcome so far
        self._reply: dict[str, Any] | None = None  # to the caller of the door
        self._chunks = 0  # counted for the peer: it must know when one is missing
        self._peer = node.peers.with_id(origin.peer)

    async def load(self, upto: int) -> None:
        id_ = self._origin.task
        if id_ is None and upto:  # a question may have made a task of it
            id_ = task_of_run(self._run)
        if id_ is not None:
            self.task = await self._node.journal.task(self._origin.scope, id_)

    def told_before(self) -> None:
        """Notes that all reports so far were made in an earlier process, and their files stored."""
        self._files.clear()

    async def tell(self, events: list[Event], follow: Follow) -> bool:
        """Keeps and sends the reports of some events. Returns False where another process has done so."""
        journal = self._node.journal
        acts = [act for event in events for act in await fed(self._node.engine, self.projection, event)]
        published = len(self._files)
        for _ in range(5):
            del self._files[published:]  # of the try before
            draft = self.draft(acts, follow)
            kept = await journal.keep(draft.changes)
            if kept.stale is None:
                self.kept(draft, kept)
                return True
            if not isinstance(kept.stale, Put) or draft.task is None:
                return isinstance(kept.stale, Post)
            again = await journal.task(draft.task.scope, draft.task.id)
            if again is None:
                return False
            self.task = again
        return False

    def acts(self, events: list[Event]) -> list[Act]:
        return [act for event in events for act in self.projection.feed(event)]

    def draft(self, acts: list[Act], follow: Follow, first: Sequence[Change] = (), *, new: bool = False) -> Draft:
        """Returns the changes for some acts, after those in `first`. `new` means that the task is kept in any case."""
        changes: list[Change] = [follow, *first]
        live: list[tuple[Post | None, dict[str, Any]]] = []
        task = None if self.task is None else msgspec.structs.replace(self.task)
        touched = new and task is not None
        for act in acts:
            if isinstance(act, Said) and act.question and task is None:
                task = self._make_task(changes, live)
                touched = True
            touched = self._act(act, task, changes, live) or touched
        changes += self._files
        if task is not None and touched:
            changes.insert(0, self._node.journal.put_task(task))
        outcome = any(isinstance(act, Replied) or (isinstance(act, Moved) and act.question is not None) for act in acts)
        return Draft(changes, live, task, touched, outcome)

    def kept(self, draft: Draft, kept: WriteResult) -> None:
        """Sends the letters after the changes were kept, and wakes the callers that wait."""
        node, task = self._node, draft.task
        self._files.clear()
        if task is not None and draft.touched:
            task.version += 1
        self.task = task
        peer = self._peer
        if peer is not None and draft.live:
            if peer.session is not None:
                peer.session.send_confirmations()  # it gets the confirmation of its message before the effects of it
            numbers = {id(change): number for change, number in zip(draft.changes, kept.numbers, strict=True)}
            for post, frame in draft.live:
                if post is not None:
                    peer.outbox.posted(numbers[id(post)] or 0, frame)
                else:
                    peer.outbox.send_along(node.trust.sign(frame))
        node.woke()
        if draft.outcome:
            self.outcome = Outcome(self._reply, task)
            self._came_to(self._run, self.outcome)

    def _make_task(self, changes: list[Change], live: list[tuple[Post | None, dict[str, Any]]]) -> Task:
        """Makes a task of a message that leads to a question, so that it can be continued."""
        now, origin = frames.now_z(), self._origin
        said = [parts.from_model(part, self._publish) for part in self._request.messages[0].parts]
        task = Task(
            task_of_run(self._run), "working", now, now, {"parts": said}, origin.scope, "run", origin.peer,
            self._run, context_id=origin.context_id, message_id=origin.message_id,
        )  # fmt: skip
        changes += [status_event(self._node, task, "submitted"), status_event(self._node, task, "working")]
        return task

    def _act(
        self, act: Act, task: Task | None, changes: list[Change], live: list[tuple[Post | None, dict[str, Any]]]
    ) -> bool:
        """Applies an act to the task. Returns True if the task has changed."""
        node, origin = self._node, self._origin
        match act:
            case Moved(state=state):
                return self._move(act, state, task, changes, live)
            case Piece():
                return self._add_piece(act, task, changes, live)
            case Said():
                self._say(act, task, changes, live)
            case Replied() if origin.peer is None and (origin.quiet or origin.task is None):
                self._reply = frame = node.trust.sign(reply_frame(node.name, origin, act.parts, act.error))
                if origin.task is None:  # the last event of a task is its end; its result was reported before
                    changes.append(self._message_event(frame, act.parts, task, sync=origin.quiet))
                key, said = answer_key(origin.scope, origin.message_id or ""), msgspec.json.encode(frame)
                state = "done" if origin.quiet else "new"
                changes.append(Post(node.journal.box_door, key, said, 1, origin.context_id or "", state, origin.scope))
            case Replied() if origin.task is None or origin.replies:
                frame = reply_frame(node.name, origin, act.parts, act.error)
                if origin.task is None:
                    changes.append(self._message_event(frame, act.parts, task))
                self._post(changes, live, frame)
        return False

    def _move(
        self, act: Moved, state: str, task: Task | None, changes: list[Change],
        live: list[tuple[Post | None, dict[str, Any]]],
    ) -> bool:  # fmt: skip
        node = self._node
        if task is None or task.status == state:
            return False
        task.status, task.updated_at = state, frames.now_z()
        task.question = act.question
        if act.error is not None:
            task.error, task.error_info = act.error.message, msgspec.to_builtins(act.error)
        changes.append(status_event(node, task, state))
        self._post(changes, live, task_frame(node.name, task, state, task.artifact, act))
        return True

    def _add_piece(
        self, act: Piece, task: Task | None, changes: list[Change], live: list[tuple[Post | None, dict[str, Any]]]
    ) -> bool:
        if task is None:
            return False
        body = {"task_id": task.id, "artifact": act.artifact}
        told = self._event("artifact", body, task, passes_by=act.whole is None)
        changes.append(told)
        if act.whole is not None:
            task.put_artifact(act.whole)
            task.artifact = act.whole
        if self._peer is not None and self._peer.able("task_chunks"):
            self._chunks += 1
            frame = frames.updated(self._node.name, task.id, task.status, chunk=act.artifact, chunk_number=self._chunks)
            if self._peer.takes(len(told.body) + _HEADS):  # else it sees that one is missing, and waits
                live.append((None, frame))
        return act.whole is not None

    def _say(
        self, act: Said, task: Task | None, changes: list[Change], live: list[tuple[Post | None, dict[str, Any]]]
    ) -> None:
        origin, node = self._origin, self._node
        frame = frames.message(
            node.name, "agent", act.parts, context_id=origin.context_id,
            task_id=task.id if task is not None else None, correlation_id=origin.message_id,
        )  # fmt: skip
        changes.append(self._message_event(frame, act.parts, task))
        if act.activity:
            if self._peer is not None and task is not None and self._peer.able("task_chunks"):
                live.append((None, {**frames.updated(node.name, task.id, task.status), "activity": act.parts}))
        elif not (act.question and task is not None and self._peer is not None and self._peer.ours):
            self._post(changes, live, frame)  # an Interlingua peer gets the question with the state

    def _post(
        self, changes: list[Change], live: list[tuple[Post | None, dict[str, Any]]], frame: dict[str, Any]
    ) -> None:
        """Adds a letter to the peer, or to the caller of the door."""
        if self._peer is not None:
            if not self._peer.takes(len(msgspec.json.encode(frame))):
                frame = self._shortened(frame)
            post = letter_to(self._node, self._peer, frame)
            changes.append(post)
            live.append((post, frame))
        elif frame["type"] != "task.updated" and self._origin.peer is None:
            journal = self._node.journal
            key, body = f"{self._origin.caller}|{frame['message_id']}", msgspec.json.encode(frame)
            topic = frame.get("context_id") or ""
            changes.append(Post(journal.box_door, key, body, 1, topic, "new", self._origin.scope))

    def _shortened(self, frame: dict[str, Any]) -> dict[str, Any]:
        """Replaces parts that are larger than the peer takes by files that it can fetch, because it could never get
        them otherwise."""
        short = dict(frame)
        if isinstance(frame.get("parts"), list):
            short["parts"] = self._as_files(frame["parts"])
        if isinstance(frame.get("artifact"), dict):
            short["artifact"] = self._as_file(frame["artifact"])
        if isinstance(frame.get("artifacts"), list):
            short["artifacts"] = [self._as_file(one) for one in frame["artifacts"]]
        if isinstance(frame.get("error"), str):
            short["error"] = frame["error"][:_SHORT]
        for name in ("error", "error_info"):
            if isinstance(info := frame.get(name), dict):
                short[name] = {**info, "message": str(info.get("message"))[:_SHORT], "details": None}
        return short

    def _as_file(self, artifact: dict[str, Any]) -> dict[str, Any]:
        return {**artifact, "parts": self._as_files(artifact["parts"])}

    def _as_files(self, said: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(said) > _FILES:
            return [parts.as_file(parts.data(said), self._publish)]
        return [parts.as_file(part, self._publish) for part in said]

    def _message_event(
        self, frame: dict[str, Any], said: list[dict[str, Any]], task: Task | None, *, sync: bool = False
    ) -> Change:
        body: dict[str, Any] = {"message_id": frame["message_id"], "role": "agent", "parts": said}
        body |= {"from": self._node.name, "direction": "outbound"}
        if sync:  # the sender gets it as an answer, too
            body["sync"] = True
        for name in ("task_id", "context_id", "correlation_id"):
            if frame.get(name) is not None:
                body[name] = frame[name]
        return self._event("message", body, task)

    def _event(self, kind: str, body: dict[str, Any], task: Task | None, *, passes_by: bool = False) -> Tell:
        if self._origin.context_id is not None:
            body.setdefault("context_id", self._origin.context_id)
        caller = self._origin.caller
        named = task.id if task is not None else ""
        return self._node.journal.event(kind, body, task=named, caller=caller, passes_by=passes_by)


def status_event(node: NodeBase, task: Task, state: str) -> Change:
    body: dict[str, Any] = {"task_id": task.id, "state": state}
    if state == "failed":
        body["error"] = task.error or "the task failed"
        if task.error_info is not None:
            body["error_info"] = task.error_info
    if state == "input_required" and task.question is not None:
        body["question"] = task.question
    if task.context_id is not None:
        body["context_id"] = task.context_id
    caller = task.scope.removeprefix("caller:") if task.scope.startswith("caller:") else ""
    return node.journal.event("status", body, task=task.id, caller=caller)


def task_frame(
    name: str, task: Task, state: str, artifact: dict[str, Any] | None, moved: Moved | None = None
) -> dict[str, Any]:
    """Returns an update of a task for the peer that it came from."""
    frame = frames.updated(name, task.id, state, artifact=artifact if state == "completed" else None)
    if task.error is not None:
        frame["error"] = task.error
        if task.error_info is not None:
            frame["error_info"] = task.error_info
    if state == "input_required" and task.question is not None:
        frame["question"] = task.question
    if state == "completed" and len(task.artifacts) > 1:
        frame["artifacts"] = task.artifacts
    return frame


def reply_frame(name: str, origin: Origin, said: list[dict[str, Any]], error: ErrorInfo | None) -> dict[str, Any]:
    """Returns the answer to a message. A sender that waits gets a reply; any other gets a message that names its
    own."""
    if origin.correlation_id is not None:
        frame = frames.reply(name, origin.correlation_id, parts=said)
    else:
        frame = frames.message(
            name, "agent", said, context_id=origin.context_id,
            correlation_id=origin.message_id,
        )  # fmt: skip
    if error is not None:
        frame["error"] = msgspec.to_builtins(error)
    return frame


def task_of_run(run: str) -> str:
    """Returns the id of the task that a message becomes when its run asks a question: the same after a restart."""
    return f"task_{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def answer_key(scope: str, message_id: str) -> str:
    """Returns the key of the answer to a message of the door, for callers that send the message again."""
    return f"{scope}|answer|{message_id}"


def letter_to(node: NodeBase, peer: Peer, frame: dict[str, Any]) -> Post:
    rank = RANKS.get(frame.get("priority") or "normal", 1)
    body = msgspec.json.encode(frame)
    return Post(node.journal.box_out, frame["message_id"], body, rank, peer.id, QUEUED, peer.scope)

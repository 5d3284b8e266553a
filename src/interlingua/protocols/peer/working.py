"""What this node's agents do for others: messages and tasks as runs, and what their logs say back.

Each run is told about exactly once: how far its log was told is kept together with what was told, so a crash in between
repeats nothing and loses nothing. Chunks of output go to a connected peer as they come; everything else that a peer
must know is a letter, and waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ...model import carrier
from ...model.card import AgentCard
from ...model.content import Message
from ...model.errors import (
    AgentNotFound,
    AlreadyAnswered,
    Conflict,
    ErrorInfo,
    InterlinguaError,
    InvalidAnswer,
    InvalidRequest,
    NotFound,
    RunNotFound,
    StoreError,
    Unavailable,
)
from ...model.events import Event
from ...model.forms import written_answer
from ...model.prompts import prompt_input
from ...model.run import Caller, Question, Run, RunRequest
from ...store.shelf import Change, Follow, Kept, Post, Put, Settle, Tell
from . import frames, parts
from .peers import QUEUED, RANKS, Peer
from .projection import Act, Moved, Piece, Projection, Replied, Said
from .tasks import Task

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("interlingua.peer")

_SCOPES = ("do:run", "do:read", "do:answer", "do:cancel")
_PAGE = 500
_AGAIN = 1.0  # seconds
_HEADS = 512  # bytes of a frame around what it carries
_FILES = 16  # parts that become a file each; more become one
_SHORT = 1000  # characters of an error that is too long


class Origin(msgspec.Struct, omit_defaults=True):
    """Where a run comes from, and so where what it says goes. Kept on the run."""

    node: str
    scope: str = ""
    peer: str | None = None
    caller: str = ""  # of the door, whose feed it is told on
    task: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None  # somebody waits for a reply to this
    context_id: str | None = None
    quiet: bool = False  # whoever asked gets the end as an answer, and not as a message
    replies: bool = False  # the task came with a message, which is answered as well


class Outcome(msgspec.Struct):
    """What a run came to: the reply to a caller of the door, and the task as it is now, where there is one."""

    reply: dict[str, Any] | None
    task: Task | None


class Working:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._telling: dict[str, asyncio.Task[None]] = {}
        self._awaited: dict[str, set[asyncio.Future[Outcome]]] = {}  # by run: who waits for what it comes to

    @property
    def _cursors(self) -> str:
        return f"{self._node.journal.name}/work"

    async def start(self) -> None:
        """Go on with what was not told to its end."""
        for run, upto in await self._node.engine.store.following(self._cursors):
            self._tell(run, upto)
        box = self._node.journal.box_in
        for letter in await self._node.engine.store.letters(box, states=["accepted"], limit=10_000):
            frame = msgspec.json.decode(letter.body)
            peer = self._node.peers.with_id(letter.owner)
            if peer is None:
                continue
            try:
                await self._take_up(peer, frame, letter.number)
            except Exception as error:  # of one letter: the others, and the node, must not suffer from it
                log.error("message %s of %s could not be taken up: %s", letter.key, peer.id, error, exc_info=error)
                await self._node.settle_in(letter.number, "done")

        await self._take_up_tasks()

    async def _take_up_tasks(self) -> None:
        """Tasks that were written down, and not yet begun, before the end of the process before this one."""
        node = self._node
        for document in await node.engine.store.documents(node.journal.tasks_space, states=["submitted"], limit=10_000):
            task = node.journal.read_task(document)
            peer = node.peers.with_id(task.peer)
            if task.kind == "run" and task.run is None and peer is not None:
                await self.delegated(peer, task)

    async def _take_up(self, peer: Peer, frame: dict[str, Any], number: int) -> None:
        """A message that was written down, and nothing more, before the end of the process before this one."""
        id_ = _text(frame.get("task_id"))
        task = await self._node.journal.task(peer.scope, id_) if id_ is not None else None
        if task is None or task.run is None or task.message_id == frame["message_id"]:
            await self.message(peer, frame, number)
            return
        try:
            await self.answer(task, frame["parts"], self.caller_of(peer))
        except InterlinguaError as error:
            log.info("message %s on task %s comes too late: %s", frame["message_id"], task.id, error)
        await self._node.settle_in(number, "done")

    # -- what comes in ------------------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        return len(self._node.engine.agents) > 0

    def agent(self, skill: Any = None) -> AgentCard:
        """The agent for a skill; without one, the default."""
        cards = [agent.card for agent in self._node.engine.agents]
        if not cards:
            raise Unavailable("this node has no agents")
        wanted = skill if skill is not None else self._node.settings.default_agent
        if wanted is None:
            return cards[0]
        for card in cards:
            own = {one.id for one in card.skills}
            if wanted in (card.name, card.key) or wanted in own or wanted in {f"{card.name}/{id_}" for id_ in own}:
                return card
        known = ", ".join(card.name for card in cards)
        raise AgentNotFound(f"there is no skill {str(wanted)[:100]!r}; there are: {known}")

    def caller_of(self, peer: Peer) -> Caller:
        """By its key where it has shown one; else by the place that it has among this node's peers."""
        known = f"peer:{peer.known.did}" if peer.known.did else f"{self._node.journal.name}:{peer.id}"
        return Caller(known, peer.name, _SCOPES)

    async def message(self, peer: Peer, frame: dict[str, Any], number: int) -> None:
        """A peer's message, already written down, as a run."""
        node = self._node
        asked, skill = _text(frame.get("correlation_id")), _text(frame.get("skill_id"))
        origin = Origin(
            node.name, peer.scope, peer.id, "", _text(frame.get("task_id")), frame["message_id"], asked,
            _text(frame.get("context_id")), replies=asked is not None or not peer.ours,
        )  # fmt: skip
        task = None
        if origin.task is not None:  # the sender has a task for it, which is told how it goes
            now = frames.now_z()
            task = Task(
                origin.task, "submitted", now, now, {"parts": frame["parts"]}, peer.scope, "run", peer.id,
                skill_id=skill, role=frame["role"], context_id=origin.context_id, message_id=origin.message_id,
            )  # fmt: skip
        try:
            card = self.agent(skill)
            metadata = _object(frame.get("metadata"))
            await self.begin(
                origin, card, frame["parts"], self.caller_of(peer), task=task, letter=number,
                trace=carrier.read(metadata), metadata=metadata,
            )  # fmt: skip
        except InterlinguaError as error:
            await self._refuse(peer, origin, error.info(), number, task)

    async def _refuse(self, peer: Peer, origin: Origin, error: ErrorInfo, number: int, task: Task | None) -> None:
        """What became no run is answered all the same."""
        journal = self._node.journal
        posts = [self._letter(peer, self._reply_frame(origin, [parts.text(error.message)], error))]
        more: list[Change] = []
        if task is not None:
            task.status, task.error, task.error_info = "failed", error.message, msgspec.to_builtins(error)
            posts.append(self._letter(peer, task_frame(self._node.name, task, "failed", None)))
            more = [journal.put_task(task), *(self.status(task, state) for state in ("submitted", "working", "failed"))]
        kept = await journal.keep([*posts, *more, Settle(journal.box_in, [number], "done")])
        if kept.stale is None:
            self._sent(peer, posts, kept.numbers[: len(posts)])

    async def delegated(self, peer: Peer, task: Task) -> None:
        """A task that a peer wants done, already written down. What cannot even begin has failed, and the peer is
        told so."""
        origin = Origin(self._node.name, peer.scope, peer.id, "", task.id, task.message_id, context_id=task.context_id)
        payload = task.payload if isinstance(task.payload, dict) else {}
        try:
            await self.begin(
                origin, self.agent(task.skill_id), task.input["parts"], self.caller_of(peer), task=task,
                trace=carrier.read(payload.get("metadata")), metadata=task.metadata,
            )  # fmt: skip
        except InterlinguaError as error:
            await self._fail(peer, task, error)

    async def _fail(self, peer: Peer, task: Task, error: InterlinguaError) -> None:
        journal = self._node.journal
        task.status, task.error, task.error_info = "failed", error.message, msgspec.to_builtins(error.info())
        post = self._letter(peer, task_frame(self._node.name, task, "failed", None))
        events = [self.status(task, state) for state in ("working", "failed")]
        kept = await journal.keep([post, journal.put_task(task), *events])
        if kept.stale is None:
            self._sent(peer, [post], kept.numbers[:1])

    async def begin(
        self, origin: Origin, card: AgentCard, given: list[dict[str, Any]], caller: Caller, *, task: Task | None,
        letter: int | None = None, trace: dict[str, str] | None = None, metadata: dict[str, Any] | None = None,
        also: Callable[[str], list[Change]] | None = None,
    ) -> Kept:  # fmt: skip
        """Submit a run, and tell of it from now on. The same message or task again is the same run. What is `also` to
        be kept, by the run's id, is kept with the first news of it, or not at all where that is stale."""
        node, journal = self._node, self._node.journal
        said = [parts.to_model(part) for part in given]
        thread = await node.thread_of(origin.scope or origin.caller, origin.context_id)
        key = f"{journal.name}:{origin.scope}:{origin.task or ''}:{origin.message_id or ''}"
        if task is not None and (deleted := await journal.times_deleted(task)):
            key += f":{deleted}"  # it is another one, and not the one that was
        made = await node.engine.submit(
            RunRequest(
                card.name,
                card.version,
                prompt_input(card, said),
                messages=[Message("user", said, id=origin.message_id or "")],
                metadata={name: value for name, value in (metadata or {}).items() if name not in carrier.NAMES},
                caller=caller,
                thread=thread,
                create_thread=thread is not None,
                when_busy="enqueue",
                key=key,
                extra={"peer": msgspec.to_builtins(origin)},
                trace=trace,
            )
        )
        changes: list[Change] = [Follow(self._cursors, made.id, 0, 0)]
        if task is not None:
            task.run, task.agent = made.id, card.key
            changes.append(journal.put_task(task))
            if not task.version:
                changes.append(self.status(task, "submitted"))
        if letter is not None:
            changes.append(Settle(journal.box_in, [letter], "run"))
        if also is not None:
            changes += also(made.id)
        kept = await journal.keep(changes)
        if kept.stale is None and task is not None:
            task.version += 1
        elif kept.stale is not None and letter is not None:  # it was begun before a crash, and is told already
            await self._node.settle_in(letter, "run")
        self._tell(made.id, 0)
        return kept

    def outcome(self, run: str) -> asyncio.Future[Outcome]:
        """Done when a run has come to its end or to a question, and that was told."""
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(run, set()).add(waiting)
        return waiting

    def give_up(self, run: str, waiting: asyncio.Future[Outcome]) -> None:
        """Whoever asked for an outcome waits no more."""
        others = self._awaited.get(run)
        if others is not None:
            others.discard(waiting)
            if not others:
                del self._awaited[run]

    def came_to(self, run: str, outcome: Outcome) -> None:
        for waiting in self._awaited.pop(run, ()):
            if not waiting.done():
                waiting.set_result(outcome)

    # -- what goes out ------------------------------------------------------------------------------------

    def _tell(self, run: str, upto: int) -> None:
        if run not in self._telling:
            self._telling[run] = task = self._node.spawn(self._project(run, upto))
            task.add_done_callback(lambda _: self._telling.pop(run, None))

    async def _project(self, run: str, upto: int) -> None:
        """Tell all of a run. What the store does not take now it may take later, and nobody else would tell it."""
        while True:
            try:
                await self._project_from(run, upto)
                return
            except StoreError as error:
                log.warning("what run %s says could not be written down, and is tried again: %s", run, error)
            while True:
                await asyncio.sleep(_AGAIN)
                with contextlib.suppress(StoreError):
                    left = dict(await self._node.engine.store.following(self._cursors))
                    break
            if run not in left:
                return
            upto = left[run]

    async def _project_from(self, run: str, upto: int) -> None:
        engine = self._node.engine
        try:
            view = await engine.run(run)
        except RunNotFound:
            await self._node.journal.keep([Follow(self._cursors, run, upto, upto, ended=True)])
            return
        assert view.request is not None
        origin = msgspec.convert(view.request.extra["peer"], Origin)
        telling = Telling(self._node, origin, await engine.card(view.agent, view.version), view)
        await telling.load(upto)
        after = 0
        while after < upto:  # once more through the projection, and not to anybody
            events = await engine.store.events(run, after, _PAGE)
            for event in events:
                if event.seq <= upto:
                    telling.projection.feed(event)
            after = min(events[-1].seq, upto) if events else upto
        telling.told_before()
        reader = engine.reader(run, upto)
        try:
            while not reader.over:
                events = await reader.read()
                if not events and not reader.over:
                    continue
                if not await telling.tell(events, upto, reader.cursor, reader.over, self._cursors):
                    return  # another process tells it
                upto = reader.cursor
        except RunNotFound:
            await self._node.journal.keep([Follow(self._cursors, run, upto, upto, ended=True)])
        finally:
            reader.close()

    def status(self, task: Task, state: str) -> Change:
        return status_event(self._node, task, state)

    # -- answers and cancelling ---------------------------------------------------------------------------

    async def answer(self, task: Task, given: list[dict[str, Any]], by: Caller) -> None:
        """Answer what a task asks. Raises InvalidAnswer, and then it asks still; or AlreadyAnswered: somebody else was
        first."""
        assert task.run is not None
        engine = self._node.engine
        open_ = [question for question in await engine.questions(run=task.run) if _may(question, by)]
        if not open_:
            if late := await engine.answered_last(task.run):
                raise AlreadyAnswered(f"task {task.id} asks nothing{late}")
            raise InvalidRequest(f"task {task.id} asks nothing")
        question = open_[0]
        errors: list[InvalidAnswer] = []
        for value in answers(question, given):
            try:
                await engine.answer(question.id, value, by=by, door="peer")
                return
            except InvalidAnswer as error:
                errors.append(error)
        raise errors[0]

    async def cancel(self, task: Task, by: Caller) -> None:
        assert task.run is not None
        try:
            await self._node.engine.cancel(task.run, by=by, reason="the task was cancelled")
        except (Conflict, NotFound):
            log.debug("task %s has ended before it could be cancelled", task.id)

    def _letter(self, peer: Peer, frame: dict[str, Any]) -> Post:
        return letter_to(self._node, peer, frame)

    def _reply_frame(self, origin: Origin, said: list[dict[str, Any]], error: ErrorInfo | None) -> dict[str, Any]:
        return reply_frame(self._node.name, origin, said, error)

    def _sent(self, peer: Peer, posts: list[Post], numbers: list[int | None]) -> None:
        for post, number in zip(posts, numbers, strict=True):
            assert number is not None
            peer.outbox.posted(number, msgspec.json.decode(post.body))


class Telling:
    """What one run's log becomes, and where it goes."""

    def __init__(self, node: Node, origin: Origin, card: AgentCard, run: Run) -> None:
        self._node = node
        self._origin = origin
        self._run = run
        self._files: list[Put] = []
        self.projection = Projection(card, self._publish)
        self._task: Task | None = None
        self._reply: dict[str, Any] | None = None  # to the caller of the door
        self._chunks = 0  # counted for the peer: it must know when one is missing
        self._peer = node.peers.with_id(origin.peer)

    async def load(self, upto: int) -> None:
        id_ = self._origin.task
        if id_ is None and upto:  # a question may have made a task of it
            id_ = task_of_run(self._run.id)
        if id_ is not None:
            self._task = await self._node.journal.task(self._origin.scope, id_)

    def told_before(self) -> None:
        """What was fed so far was told in an earlier life, and its files are there."""
        self._files.clear()

    def _publish(self, body: bytes, media_type: str, name: str | None) -> str:
        put, url = self._node.file(body, media_type, name)
        self._files.append(put)
        return url

    async def tell(self, events: list[Event], expected: int, upto: int, ended: bool, cursors: str) -> bool:
        """Keep and send what some events say. False: another process has done so."""
        journal, node = self._node.journal, self._node
        acts = [act for event in events for act in self.projection.feed(event)]
        published = len(self._files)
        for _ in range(5):
            del self._files[published:]  # of the try before
            changes: list[Change] = [Follow(cursors, self._run.id, expected, upto, ended)]
            live: list[tuple[Post | None, dict[str, Any]]] = []  # for the peer, in order: letters, and what is only now
            touched = False
            task = None if self._task is None else msgspec.structs.replace(self._task)
            for act in acts:
                if isinstance(act, Said) and act.question and task is None:
                    task = self._make_task(changes, live)
                    touched = True
                touched = self._act(act, task, changes, live) or touched
            changes += self._files
            if task is not None and touched:
                changes.insert(0, journal.put_task(task))
            kept = await journal.keep(changes)
            if kept.stale is None:
                break
            if not isinstance(kept.stale, Put) or task is None:
                return isinstance(kept.stale, Post)
            again = await journal.task(task.scope, task.id)
            if again is None:
                return False
            self._task = again
        else:
            return False
        self._files.clear()
        if task is not None and touched:
            task.version += 1
        self._task = task
        numbers = {id(change): number for change, number in zip(changes, kept.numbers, strict=True)}
        peer = self._peer
        if peer is not None:
            for post, frame in live:
                if post is not None:
                    peer.outbox.posted(numbers[id(post)] or 0, frame)
                elif peer.session is not None and peer.outbox.live and not peer.session.congested:
                    peer.session.send(node.trust.sign(frame))
        node.woke(self._origin.scope)
        if any(isinstance(act, Replied) or (isinstance(act, Moved) and act.question is not None) for act in acts):
            node.working.came_to(self._run.id, Outcome(self._reply, task))
        return True

    def _make_task(self, changes: list[Change], live: list[tuple[Post | None, dict[str, Any]]]) -> Task:
        """A message that leads to a question becomes a task, so that it can be continued."""
        now, origin = frames.now_z(), self._origin
        request = self._run.request
        said = [parts.from_model(part, self._publish) for part in request.messages[0].parts] if request else []
        task = Task(
            task_of_run(self._run.id), "working", now, now, {"parts": said}, origin.scope, "run", origin.peer,
            self._run.id, context_id=origin.context_id, message_id=origin.message_id,
        )  # fmt: skip
        changes += [status_event(self._node, task, "submitted"), status_event(self._node, task, "working")]
        return task

    def _act(
        self, act: Act, task: Task | None, changes: list[Change], live: list[tuple[Post | None, dict[str, Any]]]
    ) -> bool:
        """Whether the task is another now."""
        node, origin = self._node, self._origin
        match act:
            case Moved(state=state):
                if task is None or task.status == state:
                    return False
                task.status, task.updated_at = state, frames.now_z()
                task.question = act.question
                if act.error is not None:
                    task.error, task.error_info = act.error.message, msgspec.to_builtins(act.error)
                changes.append(status_event(node, task, state))
                self._post(changes, live, task_frame(node.name, task, state, task.artifact, act))
                return True
            case Piece():
                if task is None:
                    return False
                told = self._event("artifact", {"task_id": task.id, "artifact": act.artifact}, task)
                changes.append(told)
                if act.whole is not None:
                    task.put_artifact(act.whole)
                    task.artifact = act.whole
                if self._peer is not None and self._peer.able("task_chunks"):
                    self._chunks += 1
                    frame = frames.updated(
                        node.name, task.id, task.status, chunk=act.artifact, chunk_number=self._chunks
                    )
                    if self._peer.takes(len(told.body) + _HEADS):  # else it sees that one is missing, and waits
                        live.append((None, frame))
                return act.whole is not None
            case Said():
                self._say(act, task, changes, live)
            case Replied() if origin.peer is None and (origin.quiet or origin.task is None):
                self._reply = frame = node.trust.sign(reply_frame(node.name, origin, act.parts, act.error))
                if origin.task is None:  # the last event of a task is that it has ended; its result was told before
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
            self._post(changes, live, frame)  # a peer of ours is told what is asked with the state

    def _post(
        self, changes: list[Change], live: list[tuple[Post | None, dict[str, Any]]], frame: dict[str, Any]
    ) -> None:
        """A letter to the peer, or to the caller of the door."""
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
        """What is larger than the peer takes: as files that it can fetch, because it would never get it otherwise."""
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
        if sync:  # whoever asked gets it as an answer, too
            body["sync"] = True
        for name in ("task_id", "context_id", "correlation_id"):
            if frame.get(name) is not None:
                body[name] = frame[name]
        return self._event("message", body, task)

    def _event(self, kind: str, body: dict[str, Any], task: Task | None) -> Tell:
        if self._origin.context_id is not None:
            body.setdefault("context_id", self._origin.context_id)
        caller = self._origin.caller
        return self._node.journal.event(kind, body, task=task.id if task is not None else "", caller=caller)


def status_event(node: Node, task: Task, state: str) -> Change:
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
    """News of a task for the peer that it came from."""
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
    """The answer to a message. Somebody who waits for it gets a reply; anybody else a message that names it."""
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
    """The id of the task that a message becomes when its run asks something: the same after a restart."""
    return f"task_{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def answer_key(scope: str, message_id: str) -> str:
    """Where the answer to a message of the door's is kept, for whoever sends it again."""
    return f"{scope}|answer|{message_id}"


def letter_to(node: Node, peer: Peer, frame: dict[str, Any]) -> Post:
    rank = RANKS.get(frame.get("priority") or "normal", 1)
    body = msgspec.json.encode(frame)
    return Post(node.journal.box_out, frame["message_id"], body, rank, peer.id, QUEUED, peer.scope)


def answers(question: Question, given: list[dict[str, Any]]) -> list[Any]:
    """What the parts of an answer may mean, the likeliest first: an object as it is, or written text."""
    found: list[Any] = []
    for part in given:
        if part["type"] == "data":
            content = part["content"]
            if isinstance(content, dict) and set(content) == {"answer"}:
                content = content["answer"]
            found.append(content)
    text = parts.text_of(given)
    if text or not found:
        found.append(written_answer(question, text))
    return found


def _may(question: Question, by: Caller) -> bool:
    return question.answerer is None or question.answerer == by.id


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

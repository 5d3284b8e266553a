"""The operations on tasks: create, read, change, cancel, continue, wait.

Three kinds of task behave alike for their readers: one that an agent of ours works on, one that a peer works on for our
owner, and one that our owner's programs work on for a peer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from ....model import trace_context
from ....model.card import AgentCard
from ....model.documents import Change, Document, Drop, Post, Put
from ....model.errors import AlreadyAnswered, InvalidRequest, NotFound
from ....model.run import OWNER, Caller
from ....model.trace_context import Carrier
from ....security import scopes
from ..translate import parts
from ..translate import task_states as states
from ..wire import frames
from .peers import QUEUED, Peer
from .run_reports import Origin, status_event, task_frame
from .task_record import Task, document_id

if TYPE_CHECKING:
    from .node import Node


class Surface(msgspec.Struct, frozen=True):
    """The caller and its API: the owner on the control API, or a caller of the door."""

    caller: Caller = OWNER
    door: bool = False
    scope: str = ""

    @property
    def feed(self) -> str:
        return self.scope.removeprefix("caller:")

    @classmethod
    def of_caller(cls, caller: Caller, anonymous: bool) -> Surface:
        """Returns the surface of a caller. An anonymous caller is on this machine, needs no credential, and sees
        everything that the owner sees."""
        return cls(caller, True, "" if anonymous else f"caller:{caller.id}")


class TaskFilter(msgspec.Struct, kw_only=True):
    states: list[str] | None = None
    context_id: str | None = None
    peer_id: str | None = None
    created_after: str | None = None
    updated_after: str | None = None
    newest: bool = False
    after: str | None = None  # the id of the last one of the page before
    offset: int = 0
    limit: int = 20


class Tasking:
    def __init__(self, node: Node) -> None:
        self._node = node

    # -- creating -----------------------------------------------------------------------------------------

    async def create(self, body: Any, surface: Surface, trace: Carrier | None = None) -> tuple[Task, bool]:
        """Returns a task, and if it is new. A known id gives the existing task. `trace` is that of the request; else
        the metadata may have one."""
        task, given = self._described(body, surface)
        known = await self._node.journal.task(surface.scope, task.id)
        if known is not None:
            return known, False
        if surface.door:
            task, new = await self._for_agents(task, given, surface, trace)
        else:
            task, new = await self._for_peer(task, given, body.get("peer_id"))
        self._node.tasks_created += new
        return task, new

    def _described(self, body: Any, surface: Surface) -> tuple[Task, list[dict[str, Any]]]:
        """Returns a task as it is requested, and its input."""
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body is a JSON object, and this is {type(body).__name__}")
        given = parts.input_of(body)
        if given is None:
            raise InvalidRequest("the task has nothing to work on: give input.parts, parts or text", path="/input")
        free = body.get("payload")
        payload: dict[str, Any] = free if isinstance(free, dict) else {}
        role = body.get("role", payload.get("role"))
        named = body.get("task_id", body.get("id"))
        id_ = frames.new_id("task") if named is None else frames.check_id(named, "task_id")
        now = frames.now_z()
        task = Task(
            id_, "submitted", now, now, {"parts": given}, surface.scope,
            role="user" if role is None else frames.check_role(role), payload=body.get("payload"),
        )  # fmt: skip
        for name in ("context_id", "message_id", "skill_id", "title", "description"):
            value = body.get(name, payload.get(name))
            if value is not None:
                if not isinstance(value, str):
                    raise InvalidRequest(f"/{name} is a text, got {value!r:.80}", path=f"/{name}")
                setattr(task, name, value)
        metadata = body.get("metadata")
        if metadata is not None:
            if not isinstance(metadata, dict):
                raise InvalidRequest("/metadata is an object", path="/metadata")
            task.metadata = metadata
        return task, given

    def _asked(self, task: Task, surface: Surface) -> tuple[Origin, AgentCard]:
        node = self._node
        card = node.working.agent(task.skill_id)
        scopes.require(surface.caller, "run", card.key)
        origin = Origin(
            node.name, surface.scope, None, surface.feed, task.id, task.message_id, context_id=task.context_id
        )
        return origin, card

    async def _for_agents(
        self, task: Task, given: list[dict[str, Any]], surface: Surface, trace: Carrier | None
    ) -> tuple[Task, bool]:
        """Returns the task, and if it is new. A new one is `submitted`, however quick its agent is."""
        node = self._node
        origin, card = self._asked(task, surface)
        trace = trace or trace_context.read(task.metadata)
        begun = await node.working.begin(
            origin, card, given, surface.caller, task=task, trace=trace, metadata=task.metadata
        )  # fmt: skip
        if begun.stale:
            return await node.journal.task(task.scope, task.id) or task, False
        return task, True

    async def _for_peer(self, task: Task, given: list[dict[str, Any]], named: Any) -> tuple[Task, bool]:
        node, journal = self._node, self._node.journal
        peer = node.sending.choose(named)
        task.kind, task.peer = "delegated", peer.id
        free = task.payload if isinstance(task.payload, dict) else {}
        # Once. Where the creator's own payload holds content too, it is not taken for this: `parts` come first.
        once = {"parts": given} if parts.has_content(free) else {"input": {"parts": given}}
        payload: dict[str, Any] = {**free, "role": task.role, **once}
        for name in ("context_id", "skill_id", "title", "description", "message_id"):
            if getattr(task, name) is not None:
                payload[name] = getattr(task, name)
        frame = frames.delegate(node.name, task.id, payload, context_id=task.context_id)
        if task.message_id is None:
            task.message_id = frame["message_id"]
        data = msgspec.json.encode(frame)
        peer.check_size(len(data))
        post = Post(journal.box_out, frame["message_id"], data, 1, peer.id, QUEUED, "")
        kept = await journal.keep([journal.put_task(task), post, status_event(node, task, "submitted")])
        if kept.stale is not None:
            return await journal.task(task.scope, task.id) or task, False
        task.version = 1
        node.inbound.delegated[task.id] = task
        peer.outbox.posted(kept.numbers[1] or 0, frame)
        return task, True

    # -- looking ------------------------------------------------------------------------------------------

    async def get(self, id_: str, surface: Surface) -> Task:
        journal = self._node.journal
        found = await (journal.task(surface.scope, id_) if surface.door else journal.task_anywhere(id_))
        if found is None and surface.door and not surface.scope:
            found = await journal.task_anywhere(id_)
        if found is None:
            raise NotFound(f"there is no task {id_}")
        return found

    async def page(self, where: TaskFilter, surface: Surface) -> tuple[list[Task], int, bool]:
        """Returns a page of tasks, their total number, and if more follow. Oldest first, or newest."""
        node = self._node
        found: list[Task] = []
        total, passed, after = 0, where.after is None, None
        while True:
            page = await node.engine.documents.search(
                node.journal.tasks_space, states=where.states, after=after, limit=500, newest=where.newest,
                owner=surface.scope if surface.scope else None,
            )  # fmt: skip
            for document in page:
                if not self._sees(document, surface):
                    continue
                task = node.journal.read_task(document)
                if not _fits(task, where):
                    continue
                total += 1
                if passed:
                    found.append(task)
                elif task.id == where.after:
                    passed = True
            if len(page) < 500:
                break
            after = page[-1].id
        if not passed:
            raise InvalidRequest(f"/after: there is no task {where.after} to go on from", path="/after")
        rest = found[where.offset :]
        return rest[: where.limit], total, len(rest) > where.limit

    @staticmethod
    def _sees(document: Document, surface: Surface) -> bool:
        return document.owner == surface.scope if surface.scope else not document.owner.startswith("caller:")

    async def wait(self, task: Task, timeout: float) -> tuple[Task, bool]:
        """Waits until the task has ended or asks for input. Returns it, and if that came in time."""
        journal = self._node.journal
        feed = journal.feed(task.scope.removeprefix("caller:") if task.scope.startswith("caller:") else "")
        head = await feed.head()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                async with contextlib.aclosing(feed.follow(head, topic=task.id)) as news:  # type: ignore[type-var]
                    while True:
                        now = await journal.task(task.scope, task.id)
                        if now is None:
                            raise NotFound(f"there is no task {task.id}")
                        task = now
                        if task.status in states.TERMINAL or await self.asks(task):
                            return task, True
                        await anext(news)
        return task, False

    async def asks(self, task: Task) -> bool:
        """Tells if a task waits for input. It no longer does when its answer is on disk, although its run may not have
        read the answer yet."""
        if task.status != "input_required":
            return False
        if task.run is None or task.question is None:
            return True
        try:
            return (await self._node.engine.questions.get(task.question["id"])).state == "open"
        except NotFound:
            return True

    # -- changing -----------------------------------------------------------------------------------------

    async def update(self, task: Task, body: Any) -> Task:
        """Takes the state of a task from a program of the owner."""
        node, journal = self._node, self._node.journal
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body is a JSON object, and this is {type(body).__name__}")
        wanted = body.get("status", body.get("state"))
        artifact = body.get("artifact")
        if wanted is None and artifact is None:
            raise InvalidRequest("give a status or an artifact", path="/status")
        if task.kind == "run":
            raise InvalidRequest(f"an agent works on task {task.id}: it changes by itself; :cancel stops it")
        status = None if wanted is None else states.check_state(wanted)
        whole = None if artifact is None else _artifact(artifact)
        error = body.get("error")
        if error is not None and not isinstance(error, str):
            raise InvalidRequest("/error is a text", path="/error")

        def change(task: Task) -> list[Change]:
            told: list[Change] = []
            if status is not None and (status != task.status or whole is None):
                states.move(task.status, status)
            if whole is not None:
                if not states.takes_artifact(task.status):
                    raise states.IllegalState(
                        f"a {task.status} task takes no artifact; it is working before it has one", path="/artifact"
                    )
                task.put_artifact(whole)
                task.artifact = whole
                told.append(journal.event("artifact", {"task_id": task.id, "artifact": whole}, task=task.id))
            if status is not None and status != task.status:
                task.status = status
                task.error = error or "no reason was given" if status == "failed" else None
                told.append(status_event(node, task, status))
            task.updated_at = frames.now_z()
            return told + self._letters(task, task_frame(node.name, task, task.status, whole))

        return await self._change(task, change)

    def _letters(self, task: Task, frame: dict[str, Any]) -> list[Change]:
        peer = self._peer_of(task)
        if peer is None:
            return []
        journal = self._node.journal
        body = msgspec.json.encode(frame)
        peer.check_size(len(body))
        return [Post(journal.box_out, frame["message_id"], body, 1, peer.id, QUEUED, "")]

    def _peer_of(self, task: Task) -> Peer | None:
        return self._node.peers.with_id(task.peer)

    async def _change(self, task: Task, change: Any) -> Task:
        """Changes a task, and sends the letters among the changes."""
        made: list[Change] = []

        def noted(task: Task) -> list[Change]:
            nonlocal made
            made = change(task)
            return made

        changed, kept = await self._node.journal.change_task(task, noted)
        self._node.read.set()
        peer = self._peer_of(changed)
        for one, number in zip(made, kept.numbers[1:], strict=True):
            if isinstance(one, Post) and peer is not None:
                peer.outbox.posted(number or 0, msgspec.json.decode(one.body))
        if changed.status in states.TERMINAL:
            self._node.inbound.ended(changed)
        return changed

    async def cancel(self, task: Task, by: Caller, *, tell_peer: bool = True) -> Task:
        """Requests a cancel: the task is cancelling now, and canceled as soon as that is done."""
        node = self._node
        if task.status in ("cancelling", "canceled"):
            return task
        if task.status in states.TERMINAL:
            states.move(task.status, "cancelling")
        if task.kind == "run":
            await node.working.cancel(task, by)
            return msgspec.structs.replace(task, status="cancelling")

        def change(task: Task) -> list[Change]:
            if task.status in ("cancelling", "canceled"):
                return []
            states.move(task.status, "cancelling")
            task.status, task.updated_at = "cancelling", frames.now_z()
            told: list[Change] = [status_event(node, task, "cancelling")]
            if task.kind == "received":
                return told + self._letters(task, task_frame(node.name, task, "cancelling", None))
            if tell_peer:
                peer = self._peer_of(task)
                frame = (
                    frames.cancel(node.name, task.id)
                    if peer is not None and peer.ours
                    else frames.updated(node.name, task.id, "cancelling")
                )
                told += self._letters(task, frame)
            return told

        changed = await self._change(task, change)
        node.spawn(self._finish_cancel(changed))
        return changed

    async def start(self) -> None:
        """Continues the cancels that the process before this one did not finish."""
        journal = self._node.journal
        found = await self._node.engine.documents.search(journal.tasks_space, states=["cancelling"], limit=10_000)
        for task in map(journal.read_task, found):
            if task.kind != "run":
                self._node.spawn(self._finish_cancel(task))

    async def _finish_cancel(self, task: Task) -> None:
        """Runs the second phase of a cancel: a peer that stops the work itself has some time for it."""
        node = self._node
        peer = self._peer_of(task)
        if task.kind == "delegated" and peer is not None and peer.ours and peer.connected:
            _, ended = await self.wait(task, node.settings.cancel_grace)
            if ended:
                return

        def change(task: Task) -> list[Change]:
            if task.status in states.TERMINAL:
                return []
            task.status, task.updated_at = "canceled", frames.now_z()
            told: list[Change] = [status_event(node, task, "canceled")]
            if task.kind == "received" or (peer is not None and not peer.ours):
                told += self._letters(task, task_frame(node.name, task, "canceled", None))
            return told

        await self._change(task, change)

    async def continue_(self, task: Task, body: Any, by: Caller) -> Task:
        """Gives a task the input that it waits for."""
        node = self._node
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body is a JSON object, and this is {type(body).__name__}")
        given = parts.parts_of(body)
        if task.status != "input_required":
            late = await node.engine.questions.last_answer_text(task.run) if task.run is not None else ""
            raise states.IllegalState(f"task {task.id} is {task.status}: it waits for no input{late}", path="/status")
        named = frames.answered_in(body)
        if task.kind == "run":
            await node.working.answer(task, given, by, named)
            return msgspec.structs.replace(task, status="working", question=None)
        role = "user" if body.get("role") is None else frames.check_role(body["role"])
        about = None if named is None else {frames.QUESTION: named}
        frame = frames.message(node.name, role, given, task_id=task.id, context_id=task.context_id, metadata=about)

        def change(task: Task) -> list[Change]:
            if named is not None and task.question is not None and task.question.get("id") != named:
                raise AlreadyAnswered(f"task {task.id} no longer asks question {named[:100]}")
            states.move(task.status, "working")
            task.status, task.question, task.updated_at = "working", None, frames.now_z()
            return [status_event(node, task, "working"), *self._letters(task, frame)]

        return await self._change(task, change)

    async def delete(self, task: Task) -> None:
        if task.status not in states.TERMINAL:
            raise InvalidRequest(f"task {task.id} is {task.status}; cancel it first")
        journal, id_ = self._node.journal, document_id(task.scope, task.id)
        await journal.keep([Drop(journal.tasks_space, id_), Put(journal.deleted_space, id_, b"")])


def _artifact(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"/artifact is an object with parts, got {value!r:.80}", path="/artifact")
    if value.get("parts") is None and parts.has_content(value):
        return {**value, "parts": parts.parts_of(value)}
    parts.check_parts(value.get("parts"), "artifact/parts")
    return value


def _fits(task: Task, where: TaskFilter) -> bool:
    return (
        (where.context_id is None or task.context_id == where.context_id)
        and (where.peer_id is None or task.peer == where.peer_id)
        and (where.created_after is None or task.created_at > where.created_after)
        and (where.updated_after is None or task.updated_at > where.updated_after)
    )

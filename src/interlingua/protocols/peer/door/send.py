"""Messages of the door's callers to this node's agents: a message becomes a run, and its end becomes the reply.

A message is recorded together with the beginning of its run, under its id: a repeated message, also after a restart, is
the same message and gets the same answer. Each caller has ids of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ....model import trace_context
from ....model.card import AgentCard
from ....model.content import Message
from ....model.documents import Change, Letter, Post
from ....model.errors import InvalidRequest, NotFound
from ....model.trace_context import Carrier
from ....security import scopes
from ..node.agent_runs import Begun
from ..node.outbound import Draft, draft
from ..node.peers import RANKS
from ..node.run_reports import Origin, Outcome, answer_key, task_of_run
from ..node.task_record import Task
from ..node.tasks import Surface
from ..translate import parts, task_states
from ..translate.errors import TIMEOUT, Refusal
from ..wire import frames

if TYPE_CHECKING:
    from ..node.node import Node

_LOOK_EVERY = 2.0  # seconds: another process may tell of the run


class DoorSending:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def send(self, body: Any, surface: Surface, trace: Carrier | None = None) -> dict[str, Any]:
        """Returns the answer to `/message:send`. `trace` is that of the request; else the metadata may have one."""
        journal = self._node.journal
        draft = self._draft(body, surface)
        frame, key = draft.frame, _key(surface, draft.frame["message_id"])
        if draft.given_id and (before := await journal.letter(journal.box_asked, key)) is not None:
            return await self._again(before, draft, surface)
        if frame.get("task_id") is not None:
            return await self._to_task(draft, surface)
        return await self._begin(draft, surface, trace)

    async def _begin(self, draft: Draft, surface: Surface, trace: Carrier | None) -> dict[str, Any]:
        origin, card, task = self._described(draft, surface)
        begun = await self._node.working.begin(
            origin, card, draft.frame["parts"], surface.caller, task=task, **self._beside(draft, surface, trace)
        )  # fmt: skip
        return await self._begun(begun, draft, surface, task)

    def _draft(self, body: Any, surface: Surface) -> Draft:
        return draft(body, surface.caller.name or surface.caller.id, self._node.settings.max_msg_bytes)

    def _described(self, draft: Draft, surface: Surface) -> tuple[Origin, AgentCard, Task | None]:
        node, frame, id_ = self._node, draft.frame, draft.frame["message_id"]
        card = node.working.agent(frame.get("skill_id"))
        scopes.require(surface.caller, "run", card.key)
        task = self._task(draft, surface) if draft.create_task else None
        origin = Origin(
            node.name, surface.scope, None, surface.feed, task.id if task is not None else None, id_,
            id_ if draft.sync else None, frame.get("context_id"), quiet=draft.sync,
        )  # fmt: skip
        return origin, card, task

    def _beside(self, draft: Draft, surface: Surface, trace: Carrier | None) -> dict[str, Any]:
        metadata = draft.frame.get("metadata")
        also = partial(self._written_down, draft, surface)
        return {"trace": trace or trace_context.read(metadata), "metadata": metadata, "also": also}

    async def _begun(self, begun: Begun, draft: Draft, surface: Surface, task: Task | None) -> dict[str, Any]:
        node, id_ = self._node, draft.frame["message_id"]
        if begun.stale:  # the same message came twice at once
            first = await node.journal.letter(node.journal.box_asked, _key(surface, id_))
            if first is None:
                raise InvalidRequest(
                    f"/message_id: {id_} was used before, so long ago that its answer is no longer kept",
                    path="/message_id",
                )
            return await self._again(first, draft, surface)
        answer = self._answer(begun, draft, task)
        if not draft.sync:
            return answer
        if begun.outcome is not None:
            return {**answer, **_shown(begun.outcome)}
        task_id = task.id if task is not None else None
        return {**answer, **await self._outcome(begun.run, surface, id_, draft.timeout, task_id)}

    def _answer(self, begun: Begun, draft: Draft, task: Task | None) -> dict[str, Any]:
        if task is not None:
            self._node.tasks_created += 1
        shown = None if task is None else task.view()
        return {"ok": True, "message_id": draft.frame["message_id"], "server_seq": begun.numbers[0], "task": shown}

    def _written_down(self, draft: Draft, surface: Surface, run: str) -> list[Change]:
        """Returns the changes that store the letter and its event."""
        journal, frame = self._node.journal, draft.frame
        event: dict[str, Any] = {name: frame[name] for name in ("message_id", "role", "parts")}
        event |= {"from": frame["from"], "direction": "inbound"}
        event |= {name: frame[name] for name in ("task_id", "context_id") if frame.get(name) is not None}
        body = msgspec.json.encode({**frame, "_run": run})
        context = frame.get("context_id") or ""
        return [
            Post(
                journal.box_asked, _key(surface, frame["message_id"]), body, RANKS[frame["priority"]], context, "run",
                surface.scope,
            ),
            journal.event("message", event, task=frame.get("task_id") or "", caller=surface.feed),
        ]  # fmt: skip

    @staticmethod
    def _task(draft: Draft, surface: Surface) -> Task:
        now, frame = frames.now_z(), draft.frame
        # The same message makes the same task, however often it is tried.
        digest = hashlib.sha256(f"{surface.scope}|{frame['message_id']}".encode()).hexdigest()
        task = Task(
            f"task_{digest[:12]}", "submitted", now, now, {"parts": frame["parts"]}, surface.scope,
            skill_id=frame.get("skill_id"), role=frame["role"], context_id=frame.get("context_id"),
            message_id=frame["message_id"],
        )  # fmt: skip
        frame["task_id"] = task.id
        return task

    async def _again(self, letter: Letter, draft: Draft, surface: Surface) -> dict[str, Any]:
        """Returns the same answer for a repeated message."""
        frame = msgspec.json.decode(letter.body)
        id_, task = frame["message_id"], None
        answer: dict[str, Any] = {
            "ok": True, "message_id": id_, "server_seq": letter.number, "deduplicated": True, "delivered": True,
            "task": None,
        }  # fmt: skip
        task_id = frame.get("task_id")
        if task_id is not None and (task := await self._node.journal.task(surface.scope, task_id)) is not None:
            answer["task"] = task.view()
        if draft.sync:
            answer |= await self._outcome(frame["_run"], surface, id_, draft.timeout, task_id, fresh=False)
        return answer

    # -- waiting for the end ------------------------------------------------------------------------------

    async def _outcome(
        self, run: str, surface: Surface, id_: str, timeout: float, task: str | None, *, fresh: bool = True
    ) -> dict[str, Any]:
        """Returns the reply to a message, or the task that it has become and that asks for input."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        waiting = self._node.working.outcome(run)
        try:
            while True:
                answer = None if fresh else await self._told(run, surface, id_, task)
                if answer is not None:
                    return answer
                left = deadline - loop.time()
                if left <= 0:
                    raise await self._too_late(surface, id_, timeout)
                await asyncio.wait({waiting}, timeout=min(left, _LOOK_EVERY))
                if waiting.done():
                    return _shown(waiting.result())
                fresh = False
        finally:
            self._node.working.give_up(run, waiting)

    async def _too_late(self, surface: Surface, id_: str, timeout: float) -> Refusal:
        letter = await self._node.journal.letter(self._node.journal.box_asked, _key(surface, id_))
        seq = letter.number if letter is not None else None
        return Refusal(
            TIMEOUT, 408, f"there was no reply within {timeout:g} s; send the same message_id again to wait on",
            failed_message_id=id_, server_seq=seq,
        )  # fmt: skip

    async def _told(self, run: str, surface: Surface, id_: str, task_id: str | None) -> dict[str, Any] | None:
        journal = self._node.journal
        # The reply is recorded together with the end of the task: a lookup before it could miss it, and the task would
        # seem to have ended without a reply.
        task = await journal.task(surface.scope, task_id or task_of_run(run))
        reply = await journal.letter(journal.box_door, answer_key(surface.scope, id_))
        if reply is not None and task is not None:
            task = await journal.task(surface.scope, task.id) or task
        shown = {} if task is None else {"task": task.view()}
        if reply is not None:
            return {"reply": msgspec.json.decode(reply.body), **shown}
        if task is not None and (task.status in task_states.TERMINAL or await self._node.tasking.asks(task)):
            return {"reply": None, **shown}
        return None

    async def wait_reply(self, id_: str, surface: Surface, timeout: float) -> dict[str, Any]:
        """Waits for the reply to an earlier message."""
        journal = self._node.journal
        letter = await journal.letter(journal.box_asked, _key(surface, id_))
        if letter is None:
            raise NotFound(f"no message {id_[:100]} was sent")
        frame = msgspec.json.decode(letter.body)
        return await self._outcome(frame["_run"], surface, id_, timeout, frame.get("task_id"), fresh=False)

    # -- to a task ----------------------------------------------------------------------------------------

    async def _to_task(self, draft: Draft, surface: Surface) -> dict[str, Any]:
        """Sends a message to a task: the answer to its question, or a message for its agent."""
        node, frame = self._node, draft.frame
        try:
            task = await node.tasking.get(frame["task_id"], surface)
        except NotFound as error:
            raise InvalidRequest(f"/task_id: {error.message}", path="/task_id") from None
        if task.run is None:
            raise InvalidRequest(f"/task_id: no agent of this node works on {task.id}", path="/task_id")
        if task.status in task_states.TERMINAL:
            raise task_states.IllegalState(f"/task_id: task {task.id} is {task.status}", path="/task_id")
        waiting = node.working.outcome(task.run)
        try:
            question_id = frames.answered_in(frame)
            if task.status == "input_required" or question_id is not None:
                scopes.require(surface.caller, "answer")  # by whatever words it is said
                await node.working.answer(task, frame["parts"], surface.caller, question_id)
            else:
                content = [parts.to_model(part) for part in frame["parts"]]
                await node.engine.runs.send(task.run, Message("user", content, id=frame["message_id"]))
            kept = await node.journal.keep(self._written_down(draft, surface, task.run))
            number = kept.numbers[0] if kept.stale is None else kept.letter.number if kept.letter is not None else None
            if draft.sync:
                await asyncio.wait({waiting}, timeout=draft.timeout)
                if not waiting.done():
                    raise await self._too_late(surface, frame["message_id"], draft.timeout)
        finally:
            node.working.give_up(task.run, waiting)
        now = await node.tasking.get(task.id, surface)
        return {"ok": True, "message_id": frame["message_id"], "server_seq": number, "task": now.view()}


def _shown(outcome: Outcome) -> dict[str, Any]:
    return {"reply": outcome.reply, **({} if outcome.task is None else {"task": outcome.task.view()})}


def _key(surface: Surface, message_id: str) -> str:
    return f"{surface.scope}|{message_id}"

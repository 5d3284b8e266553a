"""Plays the lives of tasks, each once: one that is completed, one that fails, one that is asked for input, some that
are cancelled.

Some servers work on tasks themselves (an agent of theirs does), others leave that to programs that report over `PUT
/tasks/{id}` how it goes. Both are played: servers of the first kind need an agent for each role, for the second kind
the checker is that program.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Literal

from interlingua.transports.raw_client import Answer

from ..answers import WORD, answer_to
from ..base import WANTED, Broken, NotApplicable, Role, applies, shown
from ..remembering import once
from .driver import Node
from .feed import Event, Feed
from .shapes import absent, segment, text, told
from .wires import new_id

TERMINAL = ("completed", "failed", "canceled")
STATES = ("submitted", "working", "completed", "failed", "input_required", "cancelling", "canceled")
RESULT = {"parts": [text("the whole result")]}

_POLL = 0.02


def task_of(answer: Answer) -> dict[str, Any]:
    """The task of an answer: bare, or in the member task."""
    body = answer.json()
    inner = body.get("task") if isinstance(body, dict) else None
    found = inner if isinstance(inner, dict) else body
    if not isinstance(found, dict):
        raise Broken(f"an answer holds no task: {told(answer)}")
    return found


class Story:
    """The life of one task: the requests about it with their answers, and its events."""

    def __init__(self, node: Node, created: Answer, body: dict[str, Any], feed: Feed | None) -> None:
        self.node = node
        self.created = created
        self.body = body
        self.feed = feed
        self.view = task_of(created)
        self.id = str(self.view.get("id"))
        self.views = [self.view]  # the state of the task at each look
        self.answers: dict[str, Answer] = {}  # by what was asked
        self.trouble = ""  # why it got no further

    @property
    def path(self) -> str:
        return f"/tasks/{segment(self.id)}"

    @property
    def events(self) -> list[Event]:
        return [] if self.feed is None else [e for e in self.feed.events if e.body.get("task_id") == self.id]

    @property
    def statuses(self) -> list[Any]:
        """The statuses of the task, first those in the answers to requests, then those of every look at it."""
        told = [body.get("status") for answer in self.answers.values() if isinstance(body := _read(answer), dict)]
        return [*(status for status in told if status in STATES), *(view.get("status") for view in self.views)]

    @property
    def states(self) -> list[Any]:
        """The states that came as events, in order."""
        return [event.body.get("state") for event in self.events if event.body.get("type") == "status"]

    async def look(self) -> dict[str, Any]:
        answer = await self.node.ask("GET", self.path)
        applies(answer.status == 200, f"GET {self.path} was answered with {told(answer)}")
        self.views.append(task_of(answer))
        return self.views[-1]

    async def put(self, name: str, **body: Any) -> bool:
        """Reports progress of the task. Returns whether the node took it; if not, the story ends."""
        taken = self._noted(name, f"PUT {self.path} {shown(body)}", await self.node.ask("PUT", self.path, body))
        if taken:
            await self.look()
        return taken

    async def act(self, name: str, verb: str, body: Any = None) -> bool:
        """Sends an action such as `:cancel`."""
        answer = await self.node.ask("POST", f"{self.path}{verb}", body if body is not None else {})
        return self._noted(name, f"POST {self.path}{verb}", answer)

    def _noted(self, name: str, what: str, answer: Answer) -> bool:
        self.answers[name] = answer
        taken = answer.status == 200
        if not taken and not self.trouble:
            self.trouble = f"{what} was answered with {told(answer)}"
        return taken

    async def reach(self, *states: str) -> bool:
        """Waits for the task to come to one of these states, and for its event. Returns whether it does in time."""
        try:
            async with asyncio.timeout(self.node.subject.patience):
                while (status := (await self.look()).get("status")) not in states:
                    if status in TERMINAL:
                        break
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            pass
        status = self.views[-1].get("status")
        if self.feed is not None and status in states:
            await self.feed.until(lambda event: _tells(event, self.id, status))
        if status not in states and not self.trouble:
            self.trouble = f"the task is {status} and not {' or '.join(states)}: {shown(self.views[-1])}"
        return status in states

    async def settled(self) -> None:
        """The event of its end has come, if it comes."""
        if self.feed is not None:
            await self.feed.until(lambda e: any(_tells(e, self.id, state) for state in TERMINAL))

    def need(self, *states: str) -> None:
        """A check that stands on the task having been in some states does not apply where it never was."""
        seen = {str(view.get("status")) for view in self.views} | set(map(str, self.states))
        missing = [state for state in states if state not in seen]
        applies(not missing, f"no task was seen {' and '.join(missing)}: {self.trouble or 'it went another way'}")


def _read(answer: Answer) -> Any:
    try:
        return answer.json()
    except Broken:
        return None


def _tells(event: Event, id_: str, state: Any) -> bool:
    return event.body.get("task_id") == id_ and event.body.get("state") == state


def _answering(question: Any) -> list[dict[str, Any]]:
    """The parts of an answer to a question, which may tell what it takes."""
    answer = answer_to(question.get("answer_schema") if isinstance(question, dict) else None)
    return [text(WORD) if answer == WORD else {"type": "data", "content": {"answer": answer}}]


class Tasks:
    """Holds all stories of a node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @classmethod
    def of(cls, node: Node) -> Tasks:
        found = node.__dict__.get("_tasks")
        if found is None:
            found = node.__dict__["_tasks"] = cls(node)
        assert isinstance(found, Tasks)
        return found

    async def ask(self, role: str | None = None, **more: Any) -> tuple[dict[str, Any], Answer]:
        """Asks for a task, for the agent of a role if the node has agents."""
        given = self.node.subject.roles.input if role in (None, self.node.subject.roles.agent) else None
        parts = [text("hello there")]
        if given is not None:
            parts = [text(given) if isinstance(given, str) else {"type": "data", "content": given}]
        body: dict[str, Any] = {
            "role": "user", "input": {"parts": parts}, "parts": parts, "message_id": new_id(),
            "context_id": new_id("ctx"), **more,
        }  # fmt: skip
        agent = role or self.node.subject.roles.agent
        if agent is not None:
            body["skill_id"] = agent
        return body, await self.node.ask("POST", "/tasks", body)

    async def create(self, role: str | None = None, **more: Any) -> Story:
        await self.node.wire_if_any()  # a peer that works on tasks of this node is there then
        feed = await self.node.feed_if_any()
        body, answer = await self.ask(role, **more)
        applies(answer.status in (200, 201), f"no task can be created: {told(answer)}")
        applies(isinstance(task_of(answer).get("id"), str), f"the new task has no id: {told(answer)}")
        return Story(self.node, answer, body, feed)

    @once
    async def kind(self) -> Literal["itself", "driven"]:
        """Returns what drives a task: the node itself, or requests that set its status."""
        story = await self.create()
        try:
            async with asyncio.timeout(self.node.subject.quiet):
                while (await story.look()).get("status") == "submitted":  # noqa: ASYNC110
                    await asyncio.sleep(_POLL)  # its stream may be what is broken
        except TimeoutError:
            if await story.put("working", status="working"):
                return "driven"
            put = story.answers["working"]
            if not await story.reach("working", *TERMINAL, "input_required"):
                raise NotApplicable(
                    f"nobody works on tasks of this node, and PUT {story.path} was answered with {told(put)}"
                ) from None
        return "itself"

    def _role(self, name: Role) -> str:
        role = getattr(self.node.subject.roles, name)
        applies(
            role is not None, f"this node works on tasks itself, and no agent of it is named for this ({WANTED[name]})"
        )
        return str(role)

    async def lasting(self) -> Story:
        """A new task that does not end by itself: whether one that does is still there is a matter of luck."""
        kind = "driven"
        with contextlib.suppress(NotApplicable):  # nothing drives the task
            kind = await self.kind()
        return await self.create(self._role("slow") if kind == "itself" else None)

    # -- the stories --------------------------------------------------------------------------------------

    @once
    async def completed(self) -> Story:
        """Plays a task that is completed, with a message to it and one from it, an artifact on the way, and a
        result."""
        if await self.kind() == "itself":
            story = await self.create()
            await story.reach("completed")
            await story.settled()
            return story
        story = await self.create()
        await self._message(story, "user")
        if not await story.put("working", status="working"):
            return story
        await self._message(story, "agent")
        if not await story.put("artifact", artifact={"parts": [text("a part of it")]}):
            story.trouble = ""  # an artifact alone need not be taken
        if await story.put("completed", status="completed", artifact=RESULT):
            await story.reach("completed")
            await story.settled()
        return story

    async def _message(self, story: Story, role: str) -> None:
        """A message that belongs to the task."""
        if await self.node.wire_if_any() is not None:
            sent = await self.node.say({"role": role, "parts": [text("{mark}")], "task_id": story.id})
            story.answers[f"message of the {role}"] = sent.answer
            if story.feed is not None and sent.answer.status == 200:
                await story.feed.until(lambda e: e.body.get("type") == "message" and e.body.get("task_id") == story.id)

    @once
    async def failed(self) -> Story:
        if await self.kind() == "itself":
            story = await self.create(self._role("failing"))
            await story.reach("failed")
        else:
            story = await self._working()
            if story.trouble or not await story.put("failed", status="failed", error="it cannot be done"):
                return story
            await story.reach("failed")
        await story.settled()
        return story

    async def _working(self) -> Story:
        story = await self.create()
        await story.put("working", status="working")
        return story

    @once
    async def asked(self) -> Story:
        """Plays a task that is asked for input, and continues it. If the checker drives it, it does so twice, by each
        spelling of the path."""
        said = {"role": "user", "parts": [text(WORD)]}
        if await self.kind() == "itself":
            story = await self.create(self._role("asking"))
            if not await story.reach("input_required"):
                return story
            said["parts"] = _answering(story.views[-1].get("question"))
            if not await story.act("continue", ":continue", said):
                return story
            await story.reach("completed", "failed")
            await story.settled()
            return story
        story = await self._working()
        if story.trouble or not await story.put("input_required", status="input_required"):
            return story
        if not await story.reach("input_required") or not await story.act("continue", ":continue", said):
            return story
        if not await story.reach("working"):
            return story
        if await story.put("input_required again", status="input_required"):
            await story.reach("input_required")
            if not await story.act("continue by slash", "/continue", said):
                if not absent(story.answers["continue by slash"]):
                    return story
                story.trouble = ""
                await story.act("continue again", ":continue", said)
            await story.reach("working")
        if await story.put("completed", status="completed", artifact=RESULT):
            await story.reach("completed")
            await story.settled()
        return story

    @once
    async def cancelled(self) -> Story:
        """Plays a task that is cancelled while it works; a second cancel follows right then, and a third when it is
        cancelled."""
        if await self.kind() == "itself":
            story = await self.create(self._role("slow"))
            await story.reach("working")
        else:
            story = await self._working()
        return await self._cancel(story)

    @once
    async def cancelled_early(self) -> Story:
        """Plays a task that is cancelled before any agent takes it up."""
        applies(await self.kind() == "driven", "this node takes up its tasks at once")
        return await self._cancel(await self.create())

    @once
    async def cancelled_asked(self) -> Story:
        """Plays a task that is cancelled while it waits for input."""
        if await self.kind() == "itself":
            story = await self.create(self._role("asking"))
        else:
            story = await self._working()
            await story.put("input_required", status="input_required")
        await story.reach("input_required")
        return await self._cancel(story)

    async def _cancel(self, story: Story) -> Story:
        if story.trouble or not await story.act("cancel", ":cancel"):
            return story
        await story.act("cancel at once again", ":cancel")
        if await story.reach("canceled"):
            await story.settled()
            await story.act("cancel when canceled", ":cancel")
        return story

    @once
    async def disturbed(self) -> dict[str, tuple[Story, Answer, dict[str, Any]]]:
        """Tells ended tasks to go on. Returns the answers, and the state of each task a moment later."""
        found: dict[str, tuple[Story, Answer, dict[str, Any]]] = {}
        tried = []
        for state in TERMINAL:
            try:
                story = await getattr(self, {"canceled": "cancelled"}.get(state, state))()
            except NotApplicable:
                continue
            if story.views[-1].get("status") == state:
                tried.append((state, story, await self.node.ask("PUT", story.path, {"status": "working"})))
        await asyncio.sleep(self.node.subject.quiet)
        for state, story, answer in tried:
            later = await self.node.ask("GET", story.path)  # and not as a part of its story, which had ended
            applies(later.status == 200, f"GET {story.path} was answered with {told(later)}")
            found[state] = (story, answer, task_of(later))
        return found

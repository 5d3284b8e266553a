"""Contexts: the state and configuration of an agent while it runs, and everything it may do.

`Context` is for async agents; `SyncContext` is the same with blocking methods, for agents that are plain functions.
"""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ...model.content import Artifact, Message, Part, parts_from
from ...model.events import Diff, Location, Plan, PlanEntry, Thought, ToolCall, ToolKind, ToolStatus, Warned
from ...model.run import Caller
from ...model.team.authority import Authority, Scope
from ...model.team.oversight import Exchange, Proposal
from ...model.team.tools import ToolSpec
from .suspension import SUSPENDING

if TYPE_CHECKING:
    from ..agents.agent import Agent
    from ..agents.question_types import Question
    from .handler_run import HandlerRun, OnInquiry, OnMessage
    from .workspace import Editor

S = TypeVar("S")
C = TypeVar("C")
A = TypeVar("A")
T = TypeVar("T")


class _Common(Generic[S, C]):
    """The members of both contexts: everything that neither waits nor blocks."""

    state: S  # of the thread; kept when the run succeeds
    config: C

    def __init__(self, run: HandlerRun, state: S, config: C) -> None:
        self._run = run
        self.state = state
        self.config = config

    @property
    def run_id(self) -> str:
        return self._run.data.row.id

    @property
    def thread_id(self) -> str | None:
        return self._run.thread.id

    @property
    def caller(self) -> Caller:
        return self._run.data.request.caller

    @property
    def metadata(self) -> dict[str, Any]:
        return self._run.data.request.metadata

    @property
    def messages(self) -> list[Message]:
        """The messages of this request, with all their parts. Earlier turns are in `history`."""
        return self._run.data.request.messages

    @property
    def history(self) -> list[Message]:
        """The messages of this thread before this run."""
        return self._run.thread.history

    @property
    def authority(self) -> Authority | None:
        """The authority of this run, where it is one of a team's: what it may do."""
        return self._run.data.authority

    @property
    def me(self) -> str | None:
        """The name that others call this run by, where it is one of a team's: analyst, or analyst#2."""
        return self._run.data.authority.me if self._run.data.authority is not None else None

    @property
    def task(self) -> str | None:
        """The name of its task, where it is one of a team's: T1, or T1.2 for a part of that."""
        return (self._run.data.authority.task or None) if self._run.data.authority is not None else None

    @property
    def delegator(self) -> str | None:
        """The agent that handed the task over, where the run is one of a team's."""
        return (self._run.data.authority.delegator or None) if self._run.data.authority is not None else None

    @property
    def review(self) -> Proposal | None:
        """The proposal that this run has to judge, where it is an overseer's. Its output is a verdict then."""
        assignment = self._run.data.request.assignment
        return assignment.review if assignment is not None else None

    @property
    def inquiries(self) -> list[Exchange]:
        """The overseer's inquiries about earlier results of this task: it is worked on again."""
        assignment = self._run.data.request.assignment
        return assignment.earlier if assignment is not None else []

    @property
    def editor(self) -> Editor | None:
        """The editor of the caller: files as it has them, terminals. None where nobody sits in one now."""
        return self._run.editor

    def now(self) -> datetime.datetime:
        """The time, the same again when the agent is replayed."""
        stamp = self._made_once("now", lambda: _moment(self._run.data.clock.now()).isoformat())
        return datetime.datetime.fromisoformat(stamp)

    def uuid(self) -> str:
        """A new id, the same again when the agent is replayed."""
        value: str = self._made_once("uuid", lambda: str(uuid.uuid4()))
        return value

    def random(self) -> float:
        """A number in [0, 1), the same again when the agent is replayed."""
        value: float = self._made_once("random", random.random)
        return value

    def _made_once(self, kind: str, make: Callable[[], Any]) -> Any:
        run = self._run
        return run.use.at_once(kind, lambda: run.steps.made_once(kind, make), records=False)

    def patched(self, name: str) -> bool:
        """Tell whether to execute new code: True in runs that come here for the first time, False in runs that have
        passed this with the old code. A run gets the same answer each time."""
        run = self._run
        return run.use.at_once("patched", lambda: run.steps.patched(name))

    def deprecate_patch(self, name: str) -> None:
        """Say that the old code of `patched(name)` is gone. Runs that began with the new code go on."""
        run = self._run
        run.use.at_once("deprecate_patch", lambda: run.steps.deprecate_patch(name))

    def usage(self, **counts: Any) -> None:
        """Say what the run has used (tokens, cost …). Numbers add up."""
        self._run.output.add_usage(counts)

    @property
    def parking(self) -> bool:
        """True when this handler is only suspended: its run goes on later, and replays it. For code that cleans up."""
        return self._run.waits.leaving in SUSPENDING

    @property
    def cancelled(self) -> bool:
        """True when somebody wants this run to stop."""
        return self._run.data.cancelling

    async def _call(
        self, agent: Agent[..., Any] | str, input_: Any, inputs: dict[str, Any], version: str | None, config: Any,
        thread: str | None, timeout: float | None, key: str | None,
    ) -> Any:  # fmt: skip
        """Call another agent; one of the run's team, or of a team that the run is not in, through the gate."""
        run = self._run
        run.waits.check_open()
        name = agent if isinstance(agent, str) else agent.card.name
        if await run.is_member(name):
            return await run.member.hand_over(name, input_, inputs, config, thread, timeout, key)
        return await run.children.call(agent, input_, inputs, version, config, thread, timeout, key)


def _tool_call(
    id_: str | None, title: str | None, tool: str | None, kind: ToolKind | None, status: ToolStatus | None,
    input_: Any, output: Any, content: list[Part] | None, diffs: list[Diff] | None, locations: list[Location] | None,
) -> ToolCall:  # fmt: skip
    return ToolCall(id_ or "", title, tool, kind, status, input_, output, content, diffs, locations)


class Context(_Common[S, C]):
    """The context of an async agent."""

    async def ask(
        self, question: Question[A], *, deadline: float | None = None, attachments: Iterable[Part | str] = (),
        key: str | None = None, remind: Iterable[float] | None = None,
    ) -> A:  # fmt: skip
        """Ask, and wait for the answer: a minute or a month, over any number of restarts.

        deadline: seconds after which nobody need answer any more; `il.QuestionExpired` is raised then. attachments: in
        a team, what the user sees beside it in the conversation. remind: seconds after which somebody is reminded that
        it waits. Without a deadline or reminders of its own it has those of the settings (`question_deadline`,
        `remind_after`); `math.inf` is no deadline, and `()` no reminder.
        """
        asking = self._run.questions.ask(question, deadline, key, attachments=list(attachments), remind=remind)
        answer: A = await self._run.use.operate("ask", asking)
        return answer

    @overload
    async def step(
        self, name: str, fn: Callable[..., Awaitable[T]], /, *args: Any, key: str | None = None, retries: int = 0,
        backoff: float = 1.0, timeout: float | None = None, **kwargs: Any,
    ) -> T: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, fn: Callable[..., AsyncIterator[T]], /, *args: Any, key: str | None = None, retries: int = 0,
        backoff: float = 1.0, timeout: float | None = None, **kwargs: Any,
    ) -> Any: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, fn: Callable[..., T], /, *args: Any, key: str | None = None, retries: int = 0,
        backoff: float = 1.0, timeout: float | None = None, **kwargs: Any,
    ) -> T: ...  # fmt: skip
    async def step(
        self, name: str, fn: Callable[..., Any], /, *args: Any, key: str | None = None, retries: int = 0,
        backoff: float = 1.0, timeout: float | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Do something once. Its result is recorded, and returned from history when the agent is replayed.

        The result comes back as JSON would bring it, typed by the function's annotation. A generator's yields extend
        the output. retries: how many more times to try when it raises; the last failure is recorded as `StepFailed`.
        """
        return await self._run.use.operate(
            "step", self._run.steps.step(name, fn, args, kwargs, key, retries, backoff, timeout)
        )

    async def call(
        self,
        agent: Agent[..., Any] | str,
        input: dict[str, Any] | str | None = None,  # noqa: A002 - the plainest word for it
        *,
        version: str | None = None,
        config: Any = None,
        thread: str | None = None,
        timeout: float | None = None,
        key: str | None = None,
        **inputs: Any,
    ) -> Any:
        """Run another agent as a child, and give back its output. Its questions show on this run too."""
        calling = self._call(agent, input, inputs, version, config, thread, timeout, key)
        return await self._run.use.operate("call", calling)

    async def delegate(
        self, agent: str, context_summary: str, *, attachments: Iterable[Part | str] = (), rule: str | None = None,
        reason: str | None = None, scope: Scope | None = None, output: Any = None,
        on_inquiry: OnInquiry | None = None, on_message: OnMessage | None = None, timeout: float | None = None,
        key: str | None = None, **inputs: Any,
    ) -> Any:  # fmt: skip
        """Hand a task to another agent of the team, and wait for its output.

        The summary becomes the text of its input; summary and attachments are its `messages`. rule, reason: why this
        agent, for the record. scope: what it and those below it may not do. on_message: answers what it sends.

        To one's own overseer this is proposing: `output` (the summary, where there is none) with what was shown so
        far, attachments included. What comes back is the verdict. on_inquiry: answers what the overseer asks; without
        it, or where it gives None, that comes back.
        """
        delegating = self._run.member.delegate(
            agent, context_summary, list(attachments), rule, reason, scope, inputs, output, on_inquiry, on_message,
            timeout, key,
        )  # fmt: skip
        return await self._run.use.operate("delegate", delegating)

    async def tool(
        self, server: str, tool: str, arguments: dict[str, Any] | None = None, *, timeout: float | None = None,
        key: str | None = None,
    ) -> Any:  # fmt: skip
        """Call a tool that the team's manifest binds to this agent, once: its result is recorded.

        Raises Denied where it may not be called, and ToolFailed, Unavailable or RunTimedOut where that went wrong.
        """
        return await self._run.use.operate("tool", self._run.member.call_tool(server, tool, arguments, key, timeout))

    async def tools(self) -> list[ToolSpec]:
        """The tools that this run may call, as their servers describe them."""
        return await self._run.use.operate("tools", self._run.member.list_tools())

    async def send(
        self, recipient: str, content: str, *, attachments: Iterable[Part | str] = (), key: str | None = None
    ) -> None:
        """Tell another participant of the task something: an agent by its id, or `user`."""
        await self._run.use.operate("send", self._run.member.send(recipient, content, list(attachments), key))

    async def receive(self, *, sender: str | None = None, timeout: float | None = None) -> Message:
        """The next message that somebody sent into this run. Raises TimeoutError after `timeout` seconds.

        sender: only from this participant; what others sent is still there afterwards.
        """
        return await self._run.use.operate("receive", self._run.mailbox.receive(timeout, sender))

    async def sleep(self, seconds: float, *, key: str | None = None) -> None:
        """Wait. A long sleep holds no memory and survives restarts."""
        await self._run.use.operate("sleep", self._run.steps.sleep(seconds, key))

    async def emit(self, delta: dict[str, Any] | str) -> None:
        """Extend the output, as a generator's yield does."""
        await self._run.use.operate("emit", self._run.output.extend(delta), records=False)

    async def message(self, content: str | Part | Sequence[Part | str], **metadata: Any) -> None:
        """Say something that is not part of the output."""
        saying = self._run.output.say(Message("agent", parts_from(content), metadata=metadata))
        await self._run.use.operate("message", saying, records=False)

    async def thought(self, text: str, *, id: str | None = None) -> None:  # noqa: A002
        await self._run.use.operate("thought", self._run.output.show(Thought(text, id)), records=False)

    async def plan(self, entries: Iterable[PlanEntry | str]) -> None:
        """The whole plan as it is now."""
        showing = self._run.output.show(Plan([PlanEntry(e) if isinstance(e, str) else e for e in entries]))
        await self._run.use.operate("plan", showing, records=False)

    async def tool_call(
        self, id: str, *, title: str | None = None, tool: str | None = None,  # noqa: A002
        kind: ToolKind | None = None, status: ToolStatus | None = None, input: Any = None,  # noqa: A002
        output: Any = None, content: list[Part] | None = None, diffs: list[Diff] | None = None,
        locations: list[Location] | None = None,
    ) -> None:  # fmt: skip
        """Show a tool call, or news of one under the same id: what is given replaces what was said before."""
        showing = self._run.output.show(
            _tool_call(id, title, tool, kind, status, input, output, content, diffs, locations)
        )
        await self._run.use.operate("tool_call", showing, records=False)

    async def artifact(
        self, content: str | Part | Sequence[Part | str], *, name: str | None = None, id: str | None = None,  # noqa: A002
        append: bool = False, last: bool = True, description: str | None = None, **metadata: Any,
    ) -> None:  # fmt: skip
        """Give a result with a name. Chunks of one artifact share its id."""
        adding = self._run.output.add_artifact(
            Artifact(id or name or "", parts_from(content), name, description, append, last, metadata)
        )
        await self._run.use.operate("artifact", adding, records=False)

    async def warn(self, message: str, details: Any = None) -> None:
        """Something odd that does not stop the run."""
        await self._run.use.operate("warn", self._run.output.show(Warned(message, details)), records=False)


class SyncContext(_Common[S, C]):
    """The context of an agent that is a plain function. Every method blocks its thread, never the others."""

    def ask(
        self, question: Question[A], *, deadline: float | None = None, attachments: Iterable[Part | str] = (),
        key: str | None = None, remind: Iterable[float] | None = None,
    ) -> A:  # fmt: skip
        asking = self._run.questions.ask(question, deadline, key, attachments=list(attachments), remind=remind)
        answer: A = self._run.use.operate_from_thread("ask", asking)
        return answer

    def step(
        self, name: str, fn: Callable[..., T], /, *args: Any, key: str | None = None, retries: int = 0,
        backoff: float = 1.0, timeout: float | None = None, **kwargs: Any,
    ) -> T:  # fmt: skip
        result: T = self._run.use.operate_from_thread(
            "step", self._run.steps.step(name, fn, args, kwargs, key, retries, backoff, timeout)
        )
        return result

    def call(
        self,
        agent: Agent[..., Any] | str,
        input: dict[str, Any] | str | None = None,  # noqa: A002
        *,
        version: str | None = None,
        config: Any = None,
        thread: str | None = None,
        timeout: float | None = None,
        key: str | None = None,
        **inputs: Any,
    ) -> Any:
        return self._run.use.operate_from_thread(
            "call", self._call(agent, input, inputs, version, config, thread, timeout, key)
        )

    def delegate(
        self, agent: str, context_summary: str, *, attachments: Iterable[Part | str] = (), rule: str | None = None,
        reason: str | None = None, scope: Scope | None = None, output: Any = None, timeout: float | None = None,
        key: str | None = None, **inputs: Any,
    ) -> Any:  # fmt: skip
        return self._run.use.operate_from_thread(
            "delegate",
            self._run.member.delegate(
                agent, context_summary, list(attachments), rule, reason, scope, inputs, output, None, None, timeout, key
            ),
        )

    def tool(
        self, server: str, tool: str, arguments: dict[str, Any] | None = None, *, timeout: float | None = None,
        key: str | None = None,
    ) -> Any:  # fmt: skip
        return self._run.use.operate_from_thread(
            "tool", self._run.member.call_tool(server, tool, arguments, key, timeout)
        )

    def tools(self) -> list[ToolSpec]:
        return self._run.use.operate_from_thread("tools", self._run.member.list_tools())

    def send(
        self, recipient: str, content: str, *, attachments: Iterable[Part | str] = (), key: str | None = None
    ) -> None:
        self._run.use.operate_from_thread("send", self._run.member.send(recipient, content, list(attachments), key))

    def receive(self, *, sender: str | None = None, timeout: float | None = None) -> Message:
        return self._run.use.operate_from_thread("receive", self._run.mailbox.receive(timeout, sender))

    def sleep(self, seconds: float, *, key: str | None = None) -> None:
        self._run.use.operate_from_thread("sleep", self._run.steps.sleep(seconds, key))

    def emit(self, delta: dict[str, Any] | str) -> None:
        self._run.use.operate_from_thread("emit", self._run.output.extend(delta), records=False)

    def message(self, content: str | Part | Sequence[Part | str], **metadata: Any) -> None:
        self._run.use.operate_from_thread(
            "message", self._run.output.say(Message("agent", parts_from(content), metadata=metadata)), records=False
        )

    def thought(self, text: str, *, id: str | None = None) -> None:  # noqa: A002
        self._run.use.operate_from_thread("thought", self._run.output.show(Thought(text, id)), records=False)

    def plan(self, entries: Iterable[PlanEntry | str]) -> None:
        self._run.use.operate_from_thread(
            "plan",
            self._run.output.show(Plan([PlanEntry(e) if isinstance(e, str) else e for e in entries])),
            records=False,
        )

    def tool_call(
        self, id: str, *, title: str | None = None, tool: str | None = None,  # noqa: A002
        kind: ToolKind | None = None, status: ToolStatus | None = None, input: Any = None,  # noqa: A002
        output: Any = None, content: list[Part] | None = None, diffs: list[Diff] | None = None,
        locations: list[Location] | None = None,
    ) -> None:  # fmt: skip
        self._run.use.operate_from_thread(
            "tool_call",
            self._run.output.show(_tool_call(id, title, tool, kind, status, input, output, content, diffs, locations)),
            records=False,
        )

    def artifact(
        self, content: str | Part | Sequence[Part | str], *, name: str | None = None, id: str | None = None,  # noqa: A002
        append: bool = False, last: bool = True, description: str | None = None, **metadata: Any,
    ) -> None:  # fmt: skip
        self._run.use.operate_from_thread(
            "artifact",
            self._run.output.add_artifact(
                Artifact(id or name or "", parts_from(content), name, description, append, last, metadata)
            ),
            records=False,
        )

    def warn(self, message: str, details: Any = None) -> None:
        self._run.use.operate_from_thread("warn", self._run.output.show(Warned(message, details)), records=False)


def _moment(microseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=microseconds)

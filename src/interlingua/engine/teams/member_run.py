"""The parts of a run that works for a team. Most runs have none of them."""

from __future__ import annotations

from typing import Any

from ...model import json_values
from ...model.content import Message, Part, TextPart
from ...model.errors import InvalidInput, InvalidRequest
from ...model.events import ChildEnded
from ...model.team.authority import Scope
from ...model.team.tools import ToolSpec
from ..handler.calls import Calls
from ..handler.child_runs import ChildRuns, as_text, child_result
from ..handler.handler_run import OnInquiry, OnMessage
from ..handler.mailbox import Mailbox
from ..handler.output import Output
from ..handler.questions import Questions
from ..handler.run_data import RunData
from ..handler.steps import Steps
from ..handler.thread_state import ThreadState
from ..handler.waits import Waits
from .conversation import Conversation, sound
from .delegation import Delegation, Handover, Task
from .error_policy import ErrorPolicy
from .ports import TeamPorts
from .review_requests import ReviewRequests
from .tool_calls import ToolCalls


class TaskOutput(dict[str, Any]):
    """The output of a task that was handed over, and what came along: files, data and other artifacts."""

    def __init__(self, output: dict[str, Any], attachments: list[Part]) -> None:
        super().__init__(output)
        self.attachments = list(attachments)


class MemberRun:
    __slots__ = ("_calls", "_data", "_waits", "conversation", "delegation", "errors", "ports", "review", "tools")

    def __init__(
        self, data: RunData, waits: Waits, calls: Calls, output: Output, steps: Steps, questions: Questions,
        mailbox: Mailbox, children: ChildRuns, thread: ThreadState, ports: TeamPorts,
    ) -> None:  # fmt: skip
        self._data = data
        self._waits = waits
        self._calls = calls
        self.ports = ports
        talk = self.conversation = Conversation(data, waits, calls, ports)
        self.delegation = Delegation(data, waits, calls, children, mailbox, talk, ports)
        self.review = ReviewRequests(data, calls, output, thread, talk, self.delegation, ports)
        self.errors = ErrorPolicy(data, calls, steps, questions, talk, self.delegation, ports)
        self.tools = ToolCalls(data, waits, calls, output, steps, talk, self.errors, ports)

    async def delegate(
        self, target: str, summary: str, attachments: list[Part | str], rule: str | None, reason: str | None,
        scope: Scope | None, inputs: dict[str, Any], output: Any, on_inquiry: OnInquiry | None,
        on_message: OnMessage | None, timeout: float | None, key: str | None,
    ) -> Any:  # fmt: skip
        """Hand over a task. To one's own overseer: propose what was done, and give back the verdict."""
        self._waits.check_open()
        authority = self._data.authority
        if authority is None and not await self.ports.directory.is_member(target):
            raise InvalidRequest("only a member of a team delegates; call other agents with ctx.call")
        for what, text in (("summary", summary), ("rule", rule), ("reason", reason)):
            sound(text, str if what == "summary" else str | None, what)
        scope = sound(scope, Scope | None, "scope")
        parts = self.conversation.attached(attachments)
        messages = [Message("user", [TextPart(summary), *parts], sender=authority.me if authority else None)]
        handover = Handover(messages, summary, rule, reason, scope, on_message=on_message)
        overseer = self.ports.directory.reviewer_of(self._data.request, target)
        if overseer is None:
            return await self._hand_over(target, summary, inputs, None, None, timeout, key, handover)
        return await self.review.propose(target, overseer, handover, parts, output, on_inquiry, key)

    async def hand_over(
        self, name: str, input_: Any, inputs: dict[str, Any], config: Any, thread: str | None, timeout: float | None,
        key: str | None,
    ) -> Any:  # fmt: skip
        """Hand over a task that the handler calls for as for any agent."""
        self._waits.check_open()
        return await self._hand_over(name, input_, inputs, config, thread, timeout, key, Handover())

    async def _hand_over(
        self, name: str, input_: Any, inputs: dict[str, Any], config: Any, thread: str | None, timeout: float | None,
        key: str | None, handover: Handover,
    ) -> Any:  # fmt: skip
        """Delegate, and do what the team's policy says where that fails."""
        place = self._calls.place("call", name, key)

        async def attempt(target: str, at: str) -> ChildEnded:
            member = self.ports.directory.member(self._data.authority, target)
            value = input_
            if isinstance(value, str):
                value = as_text(target, member.card.input_text if member is not None else "text", value)
            payload = {**(value or {}), **json_values.to_plain(inputs)}
            payload = json_values.clean(payload, InvalidInput, what="input")
            run_name = member.run_name if member is not None else target
            task = Task(target, member, run_name, payload, handover, config, thread, timeout)
            return await self.delegation.delegate(task, at)

        ended = await self.errors.run(name, place, attempt)
        output = child_result(name, ended)
        return TaskOutput(output, self.delegation.files.pop(ended.run, [])) if isinstance(output, dict) else output

    async def send(self, recipient: str, content: str, attachments: list[Part | str], key: str | None) -> None:
        await self.conversation.send(recipient, content, attachments, key)

    async def call_tool(
        self, server: str, tool: str, arguments: dict[str, Any] | None, key: str | None, timeout: float | None
    ) -> Any:
        return await self.tools.call(server, tool, arguments, key, timeout)

    async def list_tools(self) -> list[ToolSpec]:
        return await self.tools.list()

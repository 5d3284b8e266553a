"""The differences between versions 1 and 2: one class each, with the same methods. No other module knows a version.

Version 1 is the one that every editor speaks today. Version 2 answers a prompt when it is accepted and tells the rest
by updates; its updates replace what they name, so that null clears and an absent member stays.
"""

from __future__ import annotations

import difflib
from typing import Any, get_args

import msgspec

from ...engine.agents.logins import LoginMethod
from ...model.card import AgentCard
from ...model.content import DataPart, Part, TextPart
from ...model.events import Diff, Plan, ToolCall, ToolKind
from ...model.question_forms import Form, format_time
from ...model.run import Question
from . import translate, wire
from .translate import Choices, ConfigOption

Update = dict[str, Any]

STEERING = {"steering": {"supported": True}}  # `_session/steering` puts a message into a turn that runs


class Version1:
    number = 1
    open_types = False  # a discriminator that is not known is an error

    def initialized(
        self, info: dict[str, Any], agents: list[dict[str, Any]], auth: list[dict[str, Any]], *, logout: bool
    ) -> dict[str, Any]:
        return {
            "protocolVersion": 1,
            "agentInfo": info,
            "authMethods": auth,
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": True},
                "sessionCapabilities": {
                    "list": {}, "delete": {}, "resume": {}, "close": {}, "additionalDirectories": {},
                },
                "auth": {"logout": {}} if logout else {},
            },
            "_meta": {**STEERING, wire.META_AGENTS: agents},
        }  # fmt: skip

    def capabilities(self, request: wire.InitializeRequest) -> wire.ClientCapabilities:
        return request.client_capabilities or wire.ClientCapabilities()

    def auth_method(self, method: LoginMethod) -> dict[str, Any]:
        members: dict[str, Any] = {"id": method.id, "name": method.name, "description": method.description}
        if method.kind == "terminal":
            members |= {"type": "terminal", "args": method.args, "env": method.env}
        return members

    # -- sessions -----------------------------------------------------------------------------------------

    def setup(self, options: list[ConfigOption], *, booleans: bool) -> dict[str, Any]:
        """Returns the modes and options in the answers to session/new, load and resume."""
        members: dict[str, Any] = {}
        if options:
            members["configOptions"] = self.options(options, booleans=booleans)
        agents = next((option for option in options if option.id == "agent"), None)
        if agents is not None:  # for clients that know modes and not options
            members["modes"] = {
                "currentModeId": agents.current,
                "availableModes": [_described("id", *choice) for choice in agents.choices],
            }
        return members

    def options(self, options: list[ConfigOption], *, booleans: bool) -> list[dict[str, Any]]:
        return [self._option(option) for option in options if option.choices or booleans]

    def _option(self, option: ConfigOption) -> dict[str, Any]:
        return _option("id", option)

    def option_updates(self, options: list[ConfigOption], *, booleans: bool, agent: bool) -> list[Update]:
        updates: list[Update] = [
            {"sessionUpdate": "config_option_update", "configOptions": self.options(options, booleans=booleans)}
        ]
        current = next((option.current for option in options if option.id == "agent"), None)
        if agent and current is not None:
            updates.append({"sessionUpdate": "current_mode_update", "currentModeId": current})
        return updates

    def commands(self, card: AgentCard) -> Update:
        return {
            "sessionUpdate": "available_commands_update",
            "availableCommands": [
                {"name": s.id, "description": s.description or s.name, "input": {"hint": _hint(s.examples)}}
                for s in card.skills
            ],
        }

    # -- updates ------------------------------------------------------------------------------------------

    def chunk(self, kind: str, message: str, block: dict[str, Any]) -> Update:
        return {"sessionUpdate": f"{kind}_chunk", "messageId": message, "content": block}

    def replaced(self, message: str, fresh: str, text: str) -> list[Update]:
        """Begins a new message where the agent's message is replaced, because version 1 cannot take text back."""
        updates = [self.chunk("agent_thought", f"{fresh}-why", _text("The agent started over; what follows counts."))]
        return [*updates, self.chunk("agent_message", fresh, _text(text))] if text else updates

    def user_message(self, message: str, blocks: list[dict[str, Any]]) -> list[Update]:
        return [self.chunk("user_message", message, block) for block in blocks]

    def tool_call(self, call: ToolCall, *, first: bool) -> Update:
        update: Update = {"sessionUpdate": "tool_call" if first else "tool_call_update", "toolCallId": call.id}
        update |= self.tool_fields(call)
        if first:
            update.setdefault("title", call.tool or call.id)
        return update

    def tool_fields(self, call: ToolCall) -> dict[str, Any]:
        fields = _tool_fields(call, [self._diff(diff) for diff in call.diffs or []])
        if fields.get("status") == "cancelled":
            fields["status"] = "failed"
        return fields

    def _diff(self, diff: Diff) -> dict[str, Any]:
        return {"type": "diff", "path": diff.path, "oldText": diff.old, "newText": diff.new}

    def plan(self, id_: str, plan: Plan) -> Update:
        return {
            "sessionUpdate": "plan",
            "entries": [
                {
                    "content": entry.content,
                    "priority": entry.priority,
                    "status": "completed" if entry.status == "cancelled" else entry.status,
                }
                for entry in plan.entries
            ],
        }

    def state(self, state: str, stop: str | None = None) -> list[Update]:
        return []

    def accepted(self, message: str) -> dict[str, Any] | None:
        """Returns the immediate answer to a prompt, or None where it is answered at the end."""
        return None

    def permission(self, session: str, question: Question, choices: Choices) -> dict[str, Any]:
        shown = question_tool_call(question)
        call = {"toolCallId": shown.id, **self.tool_fields(shown)}
        return {
            "sessionId": session, "toolCall": call, "options": _permission_options(choices),
            **_meta_of(question, more=bool(choices.other_members)),
        }  # fmt: skip

    def elicitation(self, session: str, question: Question, form: Form, message: str) -> dict[str, Any]:
        return {
            "sessionId": session, "toolCallId": f"question-{question.id}", "mode": "form", "message": message,
            "requestedSchema": form.schema, **_meta_of(question, more=not form.exact),
        }  # fmt: skip


class Version2(Version1):
    number = 2
    open_types = True

    def initialized(
        self, info: dict[str, Any], agents: list[dict[str, Any]], auth: list[dict[str, Any]], *, logout: bool
    ) -> dict[str, Any]:
        session: dict[str, Any] = {
            "prompt": {"image": {}, "audio": {}, "embeddedContext": {}},
            "mcp": {"stdio": {}, "http": {}},
            "delete": {},
            "additionalDirectories": {},
        }
        return {
            "protocolVersion": 2, "info": info, "capabilities": {"session": session}, "authMethods": auth,
            "_meta": {**STEERING, wire.META_AGENTS: agents},
        }  # fmt: skip

    def capabilities(self, request: wire.InitializeRequest) -> wire.ClientCapabilities:
        abilities = request.capabilities or wire.ClientCapabilities()
        # This version has no fs and terminal methods, and booleans need no capability.
        flags = wire.ClientSessionCapabilities(wire.ConfigOptionsCapabilities({}))
        return wire.ClientCapabilities(auth=abilities.auth, elicitation=abilities.elicitation, session=flags)

    def auth_method(self, method: LoginMethod) -> dict[str, Any]:
        members: dict[str, Any] = {"methodId": method.id, "type": method.kind, "name": method.name}
        members["description"] = method.description
        if method.kind == "terminal":
            env = [{"name": name, "value": value} for name, value in method.env.items()]
            members |= {"args": method.args, "env": env}
        return members

    def setup(self, options: list[ConfigOption], *, booleans: bool) -> dict[str, Any]:
        return {"configOptions": self.options(options, booleans=True)}

    def _option(self, option: ConfigOption) -> dict[str, Any]:
        return _option("configId", option)

    def option_updates(self, options: list[ConfigOption], *, booleans: bool, agent: bool) -> list[Update]:
        return [{"sessionUpdate": "config_option_update", "configOptions": self.options(options, booleans=True)}]

    def commands(self, card: AgentCard) -> Update:
        update = super().commands(card)
        for command in update["availableCommands"]:
            command["input"]["type"] = "text"
            command["type"] = "command"
        return update

    def replaced(self, message: str, fresh: str, text: str) -> list[Update]:
        return [{"sessionUpdate": "agent_message", "messageId": message, "content": [_text(text)] if text else []}]

    def user_message(self, message: str, blocks: list[dict[str, Any]]) -> list[Update]:
        return [{"sessionUpdate": "user_message", "messageId": message, "content": blocks}]

    def tool_call(self, call: ToolCall, *, first: bool) -> Update:
        update: Update = {"sessionUpdate": "tool_call_update", "toolCallId": call.id} | self.tool_fields(call)
        if first:
            update.setdefault("title", call.tool or call.id)
        return update

    def tool_fields(self, call: ToolCall) -> dict[str, Any]:
        return _tool_fields(call, [self._diff(diff) for diff in call.diffs or []])

    def _diff(self, diff: Diff) -> dict[str, Any]:
        operation = "add" if diff.old is None else "modify"
        content: dict[str, Any] = {"type": "diff", "changes": [{"operation": operation, "path": diff.path}]}
        patch = git_patch(diff)
        if patch:
            content["patch"] = {"format": "git_patch", "text": patch}
        return content

    def plan(self, id_: str, plan: Plan) -> Update:
        entries = [{"content": e.content, "priority": e.priority, "status": e.status} for e in plan.entries]
        return {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": id_, "entries": entries}}

    def state(self, state: str, stop: str | None = None) -> list[Update]:
        return [{"sessionUpdate": "state_update", "state": state, **({"stopReason": stop} if stop else {})}]

    def accepted(self, message: str) -> dict[str, Any] | None:
        return {"messageId": message}

    def permission(self, session: str, question: Question, choices: Choices) -> dict[str, Any]:
        shown = question_tool_call(question)
        call = {"toolCallId": shown.id, **self.tool_fields(shown)}
        details = translate.detail_lines(question)
        return {
            "sessionId": session,
            "title": _question_title(question),
            **({"description": details[0]} if details else {}),
            "subject": {"type": "tool_call", "toolCall": call},
            "options": _permission_options(choices),
            **_meta_of(question, more=bool(choices.other_members)),
        }


Dialect = Version1
VERSIONS: dict[int, Dialect] = {1: Version1(), 2: Version2()}


def negotiate(number: int) -> Dialect:
    """Returns the wanted version where this server speaks it, else the nearest one. A peer that cannot speak it
    leaves."""
    return VERSIONS.get(number) or VERSIONS[max(VERSIONS) if number > max(VERSIONS) else min(VERSIONS)]


# -- shared pieces --------------------------------------------------------------------------------------------


def question_call(question: str) -> str:
    """Returns the id of the tool call that shows a question."""
    return f"question-{question}"


def _meta_of(question: Question, *, more: bool) -> dict[str, Any]:
    """Returns the members for programs: the deadline of a question, and the schema of its answer where that is more
    than the choices shown. People read both in its words."""
    meta: dict[str, Any] = {}
    if question.deadline is not None:
        meta[wire.META_DEADLINE] = format_time(question.deadline)
    if more:
        meta[wire.META_ANSWER_SCHEMA] = question.answer_schema
    return {"_meta": meta} if meta else {}


def question_tool_call(question: Question) -> ToolCall:
    """Returns the tool call that shows a question, with its diffs where it has some."""
    payload = question.payload
    kind, diffs = None, None
    if isinstance(payload, dict):
        kind = payload.get("kind")
        try:
            diffs = msgspec.convert(payload.get("diffs") or [], list[Diff])
        except msgspec.ValidationError:
            diffs = None
    return ToolCall(
        question_call(question.id),
        _question_title(question),
        question.type,
        kind if kind in get_args(ToolKind) else "other",
        "pending",
        payload,
        content=[TextPart(text) for text in translate.detail_lines(question)] or None,
        diffs=diffs or None,
    )


def _question_title(question: Question) -> str:
    return question.prompt or question.type.replace("_", " ")


def _permission_options(choices: Choices) -> list[dict[str, Any]]:
    return [{"optionId": o.id, "name": o.label, "kind": o.kind or "allow_once"} for o in choices.options]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _hint(examples: list[str]) -> str:
    return examples[0] if examples else "what to do"


def _described(key: str, value: str, name: str, description: str) -> dict[str, Any]:
    return {key: value, "name": name, **({"description": description} if description else {})}


def _option(key: str, option: ConfigOption) -> dict[str, Any]:
    members: dict[str, Any] = {key: option.id, "name": option.name, "currentValue": option.current}
    if option.description:
        members["description"] = option.description
    if option.category is not None:
        members["category"] = option.category
    if option.choices:
        members |= {"type": "select", "options": [_described("value", *choice) for choice in option.choices]}
    else:
        members["type"] = "boolean"
    return members


def _tool_fields(call: ToolCall, diffs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the members that an update of a tool call carries; others are left out."""
    fields: dict[str, Any] = {}
    if call.title is not None:
        fields["title"] = call.title
    if call.kind_ is not None:
        fields["kind"] = call.kind_
    if call.status is not None:
        fields["status"] = call.status
    if call.content is not None or call.diffs is not None:
        content = [{"type": "content", "content": translate.block(_part(part))} for part in call.content or []]
        fields["content"] = content + diffs
    if call.locations is not None:
        fields["locations"] = [
            {"path": at.path, **({"line": at.line} if at.line is not None else {})} for at in call.locations
        ]
    if call.input is not None:
        fields["rawInput"] = call.input
    if call.output is not None:
        fields["rawOutput"] = call.output
    return fields


def _part(value: Any) -> Part:
    if isinstance(value, msgspec.Struct):
        return value  # type: ignore[return-value]
    try:
        part: Part = msgspec.convert(value, Part)
    except msgspec.ValidationError:
        return DataPart(value)
    return part


def git_patch(diff: Diff) -> str:
    """Returns a diff in the format of git; empty where nothing changes."""
    name = diff.path.lstrip("/")
    before = "/dev/null" if diff.old is None else f"a/{name}"
    lines: list[str] = []
    for line in difflib.unified_diff(
        (diff.old or "").splitlines(keepends=True), diff.new.splitlines(keepends=True), before, f"b/{name}"
    ):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    if not lines:
        return ""
    head = f"diff --git a/{name} b/{name}\n" + ("new file mode 100644\n" if diff.old is None else "")
    return head + "".join(lines)

"""A mounted agent as it describes itself: its card, its options, and the prompt blocks that it takes. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ....engine.agents import mount_path
from ....engine.handler.mounted_run import MOUNTED_FROM
from ....model.card import ANY_OBJECT, AgentCard, QuestionType, Schema, Skill
from ....model.content import DataPart, FilePart, Message, Part, TextPart, ToolResultPart
from .. import translate, wire
from .local_tools import Policies

_NO_NAME, _NO_VERSION = r"[^A-Za-z0-9._-]+", r"[^0-9A-Za-z.+-]+"


class Option(msgspec.Struct):
    """An option of a session, with its value and choices."""

    id: str
    name: str
    current: Any  # a string, or a boolean
    choices: list[tuple[str, str, str]] = []  # (value, name, description); none where it is a boolean
    description: str = ""
    is_mode: bool = False  # version 1 has methods of its own for modes


def options_of(told: dict[str, Any]) -> list[Option]:
    """Returns the options of an answer or an update. Modes are ignored beside options, which repeat them."""
    config_options = told.get("configOptions")
    if isinstance(config_options, list) and config_options:
        return [option for entry in config_options if (option := _option(entry)) is not None]
    modes = told.get("modes")
    if not isinstance(modes, dict):
        return []
    available = modes.get("availableModes")
    choices = _choices(available if isinstance(available, list) else [], "id")
    current = modes.get("currentModeId")
    return [Option("mode", "Mode", current, choices, is_mode=True)] if choices else []


def _option(entry: Any) -> Option | None:
    if not isinstance(entry, dict):
        return None
    id_ = entry.get("configId", entry.get("id"))
    if not isinstance(id_, str):
        return None
    name, description = str(entry.get("name") or id_), str(entry.get("description") or "")
    current = entry.get("currentValue")
    if entry.get("type") == "boolean":
        return Option(id_, name, bool(current), description=description)
    options = entry.get("options")
    flat: list[Any] = []
    for option in options if isinstance(options, list) else []:
        grouped = option.get("options") if isinstance(option, dict) else None
        flat += grouped if isinstance(grouped, list) else [option]
    choices = _choices(flat, "value")
    return Option(id_, name, current, choices, description) if choices else None


class Listed(msgspec.Struct, frozen=True):
    """An agent that an Interlingua server names."""

    via: list[str] = []  # the servers that it has come by
    asks: bool = False


def listed(told: dict[str, Any]) -> dict[str, Listed]:
    """Returns the agents that an answer to `initialize` names, by the option value that chooses each. Only an
    Interlingua server names them."""
    meta = told.get("_meta")
    agents = meta.get(wire.META_AGENTS) if isinstance(meta, dict) else None
    return {
        f"{entry.get('name')}@{entry.get('version')}": Listed(
            mount_path.read(entry.get("via")), entry.get("asks") is True
        )
        for entry in (agents if isinstance(agents, list) else [])
        if isinstance(entry, dict)
    }


def _choices(entries: list[Any], key: str) -> list[tuple[str, str, str]]:
    return [
        (entry[key], str(entry.get("name") or entry[key]), str(entry.get("description") or ""))
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get(key), str)
    ]


class Choice(msgspec.Struct, frozen=True):
    """A choice of an option that selects the agent that answers."""

    value: str
    description: str
    via: list[str]

    def of(self, card: AgentCard) -> AgentCard:
        """Returns the card of the remote side, as that of this agent alone."""
        name, _, version = self.value.partition("@")
        return msgspec.structs.replace(
            card, name=_plain(name, _NO_NAME) or card.name, version=_plain(version, _NO_VERSION) or card.version,
            description=self.description, metadata=card.metadata | mount_path.metadata(self.via),
        )  # fmt: skip


def agents_of(options: list[Option], known: dict[str, Listed], wanted: str | None) -> list[Choice]:
    """Returns the choices that are an agent each: the one that a name means, or all that are known to be agents. Other
    servers may use the option for anything; there it stays an option of one agent."""
    for option in options:
        if option.id == "agent":
            named = [
                choice for choice in option.choices if wanted in (choice[0], choice[1], choice[0].partition("@")[0])
            ][:1]
            choices = named or [choice for choice in option.choices if choice[0] in known]
            return [Choice(value, description, known.get(value, Listed()).via) for value, _, description in choices]
    return []


# -- the card -------------------------------------------------------------------------------------------------


def card_of(
    source: str, info: dict[str, Any], version: int, capabilities: dict[str, Any], auth: list[dict[str, Any]],
    options: list[Option], commands: list[dict[str, Any]], fallback: str, questions: list[QuestionType],
) -> AgentCard:  # fmt: skip
    name = _plain(info.get("name"), _NO_NAME) or _plain(fallback, _NO_NAME) or "agent"
    return AgentCard(
        name=name,
        version=_plain(info.get("version"), _NO_VERSION) or "0.0.0",
        description=str(info.get("title") or ""),
        input={
            "type": "object",
            "properties": {"text": {"type": "string", "description": "The prompt"}},
            "required": ["text"],
        },
        output={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        config=_schema(options),
        input_text="text",
        output_text="text",
        streams=True,
        questions=questions,
        skills=[_skill(command) for command in commands if isinstance(command.get("name"), str)],
        metadata={
            MOUNTED_FROM: source,
            "protocol": "editor",
            "protocol_version": version,
            "capabilities": capabilities,
            "auth_methods": [
                {"id": m.get("methodId", m.get("id")), "name": m.get("name"), "type": m.get("type", "agent")}
                for m in auth
            ],
        },
    )


_CHOICE: Schema = {"type": "object", "properties": {"choice": {"type": "string"}}, "required": ["choice"]}
_LOCAL: dict[str, str] = {
    "read": "May the agent read this file?", "write": "May the agent write this file?",
    "terminal": "May the agent run this command?",
}  # fmt: skip


def questions_of(policies: Policies, *, ours: bool) -> list[QuestionType]:
    """Returns the questions that an agent may ask: permissions, forms, addresses to visit, and local work that needs
    permission. An agent of an Interlingua server takes answers of any shape; each question carries its own schema."""
    text: Schema = {"type": "string"}
    titled: Schema = {"type": "object", "properties": {"title": text}, "required": ["title"]}
    worded: Schema = {"type": "object", "properties": {"message": text}, "required": ["message"]}
    visit: Schema = {"type": "object", "properties": {"message": text, "url": text}, "required": ["message", "url"]}
    choice, form = ({}, {}) if ours else (_CHOICE, dict(ANY_OBJECT))
    local = [kind for kind in _LOCAL if getattr(policies, kind) == "ask"]
    return [
        QuestionType("permission", titled, choice, "May the agent do this? The choices are its own."),
        QuestionType("elicitation", worded, form, "The agent asks for values."),
        QuestionType("visit", visit, _CHOICE, "The agent asks to open an address."),
        *(QuestionType(f"{kind}_permission", dict(ANY_OBJECT), _CHOICE, _LOCAL[kind]) for kind in local),
    ]


def _schema(options: list[Option]) -> Schema | None:
    if not options:
        return None
    properties: dict[str, Any] = {}
    for option in options:
        schema: dict[str, Any] = {"title": option.name, "default": option.current}
        if option.description:
            schema["description"] = option.description
        if option.choices:
            schema |= {
                "type": "string",
                "oneOf": [
                    {"const": value, "title": name, **({"description": text} if text else {})}
                    for value, name, text in option.choices
                ],
            }
        else:
            schema["type"] = "boolean"
        properties[option.id] = schema
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _skill(command: dict[str, Any]) -> Skill:
    input_ = command.get("input")
    hint = input_.get("hint") if isinstance(input_, dict) else None
    examples = [hint] if isinstance(hint, str) and hint else []
    return Skill(command["name"], command["name"], str(command.get("description") or ""), examples=examples)


def _plain(name: Any, unwanted: str) -> str:
    return re.sub(unwanted, "-", name).strip("-._+") if isinstance(name, str) else ""


# -- prompts --------------------------------------------------------------------------------------------------


def prompt_of(
    text: str, messages: list[Message], *, image: bool, audio: bool, embedded: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the content blocks of a prompt, and which parts had to be reworded because the agent takes no such
    blocks."""
    parts = [part for message in messages if message.role == "user" for part in message.parts]
    # The checked input counts; the parts are the full message. They are sent together where they agree.
    if not parts or translate.prompt_text(parts).strip() != text.strip():
        parts = [TextPart(text), *(part for part in parts if not isinstance(part, TextPart))] if parts else []
    if not parts:
        return [{"type": "text", "text": text}], []
    blocks: list[dict[str, Any]] = []
    lost: list[str] = []
    for part in parts:
        block = translate.block(part)
        kind = block["type"]
        if (kind == "image" and not image) or (kind == "audio" and not audio) or (kind == "resource" and not embedded):
            block = _degraded(part, kind)
            lost.append(f"{_called(part)} was sent as {_KINDS[block['type']]}: the agent takes no {_KINDS[kind]}")
        blocks.append(block)
    return blocks, lost


_KINDS = {
    "text": "text", "image": "images", "audio": "audio", "resource": "embedded files", "resource_link": "a link",
}  # fmt: skip


def _called(part: Part) -> str:
    match part:
        case FilePart():
            return part.name or part.title or part.url or part.media_type or "a file"
        case DataPart() | ToolResultPart():
            return "data"
    return "text"


def _degraded(part: Part, kind: str) -> dict[str, Any]:
    """Returns a block that every agent takes: the text itself, a link where there is one, or at least the name."""
    if not isinstance(part, FilePart):
        return {"type": "text", "text": f"[{kind}]"}
    if part.text is not None:
        return {"type": "text", "text": f"{_called(part)}:\n```\n{part.text}\n```"}
    if part.url is not None:
        link = FilePart(url=part.url, media_type=part.media_type, name=part.name, title=part.title, size=part.size)
        return translate.block(link)
    return {"type": "text", "text": f"[{_called(part)}: {part.media_type or kind}, {len(part.data or b'')} bytes]"}

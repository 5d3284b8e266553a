"""Translates between agents over MCP and the model. Pure.

The wire has no place for some facts. They become:

- files and data beside the input or the output of `agents/run`, which are objects: members of ours in `_meta`; a tool
  has content blocks for its output;
- activity (thoughts, plans, tool calls): the text of a tool's progress; `agents/run`, whose own progress is output
  alone, shows only warnings, as the text of MCP's progress;
- the text of a large result of a tool, which has it as structure already: only its beginning;
- a restart: no further deltas, and the result is the one that counts;
- an answer that is more than a flat form: JSON in a text field, with the wanted schema in a member of ours in `_meta`;
- the parts of an answer beside its choice: fields of their own, or a member of ours in `_meta` with the whole answer;
- a question, for a client without elicitation: an error that carries the question and the run, which goes on waiting.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from ...model import trace_context
from ...model.card import AgentCard, Schema
from ...model.content import DataPart, FilePart, Message, Part, TextPart, read_part
from ...model.errors import (
    Conflict,
    DefinitionError,
    Denied,
    ErrorInfo,
    ErrorTable,
    InterlinguaError,
    Invalid,
    InvalidAnswer,
    InvalidOutput,
    InvalidQuestion,
    NotFound,
    OverBudget,
    Overloaded,
    RunError,
    StoreError,
    Unavailable,
)
from ...model.events import Plan, Said, Thought, ToolCall, Warned, thought_from_message
from ...model.prompt_input import file_name
from ...model.question_forms import Choices, Form, choices, detail_lines, form, format_time
from ...model.run import Instance, Question
from ...security.errors import Unauthenticated
from ...transports.jsonrpc.core import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, RpcError
from . import wire

QUESTION_OPEN = -32010
"""A run waits for an answer that this client cannot be asked for. MCP leaves -32000 to -32019 to implementations."""

_UNSAID = AgentCard("").version  # of agents whose authors gave none

_MAX_TWICE = 768 * 1024
"""Bytes of a result as text and as structure together. Beyond that only the structure is whole: PyPI mcp 2.3 reads
events of up to 1 MiB."""
_BEGINNING = 10_000  # characters of a text that is not sent whole

ERRORS = ErrorTable({
    InterlinguaError: INTERNAL_ERROR, Invalid: INVALID_PARAMS, InvalidOutput: INTERNAL_ERROR,
    InvalidQuestion: INTERNAL_ERROR, NotFound: INVALID_PARAMS, Conflict: INVALID_REQUEST, Denied: INVALID_REQUEST,
    Unauthenticated: INVALID_REQUEST, RunError: INTERNAL_ERROR, OverBudget: INTERNAL_ERROR,
    Overloaded: INTERNAL_ERROR, Unavailable: INTERNAL_ERROR, StoreError: INTERNAL_ERROR,
    DefinitionError: INTERNAL_ERROR,
})  # fmt: skip
"""The codes of errors. `data` has their codes in the model."""


# -- agents and tools -----------------------------------------------------------------------------------------


def agent(card: AgentCard, name: str, via: Sequence[str] = ()) -> dict[str, Any]:
    """Returns an agent for the wire. Extra members stand beside the name, as published manifests have them. Absent
    members are left out: null would be refused (npm @i-am-bee/acp-sdk)."""
    members: dict[str, Any] = {"name": name}
    if card.description:
        members["description"] = card.description
    members |= {"inputSchema": _object(card.input), "outputSchema": _object(card.output)}
    if card.version != _UNSAID:
        members["version"] = card.version
    extra = card.metadata.get("mcp")
    if isinstance(extra, dict):
        members = {**extra, **members}
    if via:
        ours = {wire.META_AGENT_VERSION: card.version, wire.META_VIA: list(via)}
        members["_meta"] = {**members.get("_meta", {}), **ours}
    return members


def template(card: AgentCard, name: str) -> dict[str, Any]:
    return {**agent(card, name), "configSchema": _object(card.config or {})}


def instance_name(made: Instance, taken: Collection[str] = ()) -> str:
    """Returns the own name of a configured agent, or a unique one."""
    return made.name if made.name and made.name not in taken else f"{made.agent}:{made.id}"


def tool(card: AgentCard, name: str, title: str, version: str) -> dict[str, Any]:
    members: dict[str, Any] = {"name": name, "inputSchema": _without_headers(_object(card.input))}
    if card.description:
        members["description"] = card.description
    if version >= "2025-06-18":
        members |= {"title": title, "outputSchema": _object(card.output)}
    return members


def tool_name(name: str) -> str:
    """Returns the tool name of an agent. Clients take letters, digits, `_`, `-` and (newer ones) `.`, up to 64 of
    them."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


def tool_names(names: list[str]) -> dict[str, str]:
    """Returns the tool name of each agent name. Of several that would be the same, all but the one with that exact
    spelling get a suffix of their own, so that a tool's agent does not depend on the order of a list."""
    alike = Counter(tool_name(name) for name in names)
    by_name: dict[str, str] = {}
    for name in names:
        short = tool_name(name)
        if alike[short] > 1 and short != name:
            mark = hashlib.sha256(name.encode()).hexdigest()[:8]
            short = f"{short[:55]}_{mark}"
        by_name[name] = short
    return by_name


def _without_headers(schema: Any) -> Any:
    """Returns a schema that asks for no headers: a client would send headers that this door does not check, and drops
    the tool where the mark is wrong."""
    if isinstance(schema, list):
        return [_without_headers(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    clean: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            clean[key] = {name: _without_headers(inner) for name, inner in value.items()}
        elif key in _VALUES:
            clean[key] = value
        elif key != "x-mcp-header":
            clean[key] = _without_headers(value)
    return clean


_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")  # schemas, by their names
_VALUES = ("const", "enum", "default", "examples")


def _object(schema: Schema) -> Schema:
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


# -- the attachments of a request -----------------------------------------------------------------------------

_RESERVED = ("progressToken", *trace_context.NAMES)


def metadata(meta: dict[str, Any]) -> dict[str, Any]:
    """Returns the metadata of a run: `_meta` without the members of the protocol and ours."""
    members = {
        name: value
        for name, value in meta.items()
        if name not in _RESERVED and not name.startswith(("interlingua/", "io.modelcontextprotocol/"))
    }
    named = meta.get(wire.META_METADATA, {})
    if not isinstance(named, dict):
        raise RpcError(INVALID_PARAMS, f"_meta {wire.META_METADATA!r} is {named!r:.80}; it is an object")
    return members | named


def messages(meta: dict[str, Any], input_: dict[str, Any], card: AgentCard) -> list[Message]:
    """Returns the full message, where files or values come beside the input."""
    parts = meta.get(wire.META_PARTS)
    if parts is None:
        return []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise RpcError(INVALID_PARAMS, f"_meta {wire.META_PARTS!r} is {parts!r:.80}; it is a list of objects")
    text = input_.get(card.input_text) if card.input_text is not None else None
    text_parts: list[Part] = [TextPart(text)] if isinstance(text, str) else []
    return [Message("user", [*text_parts, *map(read_part, parts)])]


# -- results --------------------------------------------------------------------------------------------------


def run_result(output: Any, run: str, parts: list[Part]) -> dict[str, Any]:
    meta: dict[str, Any] = {wire.META_RUN: run}
    if parts:
        meta[wire.META_PARTS] = msgspec.to_builtins(parts)
    return {"output": output, "_meta": meta}


def tool_result(output: Any, card: AgentCard, version: str, parts: list[Part]) -> dict[str, Any]:
    text = output.get(card.output_text) if card.output_text and isinstance(output, dict) else None
    if not isinstance(text, str) or len(output) > 1:
        text = json.dumps(output, ensure_ascii=False)
    structured = version >= "2025-06-18"
    if structured and _too_large_twice(text, output):
        text = f"{text[:_BEGINNING]}…\n\n({len(text)} characters in all; structuredContent has the whole result)"
    content = [{"type": "text", "text": text}, *(block(part, version) for part in parts)]
    result: dict[str, Any] = {"content": content, "isError": False}
    if structured:
        result["structuredContent"] = output
    return result


def _too_large_twice(text: str, output: Any) -> bool:
    if len(text) < _BEGINNING:
        return False
    encode = msgspec.json.encode
    return len(encode(text)) + len(encode(output)) > _MAX_TWICE


def block(part: Part, version: str) -> dict[str, Any]:
    """Returns a part as a block of a tool's result, of the kinds that a revision has."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if not isinstance(part, FilePart):
        value = part.data if isinstance(part, DataPart) else msgspec.to_builtins(part)
        return {"type": "text", "text": json.dumps(value, ensure_ascii=False)}
    kind = (part.media_type or "").partition("/")[0]
    if part.data is not None and (kind == "image" or (kind == "audio" and version >= "2025-03-26")):
        return {"type": kind, "data": base64.b64encode(part.data).decode(), "mimeType": part.media_type}
    uri = part.url or f"file:///{quote(part.name or 'unnamed')}"
    mime = {"mimeType": part.media_type} if part.media_type is not None else {}
    if part.data is None and part.text is None:
        if version < "2025-06-18":
            return {"type": "text", "text": uri}
        return {"type": "resource_link", "name": part.name or file_name(uri), "uri": uri, **mime}
    body = {"text": part.text} if part.data is None else {"blob": base64.b64encode(part.data).decode()}
    return {"type": "resource", "resource": {"uri": uri, **mime, **body}}


def as_object(value: Any) -> dict[str, Any]:
    """Returns an output that is an object here, whatever it is on the wire."""
    return value if isinstance(value, dict) else {} if value is None else {"value": value}


def tool_output(result: dict[str, Any]) -> tuple[dict[str, Any], list[Part]]:
    """Returns the output in a tool's result, and the parts beside it.

    Structured content is the output, and text that only repeats it is left out. Without it the text is the output.
    """
    blocks = _blocks(result.get("content"))
    structure = result.get("structuredContent")
    if structure is None:
        text = text_of_blocks(blocks)
        beside = [block for block in blocks if not _is_text(block)]
        return ({"text": text} if len(beside) < len(blocks) else {}), [part_of(block) for block in beside]
    beside = [block for block in blocks if not (_is_text(block) and _repeats(block["text"], structure))]
    return as_object(structure), [part_of(block) for block in beside]


def text_of_blocks(blocks: Any) -> str:
    return "\n".join(block["text"] for block in _blocks(blocks) if _is_text(block))


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _is_text(block: dict[str, Any]) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _repeats(text: str, structure: Any) -> bool:
    """Tells if a text is the structured content, one member of it, or one item of a list in it, as servers add them for
    clients that read only text."""
    values = [structure, *(structure.values() if isinstance(structure, dict) else ())]
    values += [item for value in values if isinstance(value, list) for item in value]
    if any(text == value for value in values if isinstance(value, str)):
        return True
    try:
        return json.loads(text) in values
    except ValueError:
        return False


def part_of(block: dict[str, Any]) -> Part:
    """Returns a content block as a part. A block of an unknown kind, or one that is broken, is data."""
    kind, media_type = block.get("type"), _text_or_none(block.get("mimeType"))
    if _is_text(block):
        return TextPart(block["text"])
    if kind in ("image", "audio"):
        data = _bytes(block.get("data"))
        return FilePart(data=data, media_type=media_type) if data is not None else DataPart(block)
    if kind == "resource_link" and isinstance(block.get("uri"), str):
        size = block.get("size")
        return FilePart(
            url=block["uri"],
            media_type=media_type,
            name=_text_or_none(block.get("name")),
            title=_text_or_none(block.get("title")),
            description=_text_or_none(block.get("description")),
            size=size if type(size) is int else None,
        )
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        text, data = _text_or_none(resource.get("text")), _bytes(resource.get("blob"))
        if text is not None or data is not None:
            name, media_type = _text_or_none(resource.get("uri")), _text_or_none(resource.get("mimeType"))
            return FilePart(text=text, data=None if text is not None else data, media_type=media_type, name=name)
    return DataPart(block)


def _bytes(text: Any) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except ValueError:
        return None


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


PROMPT_OUTPUT: Schema = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "messages": {
            "type": "array",
            "description": "the messages of the prompt, where it is more than one message of the user",
            "items": {"type": "object", "properties": {"role": {"type": "string"}, "content": {"type": "object"}}},
        },
    },
    "required": ["text"],
}


def prompt_input_schema(arguments: Any) -> Schema:
    """Returns the schema of a prompt's arguments, all of which are texts."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for argument in _blocks(arguments):
        if isinstance(name := argument.get("name"), str):
            properties[name] = {"type": "string"}
            for wire_name, member in (("title", "title"), ("description", "description")):
                if isinstance(argument.get(wire_name), str):
                    properties[name][member] = argument[wire_name]
            if argument.get("required") is True:
                required.append(name)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def prompt_output(result: dict[str, Any]) -> tuple[dict[str, Any], list[Part]]:
    """Returns the text of a prompt, and its other parts. Messages keep their roles where they are more than one message
    of the user."""
    messages = _blocks(result.get("messages"))
    contents = [content for message in messages if isinstance(content := message.get("content"), dict)]
    texts = [content["text"] for content in contents if _is_text(content)]
    output: dict[str, Any] = {"text": "\n\n".join(texts)}
    if [message.get("role") for message in messages] != ["user"]:
        output["messages"] = messages
    return output, [part_of(content) for content in contents if not _is_text(content)]


def progress_line(params: dict[str, Any]) -> str:
    """Returns the text of a progress notification: what the server does, and how far it is."""
    message, done, total = params.get("message"), params.get("progress"), params.get("total")
    far = ""
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        far = f"{done:g} of {total:g}"
    if isinstance(message, str) and message:
        return f"{message} ({far})" if far else message
    return far


def tool_failure(info: ErrorInfo) -> dict[str, Any]:
    """Returns the failure of a tool as a result, so that the model that called it reads the reason."""
    again = " (it may work later)" if info.transient else ""
    return {
        "content": [{"type": "text", "text": f"{info.message}{again}"}],
        "isError": True,
        "_meta": {wire.META_ERROR: {"code": info.code, "transient": info.transient, "details": info.details}},
    }


def rpc_error(error: InterlinguaError) -> RpcError:
    return RpcError.of(error.info(), ERRORS.of(type(error)))


def run_error(info: ErrorInfo, run: str) -> RpcError:
    """Returns the error that a run ended with. The request was fine, whatever the run's error is called."""
    return RpcError.of(info, INTERNAL_ERROR, run)


def activity(body: Any) -> str | None:
    """Returns a line for a progress notification of a tool."""
    match body:
        case Thought(text=text) | Warned(message=text):
            return text
        case Said():
            thought = thought_from_message(body)
            return thought.text if thought is not None else None
        case ToolCall(title=title, status=status) if title or status:
            return " ".join(part for part in (title, f"({status})" if status else "") if part)
        case Plan(entries=entries):
            done = sum(entry.status == "completed" for entry in entries)
            now = next((entry.content for entry in entries if entry.status == "in_progress"), "")
            return f"{done} of {len(entries)} done" + (f": {now}" if now else "")
    return None


# -- questions ------------------------------------------------------------------------------------------------


def elicitation(question: Question, version: str) -> dict[str, Any]:
    """Returns the params of an elicitation."""
    offered = choices(question)
    fields = form(question.answer_schema)
    shown = _choice_form(offered, version) if offered is not None else fields.schema
    message = "\n\n".join([question.prompt or question.type.replace("_", " "), *detail_lines(question)])
    params: dict[str, Any] = {"message": message, "requestedSchema": shown}
    if version >= "2025-11-25":
        params["mode"] = "form"
    meta: dict[str, Any] = {}
    if question.deadline is not None:
        meta[wire.META_DEADLINE] = format_time(question.deadline)
    if offered is not None and offered.other_members:
        meta[wire.META_KINDS] = {option.id: option.kind for option in offered.options}
    if meta.get(wire.META_KINDS) or (offered is None and not fields.exact):
        meta[wire.META_ANSWER_SCHEMA] = question.answer_schema
    return {**params, "_meta": meta} if meta else params


def _choice_form(offered: Choices, version: str) -> Schema:
    if version >= "2025-11-25":
        field: Schema = {"type": "string", "oneOf": [{"const": o.id, "title": o.label} for o in offered.options]}
    else:
        names = {option.id: option.label for option in offered.options}
        field = {"type": "string", "enum": list(names), "enumNames": list(names.values())}
    beside = _beside(offered)
    fields = {} if beside is None else beside.schema["properties"]
    return {"type": "object", "properties": {"choice": field, **fields}, "required": ["choice"]}


def _beside(offered: Choices) -> Form | None:
    """Returns the fields for the parts of an answer beside its choice, all of which may be left empty."""
    members = {name: member for name, member in offered.other_members.items() if name != "choice"}
    open_ = {"type": "object", "properties": members, "required": [], "additionalProperties": True}
    fields = form({**offered.schema, **open_})
    return None if fields.single_field else fields


def answer(question: Question, result: wire.ElicitResult) -> Any:
    """Returns the answer in an elicitation's result; UNSET where there is none, and never an approval by mistake.

    Declining means no, where the question has a no. Cancelling gives no answer yet.
    """
    offered = choices(question)
    if result.action == "accept":
        content = result.content or {}
        if offered is None:
            return form(question.answer_schema).answer(content)
        return _chosen(offered, content, result.meta)
    if result.action == "decline" and offered is not None:
        return offered.rejection()
    if result.action not in ("decline", "cancel"):
        raise InvalidAnswer(f"action is {result.action!r}; it is accept, decline or cancel")
    return msgspec.UNSET


def _chosen(offered: Choices, content: dict[str, Any], meta: Any) -> Any:
    """Returns the whole answer where it was given, else the choice with the fields that were filled in beside it."""
    chosen = content.get("choice")
    if not isinstance(chosen, str) or chosen not in offered.answers:
        raise InvalidAnswer(f"choice is {chosen!r}; it is one of {', '.join(offered.answers)}")
    whole = offered.full_answer(chosen, meta.get(wire.META_ANSWER) if isinstance(meta, dict) else None)
    beside = _beside(offered)
    if beside is None or whole != offered.answers[chosen]:
        return whole
    filled = {name: content[name] for name in beside.schema["properties"] if content.get(name) not in (None, "")}
    return {**beside.answer(filled), **whole} if filled else whole


def question_open(question: Question, run: str, *, lacks: bool = False) -> RpcError:
    """Returns the error for an open question. `lacks` means that the client did not declare in its request that it can
    be asked, where the revision has an error for that."""
    data: dict[str, Any] = {
        "code": "question_open",
        "transient": False,
        "run": run,
        "question": {
            "id": question.id, "type": question.type, "prompt": question.prompt, "payload": question.payload,
            "answerSchema": question.answer_schema,
            **({"deadline": format_time(question.deadline)} if question.deadline is not None else {}),
        },
    }  # fmt: skip
    asked = question.prompt or question.type
    again = f'{{"{wire.META_RUN}": "{run}"}}'
    say = f"the run waits for an answer: {asked}; answer it elsewhere, and ask again with _meta {again}"
    if lacks:
        data["requiredCapabilities"] = {"elicitation": {"form": {}}}
        return RpcError(wire.MISSING_CAPABILITY, f"this client cannot be asked (elicitation); {say}", data)
    return RpcError(QUESTION_OPEN, say, data)

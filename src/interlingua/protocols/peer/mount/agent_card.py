"""The cards of a remote node's agents, the parts that one is sent, and the meaning of its answers. Pure.

Interlingua nodes publish the schemas of their skills, so input and output there are objects. Any other agent is
unknown: it takes text and returns text, with files and data beside it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ....model.card import ANY_OBJECT, AgentCard, Schema
from ....model.content import FilePart, Part
from ....model.schemas import usable
from ....mounts.agent_card import origin, plain_name, plain_version
from ..translate import parts
from ..translate.parts import Publish
from ..wire.card import has

_TEXT_IN: Schema = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "data": {"description": "Something structured, sent beside the text"}},
    "required": ["text"],
}
_TEXT_OUT: Schema = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "data": {"description": "Something structured, said beside the text"}},
}


class Described(msgspec.Struct):
    card: AgentCard  # of the local agent
    skill: str | None = None  # the remote name of the skill; None: the node's default agent
    names: set[str] = msgspec.field(default_factory=set)  # the names that a target can use
    structured: bool = False


def agents_of(card: dict[str, Any], source: str) -> list[Described]:
    """Returns an agent for each skill on the card of a node; the node itself where it has none."""
    found: list[Described] = []
    listed = card.get("skills")
    for entry in listed if isinstance(listed, list) else []:
        skill = {"id": entry} if isinstance(entry, str) else entry
        id_ = skill.get("id") or skill.get("name") if isinstance(skill, dict) else None
        if isinstance(id_, str) and id_:
            found.append(_agent(id_, skill, card, source))
    return found or [_agent(None, card, card, source)]


def _agent(skill: str | None, entry: dict[str, Any], node: dict[str, Any], source: str) -> Described:
    name, version = skill or str(node.get("name")), entry.get("version")
    input_, output = _object_schema(entry.get("input_schema")), _object_schema(entry.get("output_schema"))
    input_text, output_text = entry.get("input_text"), entry.get("output_text")
    structured = input_ is not None and output is not None
    if input_ is None or output is None:
        input_, output, input_text, output_text = _TEXT_IN, _TEXT_OUT, "text", "text"
    metadata = origin(source, "peer", entry.get("via"), node=str(node.get("name")))
    if skill is not None:
        metadata["skill_id"] = skill
    description = entry.get("description")
    card = AgentCard(
        name=plain_name(name) or "agent",
        version=plain_version(version),
        description=description if isinstance(description, str) else "",
        input=input_,
        output=output,
        input_text=input_text if isinstance(input_text, str) else None,
        output_text=output_text if isinstance(output_text, str) else None,
        streams=has(node, "task_chunks"),
        metadata=metadata,
    )
    names = {name, card.name, card.key} | ({entry["name"]} if isinstance(entry.get("name"), str) else set())
    return Described(card, skill, names, structured)


def _object_schema(schema: Any) -> Schema | None:
    """Returns a schema; None where there is none. An unusable schema is ignored, because the remote checks by
    itself."""
    if not isinstance(schema, dict):
        return None
    found = usable({"type": "object", **schema})
    return found if found.get("type") == "object" else dict(ANY_OBJECT)


# -- input and output -----------------------------------------------------------------------------------------


def input_parts(agent: Described, input_: dict[str, Any], along: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the input of a run as parts, with the attachments."""
    text = input_.get(agent.card.input_text) if agent.card.input_text is not None else None
    if agent.structured:
        alone = isinstance(text, str) and len(input_) == 1 and not along
        return [parts.text(text)] if alone and isinstance(text, str) else [parts.data(input_), *along]
    told = [parts.text(text)] if isinstance(text, str) else []
    rest = {name: value for name, value in input_.items() if name != "text"}
    if rest:
        told.append(parts.data(rest["data"] if set(rest) == {"data"} else rest))
    return [*told, *along] or [parts.text("")]


def along_of(beside: list[Part], publish: Publish | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the attachments of the input as parts, and the names of files that cannot be sent because nothing
    publishes them. A file that only this machine can open is not sent: the text has its name."""
    told: list[dict[str, Any]] = []
    stays: list[str] = []
    for part in beside:
        if isinstance(part, FilePart) and not parts.is_inline(part):
            if part.url is not None and part.url.startswith(("http://", "https://")):
                told.append(parts.from_model(part, _not_published))
        elif isinstance(part, FilePart) and publish is None:
            stays.append(part.name or part.title or part.media_type or "a file")
        else:
            told.append(parts.from_model(part, publish or _not_published))
    return told, stays


def _not_published(body: bytes, media_type: str, name: str | None) -> str:
    raise AssertionError("only what has an address is sent")


def output_of(agent: Described, given: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the output of a run from some parts."""
    text = parts.text_of(given)
    if agent.structured:
        whole = _whole(given)
        if whole:
            return dict(whole[-1]["content"])  # the whole object stands behind the text that is taken out of it
        if agent.card.output_text is not None:
            return {agent.card.output_text: text}
    data = [part["content"] for part in given if part.get("type") == "data"]
    return {"text": text, "data": data[0] if len(data) == 1 else data} if data else {"text": text}


def beside_of(agent: Described, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the parts beside the output of a run."""
    output = _whole(given)[-1:] if agent.structured else []
    return [part for part in given if part.get("type") != "text" and part not in output]


def _whole(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for part in given if part.get("type") == "data" and isinstance(part["content"], dict)]

"""The answers of the door, as schemas of its OpenAPI document.

The members of the published document come first in each; the earlier document's spellings and this server's additions
follow. Answers may gain members, so none of these schemas is closed.
"""

from __future__ import annotations

from typing import get_args

from ....model.card import Schema
from .. import wire

TEXT: Schema = {"type": "string"}
UUID: Schema = {"type": "string", "format": "uuid"}
TIME: Schema = {"type": "string", "format": "date-time"}
OBJECT: Schema = {"type": "object"}
FLAG: Schema = {"type": "boolean"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str, more: str = "", /, **members: Schema) -> Schema:
    """Returns the schema of an object. `required` and `more` name its members in their order."""
    names = required.split() + more.split()
    assert set(names) == set(members), set(names) ^ set(members)
    made: Schema = {"type": "object", "properties": {name: members[name] for name in names}}
    if required:
        made["required"] = required.split()
    return made


def _extended(base: str, required: str, more: str = "", /, **members: Schema) -> Schema:
    return {"allOf": [ref(base), _object(required, more, **members)]}


def _one_of(**kinds: str) -> Schema:
    """Returns a choice between schemas by the member `type`."""
    return {
        "oneOf": [ref(name) for name in kinds.values()],
        "discriminator": {"propertyName": "type", "mapping": {kind: ref(name)["$ref"] for kind, name in kinds.items()}},
    }


_STATUS = ref("RunStatus")
_SCHEMA: Schema = {**OBJECT, "description": "A JSON Schema"}

ANSWERS: dict[str, Schema] = {
    "ErrorResponse": {"type": "string", "description": "What was wrong, in words"},
    "RunStatus": {"enum": list(get_args(wire.RunStatus))},
    "ThreadStatus": {"enum": list(get_args(wire.ThreadStatus))},
    # -- agents
    "Agent": _object("agent_id metadata", "id", agent_id=UUID, metadata=ref("AgentMetadata"), id=UUID),
    "AgentMetadata": _object("ref description", ref=ref("AgentRef"), description=TEXT),
    "AgentRef": _object("name version", "url", name=TEXT, version=TEXT, url=TEXT),
    "AgentACPDescriptor": _object("metadata specs", metadata=ref("AgentMetadata"), specs=ref("AgentACPSpec")),
    "AgentACPSpec": _object(
        "capabilities input output config", "custom_streaming_update thread_state interrupts",
        capabilities=ref("AgentCapabilities"), input=_SCHEMA, output=_SCHEMA, config=_SCHEMA,
        custom_streaming_update=_SCHEMA, thread_state=_SCHEMA,
        interrupts={"type": "array", "minItems": 1, "items": ref("AgentInterrupt")},
    ),
    "AgentCapabilities": _object(
        "threads interrupts callbacks streaming", threads=FLAG, interrupts=FLAG, callbacks=FLAG,
        streaming=_object("values custom", values=FLAG, custom=FLAG),
    ),
    "AgentInterrupt": _object(
        "interrupt_type interrupt_payload resume_payload",
        interrupt_type=TEXT, interrupt_payload=_SCHEMA, resume_payload=_SCHEMA,
    ),
    "ConfiguredInstance": _object(
        "config_id agent_id config created_at metadata", "name",
        config_id=UUID, agent_id=UUID, config=OBJECT, created_at=TIME, metadata=OBJECT, name=TEXT,
    ),
    "ErrorDefinition": _object(
        "errcode code description transient details",
        errcode={"type": "integer"}, code=TEXT, description=TEXT, transient=FLAG,
        details={"type": ["object", "null"], "description": "The schema of what an error of this kind adds"},
    ),
    "AuthenticationSchemes": _object("schemes", schemes={"type": "array", "items": _object("type", type=TEXT)}),
    # -- runs
    "Run": _object(
        "run_id agent_id created_at updated_at status", "thread_id",
        run_id=UUID, agent_id=UUID, created_at=TIME, updated_at=TIME, status=_STATUS, thread_id=TEXT,
    ),
    "RunStateless": _extended("Run", "creation", creation=ref("RunCreateStateless")),
    "RunStateful": _extended("Run", "creation", creation=ref("RunCreateStateful")),
    "RunWaitResponseStateless": _object("run", "output", run=ref("RunStateless"), output=ref("RunOutput")),
    "RunWaitResponseStateful": _object("run", "output", run=ref("RunStateful"), output=ref("RunOutput")),
    "RunOutput": _one_of(result="RunResult", interrupt="RunInterrupt", error="RunError"),
    "RunResult": _object(
        "type values", "messages result",
        type={"const": "result"}, values=OBJECT, messages={"type": "array", "items": ref("Message")}, result=OBJECT,
    ),
    "RunInterrupt": _object(
        "type interrupt", "interrupt_type interrupt_payload interrupt_id prompt answer_schema options",
        type={"const": "interrupt"}, interrupt_type=TEXT, interrupt_payload={}, interrupt_id=TEXT, prompt=TEXT,
        answer_schema=_SCHEMA,
        options={"type": "array", "items": _object("id label", "kind", id=TEXT, label=TEXT, kind=TEXT)},
        interrupt={**OBJECT, "minProperties": 1, "maxProperties": 1, "description": "The type, and its payload"},
    ),
    "RunError": _object(
        "type run_id errcode description", "code transient details",
        type={"const": "error"}, run_id=UUID, errcode={"type": "integer"}, description=TEXT, code=TEXT, transient=FLAG,
        details={},
    ),
    # -- streams
    "RunOutputStream": _object(
        "id event data",
        id=TEXT, event={"const": "agent_event"}, data=ref("RunUpdate"),
    ),
    "RunUpdate": _one_of(
        values="ValueRunResultUpdate", custom="CustomRunResultUpdate", interrupt="ValueRunInterruptUpdate",
        error="ValueRunErrorUpdate",
    ),
    "ValueRunResultUpdate": _object(
        "type run_id status values", "messages result",
        type={"const": "values"}, run_id=UUID, status=_STATUS, values=OBJECT, result=OBJECT,
        messages={"type": "array", "items": ref("Message")},
    ),
    "CustomRunResultUpdate": _object(
        "type status update", "run_id", type={"const": "custom"}, run_id=UUID, status=_STATUS, update=OBJECT,
    ),
    "ValueRunInterruptUpdate": _extended("RunInterrupt", "run_id status", run_id=UUID, status=_STATUS),
    "ValueRunErrorUpdate": _extended("RunError", "status", status=_STATUS),
    # -- threads
    "Thread": _object(
        "thread_id created_at updated_at metadata status", "values messages",
        thread_id=TEXT, created_at=TIME, updated_at=TIME, metadata=OBJECT, status=ref("ThreadStatus"), values=OBJECT,
        messages={"type": "array", "items": ref("Message")},
    ),
    "ThreadState": _object(
        "checkpoint values", "metadata", checkpoint=ref("ThreadCheckpoint"), values=OBJECT, metadata=OBJECT,
    ),
}  # fmt: skip

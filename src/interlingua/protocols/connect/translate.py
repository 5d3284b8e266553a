"""Translates between the Agent Connect Protocol and the model. Pure.

The wire has no place for some facts. A run that is running or cancelling is `pending`. A cancelled run is an `error`
with the code for cancelled: the enum has no cancelled, and `interrupted` means that an answer is awaited. Only the
oldest open question shows as the interrupt. Activity shows only in `custom` streams.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from ...engine.handler.mounted_run import MOUNTED_FROM
from ...model.card import AgentCard
from ...model.content import Message as ModelMessage
from ...model.content import Part, TextPart, read_part
from ...model.errors import ErrorInfo, InterlinguaError, all_errors
from ...model.run import Checkpoint, Instance, Question, Run, Thread
from ...model.status import Status
from ...security.errors import HostRefused, KeysUnavailable, OriginRefused, Unauthenticated
from ...transports.http.body import SlowBody, WrongContentType
from .wire import Message, RunCreate, RunStatus

_AGENTS = uuid.UUID("5b1f1f5e-63a5-5bd1-9c33-3a6f1c1d7a10")

STATUS: dict[Status, RunStatus] = {
    Status.PENDING: "pending",
    Status.RUNNING: "pending",
    Status.CANCELLING: "pending",
    Status.WAITING: "interrupted",
    Status.SUCCEEDED: "success",
    Status.FAILED: "error",
    Status.CANCELLED: "error",
    Status.TIMED_OUT: "timeout",
}
STATUSES: dict[RunStatus, list[Status]] = {
    wire: [status for status in Status if STATUS[status] == wire] for wire in STATUS.values()
}

GONE = "the run was cancelled and deleted"  # while somebody looked on

# Every error has a number that never changes: HTTP's where there is one, else from 1000 on.
ERRCODES: dict[str, int] = {
    "internal": 500, "invalid": 422, "invalid_input": 4221, "invalid_config": 4222, "invalid_output": 1002,
    "invalid_question": 1003, "invalid_answer": 4223, "invalid_state": 4224, "invalid_request": 4220, "too_large": 413,
    "not_found": 404, "agent_not_found": 4041, "run_not_found": 4042, "thread_not_found": 4043,
    "question_not_found": 4044, "checkpoint_not_found": 4045, "conflict": 409, "thread_busy": 4091,
    "thread_exists": 4092, "thread_conflict": 4093, "already_answered": 4094, "already_finished": 4095,
    "key_reused": 4096, "denied": 403, "run_failed": 1000, "agent_error": 1001, "agent_crashed": 1004,
    "cancelled": 1005, "timed_out": 1006, "run_lost": 1007, "question_expired": 1008, "child_failed": 1009,
    "step_failed": 1010, "overloaded": 429, "unavailable": 503, "store_error": 5031, "definition_error": 1011,
    "unauthenticated": 401, "keys_unavailable": 5032, "host_refused": 4031, "origin_refused": 4032, "slow_body": 408,
    "wrong_content_type": 415, "rejected": 1012, "over_budget": 4291, "tool_failed": 1013, "task_not_found": 4046,
    "too_many_hops": 1014,
}  # fmt: skip
AT_THE_DOOR: tuple[type[InterlinguaError], ...] = (
    Unauthenticated,
    KeysUnavailable,
    HostRefused,
    OriginRefused,
    SlowBody,
    WrongContentType,
)  # met before the engine
OURS = "interlingua"  # the member of a listed agent, or of a run, for facts that the standard has no place for
OWN_ERRORS = 10_000  # an agent's own errors are numbered from here, in the order of its card

CUSTOM_UPDATE: dict[str, Any] = {
    "type": "object",
    "description": "One thing that happened: `delta` extends the output; the others are activity.",
    "properties": {
        "kind": {"enum": ["delta", "message", "thought", "plan", "tool_call", "artifact", "warning", "reset"]},
        "delta": {"type": "object"},
    },
    "required": ["kind"],
}


def when(microseconds: int) -> str:
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{_second(seconds)}.{rest:06d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


# -- agents ---------------------------------------------------------------------------------------------------


def agent_id(card: AgentCard) -> str:
    return agent_id_of(card.name, card.version)


@lru_cache(maxsize=4096)
def agent_id_of(name: str, version: str) -> str:
    """Returns the id of an agent: the same for the same name and version, on every server and after every restart."""
    return str(uuid.uuid5(_AGENTS, f"{name}@{version}"))


def agent(card: AgentCard, via: Sequence[str] = ()) -> dict[str, Any]:
    """Returns an agent of the wire. `via` lists the servers that the agent has come by, this one last. Its metadata
    stay as the standard has them."""
    identity = agent_id(card)
    ours = {OURS: {"via": list(via)}} if via else {}
    return {"agent_id": identity, "id": identity, "metadata": metadata(card), **ours}


def metadata(card: AgentCard) -> dict[str, Any]:
    ref: dict[str, Any] = {"name": card.name, "version": card.version}
    if isinstance(card.metadata.get("url"), str):
        ref["url"] = card.metadata["url"]
    return {"ref": ref, "description": card.description or card.name}


def capabilities(card: AgentCard) -> dict[str, Any]:
    """Returns the abilities of the agent; an agent may deny some in its metadata: `metadata={"connect": {"threads":
    False}}`."""
    said = _declared(card) or Declared()
    return {
        "threads": said.threads,
        "interrupts": bool(card.questions),
        "callbacks": said.callbacks,
        "streaming": {"values": said.streaming.values, "custom": said.streaming.custom},
    }


class DeclaredStreaming(msgspec.Struct, forbid_unknown_fields=True):
    values: bool = False
    custom: bool = False


class Declared(msgspec.Struct, forbid_unknown_fields=True):
    """The facts that an agent's author declares for this protocol, under `connect` in its metadata."""

    threads: bool = True
    callbacks: bool = True
    interrupts: bool | None = None
    streaming: DeclaredStreaming = msgspec.field(default_factory=lambda: DeclaredStreaming(True, True))


def _declared(card: AgentCard) -> Declared | None:
    """Returns the author's declaration; None where it is malformed: a mount may bring anything, and is served
    nevertheless."""
    try:
        return msgspec.convert(card.metadata.get("connect", {}), Declared)
    except msgspec.ValidationError:
        return None


def refused(card: AgentCard) -> list[str]:
    """Returns why an agent cannot be registered where this protocol has a door: its descriptor, as its author declares
    it, would break the rules.

    An agent of a mount is never refused, so that it cannot keep a server from starting: `descriptor` shows the parts of
    it that keep the rules, and leaves out the rest.
    """
    if MOUNTED_FROM in card.metadata:
        return []
    try:
        said = msgspec.convert(card.metadata.get("connect", {}), Declared)
    except msgspec.ValidationError as error:
        return [f'metadata["connect"]: {error}']
    told = descriptor(card)
    if card.state is not None:
        told["specs"]["thread_state"] = card.state
    if said.interrupts is not None:
        told["specs"]["capabilities"]["interrupts"] = said.interrupts
    told["specs"]["interrupts"] = [{"interrupt_type": question.type} for question in card.questions]
    return inconsistencies(told)


def descriptor(card: AgentCard) -> dict[str, Any]:
    able = capabilities(card)
    specs: dict[str, Any] = {
        "capabilities": able,
        "input": card.input,
        "output": card.output,
        "config": card.config or {"type": "object", "properties": {}, "additionalProperties": False},
    }
    if able["streaming"]["custom"]:
        specs["custom_streaming_update"] = CUSTOM_UPDATE
    if able["threads"] and card.state is not None:
        specs["thread_state"] = card.state
    if card.questions:
        specs["interrupts"] = [
            {"interrupt_type": q.type, "interrupt_payload": q.payload, "resume_payload": q.answer}
            for q in card.questions
            if q is card.question(q.type)  # the first of its type: a mount may bring one twice
        ]
    return {"metadata": metadata(card), "specs": specs}


def inconsistencies(described: dict[str, Any]) -> list[str]:
    """Returns the rules that a descriptor breaks, in words."""
    specs = described.get("specs", {})
    able = specs.get("capabilities", {})
    found = []
    if "thread_state" in specs and not able.get("threads"):
        found.append("specs.thread_state is given, but capabilities.threads is false")
    custom = bool((able.get("streaming") or {}).get("custom"))
    if custom is not ("custom_streaming_update" in specs):
        found.append("specs.custom_streaming_update belongs to capabilities.streaming.custom: both or neither")
    interrupts = specs.get("interrupts") or []
    if able.get("interrupts") and not interrupts:
        found.append("capabilities.interrupts is true, but specs.interrupts lists none")
    if interrupts and not able.get("interrupts"):
        found.append("specs.interrupts lists some, but capabilities.interrupts is false")
    types = [entry.get("interrupt_type") for entry in interrupts]
    found.extend(f"interrupt_type {t!r} is there twice" for t in dict.fromkeys(types) if types.count(t) > 1)
    return found


def instance(model: Instance) -> dict[str, Any]:
    """Returns a configured instance of an agent. This is our addition: the document asks for them, the OpenAPI has
    none."""
    told: dict[str, Any] = {
        "config_id": model.id,
        "agent_id": agent_id(AgentCard(model.agent, model.version)),
        "config": model.config,
        "created_at": when(model.created_at),
        "metadata": model.metadata,
    }
    if model.name is not None:
        told["name"] = model.name
    return told


# -- errors ---------------------------------------------------------------------------------------------------


def errcode(error: ErrorInfo, card: AgentCard | None = None) -> int:
    if card is not None:
        for place, definition in enumerate(card.errors):
            if definition.code == error.code:
                return OWN_ERRORS + place
    return ERRCODES.get(error.code, 500)


def error_definitions() -> list[dict[str, Any]]:
    """Returns the protocol's own errors, as this server has them."""
    return [
        {
            "errcode": ERRCODES.get(cls.code, 500),
            "code": cls.code,
            "description": (cls.__doc__ or cls.code).strip().split("\n")[0],
            "transient": cls.transient,
            "details": cls.details_schema,
        }
        for cls in (*all_errors(), *AT_THE_DOOR)
    ]


def own_error_definitions(card: AgentCard) -> list[dict[str, Any]]:
    return [
        {
            "errcode": OWN_ERRORS + place,
            "code": definition.code,
            "description": definition.description,
            "transient": definition.transient,
            "details": definition.details,
        }
        for place, definition in enumerate(card.errors)
    ]


# -- runs -----------------------------------------------------------------------------------------------------


def creation(body: RunCreate) -> dict[str, Any]:
    """Returns the request as its run shows it: members that were not set are left out, except for the defaults."""
    plain: dict[str, Any] = msgspec.to_builtins(body)
    return {key: value for key, value in plain.items() if value is not None}


def webhook(body: RunCreate) -> str | None:
    if body.webhook is not None:
        return body.webhook
    if isinstance(body.callback, str):
        return body.callback
    return (body.callback.POST or body.callback.url) if body.callback is not None else None


def run(model: Run, card_id: str) -> dict[str, Any]:
    told = {
        "run_id": model.id,
        "agent_id": card_id,
        "created_at": when(model.created_at),
        "updated_at": when(model.updated_at),
        "status": STATUS[model.status],
        "creation": model.request.extra.get("connect", {}) if model.request is not None else {},
    }
    if model.thread is not None:
        told["thread_id"] = model.thread
    if model.blocked is not None:
        told[OURS] = {"blocked": {"reason": model.blocked.reason, "message": model.blocked.message}}
    return told


def interrupt(question: Question, reader: str) -> dict[str, Any]:
    """Returns a question as an interrupt. The type comes first, because published clients take the first key; the other
    members are the earlier spelling.

    A question to another participant is not shown: it may be a result that waits for approval. For the reader that it
    is asked, the interrupt names the schema of the answer, because a mounted agent may ask a question that no
    descriptor lists.
    """
    shown = question.answerer in (None, reader)
    payload = question.payload if shown else {}
    told: dict[str, Any] = {
        "type": "interrupt",
        "interrupt": {question.type: payload},
        "interrupt_type": question.type,
        "interrupt_payload": payload,
        "interrupt_id": question.id,
    }
    if shown:
        told |= {"prompt": question.prompt, "answer_schema": question.answer_schema}
        if question.options:
            told["options"] = msgspec.to_builtins(question.options)
        if question.deadline is not None:
            told["deadline"] = when(question.deadline)
    return told


def error(run_id: str, info: ErrorInfo | None, status: Status, card: AgentCard | None) -> dict[str, Any]:
    info = info or ErrorInfo("run_failed", f"the run {status.value}")
    told: dict[str, Any] = {
        "type": "error",
        "run_id": run_id,
        "errcode": errcode(info, card),
        "description": info.message,
        "code": info.code,
        "transient": info.transient,
    }
    if info.details is not None:
        told["details"] = info.details
    return told


def output(model: Run, card: AgentCard | None, reader: str, given: list[ModelMessage]) -> dict[str, Any] | None:
    """Returns the present result of the run for a caller; None while it has none. `given` are the messages beside its
    output."""
    if model.status is Status.SUCCEEDED:
        return {"type": "result", "values": model.output, "result": model.output, **returned(given)}
    if model.status is Status.WAITING and model.questions:
        return interrupt(model.questions[0], reader)
    if model.status.final:
        return error(model.id, model.error, model.status, card)
    return None


def returned(given: list[ModelMessage]) -> dict[str, Any]:
    """Returns the member of a result for messages of the run; nothing where it gave only its output."""
    return {"messages": [message(one) for one in given]} if given else {}


# -- threads and messages -------------------------------------------------------------------------------------


def message(model: ModelMessage) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [_block(part) for part in model.parts]
    only_text = all(isinstance(part, TextPart) for part in model.parts)
    told: dict[str, Any] = {
        "role": "assistant" if model.role == "agent" else model.role,
        "content": model.text if only_text else blocks,
    }
    if model.id:
        told["id"] = model.id
    if model.metadata:
        told["metadata"] = model.metadata
    return told


def _block(part: Part) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(part)
    return plain


def to_message(wire: Message) -> ModelMessage:
    parts: list[Part] = [TextPart(wire.content)] if isinstance(wire.content, str) else [*map(read_part, wire.content)]
    role = "user" if wire.role in ("user", "human") else "system" if wire.role == "system" else "agent"
    return ModelMessage(role, parts, wire.id or "", metadata=wire.metadata or {})  # type: ignore[arg-type]


def thread(model: Thread, messages: list[ModelMessage] | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "thread_id": model.id,
        "created_at": when(model.created_at),
        "updated_at": when(model.updated_at),
        "metadata": model.metadata,
        "status": model.status,
    }
    if model.values:  # a thread of agents that keep no state has none to show
        told["values"] = model.values
    if messages is not None:
        told["messages"] = [message(m) for m in messages]
    return told


def thread_state(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint": {"checkpoint_id": checkpoint.id},
        "values": checkpoint.values or {},  # there may be messages and no state yet
        "metadata": {
            "created_at": when(checkpoint.created_at),
            **({"run_id": checkpoint.run} if checkpoint.run else {}),
        },
    }

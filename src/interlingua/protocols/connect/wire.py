"""The protocol's types, one to one with its OpenAPI document, version 0.2.3.

Requests are decoded strictly: a fault is answered 422 with its path. The protocol's free-form values (input, config,
state, payloads) are `Any` here; the engine checks them against the agent's own schemas. Spellings of the earlier
document that clients still use (`callback`) are accepted beside the present ones.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

StreamMode = Literal["values", "custom"]
RunStatus = Literal["pending", "error", "success", "timeout", "interrupted"]
ThreadStatus = Literal["idle", "busy", "interrupted", "error"]

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Uuid = Annotated[str, msgspec.Meta(extra_json_schema={"format": "uuid"})]
Url = Annotated[str, msgspec.Meta(min_length=1, max_length=65536, extra_json_schema={"format": "uri"})]


class AgentSearchRequest(msgspec.Struct):
    name: str | None = None
    version: str | None = None
    limit: Limit = 10
    offset: Offset = 0


class RunConfig(msgspec.Struct):
    tags: list[str] | None = None
    recursion_limit: int | None = None
    configurable: Any = None


class Callback(msgspec.Struct):
    """The earlier spelling of `webhook`: an object that says where to POST."""

    POST: Url | None = None
    url: Url | None = None


class RunCreate(msgspec.Struct, kw_only=True):
    agent_id: str | None = None
    input: Any = None
    metadata: dict[str, Any] | None = None
    config: RunConfig | None = None
    webhook: Url | None = None
    callback: Callback | Url | None = None
    stream_mode: list[StreamMode] | StreamMode | None = None
    on_disconnect: Literal["cancel", "continue"] = "cancel"
    multitask_strategy: Literal["reject", "rollback", "interrupt", "enqueue"] = "reject"
    after_seconds: Annotated[int, msgspec.Meta(ge=0, le=9_999_999_999)] | None = None


class RunCreateStateful(RunCreate, kw_only=True):
    stream_subgraphs: bool = False
    if_not_exists: Literal["create", "reject"] = "reject"


class RunCreateStateless(RunCreate, kw_only=True):
    on_completion: Literal["delete", "keep"] = "delete"


class RunSearchRequest(msgspec.Struct):
    agent_id: str | None = None
    status: RunStatus | None = None
    metadata: dict[str, Any] | None = None
    limit: Limit = 10
    offset: Offset = 0


class ThreadCreate(msgspec.Struct):
    thread_id: Uuid | None = None
    metadata: dict[str, Any] | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"


class ThreadCheckpoint(msgspec.Struct):
    checkpoint_id: str


class Message(msgspec.Struct, omit_defaults=True):
    role: str
    content: str | list[dict[str, Any]]
    id: str | None = None
    metadata: dict[str, Any] | None = None


class ThreadPatch(msgspec.Struct):
    checkpoint: ThreadCheckpoint | None = None
    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None  # states are objects here, as they are for the published client
    messages: list[Message] | None = None


class ThreadSearchRequest(msgspec.Struct):
    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    status: ThreadStatus | None = None
    limit: Limit = 10
    offset: Offset = 0


class Configuration(msgspec.Struct):
    """A request for a configured instance (our addition: the document asks for it, the OpenAPI has none)."""

    config: Any = None
    name: str | None = None
    metadata: dict[str, Any] | None = None

"""The protocol's types: agents over MCP, and the parts of MCP that carry them.

Requests are decoded strictly where a member matters and leniently where published clients are: params may be missing,
null or empty, and a cursor may stand in the envelope (acp-sdk 0.0.6 puts it there).
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..._version import __version__

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions with a handshake, oldest first."""
MODERN = "2026-07-28"
"""The revision without a handshake: every request repeats its facts in `_meta`."""

_IO = "io.modelcontextprotocol/"
META_VERSION = _IO + "protocolVersion"
META_CAPABILITIES = _IO + "clientCapabilities"
META_CLIENT = _IO + "clientInfo"
META_SERVER = _IO + "serverInfo"
META_SUBSCRIPTION = _IO + "subscriptionId"
"""In all notifications of a `subscriptions/listen`: the id of that request."""

META_RUN = "interlingua/run"
"""In a request's `_meta`: join this run instead of starting one. In a result's: the run that it came from."""
META_THREAD = "interlingua/thread"
META_KEY = "interlingua/key"
"""In a request's `_meta`: the same key from the same caller is the same run, which is joined instead of started."""
META_QUESTION = "interlingua/question"
"""In an elicitation's `_meta`: the question that it shows, the same each time that it is shown."""
META_DEADLINE = "interlingua/deadline"
"""The deadline of a question."""
META_ANSWER_SCHEMA = "interlingua/answerSchema"
"""In an elicitation's `_meta`: the schema of the answer, where a flat form does not show all of it. A value without a
field of its kind is JSON in a text field, and an answer that is no object with members is in the only field, `answer`.
Where the form shows `choice`, that stands for the beginning of the answer, and the other fields are members beside
it."""
META_KINDS = "interlingua/kinds"
"""Beside the schema of an answer that begins with a choice: `allow_once`, `reject_once` and so on, by the choice."""
META_ANSWER = "interlingua/answer"
"""In the `_meta` of the answer to an elicitation: the whole answer. It counts where it fits the schema and begins with
the choice."""
META_TOKEN = "interlingua/progressToken"  # noqa: S105 - a name, and no secret
"""In an elicitation's `_meta`: the progress token of the request whose run asks."""

META_PARTS = "interlingua/parts"
"""In a request's `_meta`: files and values beside the input, which is an object and has no place for them. In the
`_meta` of the result of `agents/run`: the parts beside its output. Each is `{"type": "data", "data": …}`, `{"type":
"text", "text": …}`, or `{"type": "file", "name": …, "media_type": …}` with `data` (base64), `text` or `url`."""
META_METADATA = "interlingua/metadata"
"""In a request's `_meta`: metadata of the run, for names that `_meta` itself must not have."""
META_ERROR = "interlingua/error"
"""In the `_meta` of a tool's result that says why it failed: code, whether trying again may help, details."""

META_VIA = "interlingua/via"
"""In the `_meta` of an agent that is listed: the servers that it has come by, this one last."""
META_AGENT_VERSION = "interlingua/version"
"""In the same place: the agent's version, also where its author gave none. `version` beside the name is the
author's."""

EXTENSION = "interlingua/agents"
"""Under capabilities.extensions: where peers look that know extensions and not the agents capability."""

HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class _Wire(msgspec.Struct, rename="camel"):
    pass


class Implementation(_Wire):
    name: str = ""
    version: str = ""
    title: str | None = None


class ClientCapabilities(_Wire):
    elicitation: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None
    roots: dict[str, Any] | None = None


class InitializeRequest(_Wire):
    protocol_version: str | int
    capabilities: ClientCapabilities = msgspec.field(default_factory=ClientCapabilities)
    client_info: Implementation = msgspec.field(default_factory=Implementation)


class ListRequest(_Wire):
    cursor: str | None = None


class RunRequest(_Wire):
    name: str
    input: dict[str, Any]


class CreateRequest(_Wire):
    template_name: str
    config: dict[str, Any] = {}


class DestroyRequest(_Wire):
    name: str


class SubscriptionFilter(_Wire):
    tools_list_changed: bool | None = None
    agents_list_changed: bool | None = None
    """Ours: extensions may add kinds."""


class ListenRequest(_Wire):
    notifications: SubscriptionFilter


class CallToolRequest(_Wire):
    name: str
    arguments: dict[str, Any] | None = None


class SetLevelRequest(_Wire):
    level: str


class ElicitResult(_Wire):
    action: str
    content: dict[str, Any] | None = None
    meta: Any = msgspec.field(default=None, name="_meta")


INFO = {"name": "interlingua", "version": __version__}


def complete(result: dict[str, Any]) -> dict[str, Any]:
    """Returns a result in the form of the revision without a handshake."""
    meta = {**result.get("_meta", {}), META_SERVER: INFO}
    return {"resultType": "complete", **result, "_meta": meta}

"""The protocol's types, versions 1 and 2: messages of a peer, decoded strictly.

A request that does not fit is answered -32602 with the path of the fault. Members that a later version may add are
ignored. Our own messages are made in `versions`, one class per version, so that the two can be compared line by line.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Meta = dict[str, Any]

META_DATA = "interlingua/data"
"""In the `_meta` of a text block: the JSON value that the text shows. The protocol has no block for values."""
META_FILE = "interlingua/file"
"""In the `_meta` of a block: name, title and description of a file, where the block has no place for them."""
META_AGENT = "interlingua/agent"
"""In the `_meta` of session/new: the choice of the option `agent`, as if it had been set right after. In the `_meta` of
its answer, and of the answers to session/load and session/resume: the agent that answers, also where there is nothing
to choose."""
META_AGENTS = "interlingua/agents"
"""In the `_meta` of the answer to `initialize`: the agents that there are, each with name, version, description,
`via`, the servers that it has come by, this one last, and `asks`, whether it may ask questions. Of several, each is the
choice NAME@VERSION of the option `agent`."""
META_METADATA = "interlingua/metadata"
"""In the `_meta` of a prompt: metadata of the run, for names that `_meta` itself must not have."""
META_END_OF_LAST = "interlingua/endOfLast"
"""In the `_meta` of a prompt, true: there is no new prompt. The answer tells how the newest turn of the session ended,
once it has. For a client that opened a session whose turn another connection began."""
META_DEADLINE = "interlingua/deadline"
"""In the `_meta` of a permission request or a form: until when it can be answered."""
META_ANSWER_SCHEMA = "interlingua/answerSchema"
"""In the `_meta` of a form: the schema of the answer, where a flat form does not tell all of it. What has no field
of its kind is JSON in a text field, and an answer that is no object with members is in the only field, `answer`. In
that of a permission request: the schema of an answer that says more than which option it is."""
META_ANSWER = "interlingua/answer"
"""In the `_meta` of the answer to a permission request: the whole answer. It counts where it fits the schema and begins
with the selected option."""

StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]


class _Wire(msgspec.Struct, rename="camel"):
    pass


Path = Annotated[str, msgspec.Meta(min_length=1)]


# -- initialize -----------------------------------------------------------------------------------------------


class Implementation(_Wire):
    name: str
    version: str = ""
    title: str | None = None


class FileSystemCapabilities(_Wire):
    read_text_file: bool = False
    write_text_file: bool = False


class ElicitationCapabilities(_Wire):
    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None


class ConfigOptionsCapabilities(_Wire):
    boolean: dict[str, Any] | None = None


class ClientSessionCapabilities(_Wire):
    config_options: ConfigOptionsCapabilities | None = None


class AuthCapabilities(_Wire):
    terminal: bool | dict[str, Any] | None = None  # a flag in version 1, an object in version 2


class ClientCapabilities(_Wire):
    fs: FileSystemCapabilities = msgspec.field(default_factory=FileSystemCapabilities)
    terminal: bool = False
    auth: AuthCapabilities | None = None
    elicitation: ElicitationCapabilities | None = None
    session: ClientSessionCapabilities | None = None


class InitializeRequest(_Wire):
    """A request to initialize, in both versions: version 1 has clientInfo and clientCapabilities, version 2 info and
    capabilities."""

    protocol_version: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    client_capabilities: ClientCapabilities | None = None
    client_info: Implementation | None = None
    capabilities: ClientCapabilities | None = None
    info: Implementation | None = None


class AuthenticateRequest(_Wire):
    method_id: str


# -- sessions -------------------------------------------------------------------------------------------------


class EnvVariable(_Wire):
    name: str
    value: str


class HttpHeader(_Wire):
    name: str
    value: str


class McpServerStdio(_Wire):
    name: str
    command: str
    args: list[str] = []
    env: list[EnvVariable] = []


class McpServerHttp(_Wire):
    name: str
    url: str
    headers: list[HttpHeader] = []


class NewSessionRequest(_Wire):
    cwd: Path
    mcp_servers: list[dict[str, Any]] | None = None  # checked one by one, so that the message can say which
    additional_directories: list[Path] | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class ReplayFrom(_Wire):
    type: str


class LoadSessionRequest(NewSessionRequest, kw_only=True):
    session_id: str
    replay_from: ReplayFrom | None = None  # version 2, where resume and load are one


class ListSessionsRequest(_Wire):
    cwd: str | None = None
    cursor: str | None = None


class SessionRequest(_Wire):
    """The params of delete, close and cancel, which name only a session."""

    session_id: str


class SetModeRequest(SessionRequest):
    mode_id: str


class SetConfigOptionRequest(SessionRequest):
    config_id: str
    value: Any
    type: str | None = None


class PromptRequest(SessionRequest):
    prompt: list[dict[str, Any]]
    meta: Meta | None = msgspec.field(default=None, name="_meta")  # may hold a W3C trace context


# -- content --------------------------------------------------------------------------------------------------


class Annotations(_Wire):
    audience: list[str] | None = None
    last_modified: str | None = None
    priority: float | None = None


class TextBlock(_Wire, tag="text", tag_field="type"):
    text: str
    annotations: Annotations | None = None


class ImageBlock(_Wire, tag="image", tag_field="type"):
    data: str
    mime_type: str
    uri: str | None = None
    annotations: Annotations | None = None


class AudioBlock(_Wire, tag="audio", tag_field="type"):
    data: str
    mime_type: str
    annotations: Annotations | None = None


class ResourceLinkBlock(_Wire, tag="resource_link", tag_field="type"):
    name: str
    uri: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None


class ResourceContents(_Wire):
    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class ResourceBlock(_Wire, tag="resource", tag_field="type"):
    resource: ResourceContents
    annotations: Annotations | None = None


ContentBlock = TextBlock | ImageBlock | AudioBlock | ResourceLinkBlock | ResourceBlock
CONTENT_TYPES = frozenset({"text", "image", "audio", "resource_link", "resource"})


# -- answers of a client --------------------------------------------------------------------------------------


class PermissionOutcome(_Wire):
    outcome: str
    option_id: str | None = None


class PermissionResponse(_Wire):
    outcome: PermissionOutcome
    meta: Any = msgspec.field(default=None, name="_meta")


class ElicitationResponse(_Wire):
    action: str
    content: dict[str, Any] | None = None


class TerminalExit(_Wire):
    exit_code: int | None = None
    signal: str | None = None


class TerminalOutput(_Wire):
    output: str
    truncated: bool = False
    exit_status: TerminalExit | None = None

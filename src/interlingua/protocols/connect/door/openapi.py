"""The door's own OpenAPI document: the published operations as this server has them, and its additions.

Request bodies come from the wire types, so the document always agrees with the decoder; answers are described in
openapi_schemas.py. A test compares the table here with the routes, and a fuzzer compares the whole with a running
server.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...._version import __version__
from ....security import webhook_signatures
from .. import wire
from . import openapi_schemas
from .openapi_schemas import ref

Json = dict[str, Any]

_REQUESTS: list[type[Any]] = [
    wire.AgentSearchRequest, wire.Configuration, wire.RunCreateStateful, wire.RunCreateStateless,
    wire.RunSearchRequest, wire.ThreadCreate, wire.ThreadPatch, wire.ThreadSearchRequest,
]  # fmt: skip

_ERRORS = {
    401: "Unauthenticated: no credential came, or one that is not accepted; `/auth` tells what is",
    403: "Denied: the caller's scopes, or the Host or Origin of the request, do not allow this",
    404: "NotFound: what the request names is not there, or is not the caller's to see",
    405: "MethodNotAllowed: the path has other methods; the Allow header lists them",
    408: "SlowBody: the body did not arrive in time",
    409: "Conflict: it is there, but its present state does not allow this",
    413: "TooLarge: the body, or its nesting, is over a limit",
    415: "WrongContentType: the body is not application/json",
    422: "Invalid: the body or a parameter does not fit; the text says what and where",
    429: "Overloaded: too many runs are waiting; later is fine",
    503: "Unavailable: the server is stopping, or its store does not answer; later is fine",
}
_EVERY = (401, 403, 503)
_BODY = (408, 413, 415, 422)


def document(prefix: str, security: list[Json]) -> Json:
    """Returns the document of a door under `prefix` that takes these security schemes (none where it is open)."""
    names = _scheme_names(security)
    components: Json = {
        "schemas": {**_request_schemas(), **openapi_schemas.ANSWERS},
        "responses": {_name(status): _error(status) for status in _ERRORS},
        "parameters": _PARAMETERS,
    }
    if security:
        components["securitySchemes"] = dict(zip(names, security, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Agent Connect Protocol",
            "version": __version__,
            "description": "Agents, runs and threads: the operations of the Agent Connect Protocol 0.2.3, with "
            "configured instances, capabilities, error tables and the authentication schemes beside them. Every error "
            "is a JSON string; its code is in the x-error-code header. Any path answers 405 to a method that it does "
            "not have.",
        },
        "servers": [{"url": prefix or "/"}],
        "security": [{name: []} for name in names],
        "tags": [{"name": name} for name in ("Agents", "Runs", "Threads", "Thread Runs", "Server")],
        "paths": paths(),
        "components": components,
    }


def paths() -> Json:
    found: Json = {}
    for method, path, operation in [*_agents(), *_runs(), *_threads(), *_thread_runs(), *_server()]:
        found.setdefault(path, {})[method] = operation
    return found


def _scheme_names(security: list[Json]) -> list[str]:
    names: list[str] = []
    for scheme in security:
        name = "api_key" if scheme["type"] == "apiKey" else "token" if "bearerFormat" in scheme else scheme["scheme"]
        taken = sum(known.rstrip("0123456789") == name for known in names)
        names.append(f"{name}{taken + 1}" if taken else name)
    return names


def _request_schemas() -> Json:
    _, found = msgspec.json.schema_components(_REQUESTS, ref_template="#/components/schemas/{name}")
    return dict(found)


# -- parts ----------------------------------------------------------------------------------------------------


def _parameter(name: str, where: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": where, "required": where == "path", "schema": schema, "description": description}


_PARAMETERS: Json = {
    "agent_id": _parameter("agent_id", "path", {"type": "string"}, "An agent's id, or its name"),
    "config_id": _parameter("config_id", "path", {"type": "string"}, "The id of a configured instance"),
    "run_id": _parameter("run_id", "path", {"type": "string"}, "The id of a run"),
    "thread_id": _parameter("thread_id", "path", {"type": "string"}, "The id of a thread"),
    "limit": _parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 10},
                        "At most so many"),
    "offset": _parameter("offset", "query", {"type": "integer", "minimum": 0, "maximum": 999_999_999, "default": 0},
                         "Leave out so many from the start"),
    "before": _parameter("before", "query", {"type": "string"}, "Only states older than this checkpoint"),
    "timeout": _parameter("timeout", "query", {"type": "number", "minimum": 0, "exclusiveMaximum": 1e9},
                          "Give up after so many seconds, with 204; without it, wait as long as it takes"),
    "while": _parameter("while", "query", {"type": "string"},
                        "An interrupt_id: answer as soon as the run no longer asks that, also where it just goes on"),
    "wait": _parameter("wait", "query", {"type": "boolean", "default": False}, "Answer when the run has stopped"),
    "action": _parameter("action", "query", {"enum": ["interrupt", "rollback"], "default": "interrupt"},
                         "`rollback` also deletes the run; what it did to its thread is undone, unless it had ended"),
    "last_event_id": _parameter("Last-Event-ID", "header", {"type": "string", "pattern": r"^([0-9]{1,15}(\.0)?)?$"},
                                "The id of the last update that the reader has; the stream goes on after it. Without "
                                "it, only what comes from now on is told"),
    "idempotency_key": _parameter("Idempotency-Key", "header", {"type": "string"},
                                  "The same key with the same request is the same run"),
}  # fmt: skip


def _name(status: int) -> str:
    return _ERRORS[status].partition(":")[0]


def _error(status: int) -> Json:
    text = {"type": "string"}
    headers: Json = {
        "x-error-code": {"schema": text, "description": "The code, as in the table at `/errors`"},
        "x-error-transient": {"schema": {"enum": ["true", "false"]}, "description": "Whether later is fine"},
    }
    if status == 401:
        headers["www-authenticate"] = {"schema": text, "description": "What to send"}
    if status == 405:
        headers = {"allow": {"schema": text, "description": "The methods that there are"}}
    description = _ERRORS[status].partition(": ")[2]
    return {"description": description[0].upper() + description[1:], "headers": headers,
            "content": {"application/json": {"schema": ref("ErrorResponse")}}}  # fmt: skip


def _operation(
    tag: str, operation_id: str, summary: str, answer: Json | None, *errors: int, description: str,
    parameters: str = "", body: Json | None = None, optional: bool = False, empty: bool = False, **more: Any,
) -> Json:  # fmt: skip
    """Returns one operation. `answer` is a schema, or a whole response where it has a description; None means 204
    only."""
    responses: Json = {}
    if answer is not None:
        whole = answer if "description" in answer else _json("What was asked for", answer)
        responses["200"] = whole
    if answer is None or empty:
        responses["204"] = {"description": "The time was over" if empty else "Done"}
    listed = sorted({*_EVERY, *errors, *(_BODY if body is not None else ())})
    responses |= {str(status): {"$ref": f"#/components/responses/{_name(status)}"} for status in listed}
    made: Json = {"operationId": operation_id, "tags": [tag], "summary": summary, "description": description}
    if parameters:
        made["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in parameters.split()]
    if body is not None:
        made["requestBody"] = {"required": not optional, "content": {"application/json": {"schema": body}}}
    return {**made, "responses": responses, **more}


def _json(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _list(name: str) -> Json:
    return {"type": "array", "items": ref(name)}


_STREAM: Json = {
    "description": "Server-sent events, each one RunOutputStream: `id`, `event: agent_event` and `data`, one line of "
    "JSON. Lines that begin with a colon keep the connection alive. The stream ends with the run, or where it waits "
    "for an answer",
    "content": {"text/event-stream": {"schema": ref("RunOutputStream")}},
}

_CALLBACK: Json = {
    "runstatuschange": {
        "{$request.body#/webhook}": {
            "post": {
                "operationId": "run_status_changed",
                "summary": "The run has another status",
                "description": "Sent on every change of status, in order, at least once. Any 2xx is an "
                "acknowledgement; anything else is tried again later, with the same delivery id.",
                "parameters": [
                    _parameter("x-interlingua-delivery", "header", {"type": "string"}, "The same on every attempt"),
                    _parameter(
                        webhook_signatures.TIMESTAMP_HEADER,
                        "header",
                        {"type": "integer"},
                        "Seconds since 1970",
                    ),
                    _parameter(
                        webhook_signatures.SIGNATURE_HEADER,
                        "header",
                        {"type": "string"},
                        "HMAC-SHA256 of id, time and body, where the server has a secret",
                    ),
                ],
                "requestBody": {"required": True, "content": {"application/json": {"schema": ref("Run")}}},
                "responses": {"200": {"description": "Received"}},
            }
        }
    }
}

_RESUME: Json = {
    "description": "The answer, as the descriptor's resume_payload for this interrupt describes it; or, as the earlier "
    "document has it, an object of interrupt_type and resume_payload",
}

Table = list[tuple[str, str, Json]]


# -- the table ------------------------------------------------------------------------------------------------


def _agents() -> Table:
    one = "/agents/{agent_id}"

    def get(path: str, name: str, summary: str, schema: Json, description: str, **more: Any) -> tuple[str, str, Json]:
        made = _operation("Agents", name, summary, schema, 404, parameters="agent_id", description=description, **more)
        return "get", path, made

    return [
        ("post", "/agents/search", _operation(
            "Agents", "search_agents", "Find agents", _list("Agent"), body=ref("AgentSearchRequest"), optional=True,
            description="By name and version; without either, every agent that the caller may see, in pages.")),
        get(one, "get_agent_by_id", "An agent", ref("Agent"), "Its id and metadata."),
        get(one + "/descriptor", "get_acp_descriptor_by_id", "An agent's descriptor", ref("AgentACPDescriptor"),
            "What it can do, and the schemas of what it takes, gives, asks and keeps."),
        get("/agents/agent/{agent_id}/descriptor", "get_acp_descriptor_by_earlier_path", "An agent's descriptor",
            ref("AgentACPDescriptor"), "The path of the earlier document.", deprecated=True),
        get(one + "/capabilities", "get_agent_capabilities", "What an agent supports", ref("AgentCapabilities"),
            "The capabilities of its descriptor."),
        get(one + "/errors", "get_agent_errors", "An agent's own errors", _list("ErrorDefinition"),
            "Those that are not in the table at `/errors`."),
        ("post", one + "/configurations", _operation(
            "Agents", "configure_agent", "Configure an agent", ref("ConfiguredInstance"), 404,
            parameters="agent_id", body=ref("Configuration"),
            description="Keeps the agent with a configuration, under an id that runs take as their agent_id.")),
        ("get", one + "/configurations", _operation(
            "Agents", "list_configurations", "Configured instances of an agent", _list("ConfiguredInstance"), 404, 422,
            parameters="agent_id limit offset", description="The caller's own, newest first.")),
        ("get", "/configurations/{config_id}", _operation(
            "Agents", "get_configuration", "A configured instance", ref("ConfiguredInstance"), 404,
            parameters="config_id", description="As it was stored.")),
        ("delete", "/configurations/{config_id}", _operation(
            "Agents", "delete_configuration", "Delete a configured instance", None, 404,
            parameters="config_id", description="Runs that used it stay.")),
    ]  # fmt: skip


def _runs() -> Table:
    return [
        *_creates("/runs", "Runs", "RunCreateStateless", "Stateless", "", "stateless_run"),
        ("post", "/runs/search", _operation(
            "Runs", "search_stateless_runs", "Find runs without a thread", _list("RunStateless"),
            body=ref("RunSearchRequest"), optional=True,
            description="By agent, status and metadata, newest first, in pages.")),
        *_on_a_run("/runs/{run_id}", "Runs", "Stateless", "run_id", "stateless_run"),
    ]  # fmt: skip


def _thread_runs() -> Table:
    base = "/threads/{thread_id}/runs"
    return [
        ("get", base, _operation(
            "Thread Runs", "list_thread_runs", "The runs of a thread", _list("RunStateful"), 404, 422,
            parameters="thread_id limit offset", description="Newest first, in pages.")),
        *_creates(base, "Thread Runs", "RunCreateStateful", "Stateful", "thread_id", "thread_run"),
        *_on_a_run(base + "/{run_id}", "Thread Runs", "Stateful", "thread_id run_id", "thread_run"),
    ]  # fmt: skip


def _creates(base: str, tag: str, body: str, kind: str, ids: str, name: str) -> Table:
    def create(path: str, operation_id: str, summary: str, answer: Json, description: str, **more: Any) -> Any:
        extra = " timeout" if path.endswith("/wait") else ""
        made = _operation(
            tag, operation_id, summary, answer, 404, 409, 429, body=ref(body), optional=True, description=description,
            parameters=f"{ids} idempotency_key{extra}", **more,
        )  # fmt: skip
        return "post", path, made

    return [
        create(base, f"create_{name}", "Start a run in the background", ref(f"Run{kind}"),
               "Answers as soon as the run is on disk. Without agent_id, the default agent runs.", callbacks=_CALLBACK),
        create(base + "/wait", f"create_and_wait_for_{name}_output", "Start a run and wait for its output",
               ref(f"RunWaitResponse{kind}"), "Answers when the run has ended or waits for an answer.", empty=True),
        create(base + "/stream", f"create_and_stream_{name}_output", "Start a run and stream its output", _STREAM,
               "Updates from the start of the run, in the modes of stream_mode."),
    ]  # fmt: skip


def _on_a_run(base: str, tag: str, kind: str, ids: str, name: str) -> Table:
    def on(
        method: str, path: str, operation_id: str, summary: str, answer: Json | None, *errors: int, **more: Any
    ) -> Any:
        more["parameters"] = f"{ids} {more.get('parameters', '')}".strip()
        return method, base + path, _operation(tag, operation_id, summary, answer, 404, *errors, **more)

    return [
        on("get", "", f"get_{name}", "A run", ref(f"Run{kind}"), description="As it is now."),
        on("post", "", f"resume_{name}", "Answer an interrupted run", ref(f"Run{kind}"), 409, body=_RESUME,
           description="The first valid answer wins, and any later one gets 409."),
        on("delete", "", f"delete_{name}", "Delete a run", None, 409,
           description="A run that has not ended is cancelled first."),
        on("get", "/wait", f"wait_for_{name}_output", "Wait for a run's output", ref(f"RunWaitResponse{kind}"), 422,
           parameters="timeout while", empty=True,
           description="Answers when the run has ended or waits for an answer."),
        on("get", "/stream", f"stream_{name}_output", "Join a run's stream", _STREAM, 422, parameters="last_event_id",
           description="Tells what comes from now on, or after Last-Event-ID; of a run that has ended, how it ended."),
        on("post", "/cancel", f"cancel_{name}", "Cancel a run", None, 409, 422, parameters="wait action",
           description="Cancelling a run that has ended changes nothing, unless it is rolled back."),
    ]  # fmt: skip


def _threads() -> Table:
    one = "/threads/{thread_id}"
    return [
        ("post", "/threads", _operation(
            "Threads", "create_thread", "Make a thread", ref("Thread"), 409, body=ref("ThreadCreate"), optional=True,
            description="Empty and idle. if_exists says what happens where there is one already.")),
        ("post", "/threads/search", _operation(
            "Threads", "search_threads", "Find threads", _list("Thread"), body=ref("ThreadSearchRequest"),
            optional=True, description="By metadata, values and status, newest first, in pages.")),
        ("get", one, _operation("Threads", "get_thread", "A thread", ref("Thread"), 404, parameters="thread_id",
                                description="With its present values and messages.")),
        ("patch", one, _operation(
            "Threads", "patch_thread", "Change a thread", ref("Thread"), 404, 409, parameters="thread_id",
            body=ref("ThreadPatch"),
            description="Metadata is merged; values are merged into those of the checkpoint, or the newest.")),
        ("delete", one, _operation("Threads", "delete_thread", "Delete a thread", None, 404, 409,
                                   parameters="thread_id", description="Not while a run has it or is to have it.")),
        ("get", one + "/history", _operation(
            "Threads", "get_thread_history", "The states of a thread", _list("ThreadState"), 404, 422,
            parameters="thread_id limit before", description="Newest first.")),
        ("post", one + "/copy", _operation("Threads", "copy_thread", "Copy a thread", ref("Thread"), 404,
                                           parameters="thread_id",
                                           description="With its values, history and messages.")),
    ]  # fmt: skip


def _server() -> Table:
    free: Json = {"security": []}  # needs no credential
    auth = _operation(
        "Server", "get_authentication_schemes", "What a caller needs to send", ref("AuthenticationSchemes"),
        description="Security scheme objects; an empty list means that nothing is needed.", **free,
    )  # fmt: skip
    own = _operation(
        "Server", "get_openapi_document", "This document", {"type": "object"}, description="OpenAPI 3.1.", **free
    )
    for operation in (auth, own):
        del operation["responses"]["401"]
        del operation["responses"]["503"]
    table = _operation(
        "Server", "get_errors", "The table of errors", _list("ErrorDefinition"),
        description="Every error that this server may give, with its number, code and whether it is transient.",
    )  # fmt: skip
    return [("get", "/errors", table), ("get", "/auth", auth), ("get", "/openapi.json", own)]

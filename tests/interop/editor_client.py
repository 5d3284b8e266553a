"""The PyPI SDK `agent-client-protocol` as a client that a test drives, in the SDK's own virtualenv.

    python editor_client.py stdio COMMAND...
    python editor_client.py http|ws URL

Lines of JSON-RPC come in on stdin and go out on stdout, as if the test were the client itself; in between, each goes
through the SDK: its methods, its models in both directions, its transports. Nothing of our own package is imported
here: what works here works for everybody who uses the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

import acp
from acp import schema, spawn_agent_process
from pydantic import BaseModel, TypeAdapter, ValidationError

REQUESTS: dict[str, tuple[str, Any]] = {
    "initialize": ("initialize", schema.InitializeRequest),
    "authenticate": ("authenticate", schema.AuthenticateRequest),
    "session/new": ("new_session", schema.NewSessionRequest),
    "session/load": ("load_session", schema.LoadSessionRequest),
    "session/resume": ("resume_session", schema.ResumeSessionRequest),
    "session/list": ("list_sessions", schema.ListSessionsRequest),
    "session/close": ("close_session", schema.CloseSessionRequest),
    "session/set_mode": ("set_session_mode", schema.SetSessionModeRequest),
    "session/set_config_option": (
        "set_config_option",
        schema.SetSessionConfigOptionBooleanRequest | schema.SetSessionConfigOptionSelectRequest,
    ),
    "session/prompt": ("prompt", schema.PromptRequest),
    "session/cancel": ("cancel", schema.CancelNotification),
}


def plain(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True) if isinstance(value, BaseModel) else value


class Client:
    """Whatever the agent asks, the test answers."""

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[Any]] = {}

    def write(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    async def _ask(self, method: str, **params: Any) -> Any:
        id_ = f"asked-{len(self._answers)}"
        self._answers[id_] = asyncio.get_running_loop().create_future()
        given = {name: plain(value) for name, value in params.items() if value is not None}
        if "options" in given:
            given["options"] = [plain(option) for option in params["options"]]
        if "env" in given:
            given["env"] = [plain(variable) for variable in params["env"]]
        self.write(id=id_, method=method, params=given)
        return await self._answers[id_]

    def answered(self, message: dict[str, Any]) -> None:
        future = self._answers[message["id"]]
        if "error" in message:
            error = message["error"]
            future.set_exception(acp.RequestError(error["code"], error["message"], error.get("data")))
        else:
            future.set_result(message["result"])

    # -- the methods of a client, as the SDK has them ------------------------------------------------------

    def on_connect(self, conn: Any) -> None:
        pass

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.write(method="session/update", params={"sessionId": session_id, "update": plain(update)})

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        told = await self._ask("session/request_permission", sessionId=session_id, toolCall=tool_call, options=options)
        return schema.RequestPermissionResponse.model_validate(told)

    async def read_text_file(self, session_id: str, path: str, line: Any = None, limit: Any = None, **_: Any) -> Any:
        told = await self._ask("fs/read_text_file", sessionId=session_id, path=path, line=line, limit=limit)
        return schema.ReadTextFileResponse.model_validate(told)

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> Any:
        told = await self._ask("fs/write_text_file", sessionId=session_id, path=path, content=content)
        return schema.WriteTextFileResponse.model_validate(told)

    async def create_terminal(
        self, session_id: str, command: str, args: Any = None, env: Any = None, cwd: Any = None,
        output_byte_limit: Any = None, **_: Any,
    ) -> Any:  # fmt: skip
        told = await self._ask(
            "terminal/create", sessionId=session_id, command=command, args=args, env=env, cwd=cwd,
            outputByteLimit=output_byte_limit,
        )  # fmt: skip
        return schema.CreateTerminalResponse.model_validate(told)

    async def terminal_output(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        told = await self._ask("terminal/output", sessionId=session_id, terminalId=terminal_id)
        return schema.TerminalOutputResponse.model_validate(told)

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        told = await self._ask("terminal/wait_for_exit", sessionId=session_id, terminalId=terminal_id)
        return schema.WaitForTerminalExitResponse.model_validate(told)

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        told = await self._ask("terminal/kill", sessionId=session_id, terminalId=terminal_id)
        return schema.KillTerminalResponse.model_validate(told)

    async def release_terminal(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        told = await self._ask("terminal/release", sessionId=session_id, terminalId=terminal_id)
        return schema.ReleaseTerminalResponse.model_validate(told)

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        shape = plain(mode)  # the SDK tells the mode by the type alone
        name = "form" if "requestedSchema" in shape else "url"
        told = await self._ask("elicitation/create", message=message, mode=name, **shape)
        return TypeAdapter(schema.CreateElicitationResponse).validate_python(told)

    async def complete_elicitation(self, elicitation_id: str, **_: Any) -> None:
        self.write(method="elicitation/complete", params={"elicitationId": elicitation_id})

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise acp.RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        pass


async def call(connection: Any, method: str, params: dict[str, Any]) -> Any:
    if method.startswith("_"):
        return await connection.ext_method(method[1:], params)
    name, model = REQUESTS[method]
    given = TypeAdapter(model).validate_python(params)
    fields = {field: getattr(given, field) for field in type(given).model_fields if field in given.model_fields_set}
    fields.pop("type", None)  # the SDK's own method knows it from the value
    return plain(await getattr(connection, name)(**fields))


async def serve(client: Client, connection: Any) -> None:
    async def one(message: dict[str, Any]) -> None:
        outcome: dict[str, Any]
        try:
            outcome = {"result": await call(connection, message["method"], message["params"]) or {}}
        except acp.RequestError as error:
            outcome = {"error": {"code": error.code, "message": str(error), "data": error.data}}
        except (ValidationError, ConnectionError, RuntimeError) as error:
            outcome = {"error": {"code": -1, "message": f"{type(error).__name__}: {error}"}}
        if "id" in message:
            client.write(id=message["id"], **outcome)

    reader = asyncio.StreamReader(limit=2**26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = set()
    while line := await reader.readline():
        message = json.loads(line)
        if "method" not in message:
            client.answered(message)
            continue
        task = asyncio.create_task(one(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    for task in tasks:
        task.cancel()


@contextlib.asynccontextmanager
async def connected(client: Client, kind: str, *where: str) -> Any:
    if kind == "stdio":
        # The SDK's default for the agent's stderr is a pipe that nobody reads.
        stderr = {} if os.environ.get("STDERR_UNREAD") else {"stderr": None}
        options: dict[str, Any] = {"transport_kwargs": stderr, "use_unstable_protocol": True}
        async with spawn_agent_process(client, *where, **options) as (connection, _):
            yield connection
        return
    if kind == "http":
        from acp.http import create_http_stream

        stream = create_http_stream(where[0])
    else:
        from acp.ws import create_websocket_stream

        stream = await create_websocket_stream(where[0])
    connection = acp.connect_to_agent(client, stream, use_unstable_protocol=True)
    yield connection
    await connection.close()


async def main(kind: str, *where: str) -> None:
    client = Client()
    async with connected(client, kind, *where) as connection:
        await serve(client, connection)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

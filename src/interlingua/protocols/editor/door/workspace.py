"""The client's files and terminals, for our agents: `ctx.editor`. Methods that the client lacks raise an error."""

from __future__ import annotations

import contextlib
from pathlib import PurePath
from typing import Any

import msgspec

from ....engine.handler.workspace import TerminalOutput
from ....model.errors import Denied, InvalidRequest, NotFound, Unavailable
from ....transports.jsonrpc.connection import Connection, ConnectionLost, RpcError
from .. import wire


class ClientEditor:
    """One session's client."""

    def __init__(
        self, connection: Connection, session: str, able: wire.ClientCapabilities, cwd: str, directories: list[str],
        mcp_servers: list[dict[str, Any]],
    ) -> None:  # fmt: skip
        self._connection = connection
        self._session = session
        self.cwd = cwd
        self.directories = directories
        self.mcp_servers = mcp_servers
        self.can_read = able.fs.read_text_file
        self.can_write = able.fs.write_text_file
        self.can_run = able.terminal

    async def read(self, path: str, *, line: int | None = None, limit: int | None = None) -> str:
        self._need(self.can_read, "read files")
        params = {"path": self._absolute(path)}
        result = await self.ask("fs/read_text_file", {**params, **_given(line=line, limit=limit)})
        content = result.get("content") if isinstance(result, dict) else None
        return content if isinstance(content, str) else ""

    async def write(self, path: str, text: str) -> None:
        self._need(self.can_write, "write files")
        await self.ask("fs/write_text_file", {"path": self._absolute(path), "content": text})

    async def run(
        self,
        command: str,
        *args: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        output_limit: int | None = None,
    ) -> ClientTerminal:
        self._need(self.can_run, "run commands")
        variables = [{"name": name, "value": value} for name, value in (env or {}).items()]
        params = {"command": command, "args": list(args), "env": variables, "cwd": self._absolute(cwd or self.cwd)}
        result = await self.ask("terminal/create", {**params, **_given(outputByteLimit=output_limit)})
        return ClientTerminal(self, str(result["terminalId"]))

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        try:
            return await self._connection.request(method, {"sessionId": self._session, **params})
        except ConnectionLost as error:
            raise Unavailable(f"the editor is gone: {method}") from error
        except RpcError as error:
            kind = NotFound if error.code == -32002 else InvalidRequest
            raise kind(f"the editor answered {method} with {error}") from error

    def _absolute(self, path: str) -> str:
        return str(PurePath(self.cwd) / path)

    def _need(self, able: bool, what: str) -> None:
        if not able:
            raise Denied(f"this editor does not {what} for agents; look at ctx.editor.can_read, can_write and can_run")


class ClientTerminal:
    def __init__(self, editor: ClientEditor, id_: str) -> None:
        self._editor = editor
        self.id = id_

    async def output(self) -> TerminalOutput:
        output = msgspec.convert(
            await self._editor.ask("terminal/output", {"terminalId": self.id}), wire.TerminalOutput, strict=False
        )
        ended = output.exit_status
        return TerminalOutput(
            output.output, output.truncated, ended.exit_code if ended else None, ended.signal if ended else None,
            ended is not None,
        )  # fmt: skip

    async def wait(self) -> TerminalOutput:
        ended = msgspec.convert(
            await self._editor.ask("terminal/wait_for_exit", {"terminalId": self.id}) or {}, wire.TerminalExit
        )
        output = await self.output()
        output.exit_code, output.signal, output.exited = ended.exit_code, ended.signal, True
        return output

    async def kill(self) -> None:
        await self._editor.ask("terminal/kill", {"terminalId": self.id})

    async def release(self) -> None:
        with contextlib.suppress(Unavailable):
            await self._editor.ask("terminal/release", {"terminalId": self.id})


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}

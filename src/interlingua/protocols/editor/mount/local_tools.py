"""Files and terminals of a session on this machine, for a mounted agent, within a policy.

Where the run comes from an editor that offers the same, the editor is used instead: it has unsaved changes, and its
user decides there. Otherwise each kind is denied, asked for (the run asks, and any door may answer) or allowed.
"""

from __future__ import annotations

import asyncio
import difflib
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from ....engine.handler.workspace import Editor, Terminal
from ....model.errors import Denied, InterlinguaError, NotFound
from ....model.run import Option
from ....transports.jsonrpc.core import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from ..config import Policy
from .local_files import Directory
from .local_terminals import Terminals

if TYPE_CHECKING:
    from .rpc_client import Place

_DIFF_LINES = 400  # of a diff that a question shows


class Policies(msgspec.Struct, kw_only=True, frozen=True):
    read: Policy = "allow"
    write: Policy = "ask"
    terminal: Policy = "ask"


class Asker(Protocol):
    """Asks for permission while a turn runs, and knows the editor that the run comes from."""

    @property
    def editor(self) -> Editor | None: ...

    async def choose(self, kind: str, prompt: str, payload: dict[str, Any], options: list[Option]) -> str | None:
        """Returns the chosen option; None where no answer came in time."""
        ...


class _Read(msgspec.Struct):
    path: str
    line: int | None = None
    limit: int | None = None


class _Write(msgspec.Struct):
    path: str
    content: str


class _Variable(msgspec.Struct):
    name: str
    value: str


class _Run(msgspec.Struct, rename="camel"):
    command: str
    args: list[str] | None = None
    env: list[_Variable] | None = None
    cwd: str | None = None
    output_byte_limit: int | None = None


class _Known(msgspec.Struct, rename="camel"):
    terminal_id: str


class LocalWork:
    """Files and terminals of one session."""

    def __init__(self, place: Place, policies: Policies) -> None:
        self._directory = Directory(place.cwd, list(place.directories))
        self._policies = policies
        self._terminals = Terminals()
        self._elsewhere: dict[str, Terminal] = {}  # terminals of an editor
        self._always: set[str] = set()  # kinds that were allowed for the rest of the session
        self.asker: Asker | None = None

    async def close(self) -> None:
        await self._terminals.close()
        for terminal in self._elsewhere.values():
            try:
                await terminal.release()
            except InterlinguaError:
                continue
        self._elsewhere.clear()

    async def serve(self, method: str, params: dict[str, Any]) -> Any:
        try:
            match method:
                case "fs/read_text_file":
                    return {"content": await self._read(msgspec.convert(params, _Read))}
                case "fs/write_text_file":
                    await self._write(msgspec.convert(params, _Write))
                    return {}
                case "terminal/create":
                    return {"terminalId": await self._create(msgspec.convert(params, _Run))}
            if method.startswith("terminal/"):
                return await self._terminal(method, msgspec.convert(params, _Known).terminal_id)
        except msgspec.ValidationError as error:
            raise RpcError(INVALID_PARAMS, f"{method}: {error}") from None
        raise RpcError(METHOD_NOT_FOUND, f"there is no method {method!r}")

    # -- files --------------------------------------------------------------------------------------------

    @property
    def _editor(self) -> Editor | None:
        return self.asker.editor if self.asker is not None else None

    async def _read(self, wanted: _Read) -> str:
        self._not_denied("read")
        editor = self._editor
        if editor is not None and editor.can_read:
            return await editor.read(wanted.path, line=wanted.line, limit=wanted.limit)
        self._directory.resolve(wanted.path)
        await self._allowed("read", f"Read {wanted.path}?", {"path": wanted.path})
        return await asyncio.to_thread(self._directory.read, wanted.path, wanted.line, wanted.limit)

    async def _write(self, wanted: _Write) -> None:
        self._not_denied("write")
        editor = self._editor
        if editor is not None and editor.can_write:
            await editor.write(wanted.path, wanted.content)
            return
        self._directory.resolve(wanted.path)  # a path outside is refused before the question
        if self._policies.write == "ask" and "write" not in self._always:
            payload = {"path": wanted.path, "diff": await asyncio.to_thread(self._diff, wanted)}
            await self._allowed("write", f"Write {wanted.path}?", payload)
        else:
            await self._allowed("write", f"Write {wanted.path}?", {"path": wanted.path})
        await asyncio.to_thread(self._directory.write, wanted.path, wanted.content)

    def _diff(self, wanted: _Write) -> str:
        try:
            old = self._directory.read(wanted.path)
        except (NotFound, InterlinguaError):
            old = ""
        lines = list(difflib.unified_diff(old.splitlines(), wanted.content.splitlines(), lineterm="", n=2))[2:]
        more = [f"… {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else []
        return "\n".join(lines[:_DIFF_LINES] + more)

    # -- terminals ----------------------------------------------------------------------------------------

    async def _create(self, wanted: _Run) -> str:
        self._not_denied("terminal")
        env = {variable.name: variable.value for variable in wanted.env or []}
        editor = self._editor
        if editor is not None and editor.can_run:
            there = await editor.run(
                wanted.command, *(wanted.args or []), cwd=wanted.cwd, env=env, output_limit=wanted.output_byte_limit
            )
            self._elsewhere[there.id] = there
            return there.id
        cwd = self._directory.directory(wanted.cwd)
        args = wanted.args or []
        line = " ".join([wanted.command, *args])
        payload: dict[str, Any] = {"command": line, "cwd": cwd}
        if env:
            payload["variables"] = sorted(env)
        await self._allowed("terminal", f"Run {line}?", payload)
        made = await self._terminals.create(wanted.command, args, cwd, env, wanted.output_byte_limit)
        return made.id

    async def _terminal(self, method: str, id_: str) -> Any:
        terminal: Terminal = self._elsewhere.get(id_) or self._terminals.find(id_)
        match method:
            case "terminal/output":
                told = await terminal.output()
                ended = {"exitStatus": {"exitCode": told.exit_code, "signal": told.signal}} if told.exited else {}
                return {"output": told.output, "truncated": told.truncated, **ended}
            case "terminal/wait_for_exit":
                told = await terminal.wait()
                return {"exitCode": told.exit_code, "signal": told.signal}
            case "terminal/kill":
                await terminal.kill()
                return {}
            case "terminal/release":
                if self._elsewhere.pop(id_, None) is not None:
                    await terminal.release()
                else:
                    await self._terminals.release(id_)
                return {}
        raise RpcError(METHOD_NOT_FOUND, f"there is no method {method!r}")

    # -- the policy ---------------------------------------------------------------------------------------

    def _not_denied(self, kind: Literal["read", "write", "terminal"]) -> None:
        """Raises where a policy denies a request. An agent may request what it was not offered; a denial also holds in
        an editor."""
        if getattr(self._policies, kind) == "deny":
            raise Denied(f"{kind} is not allowed here")

    async def _allowed(self, kind: Literal["read", "write", "terminal"], prompt: str, payload: dict[str, Any]) -> None:
        """Returns only where the work is allowed, by policy or by an answer; else raises."""
        policy: Policy = getattr(self._policies, kind)
        if policy == "allow" or kind in self._always:
            return
        if self.asker is None:
            raise Denied(f"{kind} must be allowed by somebody, and no turn runs in which they could be asked")
        options = [
            Option("allow", "Allow", "allow_once"),
            Option("always", "Allow, and do not ask again in this session", "allow_always"),
            Option("reject", "Do not allow", "reject_once"),
        ]
        chosen = await self.asker.choose(kind, prompt, payload, options)
        if chosen == "always":
            self._always.add(kind)
        elif chosen != "allow":
            raise Denied(f"{kind} was not allowed")

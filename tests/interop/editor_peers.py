"""Starts the drivers of the published SDKs, and talks to them as to a raw client: see `editor_client.py` and `.mjs`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.kit.clients.editor import COMMAND, PATIENCE, Client, Message, prompt
from tests.kit.mounts.editor import gone

HERE = Path(__file__).parent
AGENTS = HERE.parent / "protocols" / "editor" / "agents.py"
INTERLINGUA = COMMAND[0]

MARK = "INTEROP_MARK"

Sdk = Literal["pypi", "npm", "npm-v2"]
Way = Literal["stdio", "http", "ws"]


class Peer(Client):
    """A client of the SDK. What differs between the versions is said here, once."""

    process: asyncio.subprocess.Process
    version = 1

    def capabilities(self, **v1: Any) -> Message:
        """All that a client can have, in the words of the version."""
        form: Message = {"elicitation": {"form": {}}}
        if self.version == 2:
            return {"info": {"name": "interop", "version": "1"}, "capabilities": form}
        session = {"configOptions": {"boolean": {}}}
        able = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True, "session": session, **form}
        return {"clientCapabilities": {**able, **v1}, "clientInfo": {"name": "interop", "version": "1"}}

    async def begin(self) -> Message:
        return await self.initialize(self.version, **self.capabilities())

    async def session(self, agent: str, cwd: str = "/tmp", **members: Any) -> str:
        """A new session with one of the agents."""
        made = await self.ask("session/new", {"cwd": cwd, "mcpServers": [], **members})
        await self.choose(made["sessionId"], made, agent)
        session: str = made["sessionId"]
        return session

    async def choose(self, session: str, told: Message, agent: str) -> Any:
        key = "configId" if self.version == 2 else "id"
        option = next(option for option in told["configOptions"] if option[key] == "agent")
        value = next(choice["value"] for choice in option["options"] if choice["name"] == agent)
        return await self.set_option(session, "agent", value)

    async def set_option(self, session: str, name: str, value: Any) -> Any:
        params = {"sessionId": session, "configId": name, "value": value}
        if isinstance(value, bool):
            params["type"] = "boolean"
        elif self.version == 2:
            params["type"] = "id"
        told = (await self.ask("session/set_config_option", params))["configOptions"]
        key = "configId" if self.version == 2 else "id"
        return {option[key]: option["currentValue"] for option in told}

    async def turn(self, session: str, *blocks: str | Message) -> Message:
        """A prompt to its end: its stop reason, and the error where it has one."""
        begun = await self.turn_begun(session, *blocks)
        return await begun()

    async def turn_begun(self, session: str, *blocks: str | Message) -> Callable[[], Any]:
        """Send a prompt. Calling what this gives waits for the turn's end."""
        after = len(self.messages)
        id_ = await self.send("session/prompt", prompt(session, *blocks))

        async def ended() -> Message:
            answer = await self.answer(id_)
            if self.version == 1 or "error" in answer:
                told: Message = answer.get("result") or {"stopReason": "error", "error": answer["error"]}
                return told
            assert answer["result"]["messageId"]
            return await self.update_of(session, "state_update", after=after, state="idle")

        return ended

    async def update_of(self, session: str, kind: str, *, after: int = 0, **members: Any) -> Message:
        """The first update of a session that is of this kind and has these members."""
        wanted = {"sessionUpdate": kind, **members}

        def fits(message: Message) -> bool:
            if message.get("method") != "session/update" or message["params"]["sessionId"] != session:
                return False
            update = message["params"]["update"]
            return all(update.get(name) == value for name, value in wanted.items())

        found: Message = (await self.wait_for(fits, after=after))["params"]["update"]
        return found

    def tool_calls(self) -> list[Message]:
        kinds = ("tool_call", "tool_call_update")
        return [update for update in self.updates() if update["sessionUpdate"] in kinds]

    def forget(self) -> None:
        """What was heard up to now is of no interest any more."""
        self.messages.clear()


@contextlib.asynccontextmanager
async def driven(
    command: list[str], version: int = 1, *, env: dict[str, str] | None = None, quiet: bool = True
) -> AsyncIterator[Peer]:
    """A driver as a process. At the end its input ends, and it must leave by itself and without an error. What it says
    on stderr is what the SDK, or our own process behind it, has to complain of: nothing."""
    pipe = asyncio.subprocess.PIPE
    complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=complaints, start_new_session=True, env={**os.environ, **(env or {})}
    )
    assert process.stdin is not None
    assert process.stdout is not None
    peer = Peer(process.stdout, process.stdin)
    peer.process, peer.version = process, version

    def said() -> str:
        complaints.seek(0)
        return complaints.read().decode(errors="replace")

    try:
        yield peer
        await peer.end_input()
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
            await peer.reading
        assert peer.broken is None, peer.broken
        # The PyPI SDK 0.12.1 does not know this notification, and logs that.
        assert not quiet or not said() or "method=$/cancel_request" in said(), said()
    except BaseException as error:
        error.add_note(f"the client's stderr: {said()}")
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await peer.end_input()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(peer.reading), 10)
        await peer.stop()
        complaints.close()


class Sdks:
    """Where the SDKs are, and how their clients are started."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def client(self, sdk: Sdk, way: Way, *where: str, **how: Any) -> contextlib.AbstractAsyncContextManager[Peer]:
        if sdk == "pypi":
            python: Path = self._request.getfixturevalue("editor_pypi")
            return driven([str(python), str(HERE / "editor_client.py"), way, *where], **how)
        version = 2 if sdk == "npm-v2" else 1
        script = self._request.getfixturevalue("editor_npm") / "editor_client.mjs"
        return driven(["node", str(script), str(version), way, *where], version, **how)

    def agent(self, sdk: Sdk) -> list[str]:
        """The command of an agent that is written with the SDK; the npm one speaks both versions."""
        if sdk == "pypi":
            return [str(self._request.getfixturevalue("editor_pypi")), str(HERE / "editor_agent.py")]
        return ["node", str(self._request.getfixturevalue("editor_npm") / "editor_agent.mjs")]


@contextlib.contextmanager
def process_with_address(command: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[str]:
    """A server as a process, and the address that it prints."""
    pipe = subprocess.PIPE
    with (
        log.open("wb") as kept,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        ) as process,
    ):
        assert process.stdout is not None
        found = None
        for line in process.stdout:
            kept.write(line)
            found = re.search(rb"http://127\.0\.0\.1:\d+", line)
            if found is not None:
                break
        assert found is not None, f"{command} printed no address: {log.read_text()}"
        drain = threading.Thread(target=shutil.copyfileobj, args=(process.stdout, kept))  # it never waits for us
        drain.start()
        try:
            yield found.group().decode()
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            drain.join()


def marked(mark: str) -> set[int]:
    """Processes that have a mark in their environment: an agent's, whoever is their parent by now."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                    found.add(int(process.name))
    return found


async def all_gone(pids: set[int]) -> None:
    for pid in pids:
        await gone(pid)


def serve(folder: Path) -> contextlib.AbstractContextManager[str]:
    """`interlingua serve` with the agents of the door's tests."""
    store = folder / "served.db"
    command = [INTERLINGUA, "serve", str(AGENTS), "--port", "0", "--store", str(store)]
    return process_with_address(command, folder / "serve.log")


def stdio_command(store: Path, *targets: str) -> list[str]:
    # Some clients give their agents hardly any variables of their own.
    return ["env", "INTERLINGUA_PROJECT=interop", *COMMAND, "--store", str(store), *(targets or [str(AGENTS)])]

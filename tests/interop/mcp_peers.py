"""The published SDKs as clients and servers of agents over MCP, each in its own virtualenv and process.

A client is driven with the raw client of the door's own tests: between the test and us, every message goes through the
SDK. What a server's agents do is the same for all SDKs, so the tests of mounts begin here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import interlingua as il
from interlingua.model.delta import Joiner
from interlingua.model.events import OutputDelta, Warned
from interlingua.mounts.loader import local_agents
from interlingua.protocols.mcp.config import MountSettings
from interlingua.protocols.mcp.mount.connection import source_of
from interlingua.protocols.mcp.mount.server import McpServer
from tests.kit.clients import rpc
from tests.kit.clients.mcp import COMMAND, DELTA, PATIENCE, Message, Process
from tests.kit.clients.rpc import INTERLINGUA
from tests.kit.engines import bodies, engine, finish, submit
from tests.kit.mounts.watch import SETTINGS

from .editor_peers import process_with_address

HERE = Path(__file__).parent
AGENTS = HERE / "mcp_agents.py"
NAMES = ["echo", "adder", "endless", "witness", "breaks", "careful", "shipper", "deep", "org.acme.styled"]


def serve(folder: Path) -> contextlib.AbstractContextManager[str]:
    """`interlingua serve` with the agents of these tests."""
    command = [INTERLINGUA, "serve", str(AGENTS), "--port", "0", "--store", str(folder / "store.db")]
    return process_with_address(command, folder / "serve.log")


def stdio_command(folder: Path, *targets: str) -> list[str]:
    return [*COMMAND, "--store", str(folder / "store.db"), *(targets or [str(AGENTS)])]


# -- clients --------------------------------------------------------------------------------------------------


class Peer(Process):
    """A client of an SDK. Errors that are its own, and not ours, have the codes -1 (it has left) and -2."""

    async def begun(self, name: str, input_: Message, token: str) -> Any:
        """The id of a run that has said something."""
        id_ = await self.start_run(name, input_, token=token)
        await self.delta(token)
        return id_

    async def delta(self, token: Any) -> Message:
        return await self.wait_for(lambda m: m.get("method") == DELTA and m["params"]["progressToken"] == token)

    async def joins_to(self, token: Any, output: Message) -> None:
        """Wait until the deltas join to this. An SDK may tell of them after the result that they came before."""

        def whole(message: Message) -> bool:
            return message.get("method") == DELTA and self.joined(token) == output

        await self.wait_for(whole)

    async def cancel(self, id_: Any, **members: Any) -> Message:
        await self.notify("notifications/cancelled", {"requestId": id_, **members})
        error: Message = (await self.answer(id_))["error"]
        return error

    async def agents(self) -> list[str]:
        return [agent["name"] for agent in (await self.ask("agents/list"))["agents"]]

    async def tools(self) -> list[str]:
        return [tool["name"] for tool in (await self.ask("tools/list"))["tools"]]


Connect = Callable[[], contextlib.AbstractAsyncContextManager[Peer]]


@contextlib.asynccontextmanager
async def driven(command: list[str], folder: Path, *, quiet: bool = True) -> AsyncIterator[Peer]:
    """A driver as a process. At the end its input ends, and it must leave by itself and without an error. What it says
    on stderr is what the SDK, or our own process behind it, has to complain of: nothing."""
    async with rpc.start(Peer, command, folder / "client.log") as peer:
        try:
            yield peer
            await peer.end_input()
            assert await peer.wait() == 0
            await asyncio.wait_for(asyncio.shield(peer.reading), PATIENCE)
            assert peer.broken is None, peer.broken
            assert not peer.notices("driver/odd")
            assert not quiet or not peer.stderr
        except BaseException as error:
            error.add_note(f"the client's stderr: {peer.stderr}")
            raise


# -- servers --------------------------------------------------------------------------------------------------


class Mounted:
    """A mounted server, and short ways to run its agents."""

    def __init__(self, eng: il.Engine, mount: McpServer) -> None:
        self.engine, self.mount = eng, mount

    async def run(self, name: str, **input_: Any) -> il.Run:
        return await finish(self.engine, name, input_)

    async def begin(self, name: str, **input_: Any) -> str:
        return (await submit(self.engine, name, input_)).id

    async def end(self, run: str) -> il.Run:
        return await self.engine.runs.wait(run, timeout=PATIENCE)

    async def joined(self, run: str) -> Any:
        joiner = Joiner()
        for body in await bodies(self.engine, run, OutputDelta):
            joiner.add(body.delta)
        return joiner.value

    async def warnings(self, run: str) -> list[str]:
        return [body.message for body in await bodies(self.engine, run, Warned)]


@contextlib.asynccontextmanager
async def mounted(store: Path, target: str) -> AsyncIterator[Mounted]:
    """A server that is started or reached as the target says."""
    settings = MountSettings()
    kind = target.partition(":")[0]
    mount = McpServer(source_of(kind, target.removeprefix("mcp:"), settings), settings)
    try:
        async with engine(store, *await local_agents(mount, None), settings=SETTINGS) as eng:
            yield Mounted(eng, mount)
    finally:
        await mount.close()


@contextlib.contextmanager
def target_of(command: list[str], way: str, folder: Path) -> Iterator[str]:
    """The target of a server of an SDK: its command, or the address where it serves."""
    if way == "stdio":
        yield f"mcp:{shlex.join([*command, 'stdio'])}"
        return
    kind, *options = way.split("-")
    with process_with_address([*command, kind, *options], folder / "server.log") as address:
        yield f"mcp+{address}{'/sse' if kind == 'sse' else '/mcp'}"


async def interlingua_run(
    target: str, text: str, folder: Path, interrupt_at: str | None = None
) -> tuple[int, str, str]:
    """`interlingua run`: its exit code, stdout and stderr. It is interrupted as soon as it has shown some text."""
    environment = {
        **os.environ,
        "INTERLINGUA_STORE": str(folder / "cli.db"),
        "INTERLINGUA_PROJECT": "interop",
        "TERM": "dumb",
    }
    process = await asyncio.create_subprocess_exec(
        INTERLINGUA, "run", target, text, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    shown = b""
    try:
        async with asyncio.timeout(2 * PATIENCE):
            if interrupt_at is not None:
                shown = await process.stdout.readuntil(interrupt_at.encode())
                process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, (shown + out).decode(), err.decode()

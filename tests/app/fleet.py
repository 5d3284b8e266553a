"""Several `interlingua serve` processes on one store, and a balancer before them that sends each request to the next.

The balancer knows nothing of sessions: what works through it works behind any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import httpx2
import msgspec

import interlingua as il
from interlingua.engine.cluster.membership import Replica
from interlingua.model.filters import RunFilter
from interlingua.model.status import Status
from interlingua.store.open import open_store
from tests.kit.commands import process_env, start_command
from tests.kit.ports import free_port
from tests.kit.postgres import store_in

WAIT = 60.0

AGENTS = '''
import asyncio
import os
from pathlib import Path

import interlingua as il

HERE = Path(os.environ["GATES"])


class Approval(il.Question[il.Verdict]):
    """Shall it be done?"""

    what: str


@il.agent(asks=[Approval])
async def helper(text: str, ctx: il.Context):
    """Says what it hears, asks, or goes on when a file is there."""
    if text == "ask":
        yield "asking "
        verdict = await ctx.ask(Approval(what="it"))
        yield "done" if verdict.approved else "refused"
    elif text.startswith("gate "):
        yield "one "
        while not (HERE / text.removeprefix("gate ")).exists():
            await asyncio.sleep(0.01)
        yield "two "
        yield "three"
    else:
        with open(HERE / "worked", "a") as file:
            file.write(text + "\\n")
        yield "heard "
        yield text
'''


class Member:
    """One process."""

    def __init__(self, home: Path, env: Mapping[str, str], *args: str) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._home = home
        self._env = env
        self._args = ["serve", "agents.py", "--port", str(self.port), "--log", "text", *args]
        self._args += ["--limits-sweep-every", "0.1", "--limits-shutdown-grace", "1"]
        self.said = ""
        self._process: subprocess.Popen[str] | None = None
        self._reading: asyncio.Future[None] | None = None

    async def up(self) -> None:
        env = {**process_env(self._home), "GATES": str(self._home), **self._env}
        self._process = await asyncio.to_thread(start_command, self._args, env, self._home, stdout=subprocess.DEVNULL)
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()

        def read(process: subprocess.Popen[str]) -> None:
            assert process.stderr is not None
            for line in process.stderr:
                self.said += line
                if "Ctrl-C stops" in line:
                    loop.call_soon_threadsafe(ready.set)
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ready.set)

        self._reading = asyncio.ensure_future(asyncio.to_thread(read, self._process))
        async with asyncio.timeout(WAIT):
            await ready.wait()
        assert self._process.poll() is None, self.said

    async def kill(self) -> None:
        """Without a word."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """In good order."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        assert self._reading is not None
        async with asyncio.timeout(WAIT):
            await self._reading
        await asyncio.to_thread(process.wait, WAIT)
        assert process.stderr is not None
        process.stderr.close()

    async def metric(self, name: str) -> float:
        async with httpx2.AsyncClient() as http:
            text = (await http.get(f"{self.address}/metrics")).text
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"interlingua_{name} ")))


class Fleet:
    """The processes, and the balancer's address."""

    def __init__(self, store: Path | str, members: list[Member]) -> None:
        self.store = store
        self.members = members
        self.address = ""
        self.sent: list[int] = []  # ports that requests went to
        self._next = 0
        self._server: asyncio.Server | None = None

    async def begin(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def end(self) -> None:
        if self._server is not None:
            self._server.close()

    def _turns(self) -> Iterator[Member]:
        self._next = first = (self._next + 1) % len(self.members)
        yield from (*self.members[first:], *self.members[:first])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, at the next process that answers, and then the end of the connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head[:-4].split(b"\r\n")
            named = {line.partition(b":")[0].lower(): line.partition(b":")[2].strip() for line in lines[1:]}
            body = await reader.readexactly(int(named.get(b"content-length", b"0")))
            if named.get(b"connection", b"").lower() != b"upgrade":
                lines = [line for line in lines if not line.lower().startswith(b"connection:")] + [b"connection: close"]
            for member in self._turns():
                try:
                    there, back = await asyncio.open_connection("127.0.0.1", member.port)
                except OSError:
                    continue
                self.sent.append(member.port)
                back.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
                ways = [asyncio.ensure_future(_pipe(there, writer)), asyncio.ensure_future(_pipe(reader, back))]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                back.close()
                break
        writer.close()

    # -- looking into the store ---------------------------------------------------------------------------

    async def replicas(self) -> list[Replica]:
        store = open_store(self.store)
        await store.open()
        try:
            return [msgspec.json.decode(row.body, type=Replica) for row in await store.documents.search("replicas")]
        finally:
            await store.close()

    async def ended(self) -> Status:
        """How the only run ends."""
        async with il.Engine(self.store) as engine:
            [run] = await engine.runs.search(RunFilter())
            return (await engine.runs.wait(run.id, timeout=WAIT)).status

    async def holder(self, id_: str) -> Member:
        """The process that an id names."""
        replica = next(one for one in await self.replicas() if one.id == id_.partition(".")[0])
        return self.of(replica)

    def of(self, replica: Replica) -> Member:
        return next(member for member in self.members if member.address == replica.address)

    def others(self, member: Member) -> list[Member]:
        return [other for other in self.members if other is not member]


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()


@contextlib.asynccontextmanager
async def fleet(
    home: Path, count: int = 3, *args: str, each: Sequence[Sequence[str]] = (), store: str | None = None, bus: str = ""
) -> AsyncIterator[Fleet]:
    """`args`: of all of them; `each`: more, of single ones."""
    where = store or store_in(home)
    env = {"INTERLINGUA_STORE": str(where), "INTERLINGUA_PROJECT": "fleet", **({"INTERLINGUA_BUS": bus} if bus else {})}
    (home / "agents.py").write_text(AGENTS)
    more = [*each, *[()] * (count - len(each))]
    members = [Member(home, env, *(args or ("--no-peer-ports",)), *own) for own in more]
    made = Fleet(where, members)
    try:
        async with asyncio.timeout(100):
            for member in members:  # one after the other: each can see those before it
                await member.up()
            await made.begin()
            yield made
    finally:
        await made.end()
        for member in members:
            await member.kill()

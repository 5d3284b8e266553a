"""What the attempts on the gates need: agents elsewhere that give everything away, and everybody who might overhear.

Each way in starts the team over one door, on a real socket or a real process, and keeps every byte that comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.filters import RunFilter
from interlingua.model.team.authority import Limits
from interlingua.model.team.oversight import Proposal, ReviewVerdict, Ruling
from interlingua.protocols.targets import parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load
from tests.kit.clients.editor import client_of
from tests.kit.clients.mcp_http import clients
from tests.kit.engines import PATIENT, QUICK
from tests.kit.teams import member, passes_on, shout, team

from .door_common import Peer, notice

SECRET = "forty-two"
WAIT = 20.0
MOUNTS = ["connect+http", "mcp+http", "peer+http", "editor+ws", "cap+http"]

Seen = bytearray
Way = Callable[[Server, str, Seen], Awaitable[None]]


@il.agent
async def oracle(ctx: il.Context[None, None], text: str) -> AsyncIterator[str]:
    """Shows all that can be shown, and has its secret in all of it."""
    await ctx.thought(f"I think of {SECRET}")
    await ctx.artifact(SECRET, name="report")
    await ctx.message(f"it is {SECRET}")
    await ctx.tool_call("t", title=SECRET, status="completed")
    yield f"{text}: "
    yield SECRET


@contextlib.asynccontextmanager
async def serve(store: Path, *agents: il.Agent[..., Any], settings: il.Settings = PATIENT) -> AsyncIterator[Server]:
    async with asyncio.timeout(60), serving(store, agents, ServeSettings(port=0, engine=settings)) as server:
        yield server


@contextlib.asynccontextmanager
async def elsewhere(folder: Path, *agents: il.Agent[..., Any]) -> AsyncIterator[Server]:
    """Agents in an engine of their own, with doors of their own."""
    async with serve(folder / "elsewhere.db", *(agents or (oracle,)), settings=QUICK) as server:
        yield server


async def mounted(server: Server, kind: str, agent: str | None = None) -> il.Agent[..., Any]:
    """An agent of a server, or the only one, by way of one of its doors."""
    if agent is None:
        (agent,) = [one.card.name for one in server.engine.agents]
    host = server.address.removeprefix("http://")
    return (await load(parse(f"{kind}://{host}/{kind.partition('+')[0]}#{agent}"))).chosen  # type: ignore[no-any-return]


class Judge:
    """An overseer that can wait with its verdicts until it is told to go on."""

    def __init__(
        self, *, approves: bool = True, waits: bool = False, verdict: Callable[[Proposal], Ruling] | None = None,
        answer: Callable[[Proposal], Any] | None = None,
    ) -> None:  # fmt: skip
        """`verdict` decides; `answer` gives whatever it likes."""
        self.seen: list[Proposal] = []
        self.go_on = asyncio.Event()
        if not waits:
            self.go_on.set()
        self._news = asyncio.Condition()
        decide = verdict or (lambda _: "approve" if approves else "reject")

        @il.agent
        async def qa(ctx: il.Context[None, None], text: str) -> Any:
            proposal = ctx.review
            if proposal is None:
                return f"heard {text}"
            async with self._news:
                self.seen.append(proposal)
                self._news.notify_all()
            await self.go_on.wait()
            if answer is not None:
                return answer(proposal)
            return ReviewVerdict(decide(proposal), proposal.result_hash, reason="so be it")

        self.agent = qa

    async def has_seen(self, count: int) -> None:
        async with asyncio.timeout(WAIT), self._news:
            await self._news.wait_for(lambda: len(self.seen) >= count)


def crew(analyst: il.Agent[..., Any], judge: Judge, rounds: int | None = None) -> TeamAgent:
    """lead → middle → analyst, whom qa oversees; expert is there for nobody. The first words of a task say the way."""
    manifests = [
        member("lead", "middle", "analyst"),
        member("middle", "analyst"),
        member("analyst", "qa", overseer="qa", limits=Limits(rejections=1, rounds=rounds)),
        member("qa"),
        member("expert"),
    ]
    handlers = {"lead": passes_on, "middle": passes_on, "analyst": analyst, "qa": judge.agent, "expert": shout}
    return TeamAgent(team(*manifests), handlers)


# -- every way in ---------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def web(server: Server, door: str, key: str | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"x-api-key": key} if key else {}
    async with httpx2.AsyncClient(base_url=f"{server.address}/{door}", headers=headers, timeout=WAIT) as http:
        yield http


async def agent_id(http: httpx2.AsyncClient, name: str = "crew") -> str:
    (found,) = (await http.post("/agents/search", json={"name": name})).json()
    return str(found["agent_id"])


async def _all_of(http: httpx2.AsyncClient, seen: Seen, method: str, path: str, body: Any = None) -> None:
    async with http.stream(method, path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for chunk in response.aiter_bytes():
            seen.extend(chunk)


async def over_connect(server: Server, text: str, seen: Seen) -> None:
    async with web(server, "connect") as http:
        body = {"agent_id": await agent_id(http), "input": {"text": text}, "stream_mode": ["values", "custom"]}
        await _all_of(http, seen, "POST", "/runs/stream", {**body, "on_completion": "keep"})


async def over_mcp(server: Server, text: str, seen: Seen) -> None:
    async with clients(server) as client:
        await client.begin()
        meta = {"progressToken": "t"}
        answer = await client.ask("agents/run", {"name": "crew", "input": {"text": text}, "_meta": meta})
        async for chunk in answer.response.aiter_bytes():  # events, or JSON where nothing came before the answer
            seen.extend(chunk)


async def over_peer(server: Server, text: str, seen: Seen) -> None:
    async with web(server, "peer") as http:
        made = (await http.post("/tasks", json={"role": "user", "text": text, "skill_id": "crew"})).json()
        await _all_of(http, seen, "GET", f"/tasks/{made['id']}:subscribe")


async def over_editor(server: Server, text: str, seen: Seen) -> None:
    async with client_of(server.engine) as (client, _):
        await client.initialize()
        session = await client.new_session()
        asked = await client.start_prompt(session, text)

        def is_answer(message: dict[str, Any]) -> bool:
            seen.extend(json.dumps(message).encode())
            return message.get("id") == asked and "method" not in message

        await client.wait_for(is_answer)


async def over_cap(server: Server, text: str, seen: Seen) -> None:
    async with Peer(server) as peer:
        task = f"task {text}"
        await peer.post(notice(task, "lead", text))
        async for event in peer.events(task):
            seen.extend(event.data.encode())


WAYS: dict[str, Way] = {
    "connect": over_connect,
    "mcp": over_mcp,
    "peer": over_peer,
    "editor": over_editor,
    "cap": over_cap,
}


async def readable(eng: il.Engine) -> set[str]:
    """The runs that anybody may find."""
    return {run.id for run in await eng.runs.search(RunFilter(limit=500))}


async def sealed(eng: il.Engine) -> list[il.Run]:
    """Those that nobody may find."""
    everything = await eng.runs.search(RunFilter(limit=500, sealed=True))
    known = await readable(eng)
    return [run for run in everything if run.id not in known]

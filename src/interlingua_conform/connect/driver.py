"""Speaks the Agent Connect Protocol for checks: the driver sends requests, finds the agents that may be used, and keeps
what it saw.

Most checks look at a scene that several checks need (`once`): it is played once, and its result, also a failure, is
there for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from interlingua.model.errors import InvalidRequest, Unavailable
from interlingua.transports.raw_client import Answer, Http

from ..base import WANTED, Broken, Gone, NotApplicable, Role, Subject, Suite, applies, expect, member, shown
from ..remembering import once
from ..sample import sample
from ..schemas import compiled
from .streams import Flow, Streamed

Json = dict[str, Any]

OVER = ("error", "success", "timeout", "interrupted", "gone")  # statuses of runs that do not work
PAGE = 10  # agents that a search returns without a limit
_PAGES = 100
_POLLS = (0.005, 0.01, 0.02, 0.05, 0.1)  # seconds between looks at a run
_BRIEF = 2.0  # seconds that something may take that is there already


class Agent(msgspec.Struct):
    id: str
    name: str
    item: Json  # as the search has it


def at(*steps: str) -> str:
    """A path; ids of the server's choice may have any letters in them."""
    return "/" + "/".join(quote(step, safe="", errors="replace") for step in steps)


class Driver:
    def __init__(self, http: Http, subject: Subject) -> None:
        self.http = http
        self.subject = subject
        self.patience = subject.patience
        self.quiet = subject.quiet
        self.mark = {"conform": uuid.uuid4().hex}  # metadata by which the checker's runs and threads are found
        self.answers: dict[str, Answer] = {}  # the last one of each kind of request that was answered with something
        self.streams: list[Streamed] = []
        self.going: dict[str, None] = {}  # runs that may go on after the checks

    # -- asking -------------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        answer = await self.http.ask(method, path, body, **more)
        if answer.body and answer.status == 200:
            self.answers[f"{method} {path}"] = answer
        return answer

    async def told(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """The JSON of an answer that has the status it should have."""
        answer = await self.ask(method, path, body)
        expect(answer.status == status, answered(f"{method} {path}", answer))
        return answer.json() if status != 204 else None

    async def listed(self, method: str, path: str, body: Any = None) -> list[Json]:
        """The objects of an answer that is a list of them."""
        what = f"the answer to {method} {path}" + (f" {shown(body, 80)}" if body else "")
        found = member(await self.told(method, path, body), "", list, what)
        for item in found:
            member(item, "", dict, f"an entry of {what}")
        return found

    @contextlib.asynccontextmanager
    async def flow(self, method: str, path: str, body: Any = None, **more: Any) -> AsyncIterator[Flow]:
        """A stream that can be looked at while it goes on."""
        async with self.http.stream(method, path, body, **more) as stream:
            flow = Flow(stream, f"{method} {path}")
            try:
                yield flow
            finally:
                await flow.close()
                self.streams.append(flow.seen)

    async def streamed(self, method: str, path: str, body: Any = None, **more: Any) -> Streamed:
        """A whole stream, until the server closes it, or nothing has come for long enough."""
        async with self.flow(method, path, body, **more) as flow:
            if flow.is_stream:
                await flow.to_the_end()
            else:
                flow.seen.body = (await flow.whole()).body
        return flow.seen

    # -- agents -------------------------------------------------------------------------------------------

    async def agent(self, role: Role = "agent") -> Agent:
        """The agent that has a role in the checks."""
        wanted = getattr(self.subject.roles, role)
        applies(wanted is not None or role == "agent", f"no agent is named for this ({WANTED[role]})")
        found = await every_agent(self)
        if wanted is None:
            applies(found, "the server has no agents")
            return found[0]
        for agent in found:
            if wanted in (agent.id, agent.name):
                return agent
        raise NotApplicable(f"the server has no agent {wanted}; it has {', '.join(a.name for a in found[:10])}")

    async def specs(self, role: Role = "agent") -> Json:
        return member(await descriptor(self, (await self.agent(role)).id), "specs", dict, "the descriptor")

    async def able(self, role: Role = "agent") -> set[str]:
        """Returns the capabilities of an agent: threads, interrupts, callbacks, and the modes of streaming."""
        return capabilities(await self.specs(role))

    async def input(self, role: Role = "agent") -> Any:
        if role == "agent" and self.subject.roles.input is not None:
            return self.subject.roles.input
        schema = member(await self.specs(role), "input", dict, "the descriptor's specs")
        compiled(schema, "the input")
        return sample(schema)

    async def request(self, role: Role = "agent", **options: Any) -> Json:
        """The body that makes a run."""
        return {
            "agent_id": (await self.agent(role)).id, "input": await self.input(role), "metadata": self.mark, **options,
        }  # fmt: skip

    # -- runs ---------------------------------------------------------------------------------------------

    async def start(self, role: Role = "agent", base: str = "/runs", **options: Any) -> str:
        """A run in the background; gives its id."""
        made = await self.told("POST", base, await self.request(role, **options))
        run = member(made, "run_id", str, f"the answer to POST {base}")
        if role != "agent":
            self.going[base + at(run)] = None
        return run

    async def status(self, run: str, base: str = "/runs") -> str:
        """The status of a run; `gone` where there is none any more."""
        answer = await self.ask("GET", base + at(run))
        if answer.status == 404:
            return "gone"
        expect(answer.status == 200, answered(f"GET {base}/{run}", answer))
        return member(answer.json(), "status", str, f"the answer to GET {base}/{run}")

    async def until_over(self, run: str, base: str = "/runs", within: float | None = None) -> str:
        """Waits until a run works no longer, and returns its status."""
        return await self._until(OVER, run, base, within)

    async def until_gone(self, run: str, base: str = "/runs") -> str:
        return await self._until(("gone",), run, base, None)

    async def _until(self, wanted: tuple[str, ...], run: str, base: str, within: float | None) -> str:
        loop = asyncio.get_running_loop()
        end = loop.time() + (self.patience if within is None else within)
        looks = 0
        while (now := await self.status(run, base)) not in wanted and loop.time() < end:
            await asyncio.sleep(_POLLS[min(looks, len(_POLLS) - 1)])
            looks += 1
        return now

    async def waited(self, run: str, base: str = "/runs") -> Json:
        """The output of a run, by its wait endpoint."""
        return output_of(await self.told("GET", base + at(run) + "/wait"), f"GET {base}/{run}/wait")

    async def stop(self, run: str, base: str = "/runs") -> None:
        """Ends a run that is not needed any more, in whichever way the server understands."""
        with contextlib.suppress(Gone):
            answer = await self.ask("POST", base + at(run) + "/cancel?wait=true")
            if answer.status >= 400:
                await self.ask("POST", base + at(run) + "/cancel")
        self.going.pop(base + at(run), None)

    async def tidy(self, under: str = "") -> None:
        """Ends the runs that may still go on, all or those under an address."""
        for path in [path for path in self.going if path.startswith(under)]:
            base, _, run = path.rpartition("/")
            with contextlib.suppress(Gone, Unavailable):
                await self.stop(run, base)


@contextlib.asynccontextmanager
async def connected(subject: Subject) -> AsyncIterator[Driver]:
    if subject.address is None:
        raise InvalidRequest("the Agent Connect Protocol is spoken over HTTP: an address is needed, not a command")
    async with Http(subject) as http:
        driver = Driver(http, subject)
        try:
            await driver.ask("POST", "/agents/search", {})
        except Gone as error:
            raise Unavailable(str(error)) from error
        try:
            yield driver
        finally:
            await driver.tidy()


# -- what many scenes need ------------------------------------------------------------------------------------


def answered(what: str, answer: Answer) -> str:
    body = answer.body.decode(errors="replace").strip()
    return f"{what} is answered {answer.status}" + (f": {shown(body)}" if body else "")


def identity(item: Json, where: str = "an agent") -> str:
    """The id of an agent: `agent_id` in the OpenAPI document, `id` in the text before it."""
    return member(item, "id" if "id" in item and "agent_id" not in item else "agent_id", str, where)


@once
async def every_agent(d: Driver) -> list[Agent]:
    """Returns all agents of the server, read page by page."""
    found: dict[str, Agent] = {}
    body: Json = {}
    for _ in range(_PAGES):
        page = await d.listed("POST", "/agents/search", body)
        fresh = {identity(item): item for item in page}
        before = len(found)
        for name, item in fresh.items():
            ref = item.get("metadata", {}).get("ref") if isinstance(item.get("metadata"), dict) else None
            named = ref.get("name") if isinstance(ref, dict) else None
            found.setdefault(name, Agent(name, named if isinstance(named, str) else name, item))
        if len(page) < PAGE or len(found) == before:
            break
        body = {"offset": len(found)}
    return list(found.values())


@once
async def descriptor(d: Driver, agent: str) -> Json:
    """An agent's descriptor, where the OpenAPI document has it, or where the text has it."""
    answer = await d.ask("GET", at("agents", agent, "descriptor"))
    if answer.status != 200:
        earlier = await d.ask("GET", at("agents", "agent", agent, "descriptor"))
        expect(earlier.status == 200, answered(f"GET /agents/{agent}/descriptor", answer))
        answer = earlier
    return member(answer.json(), "", dict, "the descriptor")


def capabilities(specs: Json) -> set[str]:
    told = member(specs, "capabilities", dict, "the descriptor's specs")
    able = {name for name in ("threads", "interrupts", "callbacks") if told.get(name) is True}
    streaming = told.get("streaming")
    modes = streaming if isinstance(streaming, dict) else {}
    return able | {mode for mode in ("values", "custom") if modes.get(mode) is True}


def output_of(told: Any, where: str) -> Json:
    """Returns the output in the answer to a wait: beside the run in the OpenAPI document, alone in the text."""
    value = member(told, "", dict, f"the answer to {where}")
    if "output" not in value and isinstance(value.get("type"), str):
        return value
    return member(value, "output", dict, f"the answer to {where}")


def result_of(output: Json) -> Any:
    """Returns the result in an output: `values` in the OpenAPI document, `result` in the text."""
    for name in ("values", "result", "messages"):
        if output.get(name) is not None:
            return output[name]
    raise Broken(f"an output of type result has neither values nor result: {shown(output)}")


Seen = TypeVar("Seen")


async def briefly(awaited: Awaitable[Seen], what: str) -> Seen:
    """Awaits something that is there already, and expects it at once."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    seen = await awaited
    took = loop.time() - start
    expect(took < _BRIEF, f"{what} took {took:.1f} s, though nothing had to be waited for")
    return seen


async def names(d: Driver) -> dict[str, str]:
    return {name: agent.name for agent in await every_agent(d) for name in (agent.name, agent.id)}


suite: Suite[Driver] = Suite("connect", connected, names=names, lasting=True)

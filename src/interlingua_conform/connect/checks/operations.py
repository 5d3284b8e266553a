"""The wire as the OpenAPI document has it: all of its 30 operations, with the members that it requires."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ...base import Broken, Gone, NotApplicable, expect, member
from .. import shapes
from ..driver import Driver, answered, at, suite
from ..streams import Streamed
from . import agents, interrupts, streaming, threads
from .runs import at_once, created, succeeded

Shape = Callable[[Any, str], None]

_TOLD = 5  # problems that a report has room for


@suite.check("connect.intro.openapi")
async def answers_are_json(d: Driver) -> None:
    await agents.some(d)
    for what, answer in d.answers.items():
        expect(answer.media_type == "application/json", f"{what} is answered with {answer.media_type or 'no type'}")


@suite.check("connect.openapi.operations")
async def every_operation_answers_with_what_it_should(d: Driver) -> None:
    await agents.some(d)
    look = _Look(d)
    for part in (look.at_agents, look.at_runs, look.at_threads, look.at_runs_on_a_thread):
        await look.at(part())
    found = list(dict.fromkeys(look.problems))
    more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    expect(not found, "; ".join(found[:_TOLD]) + more)


class _Look:
    """Looks at one thing after the other, and goes on where one is not as it should be."""

    def __init__(self, driver: Driver) -> None:
        self.d = driver
        self.problems: list[str] = []

    async def at(self, part: Awaitable[None]) -> None:
        try:
            await part
        except NotApplicable:
            pass
        except (Broken, Gone) as error:
            self.problems.append(str(error))

    # -- one answer ---------------------------------------------------------------------------------------

    async def _told(self, shape: Shape, method: str, path: str, body: Any = None) -> None:
        shape(await self.d.told(method, path, body), f"the answer to {method} {path}")

    async def _listed(self, shape: Shape, method: str, path: str, body: Any = None) -> None:
        for entry in await self.d.listed(method, path, body):
            shape(entry, f"an entry of the answer to {method} {path}")

    async def _seen(self, shape: Shape, seen: Awaitable[Any], where: str) -> None:
        shape(await seen, where)

    async def _streamed(self, seen: Awaitable[Streamed]) -> None:
        stream = await seen
        updates = stream.updates()
        expect(updates, f"{stream.what} has no events")
        for update in updates:
            shapes.update(update, f"an update of {stream.what}")

    # -- the groups of operations -------------------------------------------------------------------------

    async def at_agents(self) -> None:
        one = at("agents", (await self.d.agent()).id)
        await self.at(self._listed(shapes.agent, "POST", "/agents/search", {}))
        await self.at(self._told(shapes.agent, "GET", one))
        await self.at(self._told(shapes.descriptor, "GET", f"{one}/descriptor"))

    async def at_runs(self) -> None:
        await self.at(self._seen(shapes.run, created(self.d), "the answer to POST /runs"))
        await self.at(self._seen(shapes.waited, at_once(self.d), "the answer to POST /runs/wait"))
        await self.at(self._streamed(streaming.values(self.d)))
        await self.at(self._listed(shapes.run, "POST", "/runs/search", {}))
        await self._at_a_run("/runs", await succeeded(self.d))

    async def _at_a_run(self, base: str, run: str) -> None:
        one = base + at(run)
        await self.at(self._told(shapes.run, "GET", one))
        await self.at(self._told(shapes.waited, "GET", f"{one}/wait"))
        await self.at(self._joined(f"{one}/stream"))
        await self.at(self._resumed(base))
        await self.at(self._cancelled(base))

    async def _joined(self, path: str) -> None:
        """Joins a run that has ended. The stream ends after whatever it sends, or the server answers that there is
        nothing to join."""
        if "values" not in await self.d.able():
            return
        seen = await self.d.streamed("GET", path)
        if seen.status in (404, 409, 422):
            return
        seen.expect_stream()
        expect(seen.closed, f"GET {path} of a run that has ended was not closed: {seen.trouble}")
        for update in seen.updates():
            shapes.update(update, f"an update of GET {path}")

    async def _resumed(self, base: str) -> None:
        """A run that asks: its interrupt, and the answer to it."""
        d = self.d
        await interrupts.resumed(d)
        if base != "/runs" and "threads" not in await d.able("asking"):
            return
        run = await d.start("asking", base)
        told = await d.told("GET", base + at(run) + "/wait")
        shapes.waited(told, f"the answer to GET {base}/{run}/wait")
        asked = interrupts.read(told["output"], await d.specs("asking"))
        answer, _ = await interrupts.resume(d, base + at(run), asked)
        shapes.run(answer.json(), f"the answer to POST {base}/{run}")
        await d.until_over(run, base)

    async def _cancelled(self, base: str) -> None:
        """Cancels and deletes a run that has ended. The documents leave the answer to the cancel open; the delete
        succeeds."""
        d = self.d
        run = await d.start("agent", base)
        answer = await d.ask("POST", base + at(run) + "/cancel")
        expect(answer.status in (204, 404, 409, 422), answered(f"POST {base}/{run}/cancel", answer))
        await d.until_over(run, base)
        await d.told("DELETE", base + at(run), status=204)

    async def at_threads(self) -> None:
        await threads.threaded(self.d)
        await self.at(self._seen(shapes.thread, threads.created(self.d), "the answer to POST /threads"))
        await self.at(self._listed(shapes.thread, "POST", "/threads/search", {}))
        one = at("threads", member(await threads.created(self.d), "thread_id", str, "the thread"))
        await self.at(self._told(shapes.thread, "GET", one))
        await self.at(self._told(shapes.thread, "PATCH", one, {"metadata": {"patched": True}}))
        await self.at(self._history(f"{one}/history"))
        await self.at(self._copied(one))

    async def _history(self, path: str) -> None:
        await threads.state(self.d)  # without one, there is no history to be had
        await threads.used(self.d)
        await self._listed(shapes.state, "GET", path)

    async def _copied(self, one: str) -> None:
        told = await self.d.told("POST", f"{one}/copy")
        shapes.thread(told, f"the answer to POST {one}/copy")
        await self.d.told("DELETE", at("threads", told["thread_id"]), status=204)

    async def at_runs_on_a_thread(self) -> None:
        d = self.d
        await threads.threaded(d)
        await succeeded(d)
        base = at("threads", await threads.fresh(d), "runs")
        first = await d.told("POST", base, await d.request())
        run = member(first, "run_id", str, f"the answer to POST {base}")
        shapes.run(first, f"the answer to POST {base}")
        await d.until_over(run, base)
        await self.at(self._told(shapes.waited, "POST", f"{base}/wait", await d.request()))
        await self.at(self._listed(shapes.run, "GET", base))
        if "values" in await d.able():
            body = await d.request(stream_mode="values")
            await self.at(self._streamed(d.streamed("POST", f"{base}/stream", body)))
        await self._at_a_run(base, run)

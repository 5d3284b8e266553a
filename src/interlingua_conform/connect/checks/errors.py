"""Errors: refused requests, and runs that fail."""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import Any

import msgspec

from interlingua.transports.raw_client import Answer

from ...base import Broken, NotApplicable, applies, expect, member, shown
from ...remembering import once
from ...rows import Row, Source, add
from ..driver import Driver, Json, answered, at, capabilities, descriptor, every_agent, suite
from ..streams import Streamed

NOBODY = str(uuid.UUID(int=0xC0FFEE))  # the id of nothing
_MANY = 20  # agents that are asked
_ODD = "no-such-thing"  # no UUID either


class Request(msgspec.Struct):
    method: str
    path: str
    body: Any = None


@once
async def any_threads(d: Driver) -> bool:
    """Returns whether any agent supports threads. If none does, the operations on threads may be missing."""
    for agent in (await every_agent(d))[:_MANY]:
        with contextlib.suppress(Broken):
            if "threads" in capabilities(member(await descriptor(d, agent.id), "specs", dict, "the descriptor")):
                return True
    return False


def _about(name: str, threads: bool) -> list[Request]:
    """A request of every operation that names something which is not there."""
    found = [Request("GET", f"/agents/{name}"), Request("GET", f"/agents/{name}/descriptor")]
    bases = ["/runs"]
    if threads:
        thread = f"/threads/{name}"
        bases.append(f"{thread}/runs")
        found += [
            Request("GET", thread), Request("PATCH", thread, {"metadata": {}}), Request("DELETE", thread),
            Request("GET", f"{thread}/history"), Request("POST", f"{thread}/copy"), Request("GET", f"{thread}/runs"),
        ]  # fmt: skip
    for base in bases:
        run = f"{base}/{name}"
        found += [
            Request("GET", run), Request("POST", run, {}), Request("DELETE", run), Request("GET", f"{run}/wait"),
            Request("GET", f"{run}/stream"), Request("POST", f"{run}/cancel"),
        ]  # fmt: skip
    return found


async def _invalid(d: Driver, threads: bool) -> list[Request]:
    """Requests whose bodies do not fit."""
    agent = (await d.agent()).id
    found = [
        Request("POST", "/agents/search", {"limit": "many"}), Request("POST", "/agents/search", {"name": 5}),
        Request("POST", "/runs", {"agent_id": agent, "on_disconnect": "perhaps"}),
        Request("POST", "/runs", {"agent_id": agent, "metadata": 5}),
        Request("POST", "/runs/wait", {"agent_id": agent, "stream_mode": "loud"}),
        Request("POST", "/runs/stream", {"agent_id": agent, "stream_mode": "loud"}),
        Request("POST", "/runs/search", {"status": "tired"}),
    ]  # fmt: skip
    if threads:
        found += [
            Request("POST", "/threads", {"if_exists": "perhaps"}), Request("POST", "/threads/search", {"limit": 0}),
        ]  # fmt: skip
    return found


@once
async def unknown(d: Driver) -> list[tuple[Request, Answer]]:
    """Sends requests for things that do not exist, and returns the answers."""
    wanted = _about(NOBODY, await any_threads(d))
    return [(each, await d.ask(each.method, each.path, each.body)) for each in wanted]


@once
async def misfits(d: Driver) -> list[tuple[Request, Answer]]:
    wanted = await _invalid(d, await any_threads(d))
    return [(each, await d.ask(each.method, each.path, each.body)) for each in wanted]


@once
async def refused(d: Driver) -> Answer:
    """The answer to a run of an agent that there is none of, by a server that takes a run of one that there is."""
    taken = await d.ask("POST", "/runs", await d.request())
    applies(taken.status == 200, f"not even a run of an agent that is there is taken: {answered('POST /runs', taken)}")
    return await d.ask("POST", "/runs", {"agent_id": NOBODY, "input": {}})


@once
async def failed(d: Driver) -> tuple[str, str, Json]:
    """A run that failed: its id, its status, and its output."""
    run = await d.start("failing")
    output = await d.waited(run)
    d.going.pop(at("runs", run), None)
    return run, await d.status(run), output


@once
async def failed_stream(d: Driver) -> Streamed:
    applies("values" in await d.able("failing"), "the agent that fails does not stream values, says its descriptor")
    return await d.streamed("POST", "/runs/stream", await d.request("failing", stream_mode="values"))


def _said(request: Request, answer: Answer) -> str:
    body = f" {shown(request.body, 80)}" if request.body is not None else ""
    return answered(f"{request.method} {request.path}{body}", answer)


# -- refused requests -----------------------------------------------------------------------------------------


@suite.check("connect.errors.every-operation")
async def every_operation_can_answer_with_an_error(d: Driver) -> None:
    for request, answer in [*await unknown(d), *await misfits(d)]:
        expect(answer.status >= 400, _said(request, answer))


@suite.check("connect.errors.synchronous", "connect.invocation.error")
async def a_run_of_no_agent_is_refused(d: Driver) -> None:
    answer = await refused(d)
    expect(400 <= answer.status < 500, answered("POST /runs of an agent that is not there", answer))


@suite.check("connect.errors.common-conditions")
async def common_mistakes_are_told_as_the_callers(d: Driver) -> None:
    for request, answer in [*await unknown(d), *await misfits(d)]:
        expect(400 <= answer.status < 500, _said(request, answer))


@suite.check("connect.openapi.unknown-ids")
async def what_is_not_there_is_answered_404(d: Driver) -> None:
    for request, answer in await unknown(d):
        expect(answer.status == 404, _said(request, answer))
    for request in _about(_ODD, await any_threads(d)):
        answer = await d.ask(request.method, request.path, request.body)
        expect(answer.status in (404, 422), _said(request, answer))


@suite.check("connect.openapi.invalid-requests")
async def what_does_not_fit_is_answered_422_with_a_text(d: Driver) -> None:
    for request, answer in await misfits(d):
        expect(answer.status == 422, _said(request, answer))
        text = isinstance(answer.json(), str) and answer.json().strip()
        expect(text, f"{_said(request, answer)}, and not with a JSON string")
    broken = await d.ask("POST", "/runs", content=b'{"agent_id": ', headers={"content-type": "application/json"})
    expect(broken.status in (400, 422), answered("POST /runs with half of a JSON object", broken))


# -- runs that fail -------------------------------------------------------------------------------------------


@suite.check("connect.errors.asynchronous")
async def a_run_that_fails_says_so_in_its_output(d: Driver) -> None:
    run, status, output = await failed(d)
    expect(status in ("error", "timeout"), f"the status of the run {run}, which failed, is {shown(status)}")
    expect(output.get("type") == "error", f"the output of a run that failed is {shown(output)}")
    if "values" in await d.able("failing"):
        seen = await failed_stream(d)
        expect(seen.of_type("error"), f"the stream of a run that fails has no error: {shown(seen.updates())}")


async def _outputs(d: Driver) -> list[tuple[str, Json]]:
    found = [("the output of a run that failed", (await failed(d))[2])]
    with contextlib.suppress(Broken, NotApplicable):  # other checks look at streaming itself
        found += [("the update of a run that failed", told) for told in (await failed_stream(d)).of_type("error")]
    return found


_OUTPUT = Source(_outputs, lambda pair: pair[0], each=True, value=lambda pair: pair[1])
add(
    suite,
    Row("connect.requirements.error-codes connect.errors.code", _OUTPUT, "errcode", int),
    Row("connect.errors.description", _OUTPUT, "description", str, filled=True),
)


@suite.check("connect.requirements.error-explanations")
async def a_refusal_says_why(d: Driver) -> None:
    for request, answer in await misfits(d):
        expect(_words(_read(answer)), f"{_said(request, answer)}, without a word of explanation")


def _read(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return answer.body.decode(errors="replace")


def _words(value: Any, depth: int = 0) -> bool:
    """Returns whether an answer holds a text anywhere."""
    if isinstance(value, str):
        return bool(value.strip())
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 20 and any(_words(each, depth + 1) for each in inner)

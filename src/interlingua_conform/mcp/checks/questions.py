"""Checks questions of an agent: asked by an elicitation, returned if the revision has no requests of the server, and
reported as an error to clients that cannot be asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ...answers import filled_in
from ...base import NotApplicable, applies, expect, member, shown
from ..driver import Driver, check
from ..links import Message
from ..talk import Client, Run, Seen, result_of

_FLAT = ("string", "number", "integer", "boolean", "array")  # an array of choices, in the newest revision
META_RUN = "interlingua/run"


async def begun(d: Driver, client: Client, **meta: Any) -> Run:
    agent = await d.agent("asking")
    return await client.begin(agent.name, d.input(agent), "asking", **meta)


def accepted(request: Message) -> Message:
    """The form filled in."""
    return {"action": "accept", "content": filled_in(request.get("params"))}


def is_form(params: Any, where: str) -> None:
    """An elicitation says what it wants to know."""
    member(params, "message", str, where)
    schema = member(params, "requestedSchema", dict, where)
    expect(schema.get("type") == "object", f"requestedSchema of {where} is not of type object: {shown(schema)}")
    for name, entry in member(schema, "properties", dict, f"requestedSchema of {where}").items():
        kind = entry.get("type") if isinstance(entry, dict) else None
        expect(kind in _FLAT, f"requestedSchema of {where} is not flat, at {name}: {shown(entry)}")


class Answering:
    """Answers each question with the next of some answers, and keeps what was asked."""

    def __init__(self, *answers: Callable[[Message], Message]) -> None:
        self._answers = list(answers)
        self.asked: list[Message] = []
        self.problem: NotApplicable | None = None

    def __call__(self, request: Message) -> Message:
        self.asked.append(request)
        answer = self._answers.pop(0) if self._answers else _declined
        try:
            return answer(request)
        except NotApplicable as problem:
            self.problem = problem
            return {"action": "decline"}


def _declined(request: Message) -> Message:
    return {"action": "decline"}


async def answered(client: Client, beginning: Awaitable[Run], answering: Answering) -> Seen:
    """A run whose questions are answered, to its end. They can be answered before it is begun: over HTTP+SSE, one may
    come before the answer to the POST that led to it."""
    with client.answering(answering):
        run = await beginning
        await run.asked()
        seen = await run.end()
    if answering.problem is not None:
        raise NotApplicable(str(answering.problem))
    return seen


@check("mcp.door.question-asked")
async def a_question_is_an_elicitation(d: Driver) -> None:
    client = await d.asked()
    first = Answering(accepted)
    seen = await answered(client, begun(d, client), first)
    request = first.asked[0]
    expect(request.get("jsonrpc") == "2.0", f"jsonrpc of a question is not 2.0: {shown(request)}")
    is_form(request.get("params"), "elicitation/create")
    result_of(seen.answer, "agents/run, whose question was answered,")
    await answered(client, begun(d, client), Answering(_declined))  # a no is an answer too
    if client.extended:
        again = Answering(lambda _: {"action": "accept", "content": {"nobody": ["asked"]}}, accepted)
        seen = await answered(client, begun(d, client), again)
        expect(len(again.asked) == 2, "an answer that does not fit the form is not asked for again")
        result_of(seen.answer, "agents/run, whose question was answered the second time,")


@check("mcp.door.question-returned")
async def a_question_is_returned_and_taken_up(d: Driver) -> None:
    client = await d.stateless()
    params = await _returned(d, client, "the run")
    runs = [params]
    if (await d.client()).extended:
        other = await _returned(d, client, "another run")
        runs.append(other)
        crossed = {**params, "inputResponses": other["inputResponses"]}
        told = (await (await client.begin_with(crossed)).end()).answer.get("result")
        expect(
            not isinstance(told, dict) or told.get("resultType") == "input_required",
            f"an answer to the question of another run is taken: {shown(told)}",
        )
    for again in runs:
        seen = await (await client.begin_with(again)).end()
        told = result_of(seen.answer, "agents/run, which came again with the answer,")
        expect(told.get("resultType") != "input_required", f"what was answered is asked again: {shown(told)}")
        member(told, "output", dict, "the result of agents/run")


async def _returned(d: Driver, client: Client, what: str) -> Message:
    """Runs to the question, and returns the params with which the request comes again."""
    agent = await d.agent("asking")
    params = client.run_params(agent.name, d.input(agent))
    seen = await (await client.begin_with(params)).end()
    told = result_of(seen.answer, f"agents/run of {agent.name}")
    applies(told.get("resultType") == "input_required", f"{what} was answered without a question: {shown(told)}")
    requests = member(told, "inputRequests", dict, "the result of agents/run")
    expect(requests, f"a result says that input is required, and not which: {shown(told)}")
    responses = {}
    for key, request in requests.items():
        method = member(request, "method", str, "an entry of inputRequests")
        applies(method == "elicitation/create", f"the server asks by {method}")
        is_form(member(request, "params", dict, "an entry of inputRequests"), "an entry of inputRequests")
        responses[key] = accepted(request)
    again = {**params, "inputResponses": responses}
    return {**again, "requestState": told["requestState"]} if "requestState" in told else again


@check("mcp.door.question-error")
async def a_question_that_cannot_be_asked_is_an_error(d: Driver) -> None:
    client = await d.promises()
    seen = await (await begun(d, client)).end()
    run = _open_question(seen)
    joined = await (await begun(d, client, **{META_RUN: run})).end()
    expect(_open_question(joined) == run, f"joining the run {run} gives another one: {shown(joined.answer)}")
    if not d.way.modern:  # and is not left waiting
        other = await d.asked()
        seen = await answered(other, begun(d, other, **{META_RUN: run}), Answering(accepted))
        result_of(seen.answer, f"agents/run that joined the run {run}")


def _open_question(seen: Seen) -> str:
    expect("error" in seen.answer, f"a run that asks ends, though nobody was asked: {shown(seen.answer)}")
    member(seen.answer, "error.data.question", dict, "the error of a question that cannot be asked")
    return member(seen.answer, "error.data.run", str, "the error of a question that cannot be asked")

"""Runs that ask: how an interrupt is handed out, in each way of getting output, and how the run is resumed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from interlingua.transports.raw_client import Answer

from ...answers import fitting
from ...base import Broken, applies, expect, member, shown
from ...remembering import once
from ...schemas import compiled, fits
from ..driver import Driver, answered, at, output_of, result_of, suite

Json = dict[str, Any]

_ROUNDS = 5  # questions that are answered of an agent that has many


class Asked(msgspec.Struct):
    """The content of an interrupt, in whichever of the forms that the documents leave open."""

    type: str | None
    payload: Any
    declared: Json  # the entry of specs.interrupts for it; the only one, where it names no type; else empty


@once
async def interrupted(d: Driver) -> tuple[str, Json]:
    """A run that asked, and the output that it was waited for."""
    run = await d.start("asking")
    output = await d.waited(run)
    kind = output.get("type")
    applies(kind != "error", f"the run of the agent that should ask failed: {shown(output)}")
    return run, output


def read(output: Json, specs: Json) -> Asked:
    """Reads an interrupt in every form in use. The text has interrupt_type and interrupt_payload beside each other. In
    the OpenAPI document `interrupt` is a payload that interrupt_type describes; published servers and clients make the
    type a key of it."""
    entries = specs.get("interrupts")
    known = {
        entry["interrupt_type"]: entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("interrupt_type"), str)
    }
    named, inner = output.get("interrupt_type"), output.get("interrupt")
    if isinstance(named, str):
        payload = output.get("interrupt_payload", inner)
        return Asked(named, payload, known.get(named, {}))
    if isinstance(inner, dict):
        for key, value in inner.items():
            if key in known:
                return Asked(key, value, known[key])
        told = inner.get("interrupt_type")
        if isinstance(told, str):
            payload = {name: value for name, value in inner.items() if name != "interrupt_type"}
            return Asked(told, payload, known.get(told, {}))
    return Asked(None, inner, next(iter(known.values())) if len(known) == 1 else {})


@once
async def asked(d: Driver) -> Asked:
    _, output = await interrupted(d)
    expect(output.get("type") == "interrupt", f"the output of the run is {shown(output)}, and no interrupt")
    return read(output, await d.specs("asking"))


class Resumed(msgspec.Struct):
    before: str  # the status of the run when it asked
    answer: Answer  # to the answer that was taken
    form: int  # the form in which the answer was wrapped
    rounds: int  # the number of its questions
    output: Json  # the final output


@once
async def resumed(d: Driver) -> Resumed:
    run, output = await interrupted(d)
    question = await asked(d)
    before = await d.status(run)
    answer, form = await resume(d, at("runs", run), question)
    rounds = 1
    while (output := await d.waited(run)).get("type") == "interrupt" and rounds < _ROUNDS:
        await resume(d, at("runs", run), read(output, await d.specs("asking")))
        rounds += 1
    d.going.pop(at("runs", run), None)
    return Resumed(before, answer, form, rounds, output)


def _bodies(question: Asked) -> list[Any]:
    """The OpenAPI document sends the payload alone; the text wraps it; a discriminator makes the type a part of it."""
    schema = question.declared.get("resume_payload", {})
    compiled(member({"it": schema}, "it", dict, "resume_payload"), "resume_payload")
    payload = fitting(schema)
    kind = question.type or question.declared.get("interrupt_type")
    bodies: list[Any] = [payload, {"interrupt_type": kind, "resume_payload": payload}]
    return [*bodies, {"interrupt_type": kind, **payload}] if isinstance(payload, dict) else bodies


async def resume(d: Driver, path: str, question: Asked) -> tuple[Answer, int]:
    refused = ""
    for form, body in enumerate(_bodies(question)):
        answer = await d.ask("POST", path, body)
        if answer.status == 200:
            return answer, form
        refused = refused or answered(f"POST {path} {shown(body, 80)}", answer)
    raise Broken(refused)


@once
async def streamed(d: Driver) -> list[Json]:
    """The updates of a run that asks, up to the interrupt or the end of the stream."""
    applies("values" in await d.able("asking"), "the agent that asks does not stream values, says its descriptor")
    updates: list[Json] = []
    async with d.flow("POST", "/runs/stream", await d.request("asking", stream_mode="values")) as flow:
        flow.seen.expect_stream()
        while (update := await flow.next(d.patience)) is not None:
            updates.append(update)
            if update.get("type") == "interrupt":
                break
    run = flow.seen.run_id() if updates else None
    if run is not None:
        await d.stop(run)
    return updates


# -- asking ---------------------------------------------------------------------------------------------------


@suite.check(
    "connect.interrupts.supported", "connect.interrupts.output-type-interrupt", "connect.output.when-interrupted",
    "connect.interrupts.given-on-output-request",
)  # fmt: skip
async def the_output_of_a_run_that_asks_is_an_interrupt(d: Driver) -> None:
    await asked(d)


@suite.check("connect.interrupts.signalled")
async def the_descriptor_of_an_agent_that_asks_says_so(d: Driver) -> None:
    await asked(d)
    expect("interrupts" in await d.able("asking"), "the agent asks, and capabilities.interrupts is not true")


@suite.check("connect.interrupts.type", "connect.interrupts.output-interrupt-type")
async def an_interrupt_names_its_type(d: Driver) -> None:
    question = await asked(d)
    _, output = await interrupted(d)
    expect(question.type, f"the interrupt does not name its type: {shown(output)}")


@suite.check("connect.interrupts.payload", "connect.interrupts.output-interrupt-payload")
async def an_interrupt_has_a_payload(d: Driver) -> None:
    question = await asked(d)
    _, output = await interrupted(d)
    expect(question.payload is not None, f"the interrupt has no payload: {shown(output)}")


@suite.check("connect.interrupts.formats-in-descriptor")
async def an_interrupt_is_what_the_descriptor_says(d: Driver) -> None:
    question = await asked(d)
    applies(question.type is not None, "the interrupt does not name its type")
    expect(question.declared, f"the descriptor has no interrupt of the type {question.type}")
    schema = member(question.declared, "interrupt_payload", dict, "an interrupt of the descriptor")
    fits(question.payload, schema, "the payload of the interrupt")


@suite.check("connect.clients.interrupt-type-first")
async def the_type_is_the_first_key_of_the_interrupt(d: Driver) -> None:
    question = await asked(d)
    _, output = await interrupted(d)
    applies(question.type is not None, "the interrupt does not name its type")
    inner = member(output, "interrupt", dict, "the output")
    first = next(iter(inner), None)
    expect(first == question.type, f"the first key of the interrupt is {shown(first)}, not its type {question.type}")


@suite.check("connect.requirements.interrupt-handling")
async def an_interrupt_is_told_in_each_way_of_getting_output(d: Driver) -> None:
    await asked(d)
    waiting = await d.told("POST", "/runs/wait", await d.request("asking"))
    output = output_of(waiting, "POST /runs/wait")
    kind = output.get("type")
    expect(kind == "interrupt", f"POST /runs/wait of an agent that asks gives an output of type {shown(kind)}")
    told = member(waiting, "", dict, "the answer to POST /runs/wait").get("run")
    if isinstance(told, dict) and isinstance(told.get("run_id"), str):
        await d.stop(told["run_id"])
    if "values" in await d.able("asking"):
        updates = await streamed(d)
        kinds = [update.get("type") for update in updates]
        expect("interrupt" in kinds, f"the stream of an agent that asks ends without an interrupt: {shown(updates)}")


# -- answering ------------------------------------------------------------------------------------------------


@suite.check("connect.interrupts.resume", "connect.invocation.resumes", "connect.invocation.execution-id-resumes")
async def an_interrupted_run_is_resumed(d: Driver) -> None:
    await resumed(d)


@suite.check("connect.interrupts.resume-body", "connect.interrupts.resume-payload")
async def what_was_asked_for_is_taken_as_the_answer(d: Driver) -> None:
    """Expects one of the ways in which an answer can be wrapped to be taken: the agent then ends with a result."""
    output = (await resumed(d)).output
    expect(output.get("type") != "interrupt", f"the run asks again for what it was given: {shown(output)}")


@suite.check("connect.interrupts.resume-pending")
async def a_resumed_run_is_pending_again(d: Driver) -> None:
    seen = await resumed(d)
    expect(seen.before == "interrupted", f"the status of a run that asked is {seen.before}, not interrupted")
    status = member(seen.answer.json(), "status", str, "the answer to the resume request")
    expect(status == "pending", f"the status of a run that was just resumed is {shown(status)}, not pending")


@suite.check("connect.interrupts.resume-same-run")
async def a_resumed_run_keeps_its_id(d: Driver) -> None:
    run, _ = await interrupted(d)
    told = member((await resumed(d)).answer.json(), "run_id", str, "the answer to the resume request")
    expect(told == run, f"the run {run} was resumed, and the answer has the run_id {told}")


@suite.check("connect.interrupts.flow", "connect.invocation.execution-id", "connect.invocation.execution-id-for-resume")
async def a_run_asks_is_resumed_and_gives_its_result(d: Driver) -> None:
    output = (await resumed(d)).output
    kind = member(output, "type", str, "the output of the resumed run")
    expect(kind == "result", f"the output of the resumed run is {shown(output)}, and no result")
    result_of(output)


@suite.check("connect.openapi.resume-interrupted-only")
async def only_an_interrupted_run_is_resumed_and_only_once(d: Driver) -> None:
    seen = await resumed(d)
    applies(seen.output.get("type") != "interrupt", "the agent asks again and again")
    run, _ = await interrupted(d)
    late = await d.ask("POST", at("runs", run), _bodies(await asked(d))[seen.form])
    expect(late.status == 409, answered("an answer to a run that has ended", late))
    if seen.rounds > 1:  # if two answers come at once, the second may be for the next question
        return
    run = await d.start("asking")
    body = _bodies(read(await d.waited(run), await d.specs("asking")))[seen.form]
    both = await asyncio.gather(*(d.ask("POST", at("runs", run), body) for _ in range(2)))
    told = sorted(answer.status for answer in both)
    d.going.pop(at("runs", run), None)
    expect(told == [200, 409], f"two answers to one interrupt at once are answered {told[0]} and {told[1]}")

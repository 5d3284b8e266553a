"""Running agents: the request, and what its answer has."""

from __future__ import annotations

import json
from typing import Any

from ...base import Broken, NotApplicable, applies, expect, member, shown
from ...schemas import problem
from ..driver import OTHER_WORDS, TOKEN, Driver, check, ended, pair, plain, under
from ..talk import METHOD_NOT_FOUND, Seen, result_of
from .listing import carries

NOBODY = "nobody-has-this-name"


@check("mcp.running.method")
async def an_agent_is_run(d: Driver) -> None:
    seen = await plain(d)
    error = seen.answer.get("error")
    expect(
        error is None or error["code"] != METHOD_NOT_FOUND, f"the server does not know agents/run: {shown(error)}"
    )  # fmt: skip
    result_of(seen.answer, f"agents/run with the input {shown(seen.input, 80)}")


@check("mcp.running.params-name")
async def the_name_picks_the_agent(d: Driver) -> None:
    await ended(d)
    client = await d.client()
    answer = await client.answer("agents/run", {"name": NOBODY, "input": d.input(await d.agent())})
    expect("error" in answer, f"a run of an agent that is not there has a result: {shown(answer)}")


@check("mcp.running.params-input")
async def the_input_is_what_the_agent_gets(d: Driver) -> None:
    """Expects an agent that repeats its input to repeat the input of this run."""
    seen = await ended(d)
    try:
        _, other = await pair(d)
    except Broken as error:
        raise NotApplicable(str(error)) from None
    told = _words(seen.input)
    if told and told in json.dumps(seen.output(), ensure_ascii=False) and OTHER_WORDS in _words(other.input):
        said = json.dumps(other.output(), ensure_ascii=False)
        expect(
            OTHER_WORDS.split()[0] in said and told.split()[0] not in said,
            f"the agent was given {shown(other.input, 80)}, and its output is of another input: {shown(said)}",
        )


def _words(value: Any) -> str:
    """The text of an input that has one."""
    if isinstance(value, dict):
        return next((entry for entry in value.values() if isinstance(entry, str) and entry), "")
    return ""


@check("mcp.running.response-id")
async def the_answer_has_the_id(d: Driver) -> None:
    seen: Seen = await plain(d)
    carries(seen.answer, seen.request["id"], "agents/run")
    told = await under(d, TOKEN)
    carries(told.answer, told.request["id"], "agents/run")


@check("mcp.running.result-output")
async def the_result_has_the_output(d: Driver) -> None:
    seen = await plain(d)
    applies("result" in seen.answer, f"the run has no result: {shown(seen.answer)}")
    output = member(seen.answer, "result.output", dict, "the answer to agents/run")
    agent = await d.agent()
    wrong = problem(output, agent.item.get("outputSchema", {}), "output")
    expect(wrong is None, f"the output does not fit the outputSchema of {agent.name}: {wrong}")


@check("mcp.running.example-howdy")
async def gpa_answers_as_in_the_example(d: Driver) -> None:
    agent = await d.agent()
    applies(agent.name == "gpa", "the agent that may be run is not gpa")
    client = await d.client()
    answer = await client.answer("agents/run", {"name": "gpa", "input": {"text": "Howdy!"}})
    result_of(answer, "agents/run of gpa")
    member(answer, "result.output.text", str, "the answer to agents/run of gpa")


@check("mcp.running.schemas-unspecified")
async def any_schemas_will_do(d: Driver) -> None:
    agent = await d.agent()
    applies(
        not agent.text_only(), f"{agent.name} takes and gives one text, as in the example; name another with --agent"
    )  # fmt: skip
    seen = await plain(d)
    expect("result" in seen.answer, f"{agent.name} is not run with what its inputSchema takes: {shown(seen.answer)}")

"""The whole example as a model plays it: a stand-in behind a real HTTP server thinks for all three agents, their tools
are real MCP servers over stdio, and the user is asked and answers. The stand-in decides from what it is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.content import DataPart, FilePart, TextPart, ToolResultPart
from interlingua.model.events import Said
from tests.kit.engines import PATIENT, question, submit

from .standin import MODEL, Answer, Asked, Call, Says, StandIn
from .test_sales_team import EXAMPLE, TALK, calls_on_record, warm

pytestmark = pytest.mark.usefixtures("quick_tools")

TASK = "Analyze last quarter's sales trends"


def pm(asked: Asked) -> Answer:
    match asked.turns:
        case 0:
            assert TASK in asked.task
            return Call("DocsServer__read_file", name="project-spec.md", id="spec")
        case 1:
            assert "ClientA" in asked.news[0]  # what the server read
            attached = [{"type": "tool_call_result", "call_id": "spec"}]
            content = "Regional breakdowns, customer segments, or the overall trend?"
            return Call("ask", recipient="user", content=content, attachments=attached)
        case 2:
            assert "By major market." in asked.news[0]
            return Call("DataServer__query_data", quarter="Q4", clients=["ClientA", "ClientB"], id="lost")
        case 3:
            lost = json.loads(asked.news[0])["result"]["revenue"]
            return Call(
                "delegate_to_analyst-1",
                context_summary=f"The user wants it by market. ClientA and ClientB still bought {lost}: explain.",
                reason="It takes numbers.",
                attachments=[
                    {"type": "tool_call_result", "call_id": "lost"},
                    {"type": "tool_call_result", "call_id": "spec"},
                    {"type": "text_snippet", "text": "Promotions in December, product X in October."},
                ],
            )
        case 4:
            assert "Should I analyze further?" in asked.news[0]
            return Call("send_message", recipient="analyst-1", content="Yes, and compare it with the quarter before.")
        case 5:
            return Call("wait_for", task="T1.1")
    return f"The verified report: {asked.news[0]}"


def analyst(asked: Asked) -> Answer:
    match asked.turns:
        case 0:
            assert "December" in asked.task  # the snippet
            calls = [Call("DataServer__process_data", by=by, id=by) for by in ("region", "product")]
            return Says("First the numbers.", *calls)
        case 1:
            assert len(asked.news) == 2
            return Call("ask", recipient="pm-1", content="Some sellers pause for months. Should I analyze further?")
        case 2:
            assert "compare it with the quarter before" in asked.news[0]
            return Call(
                "delegate_to_qa-1",
                context_summary="The analysis is complete; please verify it.",
                result="Europe fell, Asia rose.",
                attachments=[
                    {"type": "file", "path": "/tmp/findings.md"},
                    {"type": "python_object", "object": {"insights": ["Europe fell", "Asia rose"]}},
                ],
            )
    assert "Which filters?" in asked.news[0]
    return Call("answer_inquiry", task="T1.1.1", reply="Only closed sales.")


def qa(asked: Asked) -> Answer:
    assert "Europe fell, Asia rose." in asked.task
    if "Only closed sales." in asked.task:
        return Call("verdict", decision="approve", reason="Verified. Complete and accurate.")
    if asked.turns == 0:
        return Call("SummaryServer__create_summary", title="To check", points=["the total for Europe"])
    return Call("verdict", decision="inquire", inquiry="The total for Europe seems low. Which filters?")


SCRIPTS = {"pm-1": pm, "analyst-1": analyst, "qa-1": qa}


@pytest.mark.timeout(90)
async def test_the_whole_example_is_played_by_a_model(store: Path) -> None:
    made = il.team(EXAMPLE, model=MODEL)
    with StandIn(made.team, lambda asked: SCRIPTS[asked.agent](asked)) as model:
        async with il.Engine(store, agents=[made], settings=PATIENT) as eng:
            await warm(made)
            run = await submit(eng, "sales-team", {"text": TASK})
            asked = await question(eng, run.id)
            await eng.questions.answer(asked.id, {"text": "By major market."})
            done = await eng.runs.wait(run.id, timeout=60)
            assert done.status is il.Status.SUCCEEDED, done.error
            assert "Europe fell, Asia rose." in done.output["text"]

            told = sorted(await eng.teams.conversation(run.id), key=lambda both: both[1].time or both[0].time)
            said: list[Said] = [one for _, one in told]
            assert [(one.form, one.task, one.sender, one.recipient) for one in said] == TALK
            kinds = [[type(part) for part in one.attachments] for one in said]
            assert kinds[0] == []
            assert kinds[1] == [ToolResultPart]
            assert kinds[3] == [ToolResultPart, ToolResultPart, TextPart]
            assert kinds[6] == [FilePart, DataPart]
            assert kinds[9] == [TextPart, FilePart, DataPart]  # the approval brings the result
            results = [part for one in said for part in one.attachments if isinstance(part, ToolResultPart)]
            assert [(part.server, part.tool, part.meta) for part in results] == [
                ("DocsServer", "read_file", None), ("DataServer", "query_data", None),
                ("DocsServer", "read_file", None),
            ]  # fmt: skip
            assert said[7].text == "The total for Europe seems low. Which filters?"
            assert said[9].text == "Verified. Complete and accurate."
            assert sorted(await calls_on_record(eng, run.id)) == [
                "DataServer.process_data", "DataServer.process_data", "DataServer.query_data", "DocsServer.read_file",
                "SummaryServer.create_summary",
            ]  # fmt: skip
        for manifest in made.team.manifests.values():
            first = model.of(manifest.id)[0]
            assert first.system.startswith(manifest.system_prompt)

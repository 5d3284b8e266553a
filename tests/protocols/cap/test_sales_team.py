"""The example team from beginning to end: its manifests, its handlers and its real tool servers, without a model."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.content import DataPart, TextPart, ToolResultPart
from interlingua.model.events import Said, ToolCall
from interlingua.model.filters import RunFilter
from tests.kit.engines import PATIENT, question, submit

pytestmark = pytest.mark.usefixtures("quick_tools")

EXAMPLE = Path(__file__).parents[3] / "examples" / "sales-team"

CALLS = [
    "DocsServer read_file project-spec.md",
    "DataServer query_data",
    "DataServer process_data",
    "DataServer process_data",
    "DataServer process_data",
    "SummaryServer create_summary",
]

TALK = [
    ("delegation", "T1", "orchestrator", "pm-1"),
    ("message", "T1", "pm-1", "user"),
    ("message", "T1", "user", "pm-1"),
    ("delegation", "T1.1", "pm-1", "analyst-1"),
    ("message", "T1.1", "analyst-1", "pm-1"),
    ("message", "T1.1", "pm-1", "analyst-1"),
    ("delegation", "T1.1.1", "analyst-1", "qa-1"),
    ("inquiry", "T1.1.1", "qa-1", "analyst-1"),
    ("message", "T1.1.1", "analyst-1", "qa-1"),
    ("message", "T1.1.1", "qa-1", "pm-1"),
    ("message", "T1", "pm-1", "orchestrator"),
]


def counted(folder: Path) -> tuple[TeamAgent, Path]:
    """The team in a folder of its own, and the file in which its servers write down what they are called for."""
    shutil.copytree(EXAMPLE, folder)
    made, log = il.team(folder), folder / "calls.log"
    for name, server in made.team.servers.items():
        made.team.servers[name] = msgspec.structs.replace(server, env={**server.env, "CALLS_LOG": str(log)})
    return made, log


async def warm(made: TeamAgent) -> None:
    """Start the servers, all at once."""
    servers = made.tool_servers
    assert servers is not None
    await asyncio.gather(*(servers.list(name, server) for name, server in made.team.servers.items()))


async def calls_on_record(eng: il.Engine, root: str) -> list[str]:
    """The tools that were called and gave something, on the logs of all members, oldest first."""
    found: list[tuple[int, str]] = []
    members = [run for run in await eng.runs.search(RunFilter(root=root, limit=100, sealed=True)) if run.id != root]
    for run in members:  # and not the team's own, which shows what its entry does
        begun: dict[str, str] = {}
        async for event in eng.runs.events(run.id, follow=False, sealed=True):
            if isinstance(event.body, ToolCall):
                begun.setdefault(event.body.id, event.body.tool or "")
                if event.body.status == "completed":
                    found.append((event.time, begun[event.body.id]))
    return [tool for _, tool in sorted(found)]


@pytest.mark.timeout(60)
async def test_the_example_is_played_through_with_its_own_servers(store: Path, tmp_path: Path) -> None:
    made, log = counted(tmp_path / "sales-team")
    async with il.Engine(store, agents=[made], settings=PATIENT) as eng:
        await warm(made)
        run = await submit(eng, "sales-team", {"text": "Analyze last quarter's sales trends"})
        asked = await question(eng, run.id)
        assert asked.prompt == "Do you want regional breakdowns, client segments, or the overall trend?"
        await eng.questions.answer(asked.id, {"text": "By region."})
        done = await eng.runs.wait(run.id, timeout=30)
        assert done.status is il.Status.SUCCEEDED, done.error
        assert done.output["text"].startswith("Verified:\nRevenue by region: Americas 43920 → 38095 (-5825); Asia")

        told = await eng.teams.conversation(run.id)
        said: list[Said] = [one for _, one in sorted(told, key=lambda both: both[1].time or both[0].time)]
        assert [one for _, one in told] == said  # the log has it in the order of time
        assert [(one.form, one.task, one.sender, one.recipient) for one in said] == TALK
        assert [said[1].message.metadata["question"], said[2].message.metadata["question"]] == [asked.id] * 2
        assert said[2].text == "By region."
        assert "The user said: By region." in said[3].text
        assert said[3].message.metadata["reason"] == "It takes numbers, and the user has said which."
        assert said[9].message.metadata["result_hash"] == said[6].message.metadata["result_hash"]
        assert [place for place, one in enumerate(said) if one.message.metadata.get("final")] == [9, 10]
        check_attachments(said)

        assert log.read_text().splitlines() == CALLS
        assert await calls_on_record(eng, run.id) == [".".join(line.split()[:2]) for line in CALLS]
        tasks = [(task.label, task.agent, task.review) for task in await eng.teams.tasks("T1")]
        # One review in two rounds: the inquiry, and the verdict on the same result.
        reviews = [("T1.1.1", "qa-1", True)] * 2
        assert tasks == [("T1", "pm-1", False), ("T1.1", "analyst-1", False), *reviews]
        for one in await eng.runs.search(RunFilter(root=run.id, limit=100, sealed=True)):
            assert await eng.runs.verify(one.id, sealed=True) is None


def check_attachments(said: list[Said]) -> None:
    def kinds(one: Said) -> list[type[Any]]:
        return [type(part) for part in one.attachments]

    assert [kinds(one) for one in said] == [
        [],
        [ToolResultPart],
        [],
        [ToolResultPart, ToolResultPart, TextPart],
        [],
        [],
        [DataPart],
        [],
        [],
        [TextPart, DataPart],  # the approval brings the result
        [],
    ]
    results = [part for one in said for part in one.attachments if isinstance(part, ToolResultPart)]
    assert [(part.server, part.tool) for part in results] == [
        ("DocsServer", "read_file"), ("DataServer", "query_data"), ("DocsServer", "read_file"),
    ]  # fmt: skip
    assert [part.meta for part in results] == [None] * 3  # they were really got
    assert results[1].result["count"] == len(results[1].result["rows"]) > 0
    report = said[9].attachments[0]
    assert isinstance(report, TextPart)
    assert said[10].text == f"Verified:\n{report.text}"

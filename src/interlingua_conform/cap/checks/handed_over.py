"""Checks tasks that come from outside: begun by a notice, with attachments, and worked on by its recipient."""

from __future__ import annotations

import json
from typing import Any

from ...base import NotApplicable, applies, expect, shown
from ..driver import Driver, attached, by_us, kind, suite, words
from ..scenes import carried, everything, worked
from ..teams import same_agent
from ..wires import ORCHESTRATOR, USER, Json, Talk
from .shapes import KINDS


@suite.check("cap.workflows.orchestrator-spawns", "cap.example-flow.user-prompt")
async def a_notice_of_the_orchestrator_begins_a_task(d: Driver) -> None:
    await worked(d)


@suite.check("cap.delegation-notice.handoff")
async def who_is_handed_a_task_works_on_it(d: Driver) -> None:
    talk = await worked(d)
    spoke = [told.get("sender_id") for told in talk.said if not by_us(told, talk)]
    mine = any(isinstance(name, str) and same_agent(name, talk.agent) for name in spoke)
    known = not d.wire.lists and d.subject.roles.agent is None  # a command that has a name of its own for itself
    expect(mine or known, f"a task was handed to {talk.agent}, and only {shown(spoke)} spoke about it")


@suite.check("cap.example-flow.orchestrator-id", "cap.example-flow.final-result")
async def the_result_goes_to_the_orchestrator_that_handed_the_task_over(d: Driver) -> None:
    talk = await worked(d)
    assert talk.result is not None
    to = talk.result.get("recipient_id")
    applies(isinstance(to, str), "the result says not to whom it goes")
    expect(to == ORCHESTRATOR, f"a task was handed over by {ORCHESTRATOR}, and its result went to {shown(to)}")


@suite.check("cap.message.participant-ids")
async def participants_are_agents_the_user_and_the_orchestrator(d: Driver) -> None:
    """Looks at the result only: the agents of a server are not known for sure, but the result of the checker's task
    comes from an agent, and goes to the user or the orchestrator."""
    talk = await worked(d)
    assert talk.result is not None
    sender, to = talk.result.get("sender_id"), talk.result.get("recipient_id")
    if isinstance(sender, str):
        expect(sender not in (USER, ORCHESTRATOR), f"what {talk.agent} says is sent by {sender}: {shown(talk.result)}")
    if isinstance(to, str):
        expect(to in (USER, ORCHESTRATOR), f"what {talk.agent} says about our task goes to {shown(to)}")


def _records(name: str, requirement: str) -> None:
    @suite.check(requirement)
    async def a_notice_is_on_record_with_it(d: Driver) -> None:
        talk = await worked(d)
        applies(talk.recorded, "the server keeps no record that could be read")
        told, sent = _notice(talk), talk.sent[0]
        expect(told.get(name) == sent[name], f"a notice with the {name} {sent[name]} is on record as {shown(told)}")


_records("sender_id", "cap.delegation.records-sender")
_records("recipient_id", "cap.delegation.records-recipient")
_records("task_id", "cap.delegation.records-task")
_records("context_summary", "cap.delegation.records-summary")


def _notice(talk: Talk) -> Json:
    """Returns the checker's notice from the record: the one with its words, or the first about its task."""
    noted = [told for told in talk.said if kind(told) == "delegation_notice"]
    expect(noted, f"no delegation_notice is in the conversation: {shown(talk.said)}")
    ours = [told for told in noted if words(told) == words(talk.sent[0])]
    return (ours or [told for told in noted if told.get("task_id") == talk.task] or noted)[0]


# -- attachments ----------------------------------------------------------------------------------------------

_SPEC: Json = {"type": "tool_call_result", "server_id": "DocsServer", "tool": "read_file", "result": "…the spec…"}
_DATA: Json = {
    "type": "tool_call_result", "server_id": "DataServer", "tool": "query_data",
    "result": {"range": "Q4", "filters": {"clients": ["ClientA", "ClientB"], "all_products": True}},
}  # fmt: skip
_SUMMARY: Json = {
    "type": "tool_call_result", "server_id": "SummaryServer", "tool": "create_summary", "result": "Sales went up."
}  # fmt: skip
_FILE: Json = {"type": "file", "path": "/srv/report.csv"}
_OBJECT: Json = {"type": "python_object", "object": {"insights": ["one", 2, None], "figures": {"a": [1.5, True]}}}
_TEXT: Json = {"type": "text_snippet", "text": "Client churn: ClientA & ClientB – süß."}


async def _takes(d: Driver, *given: Json) -> None:
    """A notice with these is taken, and has them on record as they were sent."""
    talk = await carried(d, *(json.dumps(one, sort_keys=True) for one in given))
    names = " and ".join(dict.fromkeys(str(one["type"]) for one in given))
    expect(talk.refusal is None, f"a notice with {names} was refused: {talk.refusal and talk.refusal.how}")
    ended = talk.result
    expect(ended is not None, f"{talk.agent} said nothing about a task whose notice has {names}")
    if ended is not None and ended.get("type") == "error_response":
        await worked(d)  # gives the reason if no task succeeds
        applies(all(one["type"] != "file" for one in given), f"{talk.agent} wanted to read the file: {shown(ended)}")
        expect(False, f"a task whose notice has {names} failed: {shown(ended)}")
    if talk.recorded:
        noted = attached(_notice(talk))
        for one in given:
            expect(any(_holds(other, one) for other in noted), f"{shown(one)} is on record as {shown(noted)}")


async def _shown(d: Driver, wanted: str) -> None:
    """Checks that the attachments of a type, as far as the server shows any, have the members of that type."""
    for told in await everything(d):
        for one in attached(told):
            if isinstance(one, dict) and one.get("type") == wanted:
                for name in KINDS[wanted]:
                    expect(name in one, f"a {wanted} has no {name}: {shown(one)}")
                if wanted == "file":
                    named = [name for name in ("path", "url") if isinstance(one.get(name), str)]
                    expect(named, f"a file has neither a path nor a URL: {shown(one)}")


def _holds(other: Any, one: Json) -> bool:
    return isinstance(other, dict) and all(name in other and other[name] == value for name, value in one.items())


@suite.check("cap.message.attachment-tool-call-result")
async def the_result_of_a_tool_can_be_attached(d: Driver) -> None:
    await _takes(d, _SPEC)
    await _shown(d, "tool_call_result")


@suite.check("cap.example-flow.structured-result")
async def the_result_of_a_tool_can_be_an_object(d: Driver) -> None:
    await _takes(d, _DATA)


@suite.check("cap.mcp.result-kinds")
async def queries_documents_and_summaries_can_be_attached(d: Driver) -> None:
    await _takes(d, _DATA, _SPEC, _SUMMARY)


@suite.check("cap.message.attachment-file")
async def a_file_can_be_attached_by_its_path(d: Driver) -> None:
    await _takes(d, _FILE)
    await _shown(d, "file")


@suite.check("cap.message.attachment-file-url")
async def a_file_can_be_attached_by_its_url(d: Driver) -> None:
    """The document names no member for it: either that of paths, or one of its own."""
    address = "https://example.com/report.csv"
    try:
        await _takes(d, {"type": "file", "url": address})
    except NotApplicable:
        raise
    except Exception:
        await _takes(d, {"type": "file", "path": address})


@suite.check("cap.message.attachment-python-object-json")
async def an_object_can_be_attached(d: Driver) -> None:
    await _takes(d, _OBJECT)
    await _shown(d, "python_object")


@suite.check("cap.message.attachment-text-snippet")
async def a_text_can_be_attached(d: Driver) -> None:
    await _takes(d, _TEXT)
    await _shown(d, "text_snippet")


@suite.check("cap.example-flow.pm-attachments")
async def results_and_a_text_go_with_one_notice(d: Driver) -> None:
    await _takes(d, _DATA, _SPEC, _TEXT)


@suite.check("cap.example-flow.analyst-attachments")
async def a_file_and_an_object_go_with_one_notice(d: Driver) -> None:
    await _takes(d, _FILE, _OBJECT)

"""Checks the document's example, if a server plays it: pm-1, analyst-1 and qa-1 in one task, step by step.

A step that an agent left out is no mistake: the document describes what happened once. Each step that an agent took is
checked against the document.
"""

from __future__ import annotations

from collections.abc import Callable

from ...base import applies, expect, shown
from ..driver import Driver, attached, suite
from ..scenes import talks
from ..teams import same_agent, text
from ..wires import ORCHESTRATOR, USER, Json, Talk

PM, ANALYST, QA = "pm-1", "analyst-1", "qa-1"
Step = tuple[str, str, str, str]  # type, sender, recipient, and which part of the task

_STEPS: dict[str, Step] = {
    "the prompt": ("delegation_notice", ORCHESTRATOR, PM, ""),
    "the question to the user": ("message", PM, USER, ""),
    "the answer of the user": ("message", USER, PM, ""),
    "the delegation to the analyst": ("delegation_notice", PM, ANALYST, ".1"),
    "the question of the analyst": ("message", ANALYST, PM, ".1"),
    "the answer of the manager": ("message", PM, ANALYST, ".1"),
    "the notice to the overseer": ("delegation_notice", ANALYST, QA, ".1.1"),
    "the inquiry of the overseer": ("oversight_inquiry", QA, ANALYST, ".1.1"),
    "the answer of the analyst": ("message", ANALYST, QA, ".1.1"),
    "the approval": ("message", QA, PM, ".1.1"),
    "the report": ("message", PM, ORCHESTRATOR, ""),
}


async def _example(d: Driver) -> Talk:
    for talk in await talks(d):
        spoke = [text(told, "sender_id") for told in talk.said]
        if talk.recorded and all(any(same_agent(id_, one) for id_ in spoke) for one in (PM, ANALYST, QA)):
            return talk
    applies(False, "the server does not play the document's example (a task in which pm-1, analyst-1 and qa-1 speak)")
    raise AssertionError


def _places(talk: Talk, name: str) -> list[int]:
    kind, sender, recipient, _ = _STEPS[name]
    return [
        place
        for place, told in enumerate(talk.said)
        if told.get("type") == kind
        and same_agent(text(told, "sender_id"), sender)
        and same_agent(text(told, "recipient_id"), recipient)
    ]


async def _step(d: Driver, name: str) -> tuple[Talk, int, Json]:
    """A step of the example, which is about the part of the task that it should be about."""
    talk = await _example(d)
    places = _places(talk, name)
    applies(places, f"the example was played without {name}")
    told = talk.said[places[0]]
    task = talk.task + _STEPS[name][3]
    expect(text(told, "task_id") == task, f"{name} is about {shown(told.get('task_id'))}, not {task}: {shown(told)}")
    return talk, places[0], told


def _is(requirement: str, name: str, right: Callable[[Json], bool], why: str) -> None:
    @suite.check(requirement)
    async def the_step_is_as_in_the_example(d: Driver) -> None:
        _, _, told = await _step(d, name)
        expect(right(told), f"{name} {why}: {shown(told)}")


def _says(told: Json) -> bool:
    return bool(text(told, "content") or text(told, "context_summary"))


def _has_document(told: Json) -> bool:
    return any(
        isinstance(one, dict) and one.get("server_id") == "DocsServer" and one.get("tool") == "read_file"
        for one in attached(told)
    )


_EMPTY = "has no words"
_is("cap.example-flow.pm-asks-user", "the question to the user", _has_document, "has no result of read_file with it")
_is("cap.example-flow.pm-delegates", "the delegation to the analyst", _says, _EMPTY)
_is("cap.example-flow.analyst-asks-pm", "the question of the analyst", _says, _EMPTY)
_is("cap.example-flow.analyst-to-qa", "the notice to the overseer", _says, _EMPTY)


def _follows(requirement: str, name: str, before: str) -> None:
    @suite.check(requirement)
    async def the_step_follows_another(d: Driver) -> None:
        _, first, _ = await _step(d, before)
        talk, place, told = await _step(d, name)
        expect(_says(told), f"{name} {_EMPTY}: {shown(told)}")
        expect(place > first, f"{name} comes before {before}: {shown(talk.said[place])}")


_follows("cap.example-flow.pm-clarifies", "the answer of the manager", "the question of the analyst")
_follows("cap.example-flow.analyst-responds", "the answer of the analyst", "the inquiry of the overseer")
_follows("cap.example-flow.qa-approves", "the approval", "the notice to the overseer")


@suite.check("cap.example-flow.research-before-handoff")
async def the_manager_uses_its_tools_before_it_hands_over(d: Driver) -> None:
    talk, handed, _ = await _step(d, "the delegation to the analyst")
    used = [
        place
        for place, told in enumerate(talk.said)
        if text(told, "sender_id") == PM
        and any(isinstance(one, dict) and one.get("type") == "tool_call_result" for one in attached(told))
    ]
    applies(used, "pm-1 showed no result of a tool")
    expect(
        used[0] <= handed, f"pm-1 used its tools only after it had handed the work over: {shown(talk.said[used[0]])}"
    )


@suite.check("cap.example-flow.whole-flow")
async def the_example_runs_in_the_order_of_the_document(d: Driver) -> None:
    talk = await _example(d)
    first = {name: places[0] for name in _STEPS if (places := _places(talk, name))}
    order = sorted(first, key=lambda name: first[name])
    wanted = [name for name in _STEPS if name in first]
    expect(order == wanted, f"the example was played as: {', '.join(order)}")
    expect("the report" in first, f"the example ended without the report: {shown(talk.said[-1])}")

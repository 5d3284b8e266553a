"""Questions of every shape are answered with what fits them, where the server tells what does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlingua.model.question_forms import form
from interlingua.server.app import ServeSettings, serving
from interlingua_conform.answers import WORD, answer_to, filled_in
from interlingua_conform.base import NotApplicable, Roles, Subject
from tests.kit.engines import QUICK

from .common import failures, findings
from .questions import AGENTS

# What is about answers to questions. The other checks that need somebody who asks do not answer.
ABOUT = {
    "mcp": {"mcp.door.question-asked", "mcp.door.question-returned", "mcp.door.question-error", "mcp.tools.questions"},
    "editor": {"editor.v1.elicitation", "editor.v1.elicitation-declined", "editor.v2.questions"},
    "peer": {"peer.3-1.input-required-working", "peer.4-1.task-continue"},
    "cap": {
        "cap.example-flow.user-replies", "cap.example-flow.attachments-omitted", "cap.messaging.unified-format",
        "cap.messaging.feedback-loops",
    },
    "connect": {"connect.interrupts.resume", "connect.interrupts.resume-body"},
}  # fmt: skip
CHOSEN = {"editor": {"editor.v1.permission", "editor.v2.permission"}}  # choices are no form there


@pytest.mark.parametrize("asking", ["nested", "numbers", "perhaps", "boxed", "careful"])
async def test_what_our_agents_ask_is_answered_through_every_door(asking: str, store: Path) -> None:
    told: dict[str, str] = {}
    async with serving(store, AGENTS, ServeSettings(port=0, engine=QUICK)) as server:
        for protocol, about in ABOUT.items():
            only = CHOSEN.get(protocol, about) if asking in ("boxed", "careful") else about
            roles = Roles(agent="echo", asking=asking, slow="slow")
            subject = Subject(address=f"{server.address}/{protocol}", roles=roles, patience=20.0)
            found = await findings(protocol, subject, sorted(only))
            assert failures(found) == {}
            told |= {name: finding.verdict for name, finding in found.items()}
    assert set(told.values()) == {"pass"}, told


PEOPLE = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "people": {"type": "array", "items": {"type": "integer"}}},
    "required": ["title", "people"],
}  # fmt: skip


def test_a_form_is_filled_in_by_what_is_told_beside_it() -> None:
    told = {"requestedSchema": form(PEOPLE).schema, "_meta": {"interlingua/answerSchema": PEOPLE}}
    assert filled_in(told) == {"title": "hello there", "people": "[1]"}


@pytest.mark.parametrize(
    "told",
    [
        None,
        5,
        {},
        {"type": "object", "properties": {"other": {"type": "string"}}},
        {"type": "object", "properties": {"choice": {"type": "boolean"}}},
    ],
)
def test_what_is_not_of_the_form_changes_nothing(told: Any) -> None:
    shown = {"type": "object", "properties": {"choice": {"type": "string", "enum": ["a"]}}, "required": ["choice"]}
    assert filled_in({"requestedSchema": shown, "_meta": {"interlingua/answerSchema": told}}) == {"choice": "a"}


@pytest.mark.parametrize("beside", [{}, {"_meta": None}])
def test_a_form_that_is_alone_is_all_there_is(beside: dict[str, Any]) -> None:
    shown = {"type": "object", "properties": {"size": {"type": "integer"}}}
    assert filled_in({"requestedSchema": shown, **beside}) == {"size": 1}


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        (None, WORD),  # a stranger's question, which tells nothing
        (7, WORD),
        ({"type": 7}, WORD),
        ({}, WORD),
        ({"type": "string"}, WORD),
        ({"type": "object", "properties": {"fine": {"type": "boolean"}}, "required": ["fine"]}, WORD),
        ({"type": "string", "enum": ["red", "green"]}, "red"),
        ({"type": "array", "items": {"type": "integer"}}, [1]),
        (PEOPLE, {"title": "hello there", "people": [1]}),
    ],
)
def test_a_question_is_answered_by_a_word_where_that_is_enough(schema: Any, answer: Any) -> None:
    assert answer_to(schema) == answer


async def test_what_needs_an_answer_does_not_apply_where_none_can_be_made(store: Path) -> None:
    async with serving(store, AGENTS, ServeSettings(port=0, engine=QUICK)) as server:
        for protocol, about in ABOUT.items():
            subject = Subject(address=f"{server.address}/{protocol}", roles=Roles(agent="echo", asking="zip"))
            found = await findings(protocol, subject, sorted(about))
            needing = about - {"editor.v1.elicitation-declined"}  # a no can always be said
            assert {found[name].verdict for name in needing} == {"not applicable"}, found


def test_a_question_for_which_nothing_can_be_made_is_none_to_look_at() -> None:
    with pytest.raises(NotApplicable, match="nothing can be made for the answer"):
        answer_to({"type": "string", "pattern": "^[0-9]{5}$"})

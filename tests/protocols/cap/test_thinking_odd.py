"""Models that say what is no JSON of ours, or more than anybody can use: they are told, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlingua.model.events import Thought

from .standin import Answer, Asked, Call, Says
from .test_thinking import HELPER, LEAD, Tools, crew, of, ran

ODD = {
    "a tool": ("Docs__read", '{"path": "\\ud800"}'),
    "a number that is none": ("Docs__read", '{"path": "a", "n": NaN}'),
    "a number too large": ("Docs__read", '{"path": "a", "n": 1' + "0" * 400 + "}"),
    "depth": ("Docs__read", '{"path": "a", "n": ' + "[" * 300 + "]" * 300 + "}"),
    "great depth": ("Docs__read", '{"path": "a", "n": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "a message": ("send_message", '{"recipient": "user", "content": "\\ud800"}'),
    "a recipient": ("send_message", '{"recipient": "\\ud800", "content": "x"}'),
    "an attachment": (
        "send_message",
        '{"recipient": "user", "content": "x", "attachments": [{"type": "python_object", "object": NaN}]}',
    ),
    "a snippet": (
        "send_message",
        '{"recipient": "user", "content": "x", "attachments": [{"type": "text_snippet", "text": "\\ud800"}]}',
    ),
    "a question": ("ask", '{"recipient": "user", "content": "\\ud800"}'),
    "a task": ("delegate_to_helper", '{"context_summary": "\\ud800"}'),
    "a reason": ("delegate_to_helper", '{"context_summary": "x", "reason": "\\ud800"}'),
    "a wait": ("wait_for", '{"task": "\\ud800"}'),
    "a list": ("Docs__read", "[1]"),
    "nobody": ("delegate_to_\ud800", '{"context_summary": "x"}'),
    "no tool": ("\ud800", "{}"),
    "a long name": ("x" * 100_000, "{}"),
}


@pytest.mark.parametrize("what", list(ODD))
async def test_a_model_that_calls_with_what_is_no_json_of_ours_is_told(store: Path, what: str) -> None:
    name, arguments = ODD[what]

    def script(asked: Asked) -> Answer:
        return Call(name, arguments) if asked.turns == 0 else "I gave up"

    run, model, _ = await ran(store, crew(LEAD, HELPER), script, tools=Tools())
    assert run.output == {"text": "I gave up"}, run.error
    assert len(model.requests) == 2
    assert len(model.requests[1].news[0]) < 5000


@pytest.mark.parametrize("calls", [False, True], ids=["its answer", "beside a call"])
async def test_half_a_character_in_what_a_model_says_fails_nothing(store: Path, calls: bool) -> None:
    def script(asked: Asked) -> Answer:
        if asked.turns == 0:
            return Says("half a \ud83d", *([Call("Docs__read", path="a")] if calls else []))
        return "a whole \U0001f600"

    run, _, found = await ran(store, crew(LEAD, HELPER), script, tools=Tools())
    assert run.output == {"text": "a whole \U0001f600" if calls else "half a \ufffd"}, run.error
    assert [one.text for one in of(found["lead"], Thought)] == (["half a \ufffd"] if calls else [])

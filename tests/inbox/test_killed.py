"""A mounted process dies while it waits for an answer: nobody can answer any more, and who asks why is told."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import AlreadyAnswered
from interlingua.model.events import Warned
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load
from tests.kit.engines import PATIENT, bodies, crash, engine, question, submit
from tests.kit.mounts import editor, mcp
from tests.kit.mounts.watch import seen
from tests.protocols.cap.test_client import program

FORM = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ELICIT = {"message": "Where to?", "requestedSchema": FORM}
SAYS: dict[str, dict[str, Any]] = {
    "editor": editor.script(editor.PERMISSION),
    "mcp": mcp.script(mcp.act("elicit", ELICIT)),
    "cap": {"text": "x"},
}
ANSWERS: dict[str, dict[str, Any]] = {"editor": {"choice": "yes"}, "mcp": {"text": "Rome"}, "cap": {"text": "Rome"}}
every_process = pytest.mark.parametrize("kind", SAYS)


async def mounted(kind: str, folder: Path) -> il.Agent[..., Any]:
    """A program that asks, as an agent. It leaves its number behind when it begins."""
    command = {
        "editor": lambda: editor.command(),
        "mcp": lambda: mcp.command({}),
        "cap": lambda: program(folder, 'to(notice, "user", "Where to?")\nhear()').removeprefix("cap:"),
    }[kind]()
    line = f"echo $$ > {shlex.quote(str(folder / 'pid'))}; exec {command}"
    return (await load(parse(f"{kind}:sh -c {shlex.quote(line)}"))).chosen


async def let_go(agent: il.Agent[..., Any]) -> None:
    if agent.let_go is not None:
        await agent.let_go()


@every_process
async def test_what_a_killed_process_asked_is_withdrawn_with_the_reason(
    store: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLINGUA_EDITOR_ASK_AGAIN_WITHIN", "0.1")
    agent = await mounted(kind, tmp_path)
    async with engine(store, agent, settings=PATIENT) as eng:
        run = await submit(eng, agent.card.name, SAYS[kind])
        asked = await question(eng, run.id)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        withdrawn = (await seen(eng, run.id, "withdrawn")).body
        assert withdrawn.question == asked.id
        assert "SIGKILL" in withdrawn.reason
        with pytest.raises(AlreadyAnswered, match="SIGKILL"):
            await eng.questions.answer(asked.id, ANSWERS[kind])
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.error is not None
        assert ended.error.code == "run_lost"
    await let_go(agent)


@every_process
async def test_an_answer_that_was_given_while_nobody_was_there_and_is_of_no_use_is_told(
    store: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLINGUA_EDITOR_ASK_AGAIN_WITHIN", "0.1")
    first = await mounted(kind, tmp_path)
    eng = engine(store, first, settings=PATIENT)
    await eng.start()
    run = await submit(eng, first.card.name, SAYS[kind])
    asked = await question(eng, run.id)
    await crash(eng)
    await let_go(first)
    async with engine(store, settings=PATIENT) as other:  # a process without the agent
        await other.questions.answer(asked.id, ANSWERS[kind], by=il.Caller("bob"))
    second = await mounted(kind, tmp_path)
    async with engine(store, second, settings=PATIENT) as again:
        ended = await again.runs.wait(run.id, timeout=20)
        assert ended.error is not None
        assert ended.error.code == "run_lost"
        (warned,) = await bodies(again, run.id, Warned)
        assert "the answer given here (by bob) came too late" in warned.message
        assert warned.details == {"question": asked.id}
    await let_go(second)

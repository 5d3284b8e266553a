"""The agent dies, or we do, in the middle of a turn: what can go on does, and nothing is allowed by accident."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.errors import AlreadyAnswered
from interlingua.model.events import OutputDelta, QuestionAsked, RunRestarted
from interlingua.model.run import Question as AskedQuestion
from tests.kit.engines import bodies, crash, engine, finish, question, submit
from tests.kit.mounts.editor import AGENT, PERMISSION, act, agent_of, mount, mounted, script
from tests.kit.mounts.watch import SETTINGS, seen

# The fake agent asks again by itself when a session is taken up.
AGAIN = {"after_load": PERMISSION, "able": {"sessionCapabilities": {"resume": {}}}}
ON_VERSION_2 = {
    "version": 2,
    "after_load": "\n".join(
        [
            act("update", sessionUpdate="state_update", state="running"),
            PERMISSION,
            act("update", sessionUpdate="state_update", state="idle", stopReason="end_turn"),
        ]
    ),
}


def kill_agent(eng: il.Engine, made: Any) -> None:
    os.kill(made.keeper._link._child.pid, signal.SIGKILL)


async def asked_next(eng: il.Engine, run: str, before: AskedQuestion) -> AskedQuestion:
    """Wait for the question that a run asks after another."""
    async with asyncio.timeout(20):
        async for event in eng.runs.events(run):
            if event.kind == "asked" and event.body.question.id != before.id:
                return event.body.question
    raise AssertionError("the run ended, and asked nothing else")


DIED = "the agent died: it was ended by SIGKILL"


async def test_a_permission_of_an_agent_that_is_killed_is_withdrawn_at_once_and_asked_anew(store: Path) -> None:
    async with mounted(store, AGAIN, quiet_after=0.3) as (eng, made):
        run = await submit(eng, AGENT, script("say before ", PERMISSION))
        asked = await question(eng, run.id)
        kill_agent(eng, made)
        withdrawn = (await seen(eng, run.id, "withdrawn")).body
        assert (withdrawn.question, withdrawn.reason) == (asked.id, DIED)
        with pytest.raises(AlreadyAnswered, match=DIED):
            await eng.questions.answer(asked.id, {"choice": "yes"})
        second = await asked_next(eng, run.id, asked)
        assert second.payload == asked.payload
        await eng.questions.answer(second.id, {"choice": "yes"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.SUCCEEDED, ended.error
        assert ended.output is not None
        assert ended.output["text"].startswith("before ")
        assert '"optionId": "yes"' in ended.output["text"]
        assert await bodies(eng, run.id, RunRestarted) == []


async def test_version_2_tells_the_end_of_a_turn_that_was_taken_up_again(store: Path) -> None:
    async with mounted(store, ON_VERSION_2, version=2) as (eng, made):
        run = await submit(eng, AGENT, script("say before ", PERMISSION))
        asked = await question(eng, run.id)
        kill_agent(eng, made)
        second = await asked_next(eng, run.id, asked)
        await eng.questions.answer(second.id, {"choice": "no"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.SUCCEEDED, ended.error
        assert ended.output is not None
        assert '"optionId": "no"' in ended.output["text"]


async def test_an_agent_that_does_not_ask_again_fails_the_run_as_transient(store: Path) -> None:
    async with mounted(store, ask_again_within=0.2) as (eng, made):
        run = await submit(eng, AGENT, script(PERMISSION))
        asked = await question(eng, run.id)
        kill_agent(eng, made)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.FAILED
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("run_lost", True)
        assert "the agent does not ask again" in ended.error.message
        assert (await eng.questions.get(asked.id)).reason == DIED


async def test_nobody_can_answer_while_the_agent_that_asked_is_started_again(store: Path) -> None:
    async with mounted(store, {"holds": ["session/load"]}) as (eng, made):
        run = await submit(eng, AGENT, script(PERMISSION))
        asked = await question(eng, run.id)
        kill_agent(eng, made)
        await seen(eng, run.id, "withdrawn")
        with pytest.raises(AlreadyAnswered, match=DIED):
            await eng.questions.answer(asked.id, {"choice": "yes"})
        assert not (await eng.runs.get(run.id)).status.final, "the agent has not taken up its session yet"
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED


async def test_a_session_that_is_gone_after_a_crash_is_told_with_the_agents_reason(store: Path) -> None:
    gone = {"code": -32603, "message": "Internal error", "data": {"details": "no such session on disk"}}
    async with mounted(store, {"errors": {"session/load": gone}}) as (eng, made):
        run = await submit(eng, AGENT, script(PERMISSION))
        await question(eng, run.id)
        kill_agent(eng, made)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.error is not None
        assert ended.error.code == "run_lost"
        assert DIED in ended.error.message
        assert "Internal error: no such session on disk" in ended.error.message


async def test_something_else_than_was_asked_is_another_question(store: Path) -> None:
    other = PERMISSION.replace('"/a"', '"/b"')
    given = {**AGAIN, "after_load": other}
    async with mounted(store, given, quiet_after=0.3) as (eng, made):
        run = await submit(eng, AGENT, script(PERMISSION))
        asked = await question(eng, run.id)
        kill_agent(eng, made)
        second = await asked_next(eng, run.id, asked)
        assert second.payload["input"] == {"path": "/b"}
        assert (await eng.questions.get(asked.id)).state == "withdrawn"
        await eng.questions.answer(second.id, {"choice": "no"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert '"optionId": "no"' in ended.output["text"]


FORM = act(
    "call",
    "elicitation/create",
    toolCallId="t1",
    mode="form",
    message="Which name?",
    requestedSchema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
)


@pytest.mark.parametrize(("asks", "answer"), [(PERMISSION, {"choice": "yes"}), (FORM, {"name": "Ada"})])
async def test_what_is_asked_again_over_the_same_connection_is_one_question(
    store: Path, asks: str, answer: dict[str, str]
) -> None:
    """A server that is quickly there again has its connections from its store: nobody sees that it was gone."""
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(asks.replace("call", "twice", 1)))
        await seen(eng, run.id, "delta")
        asked = await question(eng, run.id)
        await eng.questions.answer(asked.id, answer)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None, ended.error
        assert next(iter(answer.values())) in ended.output["text"], "the newest request has the answer"
        assert len(await bodies(eng, run.id, QuestionAsked)) == 1


async def test_what_was_answered_and_is_asked_again_for_the_same_tool_call_is_another_question(store: Path) -> None:
    async with mounted(store) as (eng, _):
        run = await submit(eng, AGENT, script(PERMISSION, PERMISSION))
        first = await question(eng, run.id)
        await eng.questions.answer(first.id, {"choice": "yes"})
        async with asyncio.timeout(20):
            async for event in eng.runs.events(run.id):
                if event.kind == "asked" and event.body.question.id != first.id:
                    await eng.questions.answer(event.body.question.id, {"choice": "no"})
                    break
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert re.findall(r'"optionId": "(\w+)"', ended.output["text"]) == ["yes", "no"]


async def restarted(store: Path, given: dict[str, Any], **settings: Any) -> tuple[il.Engine, Any]:
    made = mount(given, **settings)
    eng = engine(store, await agent_of(made), settings=SETTINGS)
    await eng.start()
    return eng, made


async def test_after_our_own_crash_an_open_permission_is_withdrawn_and_asked_anew(store: Path) -> None:
    eng, made = await restarted(store, AGAIN, quiet_after=0.3)
    run = await submit(eng, AGENT, script("say before ", PERMISSION))
    asked = await question(eng, run.id)
    await crash(eng)
    await made.close()
    async with mounted(store, AGAIN, quiet_after=0.3) as (again, _):
        second = await asked_next(again, run.id, asked)
        record = await again.questions.get(asked.id)
        assert (record.state, record.reason) == ("withdrawn", "this process ended while the agent worked")
        await again.questions.answer(second.id, {"choice": "yes"})
        ended = await again.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.SUCCEEDED, ended.error
        assert ended.output is not None
        assert ended.output["text"].startswith("before ")
        assert '"optionId": "yes"' in ended.output["text"]
        text = "".join(d.delta["text"] for d in await bodies(again, run.id, OutputDelta))
        assert text == ended.output["text"]
        assert await bodies(again, run.id, RunRestarted) == [], "nothing is shown twice"


async def test_an_answer_that_came_while_nobody_was_there_is_still_heard(store: Path) -> None:
    eng, made = await restarted(store, AGAIN)
    run = await submit(eng, AGENT, script(PERMISSION))
    asked = await question(eng, run.id)
    await crash(eng)
    await made.close()
    async with engine(store, settings=SETTINGS) as other:  # a process without the agent
        await other.questions.answer(asked.id, {"choice": "never"})
    async with mounted(store, AGAIN, quiet_after=0.3) as (again, _):
        ended = await again.runs.wait(run.id, timeout=20)
        assert ended.output is not None, ended.error
        assert '"optionId": "never"' in ended.output["text"]


async def test_an_answer_that_was_heard_is_not_used_again(store: Path) -> None:
    """The agent was allowed once, went on, and died: asked again, the same answer is not given by itself."""
    eng, made = await restarted(store, AGAIN)
    run = await submit(eng, AGENT, script(PERMISSION, "wait"))
    asked = await question(eng, run.id)
    await eng.questions.answer(asked.id, {"choice": "yes"})
    await seen(eng, run.id, "delta")
    await crash(eng)
    await made.close()
    async with mounted(store, AGAIN, quiet_after=0.3) as (again, _):
        ended = await again.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.FAILED
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("run_lost", True)


async def test_after_our_own_crash_a_prompt_is_not_sent_again(tmp_path: Path, store: Path) -> None:
    given = {"state": str(tmp_path / "state")}
    eng, made = await restarted(store, given)
    run = await submit(eng, AGENT, script("say half", "wait"))
    await seen(eng, run.id, "delta")
    await crash(eng)
    await made.close()
    async with mounted(store, given) as (again, _):
        ended = await again.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.FAILED
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("run_lost", True)
        assert (tmp_path / "state").read_text().count("say half") == 1
        assert (await finish(again, AGENT, script("say ok"))).output == {"text": "ok"}


async def test_a_run_cancelled_while_we_were_down_ends_and_starts_nothing(tmp_path: Path, store: Path) -> None:
    state = tmp_path / "state"
    eng, made = await restarted(store, {"state": str(state)})
    run = await submit(eng, AGENT, script(PERMISSION), thread="t", create_thread=True)
    await question(eng, run.id)
    await crash(eng)
    await made.close()
    async with engine(store, settings=SETTINGS) as other:
        await other.runs.cancel(run.id)
    async with mounted(store, {"state": str(state)}) as (again, _):
        ended = await again.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.CANCELLED
        told = await finish(again, AGENT, script("seen"))
        assert told.output is not None
        methods = [method for method, _ in json.loads(told.output["text"])]
        assert "session/load" not in methods
        assert "session/cancel" not in methods

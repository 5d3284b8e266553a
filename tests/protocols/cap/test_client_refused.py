"""What the mount refuses: no error is answered with an error, and nothing goes on for ever."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.events import Warned
from interlingua.model.filters import RunFilter
from interlingua.protocols.cap.mount.remote_run import MOST_REFUSED
from interlingua.protocols.targets import parse
from interlingua.server.loading.target import load_all
from interlingua.transports.process import child_process
from tests.kit import warm_python
from tests.kit.engines import bodies, engine, finish
from tests.kit.teams import member

from .test_client import crew, leading, mounted, program_agent
from .test_client_rude import DONE, SSE, Answer, events, scripted, taken

TWO = """import interlingua as il

@il.agent
async def echo(text: str) -> str:
    return text

@il.agent
async def shout(text: str) -> str:
    return text.upper()
"""


async def ended(store: Path, agent: il.Agent[..., object]) -> tuple[il.Run, list[str]]:
    """A run of it, and what was said about it meanwhile."""
    async with engine(store, agent) as eng:
        run = await finish(eng, agent.card.name, {"text": "hello"})
        return run, [body.message for body in await bodies(eng, run.id, Warned)]


async def test_a_program_with_several_agents_says_which_there_are_where_none_is_named(
    store: Path, tmp_path: Path
) -> None:
    (tmp_path / "agents.py").write_text(TWO)
    command = [warm_python.interlingua(), "stdio", "--as", "cap", str(tmp_path / "agents.py")]
    target = f"cap:{shlex.join(command)}"
    (agent,) = await load_all(parse(target))
    run, warned = await ended(store, agent)
    assert run.error is not None
    assert (run.error.code, run.error.transient) == ("agent_not_found", False)
    assert "(there are: echo, shout)" in run.error.message
    assert "name one of them with #NAME" in run.error.message
    assert warned == []
    (named,) = await load_all(parse(f"{target}#nobody"))
    run, _ = await ended(tmp_path / "other.db", named)
    assert run.error is not None
    assert "there is no agent nobody" in run.error.message
    assert "#NAME" not in run.error.message
    (named,) = await load_all(parse(f"{target}#shout"))
    run, _ = await ended(tmp_path / "third.db", named)
    assert run.output == {"text": "HELLO"}, run.error


async def test_a_program_that_does_not_take_the_task_ends_the_run_with_its_own_words(
    store: Path, tmp_path: Path
) -> None:
    plan = """
    back(notice, "", type="error_response", sender_id="orchestrator", error_code=503, error_message="all are asleep")
    """
    run, warned = await ended(store, await program_agent(tmp_path, plan))
    assert run.error is not None
    assert (run.error.code, run.error.transient) == ("unavailable", True)
    assert run.error.message.endswith("agent.py did not take the task: all are asleep")
    assert warned == []


async def test_an_error_of_a_program_that_tells_how_its_task_stands_is_not_its_end(store: Path, tmp_path: Path) -> None:
    """It is about something that was said in the task: how that ended comes as a status."""
    plan = """
    say({"type": "status", "task_id": notice["task_id"], "status": "running"})
    back(notice, "", type="error_response", sender_id="orchestrator", error_code=409, error_message="too late")
    say({"type": "status", "task_id": notice["task_id"], "status": "succeeded", "final": True, "output": {"text": "x"}})
    """
    run, warned = await ended(store, await program_agent(tmp_path, plan))
    assert run.output == {"text": "x"}, run.error
    assert len(warned) == 1


ERRORS = """
error = {"type": "error_response", "error_code": 404, "error_message": "no"}
say({**error, "task_id": "T77", "sender_id": "orchestrator", "recipient_id": "orchestrator"})
say({**error, "task_id": notice["task_id"], "sender_id": "orchestrator", "recipient_id": "user"})
say({**error, "task_id": notice["task_id"], "sender_id": notice["recipient_id"], "recipient_id": "nobody"})
say(error)
say({"type": "message", "task_id": "T88", "sender_id": notice["recipient_id"], "recipient_id": "user", "content": ""})
back(notice, "heard of " + hear()["task_id"])
"""


async def test_an_error_is_not_answered_with_an_error(store: Path, tmp_path: Path) -> None:
    run, warned = await ended(store, await program_agent(tmp_path, ERRORS))
    assert run.output == {"text": "heard of T88"}, run.error
    assert len(warned) == 5


async def test_an_error_of_a_member_of_a_team_is_not_answered_with_an_error(store: Path, tmp_path: Path) -> None:
    handlers = {"lead": leading(), "analyst": await program_agent(tmp_path, ERRORS)}
    async with engine(store, TeamAgent(crew(member("lead", "analyst"), member("analyst")), handlers)) as eng:
        run = await finish(eng, "crew", {"text": "look"})
        assert run.output == {"text": "heard of T88"}, run.error
        (analyst,) = [
            one for one in await eng.runs.search(RunFilter(root=run.id, limit=50)) if one.agent == "crew/analyst"
        ]
        assert len(await bodies(eng, analyst.id, Warned)) == 5


@pytest.mark.parametrize(
    "flood",
    [
        'back(notice, "me", task_id="T77")',
        'back(notice, "me", sender_id="user")',
        'say({"type": "error_response"})',
        'print("{", flush=True)',
        'to(notice, "nobody", "me")',
        'say({"type": "delegation_notice", "task_id": "T9", "sender_id": notice["recipient_id"],'
        ' "recipient_id": "shout", "context_summary": task})',
    ],
)
async def test_a_program_that_says_nothing_but_what_is_refused_is_heard_for_a_while(
    store: Path, tmp_path: Path, flood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "_PATIENCE", (0.0, 2.0))  # it does not hear that nobody listens
    run, warned = await ended(store, await program_agent(tmp_path, f"while True:\n    {flood}"))
    assert run.error is not None
    assert (run.error.code, run.error.transient) == ("remote_failed", False)
    assert f"has said {MOST_REFUSED} things that were refused" in run.error.message
    assert len(warned) <= MOST_REFUSED


async def test_a_server_that_says_nothing_but_what_is_refused_is_heard_for_a_while(store: Path) -> None:
    posted: list[str] = []
    strange = json.dumps({"type": "message", "task_id": "T77", "sender_id": "x", "recipient_id": "y", "content": "z"})

    def script(method: str, path: str) -> Answer:
        if method == "POST":
            posted.append(path)
            return taken(method, path)
        return 200, SSE, events(*[("message", strange)] * 2 * MOST_REFUSED, ("status", DONE))

    with scripted(script) as address:
        (agent,) = await mounted(address)
        run, warned = await ended(store, agent)
    assert run.error is not None
    assert f"has said {MOST_REFUSED} things that were refused" in run.error.message
    assert len(warned) == MOST_REFUSED
    assert posted[-1].endswith("/cancel")

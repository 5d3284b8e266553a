"""The mount: servers and programs as local agents, members of our teams among them, in whatever language."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.engine.teams.members import TeamAgent
from interlingua.model.content import FilePart, TextPart
from interlingua.model.errors import Denied, InvalidRequest, Unavailable
from interlingua.model.events import ArtifactAdded, DelegationRefused, MessageSent, OutputDelta, Said, Warned
from interlingua.model.filters import RunFilter
from interlingua.model.team.manifest import Team
from interlingua.mounts import http
from interlingua.mounts.errors import RemoteError
from interlingua.protocols.cap.mount import server_task
from interlingua.protocols.cap.mount.server import load
from interlingua.protocols.targets import Target, parse
from interlingua.server.app import Server, ServeSettings, serving
from interlingua.server.loading.target import load_all
from interlingua.server.loading.team import load_team
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, finish, question, submit
from tests.kit.teams import member, team

from .door_common import PLAIN, Peer, door, key, notice, overseen, sales

both = pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])


async def mounted(address: str, agent: str | None = None) -> list[il.Agent[..., Any]]:
    return await load(Target("cap+http", f"cap+{address}/cap", agent))


async def one(address: str, agent: str) -> il.Agent[..., Any]:
    (found,) = await mounted(address, agent)
    return found


@contextlib.asynccontextmanager
async def both_ends(
    store: Path, there: Path, *agents: il.Agent[..., Any], settings: il.Settings = QUICK
) -> AsyncIterator[tuple[Server, il.Engine]]:
    """A server with these agents, and an engine here in which they are mounted."""
    async with door(there, *agents) as server, engine(store, *await mounted(server.address), settings=settings) as eng:
        yield server, eng


async def conversation(eng: il.Engine, run: str) -> list[tuple[str, str, str, str, str]]:
    """Task, sender, recipient, form and words of all that was said."""
    return [
        (said.task, said.sender, said.recipient, said.form, said.message.parts[0].text)  # type: ignore[union-attr]
        for _, said in await eng.teams.conversation(run)
    ]


# -- a server -------------------------------------------------------------------------------------------------


async def test_agents_of_a_server_are_agents_here(store: Path, tmp_path: Path) -> None:
    async with door(tmp_path / "remote.db", *PLAIN, sales()) as server:
        agents = {agent.card.name: agent.card for agent in await mounted(server.address)}
        assert set(agents) == {"words", "careful", "curious", "listener", "unwilling", "patient", "add", "sales"}
        assert agents["words"].version == "2.0.0"
        assert agents["words"].description == "Says it word by word."
        assert agents["add"].input["required"] == ["a", "b"]
        for name in ("pm-1", "sales"):
            assert (await one(server.address, name)).card.name == "sales"


@both
async def test_a_run_here_is_a_task_there_and_its_output_streams(
    store: Path, tmp_path: Path, settings: il.Settings
) -> None:
    async with (
        door(tmp_path / "remote.db", *PLAIN) as server,
        engine(store, *await mounted(server.address), settings=settings) as eng,
    ):
        run = await finish(eng, "words", {"text": "hello there you"})
        assert run.output == {"text": "hello there you"}, run.error
        deltas = [body.delta["text"] for body in await bodies(eng, run.id, OutputDelta)]
        assert "".join(deltas) == "hello there you"
        assert (await finish(eng, "add", {"a": 2, "b": 3})).output == {"value": 5}
        (task, other) = sorted(await server.engine.runs.search(RunFilter()), key=lambda one: one.agent, reverse=True)
        assert (task.agent, other.agent) == ("words", "add")
        assert (await server.engine.runs.get(task.id)).request.extra["cap"]["task"] == run.id  # type: ignore[union-attr]


@both
async def test_questions_of_the_remote_agent_are_asked_and_answered_here(
    store: Path, tmp_path: Path, settings: il.Settings
) -> None:
    async with (
        door(tmp_path / "remote.db", *PLAIN) as server,
        engine(store, await one(server.address, "careful"), settings=settings) as eng,
    ):
        run = await submit(eng, "careful", {"text": "hello"})
        first = await question(eng, run.id)
        assert (first.type, first.prompt) == ("confirm", "Say hello?")
        assert first.answer_schema["required"] == ["approved"]
        await eng.questions.answer(first.id, {"approved": True})
        async for event in eng.runs.events(run.id):
            if event.kind == "asked" and event.body.question.type == "ask_text":  # type: ignore[union-attr]
                await eng.questions.answer(event.body.question.id, {"text": "nothing"})  # type: ignore[union-attr]
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "hello True nothing"}, done.error
        assert len(await server.engine.runs.search(RunFilter())) == 1


async def test_a_failure_there_is_a_failure_here_with_its_own_code_and_details(store: Path, tmp_path: Path) -> None:
    async with both_ends(store, tmp_path / "remote.db", *PLAIN) as (_, eng):
        run = await finish(eng, "unwilling", {"text": "today"})
        assert run.status is il.Status.FAILED
        assert run.error is not None
        assert (run.error.code, run.error.message) == ("unwilling", "not today")
        assert run.error.details == {"why": "no"}


@il.agent
async def silent(text: str) -> str:
    raise il.AgentError("", details=[text])


async def test_a_failure_without_words_stays_without_them(store: Path, tmp_path: Path) -> None:
    async with both_ends(store, tmp_path / "remote.db", silent) as (_, eng):
        run = await finish(eng, "silent", {"text": "x"})
        assert run.error is not None
        assert (run.error.code, run.error.message, run.error.details) == ("agent_error", "", ["x"])


@pytest.mark.parametrize(
    ("told", "message"), [({}, "the remote agent gave no reason"), ({"code": "x", "transient": False}, "")]
)
async def test_a_program_that_gives_no_reason_and_tells_nothing_else_is_said_to(
    store: Path, tmp_path: Path, told: dict[str, Any], message: str
) -> None:
    plan = f"back(notice, '', type='error_response', error_code=500, error_message='', metadata={told!r})"
    async with engine(store, await program_agent(tmp_path, plan)) as eng:
        run = await finish(eng, "agent", {"text": "x"})
        assert run.error is not None
        assert run.error.message == message


@both
async def test_cancelling_here_cancels_there(store: Path, tmp_path: Path, settings: il.Settings) -> None:
    async with (
        door(tmp_path / "remote.db", *PLAIN) as server,
        engine(store, *await mounted(server.address), settings=settings) as eng,
    ):
        for agent in ("patient", "careful"):  # one that works, and one that waits (and is parked)
            run = await submit(eng, agent, {"text": "x"})
            async with asyncio.timeout(20):
                while not (there := await server.engine.runs.search(RunFilter(agent=agent))):
                    await eng.runs.next_hint(run.id)
            if agent == "careful":
                await question(eng, run.id)
            await eng.runs.cancel(run.id)
            done = await eng.runs.wait(run.id, timeout=20)
            assert done.status is il.Status.CANCELLED
            ended = await server.engine.runs.wait(there[0].id, timeout=20)
            assert ended.status is il.Status.CANCELLED


async def test_a_task_cancelled_there_is_cancelled_here(store: Path, tmp_path: Path) -> None:
    async with both_ends(store, tmp_path / "remote.db", *PLAIN) as (server, eng):
        run = await submit(eng, "patient", {"text": "x"})
        async with asyncio.timeout(20):
            while not (there := await server.engine.runs.search(RunFilter())):
                await eng.runs.next_hint(run.id)
        await server.engine.runs.cancel(there[0].id)
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.error is not None
        assert (done.status, done.error.code) == (il.Status.CANCELLED, "cancelled")


async def test_after_a_crash_the_task_is_found_again_and_nothing_is_shown_twice(store: Path, tmp_path: Path) -> None:
    going = asyncio.Event()
    entered = 0

    @il.agent
    async def slow(text: str) -> Any:
        nonlocal entered
        entered += 1
        yield f"{text} one"
        await going.wait()
        yield " two"

    async with door(tmp_path / "remote.db", slow) as server:
        first = engine(store, *await mounted(server.address))
        await first.start()
        run = await submit(first, "slow", {"text": "x"})
        async for event in first.runs.events(run.id):
            if isinstance(event.body, OutputDelta):
                break
        await crash(first)
        going.set()
        async with engine(store, *await mounted(server.address)) as eng:
            done = await eng.runs.wait(run.id, timeout=20)
            assert done.output == {"text": "x one two"}, done.error
            shown = [body.delta["text"] for body in await bodies(eng, run.id, OutputDelta)]
            assert "".join(shown) == "x one two"
        assert entered == 1
        assert len(await server.engine.runs.search(RunFilter())) == 1


async def test_a_server_that_is_away_for_a_while_is_waited_for(store: Path, tmp_path: Path) -> None:
    there = tmp_path / "remote.db"
    async with door(there, *PLAIN) as server:
        address = server.address
        agent = await one(address, "careful")
        eng = engine(store, agent, settings=PATIENT)
        await eng.start()
        run = await submit(eng, "careful", {"text": "hello"})
        asked = await question(eng, run.id)
    try:
        await eng.questions.answer(asked.id, {"approved": True})  # nobody is there to hear it
        port = int(address.rpartition(":")[2])
        async with serving(there, PLAIN, ServeSettings(port=port, engine=QUICK)):
            async for event in eng.runs.events(run.id):
                if event.kind == "asked" and event.body.question.type == "ask_text":  # type: ignore[union-attr]
                    await eng.questions.answer(event.body.question.id, {"text": "back"})  # type: ignore[union-attr]
            assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "hello True back"}
    finally:
        await eng.stop()


async def test_a_server_that_stays_away_fails_the_run_as_transient(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.2)
    async with door(tmp_path / "remote.db", *PLAIN) as server:
        agent = await one(server.address, "words")
    async with engine(store, agent) as eng:
        run = await finish(eng, "words", {"text": "x"})
        assert run.error is not None
        assert run.error.transient


async def test_a_team_elsewhere_is_one_agent_here_with_the_questions_of_its_members(
    store: Path, tmp_path: Path
) -> None:
    async with both_ends(store, tmp_path / "remote.db", sales()) as (_, eng):
        run = await submit(eng, "sales", {"text": "Analyze"})
        asked = await question(eng, run.id)
        assert asked.prompt == "Which region?"
        await eng.questions.answer(asked.id, {"text": "Europe"})
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "Report: ANALYZE IN EUROPE"}, done.error


async def test_a_result_that_waits_for_a_verdict_elsewhere_is_judged_here(store: Path, tmp_path: Path) -> None:
    async with (
        door(tmp_path / "remote.db", overseen()) as server,
        engine(store, await one(server.address, "writer")) as eng,
    ):
        run = await submit(eng, "press", {"text": "draft"})
        asked = await question(eng, run.id)
        assert asked.type == "review"
        assert asked.payload["result"]["output"] == {"text": "draft"}
        verdict = {"decision": "approve", "result_hash": asked.payload["result_hash"]}
        await eng.questions.answer(asked.id, verdict)
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "draft"}


async def test_messages_to_a_mounted_agent_are_passed_on(store: Path, tmp_path: Path) -> None:
    async with both_ends(store, tmp_path / "remote.db", *PLAIN) as (_, eng):
        run = await submit(eng, "listener", {"text": "heard"})
        await eng.runs.send(run.id, "good news")
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": "heard: good news"}


async def test_a_server_that_needs_a_key_says_where_to_put_it(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "remote.db"
    ada = await key(there, "ada")
    async with door(there, *PLAIN) as server:
        with pytest.raises(Denied, match=server_task.KEY_VARIABLE):
            await mounted(server.address)
        monkeypatch.setenv(server_task.KEY_VARIABLE, ada)
        async with engine(store, *await mounted(server.address)) as eng:
            assert (await finish(eng, "words", {"text": "x"})).output == {"text": "x"}


async def test_a_server_that_does_not_take_the_answer_fails_the_run(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "remote.db"
    monkeypatch.setenv(server_task.KEY_VARIABLE, await key(there, "mute", "do:run", "do:read"))
    async with door(there, *PLAIN) as server, engine(store, *await mounted(server.address)) as eng:
        run = await submit(eng, "careful", {"text": "x"})
        await eng.questions.answer((await question(eng, run.id)).id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.error is not None
        assert done.error.code == "denied"
        assert "do:answer" in done.error.message


async def test_a_question_that_nobody_need_answer_there_any_more_is_not_waited_for_here(
    store: Path, tmp_path: Path
) -> None:
    @il.agent(asks=[il.AskText])
    async def hurried(ctx: il.Context[Any, Any], text: str) -> str:
        try:
            return (await ctx.ask(il.AskText("Quick?"), deadline=0.3)).text
        except il.QuestionExpired:
            return "too late"

    async with both_ends(store, tmp_path / "remote.db", hurried) as (_, eng):
        assert (await finish(eng, "hurried", {"text": "x"})).output == {"text": "too late"}


async def test_what_is_no_such_server_is_said_to_be_none(tmp_path: Path) -> None:
    async with door(tmp_path / "remote.db", *PLAIN) as server:
        with pytest.raises(RemoteError, match="often at /cap"):
            await load(Target("cap+http", f"cap+{server.address}"))
        address = server.address
    with pytest.raises(Unavailable):
        await mounted(address)
    for wrong in ("cap+http://", "cap+http://h?x=1", "cap+http:///cap"):
        with pytest.raises(InvalidRequest):
            await load(Target("cap+http", wrong))


# -- a program ------------------------------------------------------------------------------------------------

# An agent in twenty lines, without anything of ours. `plan` is what it does with a task.
AGENT = """
import json, sys

def say(told, **more):
    print(json.dumps({{**told, **more}}), flush=True)

def back(notice, text, **more):
    say({{"type": "message", "task_id": notice["task_id"], "sender_id": notice["recipient_id"],
         "recipient_id": notice["sender_id"], "content": text}}, **more)

def to(notice, who, text, **more):
    back(notice, text, recipient_id=who, **more)

def hear():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)

while True:
    notice = hear()
    if notice["type"] == "delegation_notice":
        task = notice["context_summary"]
{plan}
"""


def program(tmp_path: Path, plan: str, name: str = "agent.py") -> str:
    """The target of a program that does this with a task."""
    script = tmp_path / name
    script.write_text(AGENT.format(plan=textwrap.indent(textwrap.dedent(plan).strip(), " " * 8)))
    return f"cap:{shlex.join([sys.executable, str(script)])}"


async def program_agent(tmp_path: Path, plan: str, name: str = "agent.py") -> il.Agent[..., Any]:
    (agent,) = await load_all(parse(program(tmp_path, plan, name)))
    return agent


async def test_a_program_of_twenty_lines_is_an_agent(store: Path, tmp_path: Path) -> None:
    agent = await program_agent(tmp_path, "back(notice, task.upper())")
    assert agent.card.name == "agent"
    async with engine(store, agent) as eng:
        run = await finish(eng, "agent", {"text": "hello"})
        assert run.output == {"text": "HELLO"}, run.error
        runs = await asyncio.gather(*(finish(eng, "agent", {"text": f"n{n}"}) for n in range(3)))
        assert [one.output for one in runs] == [{"text": f"N{n}"} for n in range(3)]


SHELL = r"""
while IFS= read -r line; do
  task=$(printf '%s' "$line" | sed 's/.*"task_id":"\([^"]*\)".*/\1/')
  me=$(printf '%s' "$line" | sed 's/.*"recipient_id":"\([^"]*\)".*/\1/')
  sender=$(printf '%s' "$line" | sed 's/.*"sender_id":"\([^"]*\)".*/\1/')
  summary=$(printf '%s' "$line" | sed 's/.*"context_summary":"\([^"]*\)".*/\1/')
  upper=$(printf '%s' "$summary" | tr a-z A-Z)
  printf '{"type":"message","task_id":"%s","sender_id":"%s","recipient_id":"%s","content":"%s"}\n' \
    "$task" "$me" "$sender" "$upper"
done
"""
NODE = r"""
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const notice = JSON.parse(line);
  console.log(JSON.stringify({
    type: "message", task_id: notice.task_id, sender_id: notice.recipient_id, recipient_id: notice.sender_id,
    content: notice.context_summary.toUpperCase(),
  }));
});
"""
LANGUAGES = [("sh", SHELL), *([("node", NODE)] if shutil.which("node") else [])]


@pytest.mark.parametrize(("language", "script"), LANGUAGES)
async def test_the_language_does_not_matter(store: Path, tmp_path: Path, language: str, script: str) -> None:
    (tmp_path / "agent").write_text(script)
    target = f"cap:{language} {shlex.quote(str(tmp_path / 'agent'))}"
    crew = team(member("lead", "worker"), member("worker", target=target), entry="lead")

    @il.agent
    async def lead(ctx: il.Context[Any, Any], text: str) -> str:
        return str((await ctx.delegate("worker", text))["text"])

    (worker,) = await load_all(parse(target))
    async with engine(store, TeamAgent(crew, {"lead": lead, "worker": worker})) as eng:
        run = await finish(eng, "crew", {"text": "hello from a member"})
        assert run.output == {"text": "HELLO FROM A MEMBER"}, run.error
        assert ("T1.1", "worker", "lead", "message", "HELLO FROM A MEMBER") in await conversation(eng, run.id)


async def test_a_program_asks_the_user_and_gets_the_answer(store: Path, tmp_path: Path) -> None:
    plan = """
    to(notice, "user", "Which region?", attachments=[{"type": "text_snippet", "text": "see the map"}])
    answer = hear()
    assert answer["sender_id"] == "user" and answer["type"] == "message", answer
    say({"type": "message", "task_id": notice["task_id"], "sender_id": notice["recipient_id"],
         "recipient_id": "user", "content": "Are you sure?", "metadata": {"answer_schema":
         {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}}})
    sure = hear()["metadata"]["answer"]["sure"]
    back(notice, f"{task} in {answer['content']} {sure}")
    """
    async with engine(store, await program_agent(tmp_path, plan), settings=PATIENT) as eng:
        run = await submit(eng, "agent", {"text": "Sales"})
        first = await question(eng, run.id)
        assert first.prompt == "Which region?"
        assert first.payload["attachments"] == [{"type": "text_snippet", "text": "see the map"}]
        await eng.questions.answer(first.id, {"text": "Europe"})
        async for event in eng.runs.events(run.id):
            if event.kind == "asked" and event.body.question.prompt == "Are you sure?":  # type: ignore[union-attr]
                await eng.questions.answer(event.body.question.id, {"sure": True})  # type: ignore[union-attr]
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "Sales in Europe True"}, done.error


async def test_what_a_program_streams_attaches_and_prints(store: Path, tmp_path: Path) -> None:
    plan = """
    print("starting up ...", flush=True)
    print("[1, 2]", flush=True)
    for piece in ("one", " two"):
        print(json.dumps({"type": "delta", "task_id": notice["task_id"], "delta": piece}), flush=True)
    to(notice, "user", "half way", metadata={"reply_expected": False})
    back(notice, "one two", attachments=[{"type": "file", "path": "/srv/report.md"},
                                         {"type": "python_object", "object": {"rows": 3}}])
    """
    async with engine(store, await program_agent(tmp_path, plan)) as eng:
        run = await finish(eng, "agent", {"text": "x"})
        assert run.output == {"text": "one two"}, run.error
        assert "".join(body.delta["text"] for body in await bodies(eng, run.id, OutputDelta)) == "one two"
        artifacts = [body.artifact.parts[0] for body in await bodies(eng, run.id, ArtifactAdded)]
        assert artifacts[0] == FilePart(url="file:///srv/report.md")
        assert [body.message.parts for body in await bodies(eng, run.id, MessageSent)] == [[TextPart("half way")]]
        (warned,) = await bodies(eng, run.id, Warned)
        assert warned.details == {"lines": 2, "first": "starting up ..."}


async def test_what_a_program_inquires_of_whoever_sent_it_is_shown(store: Path, tmp_path: Path) -> None:
    plan = """
    back(notice, "", type="oversight_inquiry", inquiry="Which source?", sender_id=notice["recipient_id"])
    back(notice, "More later.", metadata={"final": False})
    back(notice, "done")
    """
    async with engine(store, await program_agent(tmp_path, plan)) as eng:
        run = await finish(eng, "agent", {"text": "x"})
        assert run.output == {"text": "done"}, run.error
        shown = [body.message.text for body in await bodies(eng, run.id, MessageSent)]
        assert shown == ["Which source?", "More later."]


@pytest.mark.parametrize(
    ("plan", "code", "transient"),
    [
        ("back(notice, '', type='error_response', error_code=504, error_message='MCP timeout.')", "timed_out", True),
        ("back(notice, '', type='error_response', error_code=403, error_message='no')", "denied", False),
        ("back(notice, '', type='error_response', error_code=123, error_message='odd')", "run_failed", False),
        ("sys.exit(3)", "run_lost", True),
        ("sys.stderr.write('out of memory'); sys.stderr.flush(); sys.exit(1)", "run_lost", True),
    ],
)
async def test_how_a_program_fails(store: Path, tmp_path: Path, plan: str, code: str, transient: bool) -> None:
    async with engine(store, await program_agent(tmp_path, plan)) as eng:
        run = await finish(eng, "agent", {"text": "x"})
        assert run.error is not None
        assert (run.error.code, run.error.transient) == (code, transient), run.error
        if "memory" in plan:
            assert "out of memory" in run.error.message


async def test_a_program_that_is_killed_with_us_fails_as_transient_and_is_not_begun_again(
    store: Path, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    plan = f"""
    open({str(begun)!r}, "a").write("x")
    to(notice, "user", "well?")
    hear()
    """
    first = engine(store, await program_agent(tmp_path, plan), settings=PATIENT)
    await first.start()
    run = await submit(first, "agent", {"text": "x"})
    await question(first, run.id)
    await crash(first)
    async with engine(store, await program_agent(tmp_path, plan), settings=PATIENT) as eng:
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.error is not None
        assert (done.error.code, done.error.transient) == ("run_lost", True)
    assert begun.read_text() == "x"


async def test_cancelling_tells_the_program(store: Path, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    plan = f"""
    to(notice, "user", "working", metadata={{"reply_expected": False}})
    open({str(heard)!r}, "w").write(json.dumps(hear()))
    """
    async with engine(store, await program_agent(tmp_path, plan)) as eng:
        run = await submit(eng, "agent", {"text": "x"})
        async for event in eng.runs.events(run.id):
            if isinstance(event.body, MessageSent):
                break
        await eng.runs.cancel(run.id)
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.CANCELLED
        told = json.loads(heard.read_text())
        assert (told["type"], told["error_code"], told["sender_id"]) == ("error_response", 499, "orchestrator")


async def test_a_command_that_is_not_there_fails_and_is_not_tried_again(store: Path) -> None:
    (agent,) = await load(Target("cap", "no-such-command --at all"))
    async with engine(store, agent) as eng:
        run = await finish(eng, agent.card.name, {"text": "x"})
        assert run.error is not None
        assert not run.error.transient
        assert "no-such-command" in run.error.message


async def test_our_own_door_over_pipes_is_a_program_too(store: Path, tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(
        "import interlingua as il\n\n"
        "@il.agent(asks=[il.Confirm])\n"
        "async def careful(text: str, ctx: il.Context):\n"
        "    yield text\n"
        "    verdict = await ctx.ask(il.Confirm('Really?'))\n"
        "    yield f' {verdict.approved}'\n"
    )
    command = [sys.executable, "-m", "interlingua", "stdio", "--as", "cap", str(tmp_path / "agents.py")]
    target = f"cap:{shlex.join(command)}#careful"
    (agent,) = await load_all(parse(target))
    async with engine(store, agent, settings=PATIENT) as eng:
        run = await submit(eng, "careful", {"text": "hello"})
        asked = await question(eng, run.id)
        assert asked.type == "confirm"
        await eng.questions.answer(asked.id, {"approved": True})
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "hello True"}, done.error
        assert "".join(body.delta["text"] for body in await bodies(eng, run.id, OutputDelta)) == "hello True"


# -- members of a team ----------------------------------------------------------------------------------------


@il.agent
async def shout(text: str) -> str:
    return text.upper()


def crew(*manifests: Any) -> Team:
    return team(*manifests, entry="lead")


def leading(answer: str | None = None) -> il.Agent[..., Any]:
    """Delegates to the analyst, and answers what that asks."""

    async def answers(message: Any) -> str | None:
        return f"{answer} ({message.text})"

    @il.agent
    async def lead(ctx: il.Context[Any, Any], text: str) -> str:
        result = await ctx.delegate("analyst", text, on_message=answers if answer is not None else None)
        return str(result["text"])

    return lead


async def test_a_member_elsewhere_asks_its_delegator_and_goes_on_with_the_reply(store: Path, tmp_path: Path) -> None:
    plan = """
    assert notice["sender_id"] == "lead" and notice["recipient_id"] == "analyst", notice
    back(notice, "Should I go on?", metadata={"reply_expected": True})
    reply = hear()
    assert reply["sender_id"] == "lead", reply
    back(notice, f"{task}: {reply['content']}")
    """
    handlers = {"lead": leading("Yes"), "analyst": await program_agent(tmp_path, plan)}
    async with engine(store, TeamAgent(crew(member("lead", "analyst"), member("analyst")), handlers)) as eng:
        run = await finish(eng, "crew", {"text": "look"})
        assert run.output == {"text": "look: Yes (Should I go on?)"}, run.error
        assert (await conversation(eng, run.id))[1:-1] == [
            ("T1.1", "lead", "analyst", "delegation", "look"),
            ("T1.1", "analyst", "lead", "message", "Should I go on?"),
            ("T1.1", "lead", "analyst", "message", "Yes (Should I go on?)"),
            ("T1.1", "analyst", "lead", "message", "look: Yes (Should I go on?)"),
        ]


async def test_a_member_elsewhere_hands_work_over_through_our_gate(store: Path, tmp_path: Path) -> None:
    plan = """
    for who in ("expert", "stranger", "lead"):
        say({"type": "delegation_notice", "task_id": f"{notice['task_id']}.{who}", "sender_id": notice["recipient_id"],
             "recipient_id": who, "context_summary": task, "attachments": [], "metadata": {"reason": "it is hard"}})
    heard = sorted((hear() for _ in range(3)), key=lambda told: told["task_id"])
    back(notice, " | ".join(str(told.get("content") or told["error_code"]) for told in heard))
    """
    handlers = {"lead": leading(), "analyst": await program_agent(tmp_path, plan), "expert": shout, "stranger": shout}
    manifests = [
        member("lead", "analyst", "stranger"),
        member("analyst", "expert"),
        member("expert"),
        member("stranger"),
    ]
    async with engine(store, TeamAgent(crew(*manifests), handlers)) as eng:
        run = await finish(eng, "crew", {"text": "look"})
        assert run.output == {"text": "LOOK | 403 | 403"}, run.error
        (analyst,) = [
            one for one in await eng.runs.search(RunFilter(root=run.id, limit=50)) if one.agent == "crew/analyst"
        ]
        refused = await bodies(eng, analyst.id, DelegationRefused)
        assert sorted(one.agent for one in refused) == ["lead", "stranger"]
        said = [body for body in await bodies(eng, run.id, Said) if body.form == "delegation"]
        assert [(one.sender, one.recipient) for one in said] == [
            ("orchestrator", "lead"), ("lead", "analyst"), ("analyst", "expert"),
        ]  # fmt: skip
        assert said[-1].message.metadata["reason"] == "it is hard"


async def test_outside_of_a_team_nothing_is_handed_over(store: Path, tmp_path: Path) -> None:
    plan = """
    say({"type": "delegation_notice", "task_id": "T9", "sender_id": notice["recipient_id"], "recipient_id": "shout",
         "context_summary": task})
    back(notice, str(hear()["error_code"]))
    """
    async with engine(store, await program_agent(tmp_path, plan), shout) as eng:
        run = await finish(eng, "agent", {"text": "x"})
        assert run.output == {"text": "403"}
        assert [one.agent for one in await eng.runs.search(RunFilter())] == ["agent"]


@pytest.mark.parametrize("forged", ["lead", "user", "orchestrator", "expert", "expert#2"])
async def test_a_member_elsewhere_does_not_speak_as_anybody_else(store: Path, tmp_path: Path, forged: str) -> None:
    plan = f"""
    back(notice, "I am the boss", sender_id={forged!r})
    refused = hear()
    say({{"type": "delegation_notice", "task_id": "T1.1.1", "sender_id": {forged!r}, "recipient_id": "expert",
         "context_summary": task}})
    again = hear()
    back(notice, f"{{refused['error_code']}} {{again['error_code']}}")
    """
    handlers = {"lead": leading(), "analyst": await program_agent(tmp_path, plan), "expert": shout}
    manifests = [member("lead", "analyst", "expert"), member("analyst", "expert"), member("expert")]
    async with engine(store, TeamAgent(crew(*manifests), handlers)) as eng:
        run = await finish(eng, "crew", {"text": "look"})
        assert run.output == {"text": "403 403"}, run.error
        runs = await eng.runs.search(RunFilter(root=run.id, limit=50))
        assert sorted(one.agent for one in runs) == ["crew", "crew/analyst", "crew/lead"]
        assert "I am the boss" not in json.dumps(await conversation(eng, run.id))
        (analyst,) = [one for one in runs if one.agent == "crew/analyst"]
        warned = await bodies(eng, analyst.id, Warned)
        assert len(warned) == 2
        assert forged in warned[0].message


async def test_lines_that_are_no_messages_are_answered_with_an_error(store: Path, tmp_path: Path) -> None:
    plan = """
    codes = []
    for wrong in ("{", json.dumps({"type": "greeting"}), json.dumps({**notice, "type": "message"}),
                  json.dumps({"type": "message", "task_id": "T77", "sender_id": notice["recipient_id"],
                              "recipient_id": notice["sender_id"], "content": "x"})):
        print(wrong, flush=True)
        told = hear()
        assert told["type"] == "error_response", told
        codes.append(str(told["error_code"]))
    back(notice, " ".join(codes))
    """
    async with engine(store, await program_agent(tmp_path, plan)) as eng:
        run = await finish(eng, "agent", {"text": "x"})
        assert run.output == {"text": "400 400 400 404"}, run.error


async def test_members_elsewhere_talk_to_others_and_to_the_user(store: Path, tmp_path: Path) -> None:
    plan = """
    to(notice, "lead", "I began", metadata={"final": False})
    to(notice, "user", "Hello user", metadata={"reply_expected": False})
    to(notice, "nobody", "Is anybody there?")
    refused, told = sorted([hear(), hear()], key=lambda one: one["type"])  # whichever was first
    back(notice, f"{refused['error_code']} {told['sender_id']}: {told['content']}")
    """
    heard = asyncio.Event()

    async def hears(message: Any) -> None:
        heard.set()

    @il.agent
    async def lead(ctx: il.Context[Any, Any], text: str) -> str:
        return str((await ctx.delegate("analyst", text, on_message=hears))["text"])

    handlers = {"lead": lead, "analyst": await program_agent(tmp_path, plan)}
    team_ = TeamAgent(crew(member("lead", "analyst"), member("analyst")), handlers)
    async with engine(store, team_, settings=PATIENT) as eng:
        run = await submit(eng, "crew", {"text": "x"})
        async with asyncio.timeout(20):
            await heard.wait()
        await eng.teams.tell("T1", "analyst", "go on")
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "404 user: go on"}, done.error
        said = await conversation(eng, run.id)
        assert ("T1.1", "analyst", "lead", "message", "I began") in said
        assert ("T1.1", "analyst", "user", "message", "Hello user") in said
        assert ("T1.1", "user", "analyst", "message", "go on") in said


async def test_an_overseer_elsewhere_approves_only_with_a_verdict(store: Path, tmp_path: Path) -> None:
    plan = """
    review = notice["metadata"]["review"]
    proposal = next(one["object"] for one in notice["attachments"] if one["type"] == "python_object")
    assert proposal["result_hash"] == review["result_hash"]
    if "source" not in proposal["result"]["output"]["text"]:
        back(notice, "Verified. Approved!")
    else:
        back(notice, "Fine", metadata={"verdict": {"decision": "approve", "result_hash": review["result_hash"]}})
    """

    @il.agent
    async def analyst(ctx: il.Context[Any, Any], text: str) -> str:
        return f"{text} with source" if ctx.inquiries else text

    handlers = {"lead": leading(), "analyst": analyst, "qa": await program_agent(tmp_path, plan)}
    manifests = [member("lead", "analyst"), member("analyst", overseer="qa"), member("qa")]
    async with engine(store, TeamAgent(crew(*manifests), handlers)) as eng:
        run = await finish(eng, "crew", {"text": "report"})
        assert run.output == {"text": "report with source"}, run.error


async def test_an_overseen_member_elsewhere_is_reviewed_and_told_what_its_overseer_said(
    store: Path, tmp_path: Path
) -> None:
    plan = """
    earlier = notice.get("metadata", {}).get("inquiries", [])
    back(notice, task + "".join(f" [{one['text']}]" for one in earlier))
    """

    @il.agent
    async def qa(ctx: il.Context[Any, Any], text: str) -> Any:
        assert ctx.review is not None
        if "[" in ctx.review.result.output["text"]:
            return {"decision": "approve", "result_hash": ctx.review.result_hash}
        return {"decision": "inquire", "inquiry": "which table?", "result_hash": ctx.review.result_hash}

    handlers = {"lead": leading(), "analyst": await program_agent(tmp_path, plan), "qa": qa}
    manifests = [member("lead", "analyst"), member("analyst", overseer="qa"), member("qa")]
    async with engine(store, TeamAgent(crew(*manifests), handlers)) as eng:
        run = await finish(eng, "crew", {"text": "report"})
        assert run.output == {"text": "report [which table?]"}, run.error


async def test_a_member_elsewhere_proposes_by_delegating_to_its_overseer(store: Path, tmp_path: Path) -> None:
    plan = """
    def propose(text):
        say({"type": "delegation_notice", "task_id": notice["task_id"] + ".1", "sender_id": notice["recipient_id"],
             "recipient_id": "qa", "context_summary": text})
        return hear()
    asked = propose(task)
    assert asked["type"] == "oversight_inquiry" and asked["inquiry"] == "which table?", asked
    told = propose(task + " from sales_clean")
    assert told["metadata"]["verdict"]["decision"] == "approve", told
    back(notice, task + " from sales_clean")
    """

    @il.agent
    async def qa(ctx: il.Context[Any, Any], text: str) -> Any:
        assert ctx.review is not None
        if "sales_clean" in ctx.review.result.output["text"]:
            return {"decision": "approve", "result_hash": ctx.review.result_hash}
        return {"decision": "inquire", "inquiry": "which table?", "result_hash": ctx.review.result_hash}

    handlers = {"lead": leading(), "analyst": await program_agent(tmp_path, plan), "qa": qa}
    manifests = [member("lead", "analyst"), member("analyst", "qa", overseer="qa"), member("qa")]
    async with engine(store, TeamAgent(crew(*manifests), handlers)) as eng:
        run = await finish(eng, "crew", {"text": "report"})
        assert run.output == {"text": "report from sales_clean"}, run.error


async def test_an_agent_at_a_server_is_a_member_of_a_team_here(store: Path, tmp_path: Path) -> None:
    async with door(tmp_path / "remote.db", *PLAIN) as server:
        handlers = {"lead": leading(), "analyst": await one(server.address, "careful")}
        team_ = TeamAgent(crew(member("lead", "analyst"), member("analyst")), handlers)
        async with engine(store, team_) as eng:
            run = await submit(eng, "crew", {"text": "look"})
            first = await question(eng, run.id)
            await eng.questions.answer(first.id, {"approved": False})
            async for event in eng.runs.events(run.id):
                if event.kind == "asked" and event.body.question.type == "ask_text":  # type: ignore[union-attr]
                    await eng.questions.answer(event.body.question.id, {"text": "no"})  # type: ignore[union-attr]
            done = await eng.runs.wait(run.id, timeout=20)
            assert done.output == {"text": "look False no"}, done.error
            assert ("T1.1", "analyst", "user", "message", "Say look?") in await conversation(eng, run.id)


async def test_a_folder_of_manifests_names_a_program_as_a_member(store: Path, tmp_path: Path) -> None:
    target = program(tmp_path, "back(notice, task.upper())")
    folder = tmp_path / "crew"
    folder.mkdir()
    rules = {"worker": {"when_to_delegate": "always"}}
    for id_, allowed, more in (("lead", ["worker"], {}), ("worker", [], {"interlingua": {"target": target}})):
        manifest = {"id": id_, "system_prompt": "", "allowed_agents": allowed, "mcp_bindings": [], **more}
        whole = {**manifest, "delegate_rules": rules if allowed else {}}
        (folder / f"{id_}.json").write_text(json.dumps(whole))

    @il.agent
    async def lead(ctx: il.Context[Any, Any], text: str) -> str:
        return str((await ctx.delegate("worker", text))["text"])

    async with door(store, await load_team(folder, handlers={"lead": lead})) as server, Peer(server) as peer:
        await peer.post(notice("T1", "lead", "hello"))
        assert (await peer.all("T1"))[-1][2]["output"] == {"text": "HELLO"}

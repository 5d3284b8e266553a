"""`interlingua questions`: the inbox as people and programs see it, from any process that has the store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.security.keys import make_key
from interlingua.server.auth.stored_keys import StoredKeys
from tests.kit.agents import asker, middle, top
from tests.kit.commands import Result
from tests.kit.engines import QUICK, engine, parked, question, served, submit, with_settings
from tests.kit.postgres import store_in

from .conftest import ZOO

Cli = Callable[..., Result]
Start = Callable[..., subprocess.Popen[str]]


@il.agent(asks=[il.Choose])
async def shopper(ctx: il.Context[None, None]) -> str:
    """Thinks, acts, and asks."""
    await ctx.thought("apples are cheap today")
    await ctx.message("I went to the market.")
    await ctx.tool_call("t1", title="Weigh the apples", status="completed")
    await ctx.emit("Two kilos ")
    await ctx.emit("or three?")
    options = [il.Option("two", "Two kilos"), il.Option("three", "Three kilos")]
    choose = il.Choose("How many?", options)
    return (await ctx.ask(choose, deadline=630, remind=[3600, 86400])).choice


async def line(process: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """The next line of a watch, which is of that kind."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        text = await asyncio.to_thread(process.stdout.readline)
    told: dict[str, Any] = json.loads(text)
    assert told["event"] == event, told
    return told


async def watching(start: Start, eng: il.Engine, *options: str) -> subprocess.Popen[str]:
    """A watch that has begun: it has told what was open before."""
    before = await question(eng, (await submit(eng, "asker", {"text": "old"}, caller=il.Caller("ada"))).id)
    watch = start("questions", "watch", "--json", *options)
    assert (await line(watch, "open"))["id"] == before.id
    return watch


# -- the list -------------------------------------------------------------------------------------------------


def test_without_a_command_open_questions_are_listed_oldest_first(cli: Cli) -> None:
    cli("run", f"{ZOO}:shout", "hi")
    assert cli("questions").out == "Nothing waits for an answer.\n"
    cli("run", f"{ZOO}:delegate")
    cli("run", f"{ZOO}:choose")
    listed = cli("questions").out
    head, first, second = listed.splitlines()
    assert head.split() == ["id", "age", "asked", "by", "question", "may", "answer", "deadline"]
    assert "delegate › confirm" in first
    assert "Shall I do the child's work? (confirm)" in first
    assert "owner, see:all" in first
    assert first.rstrip().endswith("–")
    assert "Which colour?" in second
    assert cli("questions", "list").out.splitlines()[1].split()[0] == first.split()[0]
    found = cli("questions", "--json").json
    assert found == cli("questions", "list", "--json").json
    assert [one["prompt"] for one in found] == ["Shall I do the child's work?", "Which colour?"]
    assert [link["agent"] for link in found[0]["lineage"]] == ["delegate", "confirm"]
    assert found[0]["lineage"][-1]["run"] == found[0]["run"]
    assert [one["prompt"] for one in cli("questions", "--json", "--limit", "1").json] == [found[0]["prompt"]]


def test_options_choose_by_state_and_by_run(cli: Cli) -> None:
    cli("run", f"{ZOO}:delegate")
    cli("run", f"{ZOO}:choose")
    child, other = cli("questions", "--json").json
    root = child["lineage"][0]["run"]
    for run in (root, child["run"]):
        assert [one["id"] for one in cli("questions", "--run", run, "--json").json] == [child["id"]]
    assert cli("questions", "answer", other["id"], "Green").code == 0
    assert [one["id"] for one in cli("questions", "--json").json] == [child["id"]]
    assert [one["state"] for one in cli("questions", "--all", "--json").json] == ["open", "answered"]
    rows = cli("questions", "--all").out.splitlines()
    assert "answered" in rows[2]
    assert "answered" not in rows[1]


def test_an_option_before_the_command_is_not_lost_without_a_word(cli: Cli) -> None:
    done = cli("questions", "--json", "watch")
    assert (done.code, done.out) == (2, "")
    assert "interlingua questions watch …, and then --json" in done.err


async def test_the_deadline_stands_in_the_list(here: Cli, tmp_path: Path) -> None:
    async with engine(store_in(tmp_path), shopper) as eng:
        await question(eng, (await submit(eng, "shopper")).id)
    row = (await asyncio.to_thread(here, "questions")).out.splitlines()[1]
    assert row.rstrip().endswith("in 10 min")


async def test_mine_are_those_that_a_caller_may_answer(here: Cli, tmp_path: Path) -> None:
    async with engine(store_in(tmp_path), asker) as eng:
        keys: dict[str, il.Caller] = {}
        given = {"laptop": [], "boss": ["see:all"], "reader": ["do:read"], "other": ["agents:other", "see:all"]}
        for name, scopes in given.items():
            _, record = make_key(name, scopes, time.time_ns() // 1000)
            await StoredKeys(eng.keys).put(record)
            keys[name] = il.Caller(f"key:{record.id}", name, tuple(scopes))
        for name in ("laptop", "boss"):
            await question(eng, (await submit(eng, "asker", {"text": name}, caller=keys[name])).id)

    def mine(name: str) -> list[str]:
        return [one["prompt"] for one in here("questions", "--mine", name, "--json").json]

    async def check(name: str, *wanted: str) -> None:
        assert await asyncio.to_thread(mine, name) == list(wanted), name

    await check("laptop", "Do laptop?")
    await check(keys["laptop"].id, "Do laptop?")
    await check("boss", "Do laptop?", "Do boss?")
    await check("owner", "Do laptop?", "Do boss?")
    for name in ("reader", "other", "stranger"):
        await check(name)
    row = (await asyncio.to_thread(here, "questions", "--mine", "laptop")).out.splitlines()[1]
    assert "laptop, see:all" in row


# -- one question ---------------------------------------------------------------------------------------------


async def test_a_question_is_shown_with_everything_that_one_should_know(here: Cli, tmp_path: Path) -> None:
    async with engine(store_in(tmp_path), shopper) as eng:
        run = await submit(eng, "shopper", thread="market", create_thread=True)
        asked = await question(eng, run.id)
    shown = await asyncio.to_thread(here, "questions", "show", asked.id[-8:])
    for words in (
        f"question {asked.id}", "status      open", f"{run.id}  shopper 0.1.0, waiting, thread market",
        "thought apples are cheap today",
        "message I went to the market.", "tool_call Weigh the apples completed", "output Two kilos or three?",
        "How many?", "1) Two kilos  (two)", "deadline    in 10 min, ", "reminders   0 of 2 sent, the next in",
        "answer has  choice", "may answer  whoever may see run", "the owner of the store, who began it",
        f"interlingua questions answer {asked.id[-8:]}",
    ):  # fmt: skip
        assert words in shown.out, words
    told = (await asyncio.to_thread(here, "questions", "show", asked.id, "--json")).json
    assert [one["kind"] for one in told["said"]] == ["thought", "message", "tool_call", "output"]
    assert told["reminders"]["of"] == 2
    assert told["lineage"][0]["thread"] == "market"
    assert told["may_answer"]["only"] is None


async def test_a_question_shows_who_answered_it_when_and_through_which_door(here: Cli, tmp_path: Path) -> None:
    async with engine(store_in(tmp_path), asker, middle, top) as eng:
        _, record = make_key("laptop", [], time.time_ns() // 1000)
        await StoredKeys(eng.keys).put(record)
        run = await submit(eng, "top")
        asked = await question(eng, run.id)
        await eng.questions.answer(asked.id, {"approved": True}, by=il.Caller(f"key:{record.id}"), door="peer")
        await eng.runs.wait(run.id, timeout=20)
    shown = (await asyncio.to_thread(here, "questions", "show", asked.id)).out
    assert f"answered    by laptop (key:{record.id}) through peer, " in shown
    assert "top › middle › asker" in shown
    assert "may answer" not in shown
    told = (await asyncio.to_thread(here, "questions", "show", asked.id, "--json")).json
    assert (told["state"], told["answered_by"], told["answered_through"]) == ("answered", f"key:{record.id}", "peer")
    assert told["closed_at"] is not None
    late = await asyncio.to_thread(here, "questions", "answer", asked.id, "y")
    assert late.code == 5
    assert f"answered already by key:{record.id} through peer" in late.err
    late = await asyncio.to_thread(here, "runs", "answer", run.id, "y")
    assert late.code == 5
    assert f"by key:{record.id} through peer" in late.err


async def test_only_the_one_who_must_answer_is_named_where_somebody_must(here: Cli, tmp_path: Path) -> None:
    from tests.protocols.cap.door_common import overseen

    async with engine(store_in(tmp_path), overseen()) as eng:
        run = await submit(eng, "press", {"text": "draft"}, caller=il.Caller("alice"))
        asked = await question(eng, run.id)
    assert "only alice" in (await asyncio.to_thread(here, "questions")).out
    shown = (await asyncio.to_thread(here, "questions", "show", asked.id)).out
    assert "may answer  only alice, whose approval it needs" in shown
    verdict = json.dumps({"decision": "reject", "reason": "no", "result_hash": asked.payload["result_hash"]})
    refused = await asyncio.to_thread(here, "questions", "answer", asked.id, verdict)
    assert refused.code == 1
    assert "for alice to answer" in refused.err


async def test_what_a_member_of_a_team_gives_along_is_shown(here: Cli, tmp_path: Path) -> None:
    from tests.protocols.cap.door_common import sales

    @il.agent(name="pm", asks=[il.AskText])
    async def pm(ctx: il.Context[Any, Any], text: str) -> str:
        return (await ctx.ask(il.AskText("Which region?"), attachments=["north, south"])).text

    async with engine(store_in(tmp_path), sales(**{"pm-1": pm})) as eng:
        run = await submit(eng, "sales", {"text": "figures"})
        asked = await question(eng, run.id)
    shown = (await asyncio.to_thread(here, "questions", "show", asked.id)).out
    assert "pm-1 in task T1" in shown
    assert "north, south" in shown


# -- following ------------------------------------------------------------------------------------------------


async def test_the_watch_tells_what_happens_to_questions_of_every_process(
    start: Start, cli: Cli, tmp_path: Path
) -> None:
    settings = with_settings(QUICK, remind_after=())
    async with served(store_in(tmp_path), asker, middle, settings=settings) as eng:
        before = await question(eng, (await submit(eng, "asker", {"text": "old"})).id)
        watch = start("questions", "watch", "--json")
        assert (await line(watch, "open"))["id"] == before.id
        run = await submit(eng, "middle")
        asked = await line(watch, "asked")
        assert [link["agent"] for link in asked["lineage"]] == ["middle", "asker"]
        await asyncio.to_thread(cli, "questions", "answer", asked["id"], "y")
        told = await line(watch, "answered")
        assert (told["id"], told["answered_by"], told["answered_through"]) == (asked["id"], "owner", "cli")
        assert told["answer"] == {"approved": True}
        await eng.runs.wait(run.id, timeout=20)
        await eng.runs.cancel(before.run)
        gone = await line(watch, "withdrawn")
        assert (gone["id"], gone["reason"]) == (before.id, "the run was cancelled")
        watch.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(watch.wait) == 130


async def test_the_watch_tells_of_reminders_and_of_what_expires(start: Start, tmp_path: Path) -> None:
    @il.agent(asks=[il.Confirm])
    async def hasty(ctx: il.Context[None, None]) -> str:
        await ctx.ask(il.Confirm("Now?"), deadline=0.4, remind=[0.2])
        return ""

    async with served(store_in(tmp_path), asker, hasty) as eng:
        watch = await watching(start, eng)
        await submit(eng, "hasty")
        asked = await line(watch, "asked")
        reminded = await line(watch, "reminded")
        assert (reminded["id"], reminded["reminders"]["sent"]) == (asked["id"], 1)
        expired = await line(watch, "expired")
        assert (expired["id"], expired["reason"]) == (asked["id"], "nobody answered in time")
        assert expired["time"] >= asked["deadline"]


async def test_what_came_and_went_between_two_looks_is_told_too(start: Start, tmp_path: Path) -> None:
    async with engine(store_in(tmp_path), asker) as eng:
        watch = await watching(start, eng)
        watch.send_signal(signal.SIGSTOP)
        asked = await question(eng, (await submit(eng, "asker", {"text": "second"})).id)
        await eng.questions.answer(asked.id, {"approved": True}, door="test")
        watch.send_signal(signal.SIGCONT)
        assert (await line(watch, "asked"))["id"] == asked.id
        assert (await line(watch, "answered"))["id"] == asked.id


async def test_people_read_lines(start: Start, tmp_path: Path) -> None:
    async with engine(store_in(tmp_path), shopper) as eng:
        watch = start("questions", "watch")
        assert watch.stderr is not None
        assert watch.stdout is not None
        assert "Nothing waits for an answer." in await asyncio.to_thread(watch.stderr.readline)
        asked = await question(eng, (await submit(eng, "shopper")).id)
        told = await asyncio.to_thread(watch.stdout.readline)
        for words in (asked.id[-8:], "asked", "shopper: How many?", "(in "):
            assert words in told
        await eng.questions.answer(asked.id, {"choice": "two"}, by=il.Caller("ada"), door="editor")
        assert 'answered  by ada through editor: {"choice":"two"}' in await asyncio.to_thread(watch.stdout.readline)


async def test_the_watch_of_a_caller_is_told_of_its_own(start: Start, tmp_path: Path) -> None:
    async with engine(store_in(tmp_path), asker) as eng:
        watch = await watching(start, eng, "--mine", "ada")
        for name in ("bob", "ada"):
            await question(eng, (await submit(eng, "asker", {"text": name}, caller=il.Caller(name))).id)
        assert (await line(watch, "asked"))["prompt"] == "Do ada?"


def test_watching_the_questions_of_a_run_that_is_not_there_is_refused(cli: Cli) -> None:
    cli("run", f"{ZOO}:shout", "hi")
    done = cli("questions", "watch", "--run", "zzz")
    assert (done.code, done.out) == (3, "")


@pytest.mark.parametrize("command", [("questions", "list"), ("questions",)])
def test_a_store_that_is_not_there_is_not_made(cli: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    done = cli(*command, "--store", str(tmp_path / "none.db"))
    assert done.code == 3
    assert not (tmp_path / "none.db").exists()


# -- who goes on after the answer -----------------------------------------------------------------------------


async def test_an_answer_is_said_to_be_enough_where_a_process_has_the_agent(here: Cli, tmp_path: Path) -> None:
    begun, enough = asyncio.Event(), asyncio.Event()

    @il.agent
    async def busy() -> str:
        begun.set()
        await enough.wait()
        return "done"

    async with served(store_in(tmp_path), asker, busy, settings=with_settings(QUICK, max_running=1)) as eng:
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
        await parked(eng, run.id)
        await submit(eng, "busy")
        await begun.wait()  # so nobody has taken the run up when that is looked at
        done = await asyncio.to_thread(here, "questions", "answer", asked.id, "y")
        assert done.err.endswith(f"answered; run {run.id[-8:]} goes on\n")
        row = await eng.core.store.runs.get(run.id)
        assert row is not None
        assert row.worker is None
        enough.set()
        assert (await eng.runs.wait(run.id, timeout=20)).status is il.Status.SUCCEEDED


@pytest.mark.parametrize("doors", [False, True], ids=["nobody is there", "a server that runs none"])
async def test_an_answer_says_who_must_take_the_run_up_where_nobody_will(
    here: Cli, tmp_path: Path, doors: bool
) -> None:
    async with engine(store_in(tmp_path), asker) as eng:
        run = await submit(eng, "asker")
        asked = await question(eng, run.id)
    async with contextlib.AsyncExitStack() as stack:
        if doors:
            settings = with_settings(QUICK, max_running=0)
            server = await stack.enter_async_context(served(store_in(tmp_path), asker, settings=settings))
            await server.cluster.remote_agents.start(looks=True)
        done = await asyncio.to_thread(here, "questions", "answer", asked.id, "y")
    hint = f"interlingua run TARGET --resume {run.id[-8:]}"
    assert done.err.endswith(f"answered; nobody runs it now, take it up with: {hint}\n")

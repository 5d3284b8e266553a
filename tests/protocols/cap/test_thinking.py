"""Agents of a team that a model drives: what the model is told and offered, what it calls, and that nothing of it is
done twice. The model is a stand-in behind a real HTTP server; everything else is what runs in production."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.extras import MissingExtra
from interlingua.model.content import ToolResultPart
from interlingua.model.errors import DefinitionError, ToolFailed
from interlingua.model.events import (
    DelegationRefused,
    Recorded,
    RunRestarted,
    Said,
    Thought,
    ToolCall,
    ToolRefused,
    Warned,
)
from interlingua.model.team.authority import Policy
from interlingua.model.team.manifest import Binding, Manifest, Rule, Server, Team
from interlingua.model.team.tools import ToolOutcome, ToolSpec
from interlingua.models import provider, team_moves
from interlingua.models.agent_loop import thinker
from interlingua.models.tool_calls import LONGEST_NAME, api_name, origin
from tests.kit.engines import PATIENT, QUICK, crash, engine, finish, question, submit
from tests.kit.teams import tree
from tests.kit.wait_for import wait_for

from .standin import MODEL, Answer, Asked, Call, Fails, Says, StandIn

ROOT = Path(__file__).parents[3]

both = pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])

READ = {"type": "object", "properties": {"path": {"type": "string", "minLength": 1}}, "required": ["path"]}


class Tools:
    """A tool server in this process: `Docs` with tools that read, burn, meet and break."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.met = asyncio.Event()

    async def list(self, server_id: str, server: Server) -> list[ToolSpec]:
        return [ToolSpec(server_id, name, f"Tool {name}", READ) for name in ("read", "burn", "meet", "break")]

    async def call(
        self, server_id: str, server: Server, tool: str, arguments: dict[str, Any], *,
        scopes: tuple[str, ...] = (), timeout: float | None = None,
    ) -> ToolOutcome:  # fmt: skip
        self.calls.append((tool, arguments))
        if tool == "break":
            raise ToolFailed("it broke")
        if tool == "meet":  # ends only when it was called twice
            if len(self.calls) == 2:
                self.met.set()
            await self.met.wait()
        return ToolOutcome({"text": f"{tool} {arguments['path']}"})

    async def close(self) -> None:
        pass


def member(
    id_: str, *allowed: str, overseer: str | None = None, tools: tuple[str, ...] = (), prompt: str | None = None
) -> Manifest:
    rules = {one: Rule(f"When {one} knows better than {id_}.") for one in allowed}
    bindings = (Binding("Docs", ("read:docs",), tools, "What we know."),) if tools else ()
    return Manifest(id_, prompt or f"You are the one called {id_}.", allowed, rules, overseer, bindings)


def crew(*manifests: Manifest) -> Team:
    made = Team("crew", entry=manifests[0].id, servers={"Docs": Server(command="docs")}, policy=Policy())
    made.manifests = {manifest.id: manifest for manifest in manifests}
    return made


LEAD = member("lead", "helper", tools=("read", "meet", "break"))
HELPER = member("helper")


async def ran(
    store: Path, team: Team, script: Callable[[Asked], Answer], *, settings: il.Settings = PATIENT,
    tools: Tools | None = None, **options: Any,
) -> tuple[il.Run, StandIn, Mapping[str, list[Any]]]:  # fmt: skip
    """Let a team do something, and give back its run, the stand-in, and the events of all runs of each agent."""
    with StandIn(team, script) as model:
        async with engine(store, settings=settings) as eng:
            add(eng, team, tools or Tools(), **options)
            run = await finish(eng, "crew", {"text": "the task"})
            return run, model, await events(eng, run.id)


def add(eng: il.Engine, team: Team, tools: Tools, **options: Any) -> None:
    handlers = {id_: thinker(team, manifest, MODEL, **options) for id_, manifest in team.manifests.items()}
    eng.teams.add_team(team, handlers, tools)


async def events(eng: il.Engine, root: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for run in await tree(eng, root):
        name = run.agent.removeprefix("crew/").partition("/")[0]
        found.setdefault(name, []).extend(
            [one.body async for one in eng.runs.events(run.id, follow=False, sealed=True)]
        )
    return found


def of(bodies: list[Any], kind: type) -> list[Any]:
    return [body for body in bodies if isinstance(body, kind)]


def result(asked: Asked) -> Any:
    """What the one call of the last turn gave back."""
    (told,) = asked.news
    return json.loads(told) if told.startswith("{") else told


# -- what the model is told and offered -----------------------------------------------------------------------


async def test_the_system_prompt_comes_first_and_unchanged_and_a_frame_says_who_it_is(store: Path) -> None:
    prompt = "  You lead.\n\nSay «yes»,\tor   no. "
    run, model, _ = await ran(store, crew(member("lead", prompt=prompt)), lambda asked: "done")
    assert run.output == {"text": "done"}, run.error
    (asked,) = model.requests
    assert asked.messages[0] == {"role": "system", "content": prompt}
    for fact in ("lead", "crew", "T1", "orchestrator"):
        assert fact in asked.messages[1]["content"]
    assert asked.task == "the task"


async def test_it_is_offered_what_its_manifest_binds_as_the_server_describes_it(store: Path) -> None:
    _, model, _ = await ran(store, crew(LEAD, HELPER), lambda asked: "done")
    (asked,) = model.requests
    assert set(asked.tools) == {
        "Docs__read", "Docs__meet", "Docs__break", "delegate_to_helper", "send_message", "ask", "wait_for",
    }  # fmt: skip
    assert asked.tools["Docs__read"]["parameters"] == READ
    assert asked.tools["Docs__read"]["description"].startswith("Tool read")


def test_the_stand_in_notices_a_tool_outside_the_binding_and_a_missing_rule() -> None:
    asked = {"messages": [{"role": "system", "content": LEAD.system_prompt}], "tools": []}
    for tools, wrong in (
        (["Docs__burn", "delegate_to_helper"], "offered Docs__burn"),
        (["Docs__read", "delegate_to_stranger"], "offered delegate_to_stranger"),
        (["Docs__read"], "not offered delegate_to_helper"),
        (["Docs read"], "no API"),
        (["delegate_to_helper"], "when to delegate"),
    ):
        body = {**asked, "tools": [{"function": {"name": name, "description": "x"}} for name in tools]}
        with pytest.raises(AssertionError, match=wrong), StandIn(crew(LEAD, HELPER), lambda _: "x") as model:
            assert model.answer(body)[0] == 400


def test_names_of_tools_fit_every_api_and_lead_back() -> None:
    tools = [("Docs", "read_file"), ("my.server", "päth/read"), ("a-_2e_b", "x__y"), ("Do", "cs"), ("Docs_", "_x")]
    for server, tool in tools:
        name = api_name(server, tool)
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
        assert origin(name, [server for server, _ in tools]) == (server, tool)
    assert origin("send_message", ["Docs"]) is None
    long, other = api_name("S" * 60, "t" * 60), api_name("S" * 60, "t" * 61)
    assert len(long) == len(other) == LONGEST_NAME
    assert long != other


# -- tools ----------------------------------------------------------------------------------------------------


@both
async def test_a_tool_is_called_through_the_engine_and_its_result_goes_back(store: Path, settings: il.Settings) -> None:
    def script(asked: Asked) -> Answer:
        if asked.turns == 0:
            return Says("Let me look.", Call("Docs__read", path="a.md"))
        assert result(asked) == {"call_id": "call_1_0", "result": {"text": "read a.md"}}
        return "I read it"

    tools = Tools()
    run, _, found = await ran(store, crew(LEAD, HELPER), script, settings=settings, tools=tools)
    assert run.output == {"text": "I read it"}, run.error
    assert tools.calls == [("read", {"path": "a.md"})]
    assert [call.status for call in of(found["lead"], ToolCall)] == ["in_progress", "completed"]
    assert [thought.text for thought in of(found["lead"], Thought)] == ["Let me look."]
    assert run.usage == {"model_requests": 2, "input_tokens": 20, "output_tokens": 6}


async def test_calls_of_one_turn_run_at_the_same_time(store: Path) -> None:
    def script(asked: Asked) -> Answer:
        if asked.turns == 0:
            return Says(None, Call("Docs__meet", path="a"), Call("Docs__meet", path="b"))
        return " and ".join(json.loads(one)["result"]["text"] for one in asked.news)

    run, _, _ = await ran(store, crew(LEAD, HELPER), script)
    assert run.output == {"text": "meet a and meet b"}, run.error


async def test_an_id_that_comes_again_is_another_call(store: Path) -> None:
    def script(asked: Asked) -> Answer:
        if asked.turns < 2:
            return Call("Docs__read", path="ab"[asked.turns], id="0")
        return result(asked)["call_id"]

    tools = Tools()
    run, _, _ = await ran(store, crew(LEAD, HELPER), script, tools=tools)
    assert run.output == {"text": "0~2"}, run.error
    assert [arguments["path"] for _, arguments in tools.calls] == ["a", "b"]


async def test_what_fails_or_is_wrong_is_told_to_the_model_and_stands_in_the_log(store: Path) -> None:
    calls = [
        (Call("Docs__break", path="a"), "tool_failed: it broke"),
        (Call("Docs__read", path=""), "invalid_input"),
        (Call("Docs__read", "{not json"), "no JSON object"),
        (Call("read", path="a"), "it is called Docs__read"),
        (Call("conjure", what="a rabbit"), "there is no tool 'conjure'"),
        (Call("wait_for", task="T9"), "you wait for no task 'T9'"),
        (Call("send_message", recipient="nobody", content="x"), "not_found"),
        (Call("ask", recipient="orchestrator", content="x"), "answers no questions"),
        (
            Call("delegate_to_helper", context_summary="x", attachments=[{"type": "tool_call_result", "call_id": "x"}]),
            "names no result of yours",
        ),
    ]

    def script(asked: Asked) -> Answer:
        if asked.turns:
            assert calls[asked.turns - 1][1] in asked.news[0], asked.news
        return calls[asked.turns][0] if asked.turns < len(calls) else "I gave up"

    tools = Tools()
    run, _, found = await ran(store, crew(LEAD, HELPER), script, tools=tools)
    assert run.output == {"text": "I gave up"}, run.error
    assert [tool for tool, _ in tools.calls] == ["break"]
    warned = " ".join(one.message for one in of(found["lead"], Warned))
    for name in ("Docs__read", "read", "conjure", "delegate_to_helper"):
        assert f"lead called {name}:" in warned


@both
async def test_what_was_never_offered_is_refused_at_the_gate(store: Path, settings: il.Settings) -> None:
    def script(asked: Asked) -> Answer:
        if asked.turns == 0:
            burn, stranger = Call("Docs__burn", path="all"), Call("delegate_to_stranger", context_summary="psst")
            return Says(None, burn, stranger, Call("delegate_to_loner", context_summary="psst"), Call("burn", path="x"))
        assert ["denied: lead may not" in one for one in asked.news] == [True] * 4
        return "I may not"

    tools, team = Tools(), crew(LEAD, HELPER, member("loner", tools=("burn",)))
    run, model, found = await ran(store, team, script, settings=settings, tools=tools)
    assert run.output == {"text": "I may not"}, run.error
    assert tools.calls == []
    assert model.of("loner") == []
    assert [(one.server, one.tool) for one in of(found["lead"], ToolRefused)] == [("Docs", "burn")] * 2
    assert sorted(one.agent for one in of(found["lead"], DelegationRefused)) == ["loner", "stranger"]


# -- handing over ---------------------------------------------------------------------------------------------


@both
async def test_a_task_is_handed_over_with_what_belongs_to_it(store: Path, settings: il.Settings) -> None:
    attachments = [
        {"type": "tool_call_result", "call_id": "call_1_0"},
        {"type": "text_snippet", "text": "a snippet"},
        {"type": "file", "path": "/data/report.csv"},
        {"type": "python_object", "object": {"figures": [1, 2]}},
    ]

    def script(asked: Asked) -> Answer:
        if asked.agent == "helper":
            for told in ("please help", "read a.md", "a snippet", "/data/report.csv", '"figures":[1,2]', "Docs"):
                assert told in asked.task
            assert "unverified" not in asked.task
            assert "lead handed it to you" in asked.system
            return "helped"
        if asked.turns == 0:
            return Call("Docs__read", path="a.md")
        if asked.turns == 1:
            return Call(
                "delegate_to_helper", context_summary="please help", reason="it knows better", attachments=attachments
            )
        return f"with {result(asked)}"

    run, _, found = await ran(store, crew(LEAD, HELPER), script, settings=settings)
    assert run.output == {"text": "with helped"}, run.error
    (notice,) = [said for said in of(found["crew"], Said) if said.form == "delegation" and said.sender == "lead"]
    assert (notice.task, notice.recipient) == ("T1.1", "helper")
    assert notice.message.metadata == {"rule": "When helper knows better than lead.", "reason": "it knows better"}
    assert isinstance(notice.message.parts[1], ToolResultPart)
    assert len(notice.message.parts) == 5
    assert not of(found["lead"], RunRestarted)


async def test_instances_of_an_agent_work_at_the_same_time(store: Path) -> None:
    meeting = threading.Barrier(2, timeout=20)

    def script(asked: Asked) -> Answer:
        if asked.agent == "helper":
            meeting.wait()  # neither answers before the other was asked
            return f"{asked.task} done"
        if asked.turns == 0:
            return Says(None, *(Call("delegate_to_helper", context_summary=one) for one in ("left", "right")))
        return " and ".join(asked.news)

    run, _, _ = await ran(store, crew(LEAD, HELPER), script)
    assert run.output == {"text": "left done and right done"}, run.error


async def test_a_failure_of_the_other_is_told(store: Path) -> None:
    def script(asked: Asked) -> Answer:
        if asked.agent == "helper":
            return Fails(400, "not like this")
        return Call("delegate_to_helper", context_summary="x") if asked.turns == 0 else f"it said {asked.news[0]}"

    run, _, _ = await ran(store, crew(LEAD, HELPER), script)
    assert run.status is il.Status.SUCCEEDED, run.error
    assert re.search("child_failed: .*not like this", run.output["text"])


# -- talking --------------------------------------------------------------------------------------------------


@both
async def test_the_user_is_asked_and_the_answer_comes_back(store: Path, settings: il.Settings) -> None:
    def script(asked: Asked) -> Answer:
        if asked.turns == 0:
            return Call("Docs__read", path="spec")
        if asked.turns == 1:
            evidence = [{"type": "tool_call_result", "call_id": "call_1_0"}]
            return Call("ask", recipient="user", content="Which region?", attachments=evidence)
        return f"for {result(asked)}"

    team = crew(LEAD, HELPER)
    with StandIn(team, script):
        async with engine(store, settings=settings) as eng:
            add(eng, team, Tools())
            run = await submit(eng, "crew", {"text": "the task"})
            asked = await question(eng, run.id)
            assert asked.prompt == "Which region?"
            await eng.questions.answer(asked.id, {"text": "Europe"})
            done = await eng.runs.wait(run.id, timeout=20)
            assert done.output == {"text": "for Europe"}, done.error
            said = of((await events(eng, run.id))["crew"], Said)
    (told,) = [one for one in said if one.recipient == "user"]
    assert (told.sender, told.message.parts[0].text, told.message.parts[1].result) == (
        "lead", "Which region?", {"text": "read spec"},
    )  # fmt: skip
    assert [one.message.text for one in said if one.sender == "user"] == ["Europe"]


@both
async def test_who_waits_for_a_task_hears_what_its_agent_asks_and_goes_on_waiting(
    store: Path, settings: il.Settings
) -> None:
    def script(asked: Asked) -> Answer:
        if asked.agent == "helper":
            if asked.turns == 0:
                return Call("ask", recipient="lead", content="Shall I go on?")
            return f"helped, for it said {asked.news[0]}"
        if asked.turns == 0:
            return Call("delegate_to_helper", context_summary="please help")
        if asked.turns == 1:
            assert "Message from helper (T1.1): Shall I go on?" in asked.news[0]
            return Says(None, Call("send_message", recipient="helper", content="Yes, go on."))
        return Call("wait_for", task="T1.1") if asked.turns == 2 else asked.news[0]

    run, model, found = await ran(store, crew(LEAD, HELPER), script, settings=settings)
    assert run.output == {"text": "helped, for it said Message from lead (T1.1): Yes, go on."}, run.error
    assert len(model.requests) == 6
    said = [(one.task, one.sender, one.recipient, one.message.text) for one in of(found["crew"], Said)]
    assert ("T1.1", "helper", "lead", "Shall I go on?") in said
    assert ("T1.1", "lead", "helper", "Yes, go on.") in said
    assert not of(found["lead"], RunRestarted)


@both
async def test_a_question_of_one_ends_the_wait_for_all_of_the_same_turn(store: Path, settings: il.Settings) -> None:
    """Otherwise who waits for two would answer neither, and one of them might wait for the other."""

    turned = threading.Event()  # the one that waited for two has been told of the question

    def script(asked: Asked) -> Answer:
        if asked.agent == "helper":
            if "curious" in asked.task:
                return "done" if asked.turns else Call("ask", recipient="lead", content="May I?")
            return "done" if asked.turns else Call("ask", recipient="user", content="Are you there?")
        if asked.turns == 0:
            return Says(None, *(Call("delegate_to_helper", context_summary=one) for one in ("patient", "curious")))
        if asked.turns == 1:
            (asks,) = [one for one in asked.news if "May I?" in one]
            (other,) = [one for one in asked.news if one != asks]
            assert "is still working on T1." in other
            turned.set()
            who = re.search(r"Message from (helper(?:#2)?) ", asks)
            assert who is not None
            return Call("send_message", recipient=who[1], content="Yes.")
        if asked.turns == 2:
            return Says(None, Call("wait_for", task="T1.1"), Call("wait_for", task="T1.2"))
        return " ".join(asked.news)

    team = crew(LEAD, HELPER)
    with StandIn(team, script):
        async with engine(store, settings=settings) as eng:
            add(eng, team, Tools())
            run = await submit(eng, "crew", {"text": "the task"})
            asked = await question(eng, run.id)
            assert await asyncio.to_thread(turned.wait, 20)
            await eng.questions.answer(asked.id, {"text": "yes"})
            done = await eng.runs.wait(run.id, timeout=20)
    assert done.output == {"text": "done done"}, done.error


@both
async def test_a_message_of_the_user_is_put_in_front_of_the_next_request(store: Path, settings: il.Settings) -> None:
    thinking, told = threading.Event(), threading.Event()

    def script(asked: Asked) -> Answer:
        if asked.turns == 0:
            thinking.set()
            assert told.wait(20)
            return Call("Docs__read", path="a")
        if asked.turns == 1:
            assert asked.news[1] == "Message from user: Use Q3, please."
        return "Q3 it is"

    team = crew(LEAD, HELPER)
    with StandIn(team, script):
        async with engine(store, settings=settings) as eng:
            add(eng, team, Tools())
            run = await submit(eng, "crew", {"text": "the task"})
            await asyncio.to_thread(thinking.wait, 20)
            await eng.teams.tell("T1", "lead", "Use Q3, please.")
            told.set()
            done = await eng.runs.wait(run.id, timeout=20)
            assert done.output == {"text": "Q3 it is"}, done.error


async def test_an_answer_is_not_handed_over_before_messages_that_came_meanwhile_were_read(store: Path) -> None:
    thinking, told = threading.Event(), threading.Event()

    def script(asked: Asked) -> Answer:
        if asked.turns == 0:
            thinking.set()
            assert told.wait(20)
            return "for Q4"
        assert asked.news[-1] == "Message from user: Q3!"
        return "for Q3"

    team = crew(LEAD, HELPER)
    with StandIn(team, script):
        async with engine(store, settings=PATIENT) as eng:
            add(eng, team, Tools())
            run = await submit(eng, "crew", {"text": "the task"})
            await asyncio.to_thread(thinking.wait, 20)
            await eng.teams.tell("T1", "lead", "Q3!")
            told.set()
            done = await eng.runs.wait(run.id, timeout=20)
            assert done.output == {"text": "for Q3"}, done.error


@both
async def test_nobody_waits_for_ever_for_a_reply(
    store: Path, settings: il.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_moves, "PATIENCE", 0.1)

    def script(asked: Asked) -> Answer:
        if asked.agent == "helper":
            if asked.turns == 0:
                return Call("ask", recipient="lead", content="Are you still there?")
            assert "lead has not replied" in asked.news[0]
            return "alone"
        if asked.turns == 0:
            return Call("delegate_to_helper", context_summary="x")
        return Call("wait_for", task="T1.1") if "alone" not in asked.news[-1] else "helper was alone"

    run, _, _ = await ran(store, crew(LEAD, HELPER), script, settings=settings)
    assert run.output == {"text": "helper was alone"}, run.error


async def test_who_is_gone_is_not_waited_for(store: Path) -> None:
    def script(asked: Asked) -> Answer:
        if asked.agent == "helper":
            return "helped, and gone"
        if asked.turns == 0:
            return Call("delegate_to_helper", context_summary="x")
        if asked.turns == 1:
            return Call("ask", recipient="helper", content="Are you still there?")
        assert "helper has ended its part in T1.1" in asked.news[0]
        return "alone"

    run, _, _ = await ran(store, crew(LEAD, HELPER), script)
    assert run.output == {"text": "alone"}, run.error


async def test_who_ends_while_others_work_for_it_is_reminded_once(store: Path) -> None:
    def script(asked: Asked) -> Answer:
        if asked.agent == "helper":
            return Call("ask", recipient="lead", content="Hm?") if asked.turns == 0 else "helped"
        if asked.turns == 0:
            return Call("delegate_to_helper", context_summary="x")
        if asked.turns == 2:
            assert "T1.1" in asked.news[0]
        return "done without it"

    run, model, _ = await ran(store, crew(LEAD, HELPER), script)
    assert run.output == {"text": "done without it"}, run.error
    assert len(model.of("lead")) == 3


# -- oversight ------------------------------------------------------------------------------------------------

OVERSEEN = crew(member("lead", "analyst"), member("analyst", "qa", overseer="qa"), member("qa"))


@both
async def test_a_result_is_proposed_asked_about_answered_and_approved(store: Path, settings: il.Settings) -> None:
    def script(asked: Asked) -> Answer:
        if asked.agent == "qa":
            assert "figures" in asked.task
            assert "the report" in asked.task
            assert not re.search("[0-9a-f]{64}", asked.everything)  # no hash, for nobody types one
            if "no filters" in asked.task:
                return Call("verdict", decision="approve", reason="Verified.")
            return Call("verdict", decision="inquire", inquiry="Europe seems low?")
        if asked.agent == "analyst":
            if asked.turns == 0:
                data = [{"type": "python_object", "object": {"figures": 3}}]
                return Call("delegate_to_qa", context_summary="Please verify.", result="the report", attachments=data)
            assert "qa asks about your result: Europe seems low?" in asked.news[0]
            return Call("answer_inquiry", task="T1.1.1", reply="no filters were used")
        if asked.turns == 0:
            return Call("delegate_to_analyst", context_summary="analyse")
        return alone(asked.news[0], '{"type":"python_object","object":{"figures":3}}')

    run, model, found = await ran(store, OVERSEEN, script, settings=settings)
    assert run.output == {"text": "the report"}, run.error
    assert [one.agent for one in model.requests] == ["lead", "analyst", "qa", "analyst", "qa", "lead"]
    said = [(one.task, one.sender, one.form, one.message.parts[0].text) for one in of(found["crew"], Said)]
    assert ("T1.1.1", "analyst", "delegation", "Please verify.") in said
    assert ("T1.1.1", "qa", "inquiry", "Europe seems low?") in said
    assert ("T1.1.1", "analyst", "message", "no filters were used") in said
    assert ("T1.1.1", "qa", "message", "Verified.") in said
    assert not of(found["analyst"], RunRestarted)


@both
async def test_what_the_overseer_wants_to_know_is_in_the_prompt_of_the_next_attempt(
    store: Path, settings: il.Settings
) -> None:
    def script(asked: Asked) -> Answer:
        if asked.agent == "qa":  # text is no verdict: it is something that it wants to know
            if "second" in asked.task:
                assert "I approve, but where is Asia?" in asked.task
                return Call("verdict", decision="approve")
            return "I approve, but where is Asia?"
        if asked.agent == "analyst":
            return "second" if "where is Asia?" in asked.task else "first"
        return Call("delegate_to_analyst", context_summary="analyse") if asked.turns == 0 else asked.news[0]

    run, model, _ = await ran(store, OVERSEEN, script, settings=settings)
    assert run.output == {"text": "second"}, run.error
    assert len(model.of("analyst")) == len(model.of("qa")) == 2


async def test_a_rejected_result_is_worked_on_and_a_verdict_counts_only_alone(store: Path) -> None:
    def script(asked: Asked) -> Answer:
        if asked.agent == "qa":
            if "better" in asked.task:
                return Call("verdict", decision="approve")
            if asked.turns == 0:
                return Says(
                    None, Call("verdict", decision="approve"), Call("send_message", recipient="user", content="x")
                )
            if asked.turns == 1:
                assert "stands alone" in asked.news[0]
                return Call("ask", recipient="analyst", content="Really?")
            if asked.turns == 2:
                assert "verdict that inquires" in asked.news[0]
                return Call("verdict", decision="inquire")
            assert "says in `inquiry`" in asked.news[0]
            return Call("verdict", decision="reject", reason="too thin")
        if asked.agent == "analyst":
            if asked.turns:
                assert "qa rejected your result: too thin" in asked.news[0]
            return Call("delegate_to_qa", context_summary="better" if asked.turns else "thin")
        return Call("delegate_to_analyst", context_summary="analyse") if asked.turns == 0 else asked.news[0]

    run, _, _ = await ran(store, OVERSEEN, script)
    assert run.output == {"text": "better"}, run.error


# -- when the model fails -------------------------------------------------------------------------------------


async def test_what_passes_is_tried_again(store: Path) -> None:
    soon = {"retry_after_ms": "1"}
    answers: Iterator[Answer] = iter([Fails(429, **soon), Fails(503, **soon), Fails(500, **soon), "ok"])
    run, model, _ = await ran(store, crew(LEAD, HELPER), lambda asked: next(answers))
    assert run.output == {"text": "ok"}, run.error
    assert len(model.requests) == 4


async def test_what_does_not_pass_is_unavailable(store: Path) -> None:
    run, model, _ = await ran(store, crew(LEAD, HELPER), lambda asked: Fails(503, "down", retry_after_ms="1"))
    assert run.error is not None
    assert run.error.code == "unavailable"
    assert run.error.transient
    assert "down" in run.error.message
    assert len(model.requests) == provider.ATTEMPTS


async def test_a_model_that_takes_too_long_is_unavailable(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "ATTEMPTS", 2)
    monkeypatch.setattr(provider, "FIRST_PAUSE", 0.001)
    over = threading.Event()

    def script(asked: Asked) -> Answer:
        over.wait(20)
        return "too late"

    team = crew(LEAD, HELPER)
    with StandIn(team, script) as model:
        async with engine(store, settings=PATIENT) as eng:
            add(eng, team, Tools(), timeout=0.5)
            run = await finish(eng, "crew", {"text": "the task"})
            await wait_for(lambda: len(model.requests) == 2)  # the model's thread may be slow to take them
        over.set()
    assert run.error is not None
    assert run.error.code == "unavailable"


async def test_a_key_that_is_not_accepted_names_the_variable_to_set(store: Path) -> None:
    run, model, _ = await ran(store, crew(LEAD, HELPER), lambda asked: Fails(401, "Incorrect API key"))
    assert run.error is not None
    assert run.error.code == "run_failed"
    assert "OPENAI_API_KEY" in run.error.message
    assert len(model.requests) == 1


async def test_a_missing_key_names_the_variable_to_set(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    async with engine(store, settings=PATIENT) as eng:
        add(eng, crew(LEAD, HELPER), Tools())
        run = await finish(eng, "crew", {"text": "the task"})
    assert run.error is not None
    assert "OPENAI_API_KEY" in run.error.message


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai:gpt-5", "OPENAI_API_KEY"), ("openai-chat:gpt-5", "OPENAI_API_KEY"),
        ("anthropic:claude", "ANTHROPIC_API_KEY"), ("groq:x", "GROQ_API_KEY"), ("cohere:x", "CO_API_KEY"),
        ("gateway/openai:x", "PYDANTIC_AI_GATEWAY_API_KEY"),
    ],
)  # fmt: skip
def test_the_variable_is_the_provider_s(model: str, variable: str) -> None:
    assert provider.key_variable(model) == variable


async def test_a_model_that_comes_to_no_end_is_over_budget(store: Path) -> None:
    run, model, _ = await ran(
        store, crew(LEAD, HELPER), lambda asked: Call("Docs__read", path="again"), requests=3, tools=Tools()
    )
    assert run.error is not None
    assert run.error.code == "over_budget"
    assert len(model.requests) == 3


async def test_an_empty_answer_is_no_answer_and_one_that_was_cut_off_is_told_of(store: Path) -> None:
    def script(asked: Asked) -> Answer:
        return Says("so far", finish="length") if "Your answer was empty" in asked.everything else Says("")

    run, _, found = await ran(store, crew(LEAD, HELPER), script)
    assert run.output == {"text": "so far"}, run.error
    assert "cut off" in of(found["lead"], Warned)[0].message


async def test_an_answer_that_the_provider_withholds_ends_the_run(store: Path) -> None:
    run, model, _ = await ran(store, crew(LEAD, HELPER), lambda asked: Says(None, finish="content_filter"))
    assert run.error is not None
    assert run.error.code == "run_failed"
    assert "withheld" in run.error.message
    assert len(model.requests) == 1


async def test_what_was_said_on_the_thread_before_is_remembered(store: Path) -> None:
    def script(asked: Asked) -> Answer:
        told = [one["content"] for one in asked.messages if one["role"] != "system"]
        return "first" if len(told) == 1 else " / ".join(told)

    team = crew(member("lead"))
    with StandIn(team, script):
        async with engine(store, settings=PATIENT) as eng:
            add(eng, team, Tools())
            await finish(eng, "crew", {"text": "one"}, thread="t", create_thread=True)
            run = await finish(eng, "crew", {"text": "two"}, thread="t")
    assert run.output == {"text": "one / first / two"}, run.error


# -- nothing twice --------------------------------------------------------------------------------------------

EXAMPLE = crew(member("lead", "analyst", tools=("read",)), member("analyst", "qa", overseer="qa"), member("qa"))


def example(asked: Asked) -> Answer:
    """A tool, a task, a question of its agent, a proposal, an inquiry and its answer, and an approval."""
    match asked.agent, asked.turns:
        case "lead", 0:
            return Says("Let me read.", Call("Docs__read", path="a"), Call("Docs__read", path="b"))
        case "lead", 1:
            return Says("Over to you.", Call("delegate_to_analyst", context_summary="analyse"))
        case "lead", 2:
            assert "Shall I?" in asked.news[0]
            return Says("Yes.", Call("send_message", recipient="analyst", content="Yes."))
        case "lead", 3:
            return Call("wait_for", task="T1.1")
        case "analyst", 0:
            return Call("ask", recipient="lead", content="Shall I?")
        case "analyst", 1:
            data = [{"type": "text_snippet", "text": "42"}]
            return Call("delegate_to_qa", context_summary="verify", result="the report", attachments=data)
        case "analyst", 2:
            return Call("answer_inquiry", task="T1.1.1", reply="sure")
        case "qa", _:
            asks = "sure" not in asked.task
            return Call("verdict", decision="inquire", inquiry="Sure?") if asks else Call("verdict", decision="approve")
    return alone(asked.news[0], '{"type":"text_snippet","text":"42"}')


def alone(news: str, attached: str) -> str:
    """The text of a result, which came with one attachment."""
    text, _, rest = news.partition("\n")
    assert rest == f"Attachments:\n{attached}"
    return text


REQUESTS = 10


async def done_once(eng: il.Engine, model: StandIn, root: str, deaths: int) -> None:
    run = await eng.runs.wait(root, timeout=60)
    assert run.output == {"text": "the report"}, run.error
    asked = Counter((one.agent, one.turns, one.everything) for one in model.requests)
    assert len(asked) == REQUESTS, [key[:2] for key in asked]
    # Only what was under way when the process died was asked again: at most two of the agents work at a time.
    assert asked.total() <= REQUESTS + 2 * deaths
    for one in await tree(eng, root):
        bodies = [event.body async for event in eng.runs.events(one.id, follow=False, sealed=True)]
        keys = [record.key for record in of(bodies, Recorded) if record.key.startswith("step:")]
        assert len(keys) == len(set(keys))
        assert not of(bodies, RunRestarted)
    found = await events(eng, root)
    said = [(one.task, one.sender, one.recipient, one.form, one.message.text) for one in of(found["crew"], Said)]
    assert len(said) == len(set(said))
    assert [one.message.text for one in of(found["crew"], Said) if one.recipient == "lead"].count("Shall I?") == 1


@pytest.mark.parametrize(
    ("settings", "at"),
    [*((PATIENT, at) for at in range(1, REQUESTS + 1)), *((QUICK, at) for at in (3, 6, 8))],
    ids=lambda one: one if isinstance(one, int) else "parked" if one is QUICK else "in memory",
)
async def test_a_crash_at_any_request_repeats_only_that_request(store: Path, settings: il.Settings, at: int) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def script(asked: Asked) -> Answer:
        if len(model.requests) == at and not reached.is_set():
            reached.set()
            assert go_on.wait(20)
        return example(asked)

    tools = Tools()
    with StandIn(EXAMPLE, script) as model:
        eng = await engine(store, settings=settings).__aenter__()
        add(eng, EXAMPLE, tools)
        run = await submit(eng, "crew", {"text": "the task"})
        await asyncio.to_thread(reached.wait, 20)
        await crash(eng)
        go_on.set()
        async with engine(store, settings=settings) as again:
            add(again, EXAMPLE, tools)
            await done_once(again, model, run.id, 1)
    assert sorted(arguments["path"] for _, arguments in tools.calls) == ["a", "b"]


async def work(store: Path) -> None:
    """What the process does that is killed in the test below."""
    async with engine(store, settings=PATIENT) as eng:
        add(eng, EXAMPLE, Tools())
        run = await eng.runs.submit(il.RunRequest("crew", input={"text": "the task"}, key="the one"))
        print(run.id, flush=True)
        await eng.runs.wait(run.id)


async def test_a_process_that_is_killed_again_and_again_gets_there_as_if_it_had_not_been(store: Path) -> None:
    reached, killed = threading.Event(), threading.Event()
    left = 0  # requests that the process lives to make

    def script(asked: Asked) -> Answer:
        nonlocal left
        left -= 1
        if left == 0:
            reached.set()
            killed.wait(60)
        return example(asked)

    with StandIn(EXAMPLE, script) as model:
        for lives in (2, 3, 2):
            left = lives
            command = [sys.executable, "-m", __name__, str(store)]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
                assert await asyncio.to_thread(reached.wait, 60)
                process.send_signal(signal.SIGKILL)
                assert process.stdout is not None
                root = process.stdout.readline().strip()
            killed.set()
            reached.clear()
            killed = threading.Event()
        async with engine(store, settings=PATIENT) as eng:
            add(eng, EXAMPLE, Tools())
            await done_once(eng, model, root, 3)


# -- without pydantic-ai --------------------------------------------------------------------------------------


def test_pydantic_ai_is_imported_by_nobody_who_does_not_ask_a_model() -> None:
    code = """
import sys
from interlingua.model.team.manifest import Manifest, Team
from interlingua.models.agent_loop import thinker
thinker(Team("crew"), Manifest("lead", "You lead."), "openai:gpt-5")
assert not [name for name in sys.modules if name.startswith(("pydantic", "openai"))]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_pydantic_ai_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'interlingua[llm]'")):
        thinker(crew(LEAD, HELPER), LEAD, MODEL)


@pytest.mark.parametrize("name", ["gpt-5", "openai:", ":gpt-5", ""])
def test_a_model_is_named_with_its_provider(name: str) -> None:
    with pytest.raises(DefinitionError, match="provider:name"):
        thinker(crew(LEAD, HELPER), LEAD, name)


async def test_a_model_that_nobody_knows_is_told_of(store: Path) -> None:
    async with engine(store, settings=PATIENT) as eng:
        team = crew(member("lead"))
        eng.teams.add_team(team, {"lead": thinker(team, team.manifests["lead"], "nobody:knows")}, Tools())
        run = await finish(eng, "crew", {"text": "the task"})
    assert run.error is not None
    assert "nobody:knows" in run.error.message


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1])))

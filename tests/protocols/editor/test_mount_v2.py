"""The mount on version 2 of the protocol: how it is agreed on, and what is different there."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import interlingua as il
from interlingua.model.errors import ErrorInfo
from interlingua.model.events import OutputDelta, Plan, PlanEntry, Thought, ToolCall, Warned
from tests.kit.engines import bodies, finish, question, submit
from tests.kit.mounts.editor import AGENT, act, mounted, script, update
from tests.kit.mounts.watch import seen

V2 = {"version": 2}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


async def asked_of(eng: il.Engine) -> dict[str, Any]:
    run = await finish(eng, AGENT, script("seen"))
    assert run.output is not None
    return dict(json.loads(run.output["text"]))


async def test_version_1_is_asked_for_unless_somebody_wants_2(store: Path) -> None:
    async with mounted(store) as (eng, _):
        told = (await asked_of(eng))["initialize"]
        assert told["protocolVersion"] == 1
        assert set(told) == {"protocolVersion", "clientInfo", "clientCapabilities"}
        assert told["clientCapabilities"]["fs"] == {"readTextFile": True, "writeTextFile": True}
        assert told["clientCapabilities"]["terminal"] is True
    async with mounted(store, V2, version=2) as (eng, made):
        told = (await asked_of(eng))["initialize"]
        assert told["protocolVersion"] == 2
        assert told["info"]["name"] == "interlingua"
        assert told["capabilities"]["elicitation"] == {"form": {}, "url": {}}
        assert (await made.keeper.connection()).version == 2
        assert (await eng.agents.card(AGENT)).metadata["protocol_version"] == 2


async def test_an_agent_of_version_1_that_is_asked_for_2_still_sees_what_we_offer(store: Path) -> None:
    async with mounted(store, version=2) as (eng, made):
        told = (await asked_of(eng))["initialize"]
        assert told["clientCapabilities"]["terminal"] is True
        assert (await made.keeper.connection()).version == 1


async def test_a_2_without_info_is_version_1(store: Path) -> None:
    async with mounted(store, {"init": {"protocolVersion": 2}}, version=2) as (eng, made):
        assert (await made.keeper.connection()).version == 1
        assert (await finish(eng, AGENT, script("say hello"))).output == {"text": "hello"}


async def test_the_turn_ends_when_the_agent_is_idle(store: Path) -> None:
    async with mounted(store, V2, version=2) as (eng, _):
        run = await finish(
            eng, AGENT,
            script(
                "say one ",
                update("state_update", state="requires_action"),
                update("state_update", state="_resting"),
                "say two",
            ),
        )  # fmt: skip
        assert run.output == {"text": "one two"}
        again = await finish(eng, AGENT, script("say half", "stop max_tokens"))
        (warning,) = await bodies(eng, again.id, Warned)
        assert warning.details == {"stop_reason": "max_tokens"}


async def test_a_turn_that_ends_with_an_error_of_ours_fails_as_its_run_there(store: Path) -> None:
    def ends(**error: Any) -> str:
        return update("state_update", state="idle", stopReason="error", error=error)

    async with mounted(store, V2, version=2) as (eng, _):
        told = {"code": "too_ripe", "transient": True, "details": {"code": 3}, "run": "r"}
        run = await finish(eng, AGENT, script(ends(code=-32603, message="it broke", data=told)))
        assert run.error == ErrorInfo("too_ripe", "it broke", True, {"code": 3})
        run = await finish(eng, AGENT, script(ends(code=-32050, message="no")))
        assert run.error == ErrorInfo("remote_failed", "no", False, {"code": -32050, "data": None})


async def test_messages_are_replaced_whole(store: Path) -> None:
    async with mounted(store, V2, version=2) as (eng, _):
        run = await finish(
            eng, AGENT,
            script(
                update("agent_message", messageId="a", content=[text("Hello")]),
                update("agent_message", messageId="a", content=[text("Hello there")]),
                update("agent_message", messageId="a"),
                update("agent_message_chunk", messageId="a", content=text("!")),
            ),
        )  # fmt: skip
        assert run.output == {"text": "Hello there!"}
        assert "".join(d.delta["text"] for d in await bodies(eng, run.id, OutputDelta)) == "Hello there!"
        run = await finish(
            eng, AGENT,
            script(
                update("agent_message_chunk", messageId="a", content=text("Wrong.")),
                update("agent_message_chunk", messageId="b", content=text("Second.")),
                update("agent_message", messageId="a", content=[text("Right.")]),
                update("agent_message_chunk", messageId="b", content=text(" End.")),
                update("agent_message", messageId="c", content=[text("gone")]),
                update("agent_message", messageId="c", content=None),
            ),
        )  # fmt: skip
        assert run.output == {"text": "Right.\n\nSecond. End."}, "the result counts, not what was streamed"


async def test_a_tool_call_is_made_by_its_first_update_and_null_clears(store: Path) -> None:
    content = [{"type": "content", "content": text("one")}]
    patch = {"type": "diff", "changes": [{"operation": "modify", "path": "/a"}],
             "patch": {"format": "git_patch", "text": "--- a\n+++ b\n-x\n+y"}}  # fmt: skip
    async with mounted(store, V2, version=2) as (eng, _):
        run = await finish(
            eng, AGENT,
            script(
                update("tool_call_update", toolCallId="t", title="Look", kind="_new", status="in_progress",
                       content=content, locations=[{"path": "/a"}]),
                update("tool_call_content_chunk", toolCallId="t", content=patch),
                update("tool_call_update", toolCallId="t", status="cancelled"),
                update("tool_call_update", toolCallId="t", content=None, locations=None, title=None),
            ),
        )  # fmt: skip
        first, second, third, fourth = await bodies(eng, run.id, ToolCall)
        assert (first.title, first.kind_, first.status) == ("Look", "other", "in_progress")
        assert first.content == [text("one")]
        assert [part["text"] for part in second.content] == ["one", "```diff\n--- a\n+++ b\n-x\n+y\n```"]
        assert (third.status, third.content, third.title) == ("cancelled", None, None), "left out is unchanged"
        assert (fourth.title, fourth.content, fourth.locations) == ("", [], [])


async def test_plans_thoughts_and_terminals(store: Path) -> None:
    async with mounted(store, V2, version=2) as (eng, _):
        entries = [{"content": "a", "priority": "low", "status": "cancelled"}]
        first, second = (base64.b64encode(part).decode() for part in ("grü".encode()[:3], "grü".encode()[3:] + b"n\n"))
        run = await finish(
            eng, AGENT,
            script(
                update("plan_update", plan={"type": "items", "planId": "p", "entries": entries}),
                update("plan_update", plan={"type": "markdown", "planId": "q", "text": "no"}),
                update("agent_thought_chunk", messageId="th", content=text("hm")),
                update("agent_thought", messageId="th2", content=[text("aha")]),
                update("terminal_update", terminalId="x", command="make"),
                update("terminal_output_chunk", terminalId="x", data=first),
                update("terminal_output_chunk", terminalId="x", data=second),
                update("terminal_update", terminalId="x", exitStatus={"exitCode": 2}),
                update("something_new", value=1),
            ),
        )  # fmt: skip
        (plan,) = await bodies(eng, run.id, Plan)
        assert plan.entries == [PlanEntry("a", "cancelled", "low")]
        assert [(t.id, t.text) for t in await bodies(eng, run.id, Thought)] == [("th", "hm"), ("th2", "aha")]
        started, ended = await bodies(eng, run.id, ToolCall)
        assert (started.title, started.status) == ("make", "in_progress")
        assert (ended.id, ended.status, ended.output) == ("terminal-x", "failed", "grün\n")


async def test_a_permission_has_its_own_title_and_subject(store: Path) -> None:
    ask = act(
        "call", "session/request_permission", title="May I?", description="It is safe",
        subject={"type": "command", "command": "rm x", "cwd": "/w"},
        options=[
            {"optionId": "y", "name": "Yes", "kind": "allow_once"}, {"optionId": "n", "name": "No", "kind": "_no"},
        ],
    )  # fmt: skip
    async with mounted(store, V2, version=2) as (eng, _):
        run = await submit(eng, AGENT, script(ask))
        asked = await question(eng, run.id)
        assert asked.prompt == "May I?"
        assert asked.payload == {"title": "May I?", "description": "It is safe", "command": "rm x", "cwd": "/w"}
        assert [(o.id, o.kind) for o in asked.options] == [("y", "allow_once"), ("n", None)]
        await eng.questions.answer(asked.id, {"choice": "n"})
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.output is not None
        assert json.loads(ended.output["text"])["outcome"]["optionId"] == "n"


async def test_a_permission_shows_the_patch_that_it_is_about(store: Path) -> None:
    patch = {"type": "diff", "changes": [], "patch": {"format": "git_patch", "text": "-x\n+y"}}
    ask = act(
        "call", "session/request_permission", title="Change it",
        subject={"type": "tool_call", "toolCall": {"toolCallId": "t", "content": [patch]}},
        options=[{"optionId": "n", "name": "No", "kind": "reject_once"}],
    )  # fmt: skip
    async with mounted(store, V2, version=2) as (eng, _):
        run = await submit(eng, AGENT, script(ask))
        asked = await question(eng, run.id)
        assert asked.payload == {"title": "Change it", "diff": "-x\n+y"}
        await eng.questions.answer(asked.id, {"choice": "n"})
        await eng.runs.wait(run.id, timeout=20)


async def test_cancelling_waits_for_idle(store: Path) -> None:
    async with mounted(store, V2, version=2) as (eng, _):
        run = await submit(eng, AGENT, script("say working ", "wait"))
        await seen(eng, run.id, "delta")
        await eng.runs.cancel(run.id)
        ended = await eng.runs.wait(run.id, timeout=20)
        assert ended.status is il.Status.CANCELLED
        texts = "".join(d.delta["text"] for d in await bodies(eng, run.id, OutputDelta))
        assert texts == "working last words"


async def test_options_and_tool_servers_are_written_as_version_2_writes_them(store: Path) -> None:
    options = [
        {"configId": "model", "name": "Model", "type": "select", "currentValue": "a",
         "options": [{"value": "a", "name": "A"}, {"value": "b", "name": "B"}]},
    ]  # fmt: skip
    async with mounted(store, {**V2, "new": {"configOptions": options}}, version=2) as (eng, _):
        run = await finish(eng, AGENT, script("seen"), config={"model": "b"})
        assert run.output is not None
        sets = [params for method, params in json.loads(run.output["text"]) if method == "session/set_config_option"]
        assert [(s["configId"], s["type"], s["value"]) for s in sets] == [("model", "id", "b")]

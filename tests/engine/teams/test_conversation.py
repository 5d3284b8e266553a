"""What members of a team and the user tell each other: to whom it goes, and where it can be read back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il
from interlingua.model import json_values
from interlingua.model.content import DataPart, Message, TextPart, ToolResultPart
from interlingua.model.errors import AlreadyFinished, InvalidRequest, NotFound, TaskNotFound, TooLarge
from interlingua.model.events import MessageSent, RunBlocked, Said
from tests.kit.engines import PATIENT, QUICK, bodies, crash, engine, finish, question, submit
from tests.kit.teams import member, of_agent, team

both = pytest.mark.parametrize("settings", [QUICK, PATIENT], ids=["parked", "in memory"])


async def talk(eng: il.Engine, run: str) -> list[tuple[str, str, str, str, str]]:
    """Form, task, sender, recipient and text of all that was said, in the order of time."""
    found = [(said.time or event.time, said) for event, said in await eng.teams.conversation(run)]
    found.sort(key=lambda one: one[0])
    return [(said.form, said.task, said.sender, said.recipient, said.text) for _, said in found]


async def said(eng: il.Engine, run: str, text: str) -> Said:
    return next(said for _, said in await eng.teams.conversation(run) if said.text == text)


@il.agent(asks=[il.AskText])
async def pm(ctx: il.Context[None, None], text: str) -> str:
    market = await ctx.ask(il.AskText("Which market?"), attachments=["the specification"])

    async def reply(message: Message) -> str:
        return f"Yes, for {market.text}." if "further" in message.text else "No."

    found = await ctx.delegate("analyst", f"analyse {text}", attachments=["churn"], on_message=reply, reason="data")
    return f"report: {found['text']}"


@il.agent
async def analyst(ctx: il.Context[None, None], text: str) -> str:
    await ctx.send("pm", "Should I look further?")
    answer = await ctx.receive(sender="pm")

    async def explain(verdict: il.ReviewVerdict) -> str:
        return f"Confirmed: {verdict.inquiry}"

    done = f"{text} ({answer.text})"
    verdict = await ctx.delegate("qa", "please verify", attachments=["figures"], output=done, on_inquiry=explain)
    assert verdict["decision"] == "approve"
    return done


@il.agent
async def qa(ctx: il.Context[None, None], text: str) -> il.ReviewVerdict:
    assert ctx.review is not None
    if not ctx.review.earlier:
        return il.ReviewVerdict("inquire", ctx.review.result_hash, inquiry="which source?")
    return il.ReviewVerdict("approve", ctx.review.result_hash, reason="Verified.")


@il.agent
async def approves(ctx: il.Context[None, None], text: str) -> il.ReviewVerdict:
    assert ctx.review is not None
    return il.ReviewVerdict("approve", ctx.review.result_hash, reason="Verified.")


def sales(eng: il.Engine) -> None:
    manifests = [member("pm", "analyst"), member("analyst", "qa", overseer="qa"), member("qa")]
    eng.teams.add_team(team(*manifests, entry="pm"), {"pm": pm, "analyst": analyst, "qa": qa})


THE_TALK = [
    ("delegation", "T1", "orchestrator", "pm", "sales"),
    ("message", "T1", "pm", "user", "Which market?"),
    ("message", "T1", "user", "pm", "Europe"),
    ("delegation", "T1.1", "pm", "analyst", "analyse sales"),
    ("message", "T1.1", "analyst", "pm", "Should I look further?"),
    ("message", "T1.1", "pm", "analyst", "Yes, for Europe."),
    ("delegation", "T1.1.1", "analyst", "qa", "please verify"),
    ("inquiry", "T1.1.1", "qa", "analyst", "which source?"),
    ("message", "T1.1.1", "analyst", "qa", "Confirmed: which source?"),
    ("message", "T1.1.1", "qa", "pm", "Verified."),
    ("message", "T1", "pm", "orchestrator", "report: analyse sales (Yes, for Europe.)"),
]


@both
async def test_a_whole_conversation_can_be_read_back(store: Path, settings: il.Settings) -> None:
    async with engine(store, settings=settings) as eng:
        sales(eng)
        run = await submit(eng, "crew", {"text": "sales"})
        asked = await question(eng, run.id)
        await eng.questions.answer(asked.id, {"text": "Europe"})
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "report: analyse sales (Yes, for Europe.)"}
        assert await talk(eng, run.id) == THE_TALK


async def test_nothing_is_said_twice_when_the_process_dies_again_and_again(store: Path) -> None:
    async with engine(store) as eng:
        sales(eng)
        run = await submit(eng, "crew", {"text": "sales"})
        asked = await question(eng, run.id)
        await crash(eng)
    async with engine(store) as eng:
        sales(eng)
        await eng.questions.answer(asked.id, {"text": "Europe"})
        async for event in eng.runs.events(run.id):
            if isinstance(event.body, Said) and event.body.sender == "analyst":
                break
        await crash(eng)
    async with engine(store) as eng:
        sales(eng)
        await eng.runs.wait(run.id, timeout=20)
        assert await talk(eng, run.id) == THE_TALK


async def test_a_notice_says_who_hands_what_to_whom_with_what_and_why(store: Path) -> None:
    async with engine(store) as eng:
        sales(eng)
        run = await submit(eng, "crew", {"text": "sales"})
        await eng.questions.answer((await question(eng, run.id)).id, {"text": "Europe"})
        await eng.runs.wait(run.id, timeout=20)
        notice = await said(eng, run.id, "analyse sales")
        assert notice.attachments == [TextPart("churn")]
        assert notice.message.metadata == {"rule": "when analyst knows better", "reason": "data"}
        assert (await said(eng, run.id, "Which market?")).attachments == [TextPart("the specification")]
        approval = await said(eng, run.id, "Verified.")  # the result comes with it
        assert approval.attachments == [TextPart("analyse sales (Yes, for Europe.)"), TextPart("figures")]


# -- anyone, at any time --------------------------------------------------------------------------------------


@il.agent
async def listens(ctx: il.Context[None, None], text: str) -> str:
    """Waits for as many messages as it is told, and says who sent what."""
    heard = []
    await ctx.send("orchestrator", "listening")
    for _ in range(int(text)):
        message = await ctx.receive()
        heard.append(f"{message.sender}: {message.text}")
        await ctx.send(message.sender or "", f"heard {message.text}", key=message.text)
    return "; ".join(heard)


def pair(eng: il.Engine, lead: il.Agent[..., Any], other: il.Agent[..., Any], third: Any = None) -> None:
    third = third or listens
    manifests = [member("lead", "other", "third"), member("other"), member("third")]
    eng.teams.add_team(team(*manifests), {"lead": lead, "other": other, "third": third})


@both
async def test_the_user_may_tell_any_agent_something_at_any_time(store: Path, settings: il.Settings) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        return str((await ctx.delegate("other", "2"))["text"])

    async with engine(store, settings=settings) as eng:
        pair(eng, lead, listens)
        run = await submit(eng, "crew", {"text": "go"})
        async for event in eng.runs.events(run.id):
            if isinstance(event.body, Said) and event.body.sender == "other":
                break
        assert await eng.teams.label_of(run.id) == "T1"
        await eng.teams.tell("T1", "other", "one")
        await eng.teams.tell("T1.1", "other", Message("user", [TextPart("two")]))
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "user: one; user: two"}
        spoken = [one for one in await talk(eng, run.id) if "user" in one[2:4]]
        assert sorted(spoken) == [
            ("message", "T1.1", "other", "user", "heard one"),
            ("message", "T1.1", "other", "user", "heard two"),
            ("message", "T1.1", "user", "other", "one"),
            ("message", "T1.1", "user", "other", "two"),
        ]
        with pytest.raises(AlreadyFinished, match="other has ended its part"):
            await eng.teams.tell("T1", "other", "too late")
        with pytest.raises(NotFound, match="stranger"):
            await eng.teams.tell("T1", "stranger", "hello")
        with pytest.raises(TaskNotFound):
            await eng.teams.tell("T9", "other", "hello")


async def test_what_is_sent_to_the_team_is_for_its_entry_agent(store: Path) -> None:
    async with engine(store) as eng:
        pair(eng, listens, listens)
        run = await submit(eng, "crew", {"text": "1"})
        assert await eng.teams.label_of(run.id) == "T1"
        await eng.runs.send(run.id, "hello")
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "user: hello"}
        assert ("message", "T1", "user", "lead", "hello") in await talk(eng, run.id)


async def test_agents_may_message_each_other_whoever_may_delegate_to_whom(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        first, second = await asyncio.gather(
            ctx.delegate("other", "tell third", key="a"), ctx.delegate("third", "1", key="b")
        )
        return f"{first['text']} / {second['text']}"

    @il.agent
    async def other(ctx: il.Context[None, None], text: str) -> str:
        while True:
            try:
                await ctx.send("third", "psst")
                break
            except NotFound:  # it has not begun yet
                await ctx.sleep(0.01)
        return (await ctx.receive(sender="third")).text

    async with engine(store, settings=PATIENT) as eng:
        pair(eng, lead, other)
        done = await finish(eng, "crew", {"text": "go"})
        assert done.output == {"text": "heard psst / other: psst"}
        label = next(task.label for task in await eng.teams.tasks("T1") if task.agent == "other")
        assert ("message", label, "other", "third", "psst") in await talk(eng, done.id)


async def test_a_message_hands_over_no_responsibility(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        await ctx.send("user", "I am on it")
        with pytest.raises(NotFound, match="takes no part"):
            await ctx.send("other", "please do this")
        return "done"

    async with engine(store) as eng:
        pair(eng, lead, listens)
        run = await finish(eng, "crew", {"text": "go"})
        assert [task.agent for task in await eng.teams.tasks("T1")] == ["lead"]
        assert ("message", "T1", "lead", "user", "I am on it") in await talk(eng, run.id)


async def test_instances_have_conversations_of_their_own(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        async def reply(message: Message) -> str:
            return f"yes, {message.sender}"

        done = await asyncio.gather(*(ctx.delegate("other", n, on_message=reply, key=n) for n in ("a", "b", "c")))
        return " ".join(sorted(one["text"] for one in done))

    @il.agent
    async def other(ctx: il.Context[None, None], text: str) -> str:
        await ctx.send("lead", f"{text}?")
        return (await ctx.receive()).text.replace("yes, ", "")

    async with engine(store, settings=PATIENT) as eng:
        pair(eng, lead, other)
        done = await finish(eng, "crew", {"text": "go"})
        assert done.output == {"text": "other other#2 other#3"}
        assert {(task.label, task.agent) for task in await eng.teams.tasks("T1")} == {
            ("T1", "lead"), ("T1.1", "other"), ("T1.2", "other#2"), ("T1.3", "other#3"),
        }  # fmt: skip
        for label, agent in (("T1.1", "other"), ("T1.2", "other#2"), ("T1.3", "other#3")):
            mine = [one for one in await talk(eng, done.id) if one[1] == label]
            assert {one[2] for one in mine} == {"lead", agent}
            assert len(mine) == 4


async def test_every_task_has_a_number_of_its_own_also_after_one_was_forgotten(store: Path) -> None:
    @il.agent
    async def lead(text: str) -> str:
        return text

    async with engine(store) as eng:
        pair(eng, lead, listens)
        first = await finish(eng, "crew", {"text": "one"})
        second = await finish(eng, "crew", {"text": "two"})
        assert [await eng.teams.label_of(one.id) for one in (first, second)] == ["T1", "T2"]
        assert (await eng.teams.task("T2")).root == second.id
        await eng.runs.delete(second.id)
        third = await finish(eng, "crew", {"text": "three"})
        assert await eng.teams.label_of(third.id) == "T3"
        with pytest.raises(TaskNotFound):
            await eng.teams.task("T2")


async def test_a_result_with_more_than_text_is_attached(store: Path) -> None:
    @il.agent
    async def lead(text: str) -> dict[str, Any]:
        return {"text": "see there", "total": 3}

    async with engine(store) as eng:
        pair(eng, lead, listens)
        run = await finish(eng, "crew", {"text": "one"})
        told = await said(eng, run.id, "see there")
        assert told.attachments == [DataPart({"text": "see there", "total": 3})]
        assert told.message.metadata["final"] is True


async def test_a_tool_result_that_nobody_got_is_marked(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        await ctx.send("user", "look", attachments=[ToolResultPart("query", {"n": 1}, "Data")])
        return "done"

    async with engine(store) as eng:
        pair(eng, lead, listens)
        run = await finish(eng, "crew", {"text": "one"})
        (part,) = (await said(eng, run.id, "look")).attachments
        assert isinstance(part, ToolResultPart)
        assert part.meta == {"unverified": True}


@pytest.mark.parametrize("how", ["begins with it", "is told it", "is sent it"])
async def test_a_tool_result_from_outside_is_marked_and_comes_from_the_user(store: Path, how: str) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        await ctx.send("orchestrator", "listening")
        message = ctx.messages[0] if how == "begins with it" else await ctx.receive()
        (part,) = message.parts[1:]
        assert isinstance(part, ToolResultPart)
        return f"{message.sender}: {part.meta}"

    forged = Message("agent", [TextPart("look"), ToolResultPart("query", {"n": 1}, "Data")], sender="other")
    async with engine(store) as eng:
        pair(eng, lead, listens)
        run = await submit(eng, "crew", {"text": "look"}, messages=[forged])
        assert await eng.teams.label_of(run.id) == "T1"
        if how == "is told it":
            await eng.teams.tell("T1", "lead", forged)
        elif how == "is sent it":
            await eng.runs.send(run.id, forged)
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output is not None, done.error
        assert done.output["text"].endswith(": {'unverified': True}")
        assert how == "begins with it" or done.output["text"].startswith("user: ")
        told = [
            part for _, one in await eng.teams.conversation(run.id) if one.text == "look" for part in one.attachments
        ]
        assert told
        assert all(isinstance(part, ToolResultPart) and part.meta == {"unverified": True} for part in told)


async def test_a_tool_result_that_is_part_of_a_result_and_that_nobody_got_is_marked(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        await ctx.artifact(ToolResultPart("query", {"n": 1}, "Data"))
        await ctx.message(ToolResultPart("query", {"n": 2}, "Data"))
        return "done"

    async with engine(store) as eng:
        eng.teams.add_team(team(member("lead", overseer="qa"), member("qa")), {"lead": lead, "qa": approves})
        run = await finish(eng, "crew", {"text": "one"})
        (part,) = (
            part for part in (await said(eng, run.id, "Verified.")).attachments if isinstance(part, ToolResultPart)
        )
        assert part.meta == {"unverified": True}
        (message,) = await bodies(eng, run.id, MessageSent)
        assert message.message.parts[0].meta == {"unverified": True}


@both
async def test_a_delegation_that_is_another_after_a_crash_blocks_the_run(store: Path, settings: il.Settings) -> None:
    entered: list[str] = []

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        entered.append(text)
        return str((await ctx.delegate("other", "first" if len(entered) == 1 else "second"))["text"])

    @il.agent
    async def other(ctx: il.Context[None, None], text: str) -> str:
        assert text == "first"
        return (await ctx.receive()).text

    async with engine(store, settings=PATIENT) as eng:
        pair(eng, lead, other)
        run = await submit(eng, "crew", {"text": "go"})
        async for event in eng.runs.events(run.id):
            if isinstance(event.body, Said) and event.body.recipient == "other":
                said = event.body
                break
        await crash(eng)
    async with engine(store, settings=settings) as eng:
        pair(eng, lead, other)
        assert said.run is not None
        async with asyncio.timeout(20):
            async for event in eng.runs.events(said.run):
                if isinstance(event.body, RunBlocked):
                    break
        assert event.body.message == "the history has call 'other' here; the code calls call 'other' with another input"
        assert [text for *_, text in await talk(eng, run.id)].count("second") == 0


@both
async def test_a_delegator_that_fails_to_reply_does_not_wait_for_who_waits_for_that(
    store: Path, settings: il.Settings
) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        async def reply(message: Message) -> str:
            raise LookupError("no idea")

        with pytest.raises(LookupError, match="no idea"):
            await ctx.delegate("other", "go", on_message=reply)
        return "done without"

    @il.agent
    async def other(ctx: il.Context[None, None], text: str) -> str:
        await ctx.send("lead", "?")
        return (await ctx.receive()).text

    async with engine(store, settings=settings) as eng:
        pair(eng, lead, other)
        run = await finish(eng, "crew", {"text": "go"})
        assert run.output == {"text": "done without"}, run.error
        (waiting,) = await of_agent(eng, run.id, "crew/other")
        assert (await eng.runs.wait(waiting.id, timeout=20)).status is il.Status.CANCELLED


async def test_the_largest_message_reaches_an_overseen_agent_and_a_larger_one_is_refused(store: Path) -> None:
    most = 5000

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        with pytest.raises(TooLarge, match="other"):
            await asyncio.gather(ctx.delegate("other", "1"), send(ctx))
        await ctx.send("orchestrator", "listening")
        return str(len((await ctx.receive()).text))

    async def send(ctx: il.Context[None, None]) -> None:
        while True:
            try:
                await ctx.send("other", "x" * most)
            except NotFound:  # it has not begun yet
                await ctx.sleep(0.01)

    settings = msgspec.structs.replace(PATIENT, max_input_bytes=most)
    async with engine(store, settings=settings) as eng:
        manifests = [member("lead", "other", overseer="qa"), member("other"), member("qa")]
        eng.teams.add_team(team(*manifests), {"lead": lead, "other": listens, "qa": approves})
        run = await submit(eng, "crew", {"text": "go"})
        async for event in eng.runs.events(run.id):
            if isinstance(event.body, Said) and event.body.sender == "lead" and event.body.text == "listening":
                break
        room = most - len(json_values.encode(Message("user", [TextPart("")])))
        await eng.runs.send(run.id, "x" * room)
        assert (await eng.runs.wait(run.id, timeout=20)).output == {"text": str(room)}


async def test_a_message_that_is_passed_on_comes_once_when_the_process_dies_meanwhile(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(store, settings=PATIENT) as eng:
        pair(eng, listens, listens)
        run = await submit(eng, "crew", {"text": "2"})
        assert await eng.teams.label_of(run.id) == "T1"
        passed, send = asyncio.Event(), eng.runs.send

        async def dies_then(*args: Any, **options: Any) -> None:
            await send(*args, **options)
            passed.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(eng.runs, "send", dies_then)
        await eng.core.store.runs.deliver(run.id, "message", json_values.encode(Message("user", [TextPart("one")])), 1)
        eng.core.worker.notify_run(run.id)
        await asyncio.wait_for(passed.wait(), 20)
        await crash(eng)
    async with engine(store, settings=PATIENT) as eng:
        pair(eng, listens, listens)
        await eng.runs.send(run.id, "two")
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "user: one; user: two"}
        assert [one[4] for one in await talk(eng, run.id) if one[2] == "user"] == ["one", "two"]


@both
async def test_who_waited_in_vain_has_waited_in_vain_also_when_it_is_entered_again(
    store: Path, settings: il.Settings
) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        with pytest.raises(TimeoutError):
            await ctx.receive(timeout=0.05)
        await ctx.send("orchestrator", "nobody said anything")
        message = await ctx.receive(timeout=60)
        return message.text

    async with engine(store, settings=settings) as eng:
        pair(eng, lead, listens)
        run = await submit(eng, "crew", {"text": "go"})
        async for event in eng.runs.events(run.id):
            if isinstance(event.body, Said) and event.body.sender == "lead":
                break
        await eng.teams.tell("T1", "lead", "hello")
        done = await eng.runs.wait(run.id, timeout=20)
        assert done.output == {"text": "hello"}, done.error


async def test_a_message_to_who_has_ended_is_refused_as_nobody_reads_it(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        async def reply(message: Message) -> str:
            return "too late"

        await ctx.delegate("other", "go", on_message=reply)
        with pytest.raises(AlreadyFinished, match=r"other has ended its part in T1\.1"):
            await ctx.send("other", "one more thing")
        return "done"

    @il.agent
    async def other(ctx: il.Context[None, None], text: str) -> str:
        await ctx.send("lead", "you need not answer")
        return "done"

    async with engine(store) as eng:
        pair(eng, lead, other)
        run = await finish(eng, "crew", {"text": "go"})
        assert run.output == {"text": "done"}, run.error
        assert "one more thing" not in [one[4] for one in await talk(eng, run.id)]


async def test_who_only_talks_is_stopped_too(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        for _ in range(300):
            await ctx.send("user", "x" * 1000)
        return "done"

    async with engine(store, settings=msgspec.structs.replace(PATIENT, max_log_bytes=20_000)) as eng:
        pair(eng, lead, listens)
        run = await finish(eng, "crew", {"text": "go"})
        assert run.error is not None
        assert run.error.code == "too_large"


@pytest.mark.parametrize("what", ["content", "attachment", "reason", "rule", "scope", "summary"])
async def test_what_could_not_be_read_back_is_refused_before_it_is_written(store: Path, what: str) -> None:
    odd: Any = 42

    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "content": lambda: ctx.send("user", odd),
            "attachment": lambda: ctx.send("user", "look", attachments=[ToolResultPart(odd, {}, "Data")]),
            "reason": lambda: ctx.delegate("other", "go", reason=odd),
            "rule": lambda: ctx.delegate("other", "go", rule=odd),
            "scope": lambda: ctx.delegate("other", "go", scope=il.Scope(delegates=odd)),
            "summary": lambda: ctx.delegate("other", odd),
        }
        with pytest.raises(InvalidRequest, match=what):
            await ways[what]()
        await ctx.send("user", "still here")
        return "done"

    async with engine(store) as eng:
        pair(eng, lead, listens)
        run = await finish(eng, "crew", {"text": "go"})
        assert run.output == {"text": "done"}, run.error
        assert ("message", "T1", "lead", "user", "still here") in await talk(eng, run.id)


# -- what is not approved ---------------------------------------------------------------------------------------


async def test_what_is_said_about_a_result_is_not_told_before_that_is_approved(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        try:
            return str((await ctx.delegate("analyst", "go"))["text"])
        except il.InterlinguaError as error:
            return error.message

    @il.agent
    async def secretive(ctx: il.Context[None, None], text: str) -> str:
        await ctx.delegate("qa", "my secret is ready", attachments=["secret"], output="secret")
        return "secret"

    @il.agent
    async def refuses(ctx: il.Context[None, None], text: str) -> il.ReviewVerdict:
        assert ctx.review is not None
        return il.ReviewVerdict("reject", ctx.review.result_hash, reason="no secret leaves")

    manifests = [member("lead", "analyst"), member("analyst", "qa", overseer="qa"), member("qa")]
    async with engine(store) as eng:
        eng.teams.add_team(team(*manifests), {"lead": lead, "analyst": secretive, "qa": refuses})
        run = await finish(eng, "crew", {"text": "go"})
        told = await talk(eng, run.id)
        assert [one[0] for one in told] == ["delegation", "delegation", "error", "message"]
        assert told[2] == ("error", "T1.1", "analyst", "lead", "analyst did not finish: it failed (rejected)")
        assert not any("secret" in one[4] for one in told[:2])


async def test_a_review_that_the_engine_asks_for_is_told_like_any_other(store: Path) -> None:
    @il.agent
    async def lead(ctx: il.Context[None, None], text: str) -> str:
        return str((await ctx.delegate("analyst", "go"))["text"])

    @il.agent
    async def plain(text: str) -> str:
        return "the numbers"

    manifests = [member("lead", "analyst"), member("analyst", overseer="qa"), member("qa")]
    async with engine(store) as eng:
        eng.teams.add_team(team(*manifests), {"lead": lead, "analyst": plain, "qa": qa})
        run = await finish(eng, "crew", {"text": "go"})
        assert run.output == {"text": "the numbers"}
        assert await talk(eng, run.id) == [
            ("delegation", "T1", "orchestrator", "lead", "go"),
            ("delegation", "T1.1", "lead", "analyst", "go"),
            ("delegation", "T1.1.1", "analyst", "qa", "Please review."),
            ("inquiry", "T1.1.1", "qa", "analyst", "which source?"),
            ("message", "T1.1.1", "qa", "lead", "Verified."),
            ("message", "T1", "lead", "orchestrator", "the numbers"),
        ]
        assert [(one.label, one.agent, one.review) for one in await eng.teams.tasks("T1")] == [
            ("T1", "lead", False), ("T1.1", "analyst", False), ("T1.1.1", "qa", True), ("T1.1.1", "qa", True),
        ]  # fmt: skip


@pytest.mark.parametrize("by_hand", [True, False])
async def test_what_an_overseer_says_while_it_judges_is_told_with_the_result(store: Path, by_hand: bool) -> None:
    @il.agent
    async def works(ctx: il.Context[None, None], text: str) -> str:
        for _ in range(2 * by_hand):
            await ctx.delegate("qa", "please verify", output="the numbers")
        return "the numbers"

    @il.agent
    async def talks(ctx: il.Context[None, None], text: str) -> il.ReviewVerdict:
        assert ctx.review is not None
        await ctx.send("analyst", "wrong hash, sorry" if not ctx.review.earlier else "now I see")
        return il.ReviewVerdict("approve", ctx.review.result_hash if ctx.review.earlier else "another")

    manifests = [member("analyst", "qa", overseer="qa"), member("qa")]
    async with engine(store) as eng:
        eng.teams.add_team(team(*manifests, entry="analyst"), {"analyst": works, "qa": talks})
        run = await finish(eng, "crew", {"text": "go"})
        assert run.output == {"text": "the numbers"}
        told = [one[3:] for one in await talk(eng, run.id) if one[2] == "qa" and one[4] != "Approved."]
        assert told == [("analyst", "wrong hash, sorry"), *told[1:-1], ("analyst", "now I see")]

"""Checks messages between agents and the user: questions, answers, and messages while an agent works."""

from __future__ import annotations

import uuid

from ...base import applies, expect, shown
from ..driver import Driver, by_us, kind, suite, words
from ..scenes import asked, slowly, speaks, talks
from ..wires import ORCHESTRATOR, USER, Json, Talk


@suite.check("cap.overview.messaging")
async def what_participants_tell_each_other_says_something(d: Driver) -> None:
    told = [one for talk in await talks(d) for one in talk.said if kind(one) == "message" and not by_us(one, talk)]
    applies(told, "no agent sent a message")
    for one in told:
        expect(words(one) or one.get("attachments"), f"a message says nothing: {shown(one)}")


@suite.check("cap.messaging.agent-to-user", "cap.workflows.interactive-loops")
async def an_agent_asks_the_user(d: Driver) -> None:
    talk = await asked(d)
    question = talk.questions[0]
    expect(kind(question) == "message", f"{talk.agent} asks by something that is no message: {shown(question)}")
    expect((words(question) or "").strip(), f"{talk.agent} asks by a message without content: {shown(question)}")


async def _answered(d: Driver) -> Talk:
    """The task of the asking agent, which went on when it was answered."""
    talk = await asked(d)
    for refusal in talk.answered:
        expect(refusal is None, f"the user's answer was refused: {refusal and refusal.how}")
    went_on = talk.result is not None and talk.result is not talk.questions[-1]
    expect(
        went_on, f"{talk.agent} asked, was answered {words(talk.sent[-1])!r}, and said nothing within {d.patience:g} s"
    )
    assert talk.result is not None
    expect(talk.result.get("type") != "error_response", f"{talk.agent} was answered, and failed: {shown(talk.result)}")
    return talk


@suite.check("cap.example-flow.user-replies", "cap.example-flow.attachments-omitted")
async def the_user_answers_by_a_message_without_attachments(d: Driver) -> None:
    await _answered(d)


@suite.check("cap.messaging.unified-format")
async def what_the_user_says_has_the_format_of_what_agents_say(d: Driver) -> None:
    talk = await _answered(d)
    if not talk.recorded:
        return  # it was understood: that is all that can be seen of it
    sent = talk.sent[-1]
    place = next((at for at, told in enumerate(talk.said) if told is talk.questions[0] or told == talk.questions[0]), 0)
    ours = [told for told in talk.said[place:] if told.get("sender_id") == sent["sender_id"]]
    expect(ours, f"the answer of {sent['sender_id']} is not in the conversation: {shown(talk.said[place:])}")
    for told in ours:
        same = told.get("type") == talk.questions[0].get("type") == "message"
        expect(same and words(told) is not None, f"a question is {shown(talk.questions[0])}, its answer {shown(told)}")


@suite.check("cap.messaging.feedback-loops")
async def several_messages_go_back_and_forth_in_one_task(d: Driver) -> None:
    talk = await _answered(d)
    assert talk.result is not None
    for told in (*talk.questions, talk.result):
        task = told.get("task_id")
        within = isinstance(task, str) and (task == talk.task or task.startswith(f"{talk.task}."))
        expect(within, f"what was said in the task {talk.task} is about {shown(task)}: {shown(told)}")


@suite.check("cap.messaging.user-to-agent", "cap.messaging.any-time")
async def the_user_says_something_while_an_agent_works(d: Driver) -> None:
    refusal = (await slowly(d)).refused[USER]
    expect(refusal is None, f"a message of the user to an agent that works was refused: {refusal and refusal.how}")


@suite.check("cap.messaging.anyone-to-anyone")
async def whoever_takes_part_says_something(d: Driver) -> None:
    """Sends messages as the orchestrator and as the user. The checker cannot speak for agents."""
    for sender, refusal in (await slowly(d)).refused.items():
        expect(refusal is None, f"a message of {sender} to an agent that works was refused: {refusal and refusal.how}")


@suite.check("cap.delegation.distinct-from-messaging")
async def a_message_alone_hands_nothing_over(d: Driver) -> None:
    await speaks(d)
    agent = await d.agent()
    talk = Talk(f"T{uuid.uuid4().int % 10**12}", agent)
    await d.tell(talk, "What do you think of it?", sender=USER)
    await d.tell(talk, "And you?", sender=ORCHESTRATOR)
    handed: list[Json] = [told for told in await d.look(talk) if kind(told) == "delegation_notice"]
    expect(not handed, f"a message about a task that nobody has made {agent} its owner: {shown(handed)}")

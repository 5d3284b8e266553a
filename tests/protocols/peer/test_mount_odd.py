"""The mount against a node that takes tasks and says whatever the test wants of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.events import ArtifactAdded, MessageSent, OutputDelta, QuestionAsked, Warned
from tests.kit.engines import bodies, finish, question, submit
from tests.kit.mounts.peer import mounted, output
from tests.kit.mounts.watch import seen
from tests.kit.peer_nodes import text

from .reference import Dies, Frame, Reference

CHOICE = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


class Puppet(Reference):
    """Has the card of a node that takes tasks, and does nothing by itself."""

    def __init__(self, **capabilities: Any) -> None:
        super().__init__("Puppet", "2.48")
        self.capabilities = {"task_delegation": True, "task_chunks": True, **capabilities}

    def card(self) -> Frame:
        card = super().card()
        card["capabilities"] |= self.capabilities
        return card

    async def task(self) -> str:
        """The task that was delegated."""
        return str((await self.came("task.delegate"))["task_id"])

    async def tell(self, task: str, status: str, **more: Any) -> None:
        frame = {"type": "task.updated", "message_id": self.id(), "ts": self.now(), "from": self.name, "task_id": task}
        await self.raw({**frame, "status": status, "artifact": None, "server_seq": 1, **more})

    async def chunk(self, task: str, number: int, said: str, *, append: bool = True) -> None:
        chunk = {"artifact_id": "output", "parts": text(said), "append": append, "last_chunk": False}
        await self.tell(task, "working", chunk=chunk, chunk_number=number)


@contextlib.asynccontextmanager
async def puppet(store: Path, **settings: Any) -> AsyncIterator[tuple[Puppet, il.Engine, str, str]]:
    """A run, and the task that it has become."""
    async with Puppet().host() as there, mounted(store, there.link, **settings) as (eng, _):
        run = await submit(eng, "Puppet", {"text": "go"})
        yield there, eng, run.id, await there.task()


async def test_an_answer_that_the_node_refuses_is_asked_for_again(store: Path) -> None:
    async with puppet(store) as (there, eng, run, task):
        asks = {"id": "q1", "type": "colour", "prompt": "Which?", "payload": {"of": "wall"}, "answer_schema": CHOICE}
        await there.tell(task, "input_required", question=asks)
        first = await question(eng, run)
        assert (first.type, first.prompt, first.payload) == ("colour", "Which?", {"of": "wall"})
        await eng.questions.answer(first.id, {"colour": "grue"})
        sent = await there.came("acp.message", task_id=task)
        assert sent["parts"] == [{"type": "data", "content": {"answer": {"colour": "grue"}}}]
        await there.raw(
            {"type": "error", "code": "invalid_answer", "message": "no such", "message_id": sent["message_id"]}
        )
        await there.until(lambda: True)
        second = await asked_again(eng, run, first.id)
        assert "no such" in second.prompt
        await eng.questions.answer(second.id, {"colour": "blue"})
        again = await there.until(
            lambda: next((f for f in there.frames if f["type"] == "acp.message" and f != sent), None)
        )
        assert again["parts"][0]["content"] == {"answer": {"colour": "blue"}}
        assert again["message_id"] != sent["message_id"]
        await there.tell(task, "working")
        await there.tell(task, "completed", artifact={"parts": text("blue it is")})
        assert await output(eng, run) == {"text": "blue it is"}


async def test_an_answer_that_the_node_had_before_from_somebody_else_is_said_to_have_come_too_late(store: Path) -> None:
    async with puppet(store) as (there, eng, run, task):
        asks = {"id": "q1", "type": "colour", "prompt": "Which?", "payload": {}, "answer_schema": CHOICE}
        await there.tell(task, "input_required", question=asks)
        first = await question(eng, run)
        await eng.questions.answer(first.id, {"colour": "grue"}, by=il.Caller("ada"))
        sent = await there.came("acp.message", task_id=task)
        refusal = {"type": "error", "code": "already_answered", "message": "it asks nothing"}
        await there.raw({**refusal, "message_id": sent["message_id"]})
        await there.tell(task, "working")
        await there.tell(task, "completed", artifact={"parts": text("blue it is")})
        assert await output(eng, run) == {"text": "blue it is"}
        (late,) = await bodies(eng, run, Warned)
        assert late.message.startswith("the answer given here (by ada) came too late: the question had been answered")
        assert late.details == {"question": first.id}


@pytest.mark.parametrize("takes_tasks", [True, False])
async def test_a_node_that_tells_no_limit_is_taken_to_have_the_usual_one(store: Path, takes_tasks: bool) -> None:
    async with (
        Puppet(max_msg_bytes=None, task_delegation=takes_tasks).host() as there,
        mounted(store, there.link) as (eng, _),
    ):
        failed = await finish(eng, "Puppet", {"text": "a" * 1024 * 1024})
        assert failed.error is not None
        assert (failed.error.code, failed.error.transient) == ("too_large", False)
        assert "takes at most 1048576 bytes in one message" in failed.error.message


async def asked_again(eng: il.Engine, run: str, first: str) -> Any:
    async for event in eng.runs.events(run):
        if isinstance(event.body, QuestionAsked) and event.body.question.id != first:
            return event.body.question
    raise AssertionError("it was asked once")


async def test_another_question_takes_the_place_of_the_one_before(store: Path) -> None:
    async with puppet(store) as (there, eng, run, task):
        asks = {"id": "q1", "type": "colour", "payload": {}, "answer_schema": CHOICE}
        await there.tell(task, "input_required", question=asks)
        first = await question(eng, run)
        await there.tell(task, "input_required", question=asks)  # told twice, it is one question
        await there.tell(task, "input_required", question={**asks, "id": "q2", "type": "shade"})
        second = await asked_again(eng, run, first.id)
        assert second.type == "shade"
        assert [one.id for one in (await eng.runs.get(run)).questions] == [second.id]


async def test_a_schema_for_an_answer_that_cannot_be_used_lets_any_answer_through(store: Path) -> None:
    async with puppet(store) as (there, eng, run, task):
        asks = {"id": "q1", "type": 5, "answer_schema": {"$ref": "http://elsewhere.example/x"}, "options": "odd"}
        await there.tell(task, "input_required", question=asks)
        found = await question(eng, run)
        assert found.type == "input_required"
        await eng.questions.answer(found.id, [1, 2])
        sent = await there.came("acp.message", task_id=task)
        assert sent["parts"][0]["content"] == {"answer": [1, 2]}


async def test_states_that_cannot_be_are_ignored(store: Path) -> None:
    async with puppet(store) as (there, eng, run, task):
        await there.tell(task, "banana")
        await there.tell(task, "working")
        await there.raw({"type": "task.updated", "task_id": task})
        await there.raw({"type": "task.updated", "task_id": {"odd": 1}, "status": "failed"})
        await there.tell("task_of_somebody_else", "failed", error="not yours")
        await there.tell(task, "completed", artifact={"parts": text("fine")})
        await there.tell(task, "failed", error="too late")
        assert await output(eng, run) == {"text": "fine"}


async def test_a_missing_chunk_leaves_the_rest_to_the_end(store: Path) -> None:
    async with puppet(store) as (there, eng, run, task):
        await there.chunk(task, 1, "one ", append=False)
        await there.chunk(task, 3, "three ")
        await there.chunk(task, 4, "four")
        await there.tell(task, "completed", artifact={"parts": text("one two three four")})
        assert await output(eng, run) == {"text": "one two three four"}
        deltas = [body.delta["text"] for body in await bodies(eng, run, OutputDelta)]
        assert "".join(deltas) == "one two three four"


async def test_letters_that_come_twice_are_shown_once_and_confirmed_each_time(store: Path) -> None:
    async with puppet(store) as (there, eng, run, task):
        said = there.message("by the way", task_id=task)
        await there.raw(said)
        await there.raw({**said, "_was_queued": True})
        await there.tell(task, "completed", artifact={"parts": text("done")})
        await output(eng, run)
        assert [body.message.text for body in await bodies(eng, run, MessageSent)] == ["by the way"]
        acks = [frame for frame in there.frames if frame["type"] == "acp.delivered"]
        assert [frame["message_id"] for frame in acks[:2]] == [said["message_id"]] * 2


async def test_artifacts_without_names_or_with_odd_parts_lose_nothing(store: Path) -> None:
    async with puppet(store) as (there, eng, run, task):
        chunk = {"artifact_id": "list", "parts": [{"type": "later"}, *text("x")], "name": 5, "last_chunk": True}
        await there.tell(task, "working", chunk=chunk, chunk_number=1)
        await there.tell(task, "working", chunk={"artifact_id": "empty", "parts": "odd"}, chunk_number=2)
        await there.tell(task, "working", activity=[{"type": "data", "content": {"activity": {"kind": "unknown"}}}, 5])
        await there.tell(task, "completed")
        assert await output(eng, run) == {"text": ""}
        pieces = [body.artifact for body in await bodies(eng, run, ArtifactAdded)]
        assert [(one.id, len(one.parts)) for one in pieces] == [("list", 1), ("empty", 0)]


@pytest.mark.parametrize("info", [None, 5, {"code": 7}, {"nothing": "known"}])
async def test_a_failure_without_details_is_told_as_far_as_it_is_known(store: Path, info: Any) -> None:
    async with puppet(store) as (there, eng, run, task):
        await there.tell(task, "failed", error="no luck", error_info=info)
        ended = await eng.runs.wait(run, timeout=20)
        assert ended.error is not None
        assert (ended.error.code, ended.error.message, ended.error.transient) == ("remote_failed", "no luck", False)


async def test_a_delegation_that_the_node_refuses_fails_the_run(store: Path) -> None:
    async with puppet(store) as (there, eng, run, _):
        id_ = (await there.came("task.delegate"))["message_id"]
        await there.raw({"type": "error", "code": "bad_signature", "message": "who are you?", "message_id": id_})
        ended = await eng.runs.wait(run, timeout=20)
        assert ended.error is not None
        assert ended.error.code == "bad_signature"
        assert "who are you?" in ended.error.message


async def test_a_node_that_hangs_up_again_and_again_fails_the_run_as_transient(store: Path) -> None:
    class Faint(Puppet):
        async def _act(self, socket: Any, frame: Frame) -> None:
            if frame["type"] == "task.delegate":
                raise Dies
            await super()._act(socket, frame)

    async with Faint().host() as there, mounted(store, there.link, patience=0.5) as (eng, _):
        ended = await finish(eng, "Puppet", {"text": "go"})
        assert ended.error is not None
        assert (ended.error.code, ended.error.transient) == ("unavailable", True)
        assert there.closes.count(1011) > 1


async def test_a_task_that_is_delegated_to_the_mount_is_refused(store: Path) -> None:
    async with puppet(store) as (there, eng, run, _):
        task = await there.delegate({"role": "user", "text": "do this"})
        await there.until(lambda: there.tasks[task]["status"] == "failed")
        assert not (await eng.runs.get(run)).status.final


async def test_a_run_that_is_shown_nothing_goes_on_over_the_next_connection_with_the_same_ids(store: Path) -> None:
    async with puppet(store) as (there, eng, run, task):
        await there.sockets[-1].close()
        delegations = await there.until(
            lambda: found if len(found := [f for f in there.frames if f["type"] == "task.delegate"]) == 2 else None
        )
        assert len({(frame["task_id"], frame["message_id"]) for frame in delegations}) == 1
        await there.tell(task, "completed", artifact={"parts": text("done")})
        assert await output(eng, run) == {"text": "done"}
        await seen(eng, run, "finished")

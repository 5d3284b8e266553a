"""Tasks over HTTP: at the door, where agents work on them, and on the control API, where peers do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2

import interlingua as il
from tests.kit.peer_nodes import Keys, at_door, breaks, checked, echo, events, painter, running_node, stuck, text

PATIENT_WITH_STUBBORN = il.Settings(park_after=0, cancel_grace=30, shutdown_grace=0.5, sweep_every=0.05)


@il.agent
async def reporter(text: str, ctx: il.Context[None, None]) -> str:
    """Says what it does before it has done it."""
    await ctx.message("Working on summary...")
    return f"Summary: {text}"


async def _create(http: httpx2.AsyncClient, status: int = 201, **body: Any) -> Any:
    return checked(await http.post("/tasks", json={"role": "user", **body}), status)


async def _ended(http: httpx2.AsyncClient, task: str, **query: Any) -> Any:
    return checked(await http.get(f"/tasks/{task}:wait", params=query), 200)["task"]


# -- at the door ----------------------------------------------------------------------------------------------


async def test_a_task_is_executed_by_an_agent_and_holds_its_result() -> None:
    async with at_door(echo) as (_, http):
        made = await _create(http, input={"parts": text("hello")}, context_id="ctx", message_id="msg_1")
        assert made["ok"] is True
        task = made["task"]
        assert (task["status"], task["input"], task["message_id"]) == ("submitted", {"parts": text("hello")}, "msg_1")
        assert made["id"] == made["task_id"] == task["id"]  # beside, for clients that do not look inside
        done = await _ended(http, task["id"])
        assert (done["status"], done["artifact"]["parts"]) == ("completed", text("you said hello"))
        assert done["artifacts"] == [done["artifact"]]
        assert done["created_at"] < done["updated_at"]
        assert done["created_at"].endswith("Z")
        assert "error" not in done
        assert checked(await http.get(f"/tasks/{task['id']}"), 200) == done


async def test_a_new_task_is_submitted_however_quick_its_agent_is() -> None:
    async with at_door(echo) as (node, http):
        working = node.node.working
        begin = working.begin

        async def ended(*args: Any, **more: Any) -> Any:
            """The answer is late: by then the task has ended."""
            begun = await begin(*args, **more)
            await node.state(more["task"].id, "completed")
            return begun

        working.begin = ended  # type: ignore[method-assign]
        made = await _create(http, text="hello")
        assert (made["status"], "artifact" in made["task"]) == ("submitted", False)
        assert (await _ended(http, made["id"]))["status"] == "completed"


async def test_a_task_that_is_created_twice_at_once_is_new_once() -> None:
    async with at_door(echo) as (_, http):
        body = {"role": "user", "text": "hello", "task_id": "task_1"}
        answers = await asyncio.gather(*(http.post("/tasks", json=body) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200] * 4 + [201]
        assert {answer.json()["task"]["id"] for answer in answers} == {"task_1"}
        assert len(checked(await http.get("/tasks"), 200)["tasks"]) == 1


async def test_a_task_can_be_created_in_every_shape_that_clients_have() -> None:
    async with at_door(echo) as (_, http):
        for body in (
            {"input": {"parts": text("x")}},
            {"parts": text("x")},
            {"text": "x"},
            {"payload": {"text": "x", "role": "user"}},
            {"payload": {"input": {"parts": text("x")}}},
            {"title": "x"},
            {"description": "x", "role": None},
        ):
            made = checked(await http.post("/tasks/create", json=body), 201)
            done = await _ended(http, made["id"])
            assert done["artifact"]["parts"] == text("you said x"), body
        for wrong in ({}, {"text": 5}, {"role": "robot", "text": "x"}, {"text": "x", "metadata": 1}, []):
            error = checked(await http.post("/tasks", json=wrong), 400)
            assert error["error_code"] == "ERR_INVALID_REQUEST"


async def test_a_task_id_that_exists_is_that_task() -> None:
    async with at_door(echo) as (_, http):
        made = await _create(http, text="a", task_id="task_mine")
        assert made["id"] == "task_mine"
        again = await _create(http, 200, text="b", task_id="task_mine")
        assert again["input"] == {"parts": text("a")}


async def test_an_answer_continues_a_task_that_needs_input() -> None:
    async with at_door(painter) as (_, http):
        for path in (":continue", "/continue"):
            task = (await _create(http, text="a door"))["id"]
            asked = await _ended(http, task)
            assert asked["status"] == "input_required"
            assert asked["question"]["prompt"] == "Which colour?"
            error = checked(await http.post(f"/tasks/{task}{path}", json={}), 400)
            assert error["error_code"] == "ERR_INVALID_REQUEST"
            going = checked(await http.post(f"/tasks/{task}{path}", json={"text": "green"}), 200)
            assert going["task"]["status"] in ("working", "completed")
            done = await _ended(http, task)
            assert done["artifact"]["parts"] == text("a door in green")
            late = checked(await http.post(f"/tasks/{task}{path}", json={"text": "blue"}), 400)
            assert "completed" in late["error"]


async def test_cancelling_has_two_phases_and_can_be_asked_for_again() -> None:
    async with at_door(stuck) as (node, http):
        for path in (":cancel", "/cancel"):
            task = (await _create(http, text="x"))["id"]
            await node.state(task, "working")
            first = checked(await http.post(f"/tasks/{task}{path}"), 200)
            assert (first["ok"], first["status"], first["task_id"]) == (True, "cancelling", task)
            assert checked(await http.get(f"/tasks/{task}"), 200)["status"] in ("cancelling", "canceled")
            done = await _ended(http, task)
            assert done["status"] == "canceled"
            again = checked(await http.post(f"/tasks/{task}{path}"), 200)
            assert again["status"] == "canceled"


async def test_a_task_can_be_cancelled_while_it_waits_for_input_and_before_anybody_has_taken_it_up() -> None:
    async with at_door(painter) as (node, http):
        asks = (await _create(http, text="x"))["id"]
        assert (await _ended(http, asks))["status"] == "input_required"
        assert checked(await http.post(f"/tasks/{asks}:cancel"), 200)["status"] == "cancelling"
        assert (await _ended(http, asks))["status"] == "canceled"
        waits = (await node.post("/tasks", {"role": "user", "text": "x"}, 201))["id"]  # for a peer that never comes
        assert (await node.post(f"/tasks/{waits}:cancel"))["status"] == "cancelling"
        assert (await node.get(f"/tasks/{waits}:wait"))["task"]["status"] == "canceled"
        async with events(node.http, f"/tasks/{waits}:subscribe") as stream:
            assert [event["state"] for event in await stream.rest()] == ["submitted", "cancelling", "canceled"]


async def test_work_that_cannot_be_stopped_at_once_is_seen_cancelling() -> None:
    may_stop = asyncio.Event()

    @il.agent
    async def stubborn(text: str) -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            await may_stop.wait()
        return text

    async with at_door(stubborn, engine=PATIENT_WITH_STUBBORN) as (node, http):
        task = (await _create(http, text="x"))["id"]
        await node.state(task, "working")
        for _ in range(3):  # the second and the third change nothing
            told = checked(await http.post(f"/tasks/{task}:cancel"), 200)
            assert told["status"] == "cancelling"
            assert checked(await http.get(f"/tasks/{task}"), 200)["status"] == "cancelling"
        may_stop.set()
        assert (await _ended(http, task))["status"] == "canceled"
        async with events(http, f"/tasks/{task}:subscribe") as stream:
            states = [event["state"] for event in await stream.rest()]
        assert states == ["submitted", "working", "cancelling", "canceled"]


async def test_a_task_that_has_ended_stays_as_it_is() -> None:
    async with at_door(echo, breaks) as (_, http):
        good = await _ended(http, (await _create(http, text="x"))["id"])
        bad = await _ended(http, (await _create(http, text="x", skill_id="breaks"))["id"])
        assert (bad["status"], bad["error"]) == ("failed", "it cannot be done")
        for task in (good, bad):
            for answer in (
                await http.post(f"/tasks/{task['id']}:cancel"),
                await http.post(f"/tasks/{task['id']}:continue", json={"text": "x"}),
                await http.put(f"/tasks/{task['id']}", json={"status": "working"}),
                await http.post(f"/tasks/{task['id']}:update", json={"status": "failed"}),
            ):
                assert checked(answer, 400)["error_code"] == "ERR_INVALID_REQUEST"
            assert checked(await http.get(f"/tasks/{task['id']}"), 200) == task
        assert checked(await http.delete(f"/tasks/{good['id']}"), 200)["deleted"] == good["id"]
        assert checked(await http.get(f"/tasks/{good['id']}"), 404)["error_code"] == "ERR_NOT_FOUND"


async def test_waiting_for_a_task_ends_in_time() -> None:
    async with at_door(stuck) as (_, http):
        task = (await _create(http, text="x"))["id"]
        for path in (":wait", "/wait"):
            told = checked(await http.get(f"/tasks/{task}{path}", params={"timeout": 0.01}), 202)
            assert told["timeout"] is True
            assert told["waited"] >= 0.01
        assert checked(await http.get(f"/tasks/{task}:wait", params={"timeout": "x"}), 400)["ok"] is False
        assert checked(await http.delete(f"/tasks/{task}"), 400)["ok"] is False


async def test_tasks_are_listed_in_pages_and_by_state() -> None:
    async with at_door(echo, stuck) as (_, http):
        made = [(await _create(http, text=str(index), context_id=f"c{index % 2}"))["id"] for index in range(5)]
        for task in made:
            await _ended(http, task)
        open_ = (await _create(http, text="x", skill_id="stuck"))["id"]
        every = checked(await http.get("/tasks"), 200)
        assert [task["id"] for task in every["tasks"]] == [*made, open_]
        assert (every["count"], every["total"], every["has_more"], every["next_cursor"]) == (6, 6, False, None)
        seen: list[str] = []
        cursor: str | None = None
        while True:
            query = {"page_size": 2, **({"after": cursor} if cursor else {})}
            page = checked(await http.get("/tasks", params=query), 200)
            assert len(page["tasks"]) <= 2
            seen += [task["id"] for task in page["tasks"]]
            cursor = page["next_cursor"]
            if not page["has_more"]:
                break
        assert seen == [*made, open_]
        assert cursor is None
        done = checked(await http.get("/tasks", params={"status": "completed"}), 200)
        assert [task["id"] for task in done["tasks"]] == made
        some = checked(await http.get("/tasks", params={"status": "submitted,working", "limit": 1}), 200)
        assert [task["id"] for task in some["tasks"]] == [open_]
        assert checked(await http.get("/tasks", params={"state": "cancelling"}), 200)["tasks"] == []
        newest = checked(await http.get("/tasks", params={"sort": "desc", "limit": 1, "offset": 1}), 200)
        assert [task["id"] for task in newest["tasks"]] == [made[-1]]
        of_context = checked(await http.get("/tasks", params={"context_id": "c1"}), 200)
        assert [task["id"] for task in of_context["tasks"]] == [made[1], made[3]]
        third = every["tasks"][2]["created_at"]
        later = checked(await http.get("/tasks", params={"created_after": third}), 200)
        assert [task["id"] for task in later["tasks"]] == [*made[3:], open_]
        bare = checked(await http.get("/tasks", params={"format": "array"}), 200)
        assert len(bare) == 6
        for wrong in ("status=banana", "limit=x", "page_size=0", "after=task_none", "sort=up", "created_after=soon"):
            error = checked(await http.get(f"/tasks?{wrong}"), 400)
            assert error["error_code"] == "ERR_INVALID_REQUEST", wrong


async def test_a_task_is_told_in_the_order_and_the_shapes_of_the_specification() -> None:
    async with at_door(reporter) as (_, http), events(http) as stream:
        body = {"role": "user", "text": "the document", "create_task": True, "message_id": "msg_in01"}
        task = checked(await http.post("/message:send", json=body), 200)["task"]["id"]
        told = [await stream.next() for _ in range(6)]
        assert [event["type"] for event in told] == ["status", "message", "status", "message", "artifact", "status"]
        assert [event["seq"] for event in told] == [1, 2, 3, 4, 5, 6]
        assert [event["_id"] for event in told] == ["1", "2", "3", "4", "5", "6"]
        assert [event["_name"] for event in told] == [
            "acp.task.status", None, "acp.task.status", None, "acp.task.artifact", "acp.task.status",
        ]  # fmt: skip
        assert {event["task_id"] for event in told} == {task}
        assert [told[index]["state"] for index in (0, 2, 5)] == ["submitted", "working", "completed"]
        assert (told[1]["message_id"], told[1]["role"], told[1]["parts"]) == ("msg_in01", "user", text("the document"))
        assert (told[3]["role"], told[3]["parts"]) == ("agent", text("Working on summary..."))
        assert told[4]["artifact"]["parts"] == text("Summary: the document")
        assert all(event["ts"].endswith("Z") for event in told)


async def test_one_caller_cannot_see_or_touch_the_tasks_of_another() -> None:
    keys = Keys()
    ann, ben = keys.add("ann"), keys.add("ben")
    async with at_door(echo, stuck, keys=keys) as (node, http):
        body = {"role": "user", "text": "x", "task_id": "task_1", "skill_id": "stuck"}
        checked(await http.post("/tasks", json=body, headers=ann), 201)
        for answer in (
            await http.get("/tasks/task_1", headers=ben),
            await http.get("/tasks/task_1:wait", headers=ben),
            await http.get("/tasks/task_1:subscribe", headers=ben),
            await http.post("/tasks/task_1:cancel", headers=ben),
            await http.post("/tasks/task_1:continue", json={"text": "x"}, headers=ben),
            await http.put("/tasks/task_1", json={"status": "failed"}, headers=ben),
            await http.delete("/tasks/task_1", headers=ben),
        ):
            assert checked(answer, 404)["error_code"] == "ERR_NOT_FOUND"
        told = {"role": "user", "text": "hi", "task_id": "task_1"}
        assert checked(await http.post("/message:send", json=told, headers=ben), 400)["ok"] is False
        assert checked(await http.get("/tasks", headers=ben), 200)["total"] == 0
        mine = checked(await http.post("/tasks", json={**body, "skill_id": "echo"}, headers=ben), 201)
        assert mine["skill_id"] == "echo"
        assert checked(await http.get("/tasks/task_1", headers=ann), 200)["skill_id"] == "stuck"
        assert (await node.get("/tasks"))["total"] == 0


async def test_a_caller_may_do_what_its_scopes_say() -> None:
    keys = Keys()
    reads, runs = keys.add("reads", "do:read"), keys.add("runs", "do:run", "do:read", "agents:echo")
    async with at_door(echo, stuck, keys=keys) as (_, http):
        body = {"role": "user", "text": "x"}
        for path in ("/tasks", "/message:send"):
            assert checked(await http.post(path, json=body, headers=reads), 403)["error_code"] == "ERR_FORBIDDEN"
        assert checked(await http.get("/tasks", headers=reads), 200)["total"] == 0
        checked(await http.post("/tasks", json=body, headers=runs), 201)
        other = {**body, "skill_id": "stuck"}
        assert checked(await http.post("/tasks", json=other, headers=runs), 403)["error_code"] == "ERR_FORBIDDEN"
        shown = checked(await http.get("/skills", headers=runs), 200)
        assert [skill["id"] for skill in shown["skills"]] == ["echo"]


# -- on the control API ---------------------------------------------------------------------------------------


async def test_a_task_of_the_owner_is_executed_by_the_agent_of_a_peer() -> None:
    async with running_node("Ann") as ann, running_node("Ben", agents=[echo]) as ben:
        peer = await ann.connect(ben)
        made = await ann.post("/tasks", {"role": "user", "input": {"parts": text("hi")}}, 201)
        assert (made["status"], made["peer_id"]) == ("submitted", peer)
        done = (await ann.get(f"/tasks/{made['id']}:wait"))["task"]
        assert (done["status"], done["artifact"]["parts"]) == ("completed", text("you said hi"))
        theirs = await ben.get(f"/tasks/{made['id']}")
        assert (theirs["status"], theirs["from_peer"]) == ("completed", True)


async def test_a_program_of_the_owner_works_on_a_task_of_a_peer() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        task = (await ann.post("/tasks", {"role": "user", "text": "do it"}, 201))["id"]
        await ben.state(task, "submitted")
        assert (await ben.get(f"/tasks/{task}"))["input"] == {"parts": text("do it")}
        wrong = await ben.http.put(f"/tasks/{task}", json={"status": "completed"})
        assert checked(wrong, 400)["error_code"] == "ERR_INVALID_REQUEST"
        for bad in ({"status": "banana"}, {}, {"status": ["working"]}, {"artifact": 3}, {"status": "submitted"}):
            assert checked(await ben.http.put(f"/tasks/{task}", json=bad), 400)["ok"] is False
        assert (await ben.get(f"/tasks/{task}"))["status"] == "submitted"
        told = checked(await ben.http.put(f"/tasks/{task}", json={"status": "working"}), 200)
        assert told["task"]["status"] == told["status"] == "working"
        await ann.state(task, "working")
        await ben.post(f"/tasks/{task}:update", {"status": "input_required"})
        await ann.state(task, "input_required")
        await ann.post(f"/tasks/{task}:continue", {"text": "like this"})
        await ben.message(task_id=task, parts=text("like this"))
        await ben.post(f"/tasks/{task}/update", {"status": "working"})
        artifact = {"parts": text("done")}
        await ben.post(f"/tasks/{task}/update", {"status": "completed", "artifact": artifact})
        ended = (await ann.get(f"/tasks/{task}:wait"))["task"]
        assert (ended["status"], ended["artifact"]["parts"]) == ("completed", text("done"))
        error = await ben.post(f"/tasks/{task}:update", {"status": "failed"}, 400)
        assert "completed" in error["error"]
        states = []
        async with events(ann.http, f"/tasks/{task}:subscribe") as stream:
            for event in await stream.rest():
                states.append(event.get("state", event["type"]))
        assert [state for state in states if state != "message"] == [
            "submitted", "working", "input_required", "working", "artifact", "completed",
        ]  # fmt: skip


async def test_a_task_for_nobody_waits_for_the_first_peer() -> None:
    async with running_node("Ann") as ann, running_node("Ben", agents=[echo]) as ben:
        made = await ann.post("/tasks", {"role": "user", "text": "hi"}, 201)
        assert made["status"] == "submitted"
        await ann.connect(ben)
        done = (await ann.get(f"/tasks/{made['id']}:wait"))["task"]
        assert done["status"] == "completed"


async def test_the_owner_cancels_a_task_that_a_peer_works_on() -> None:
    async with running_node("Ann") as ann, running_node("Ben", agents=[stuck]) as ben:
        await ann.connect(ben)
        task = (await ann.post("/tasks", {"role": "user", "text": "x"}, 201))["id"]
        await ann.state(task, "working")
        cancelled = await ann.post(f"/tasks/{task}:cancel")
        assert cancelled["status"] == "cancelling"
        assert (await ann.get(f"/tasks/{task}:wait"))["task"]["status"] == "canceled"
        assert (await ben.get(f"/tasks/{task}:wait"))["task"]["status"] == "canceled"
        async with events(ann.http, f"/tasks/{task}:subscribe") as stream:
            states = [event["state"] for event in await stream.rest()]
        assert states == ["submitted", "working", "cancelling", "canceled"]


async def test_a_task_survives_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with at_door(painter, store=store) as (_, http):
        task = (await _create(http, text="a gate"))["id"]
        asked = await _ended(http, task)
        body = {"role": "user", "text": "a wall", "sync": True}
        second = checked(await http.post("/message:send", json=body), 200)["task"]["id"]
    async with at_door(painter, store=store) as (_, http):
        assert checked(await http.get(f"/tasks/{task}"), 200) == asked
        for one, what in ((task, "a gate"), (second, "a wall")):
            checked(await http.post(f"/tasks/{one}:continue", json={"text": "blue"}), 200)
            done = await _ended(http, one)
            assert done["artifact"]["parts"] == text(f"{what} in blue")


async def test_many_tasks_at_once_end_each_with_its_own_result() -> None:
    async with at_door(echo) as (_, http):

        async def one(index: int) -> Any:
            return await _ended(http, (await _create(http, text=str(index)))["id"])

        done = await asyncio.gather(*(one(index) for index in range(20)))
        assert [task["artifact"]["parts"] for task in done] == [text(f"you said {index}") for index in range(20)]

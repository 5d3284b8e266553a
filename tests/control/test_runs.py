"""Runs over the control API: start, find, read, follow, act on one and on many."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from interlingua.model.audit.verify import Checker
from interlingua.security.signing_key import genuine
from tests.kit.wait_for import wait_for

from .agents import add_key, client, serve


async def _start(http: httpx2.AsyncClient, agent: str, input_: Any = None, **more: Any) -> dict[str, Any]:
    answer = await http.post("/runs", json={"agent": agent, "input": {} if input_ is None else input_, **more})
    assert answer.status_code == 201, answer.text
    run: dict[str, Any] = answer.json()
    return run


async def _ended(http: httpx2.AsyncClient, run: str) -> dict[str, Any]:
    answer = await http.get(f"/runs/{run}/wait", params={"timeout": 20})
    assert answer.status_code == 200, answer.text
    view: dict[str, Any] = answer.json()
    return view


async def _asks(http: httpx2.AsyncClient, run: str) -> dict[str, Any]:
    view = await _ended(http, run)
    assert view["status"] == "waiting", view
    question: dict[str, Any] = view["questions"][0]
    return question


async def test_a_run_is_started_waited_for_and_read(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        run = await _start(http, "echo", "hello there", metadata={"team": "red"})
        assert (run["agent"], run["input"], run["metadata"]) == ("echo", {"text": "hello there"}, {"team": "red"})
        done = await _ended(http, run["id"])
        assert (done["status"], done["output"]) == ("succeeded", {"text": "hello there "})
        assert datetime.datetime.fromisoformat(done["created_at"]).tzinfo is not None
        log = (await http.get(f"/runs/{run['id']}/events")).json()
        assert log["over"] is True
        assert log["events"][0]["kind"] == "created"
        assert log["events"][-1]["body"]["status"] == "succeeded"


async def test_the_same_key_is_the_same_run(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        first = await _start(http, "echo", "once", idempotency_key="k")
        again = await _start(http, "echo", "once", idempotency_key="k")
        assert first["id"] == again["id"]
        other = await http.post("/runs", json={"agent": "echo", "input": "twice", "idempotency_key": "k"})
        assert other.status_code == 409


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({"agent": "nobody"}, 404, ""),
        ({"agent": "echo", "input": {"text": 1}}, 400, "/text"),
        ({"agent": "echo", "delay": -1}, 400, "/delay"),
        ({"agent": "echo", "colour": "red"}, 400, ""),
        ({"agent": "worker", "input": "text"}, 400, "/input"),
        ({}, 400, ""),
    ],
)
async def test_a_request_that_does_not_fit_says_where(store: Path, body: Any, status: int, path: str) -> None:
    async with serve(store) as server, client(server) as http:
        answer = await http.post("/runs", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error.get("path", "")) == (status, path), error
        assert (await http.get("/runs")).json()["runs"] == []


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("limit=0", "/limit"), ("limit=many", "/limit"), ("status=gone", "/status/0"), ("colour=red", ""),
        ("since=yesterday", "/since"), ("metadata=red", "/metadata"), ("blocked=perhaps", "/blocked"),
    ],
)  # fmt: skip
async def test_a_query_that_does_not_fit_says_where(store: Path, query: str, path: str) -> None:
    async with serve(store) as server, client(server) as http:
        answer = await http.get(f"/runs?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"].get("path", "") == path, answer.text


async def test_runs_are_found_by_what_they_are_and_by_words(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        before = datetime.datetime.now(datetime.UTC)
        red = await _start(http, "echo", "the red house", metadata={"team": "red"})
        blue = await _start(http, "failing", "blue moon")
        await _ended(http, red["id"])
        await _ended(http, blue["id"])

        async def ids(**query: Any) -> list[str]:
            answer = await http.get("/runs", params=query)
            assert answer.status_code == 200, answer.text
            return [run["id"] for run in answer.json()["runs"]]

        assert await ids() == [blue["id"], red["id"]]
        assert await ids(status="failed") == [blue["id"]]
        assert await ids(status="failed,succeeded") == [blue["id"], red["id"]]
        assert await ids(agent="echo") == [red["id"]]
        assert await ids(agent=["ech*", "nobody"]) == [red["id"]]
        assert await ids(**{"metadata.team": "red"}) == [red["id"]]
        assert await ids(since=before.isoformat()) == [blue["id"], red["id"]]
        assert await ids(until=before.isoformat()) == []
        assert await ids(text="RED house") == [red["id"]]
        assert await ids(text="no blue") == [blue["id"]], "the words of the error count"
        assert await ids(text="green") == []
        found = (await http.get("/runs", params={"text": "moon"})).json()
        assert (found["searched"], found.get("complete", True)) == (2, True)
        assert found["runs"][0]["error"]["code"]


async def test_pages_go_on_where_the_last_one_ended(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        started = [(await _start(http, "echo", str(n)))["id"] for n in range(5)]
        seen: list[str] = []
        query: dict[str, Any] = {"limit": 2}
        while True:
            page = (await http.get("/runs", params=query)).json()
            seen += [run["id"] for run in page["runs"]]
            if page.get("cursor") is None:
                break
            query["cursor"] = page["cursor"]
        assert seen == started[::-1]


async def test_a_stream_has_every_event_once_and_goes_on_at_its_cursor(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        run = await _start(http, "asker", "go")
        question = await _asks(http, run["id"])
        seen: list[tuple[int, str]] = []

        async def read(after: str | None) -> str:
            headers = {"accept": "text/event-stream"} | ({"last-event-id": after} if after else {})
            last = ""
            async with http.stream("GET", f"/runs/{run['id']}/events", headers=headers) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                async for line in answer.aiter_lines():
                    if line.startswith("id: "):
                        last = line.removeprefix("id: ")
                    elif line.startswith("data: ") and "seq" in (data := json.loads(line.removeprefix("data: "))):
                        seen.append((data["seq"], data["kind"]))
                        if data["kind"] == "asked":
                            return last
            return last

        cursor = await read(None)
        await http.post(f"/questions/{question['id']}/answer", json={"value": {"approved": True}})
        await read(cursor)
        log = (await http.get(f"/runs/{run['id']}/events")).json()["events"]
        assert seen == [(event["seq"], event["kind"]) for event in log]
        beyond = await http.get(f"/runs/{run['id']}/events?after=1000")
        assert beyond.status_code == 400


async def test_steps_children_and_lineage_tell_what_came_of_a_run(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        run = await _start(http, "worker")
        await _ended(http, run["id"])
        steps = (await http.get(f"/runs/{run['id']}/steps")).json()["steps"]
        assert [(step["kind"], step["name"]) for step in steps] == [
            ("queued", "queued"), ("step", "add"), ("child", "echo"),
        ]  # fmt: skip
        child = steps[2]
        assert child["started_at"] <= child["ended_at"]
        children = (await http.get(f"/runs/{run['id']}/children")).json()["runs"]
        assert [one["id"] for one in children] == [child["run"]]
        tree = (await http.get(f"/runs/{child['run']}/lineage")).json()
        assert tree["run"]["id"] == run["id"]
        assert [one["run"]["id"] for one in tree["children"]] == [child["run"]]


async def test_a_run_is_cancelled_sent_to_retried_and_deleted(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        run = await _start(http, "forever")
        await wait_for(lambda: _status(http, run["id"], "running"))
        assert (await http.post(f"/runs/{run['id']}/cancel", json={"reason": "enough"})).status_code == 200
        assert (await _ended(http, run["id"]))["status"] == "cancelled"
        assert (await http.post(f"/runs/{run['id']}/cancel")).status_code == 409

        waiter = await _start(http, "waiter")
        assert (await http.post(f"/runs/{waiter['id']}/send", json={"message": "hello"})).status_code == 204
        assert "hello" in (await _ended(http, waiter["id"]))["output"]["text"]

        failed = await _start(http, "failing")
        await _ended(http, failed["id"])
        again = await http.post(f"/runs/{failed['id']}/retry")
        assert again.status_code == 200
        assert again.json()["id"] != failed["id"]
        await _ended(http, again.json()["id"])

        assert (await http.delete(f"/runs/{failed['id']}")).status_code == 204
        assert (await http.get(f"/runs/{failed['id']}")).status_code == 404


async def _status(http: httpx2.AsyncClient, run: str, status: str) -> bool:
    return bool((await http.get(f"/runs/{run}")).json()["status"] == status)


async def test_an_action_on_many_runs_has_a_result_for_each(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        open_ = [(await _start(http, "forever", metadata={"batch": "7"}))["id"] for _ in range(3)]
        done = await _start(http, "echo", "x", metadata={"batch": "7"})
        await _ended(http, done["id"])
        body = {"action": "cancel", "where": {"metadata": {"batch": "7"}}, "reason": "closing time"}
        answer = (await http.post("/runs/actions", json=body)).json()
        results = {result["run"]: result for result in answer["results"]}
        assert set(results) == {*open_, done["id"]}
        assert all(results[run].get("ok", True) for run in open_)
        assert results[done["id"]]["error"]["code"] == "already_finished"
        for run in open_:
            assert (await _ended(http, run))["status"] == "cancelled"
        named = await http.post("/runs/actions", json={"action": "delete", "runs": [open_[0], "nothing"]})
        assert [result.get("ok", True) for result in named.json()["results"]] == [True, False]
        both = await http.post("/runs/actions", json={"action": "delete", "runs": ["a"], "where": {}})
        assert both.status_code == 400


async def test_secret_inputs_are_masked_everywhere(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        run = await _start(http, "login", {"user": "ada", "password": "open sesame"})
        assert (await _ended(http, run["id"]))["output"] == {"text": "ada is in"}
        for path in ("", "/events", "/lineage", "/steps"):
            text = (await http.get(f"/runs/{run['id']}{path}")).text
            assert "sesame" not in text, path
        assert (await http.get(f"/runs/{run['id']}")).json()["input"] == {"user": "ada", "password": "***"}
        assert (await http.get("/runs?text=sesame")).json()["runs"] == []
        stream = await http.get(f"/runs/{run['id']}/events", headers={"accept": "text/event-stream"})
        assert "sesame" not in stream.text


async def test_what_a_caller_may_not_see_does_not_exist(store: Path) -> None:
    owner, ada, reader, narrow, admin = [
        await add_key(store, name, *scopes)
        for name, scopes in (
            ("owner", ["*"]), ("ada", ["do:run", "do:read", "do:answer"]), ("reader", ["do:read", "see:all"]),
            ("narrow", ["agents:echo", "see:all"]),
            ("admin", ["do:read", "do:admin", "see:all"]),
        )
    ]  # fmt: skip
    async with serve(store) as server:
        async with client(server, owner) as http:
            run = await _start(http, "asker", "go")
            question = await _asks(http, run["id"])
        async with client(server, ada) as http:
            for method, path in (
                ("GET", f"/runs/{run['id']}"), ("GET", f"/runs/{run['id']}/events"), ("GET", f"/runs/{run['id']}/wait"),
                ("POST", f"/runs/{run['id']}/cancel"), ("DELETE", f"/runs/{run['id']}"),
                ("GET", f"/questions/{question['id']}"), ("GET", f"/runs/{run['id']}/audit"),
            ):  # fmt: skip
                assert (await http.request(method, path)).status_code == 404, path
            answer = await http.post(f"/questions/{question['id']}/answer", json={"value": {"approved": True}})
            assert answer.status_code == 404
            assert (await http.get("/runs")).json()["runs"] == []
            assert (await http.get("/questions")).json()["questions"] == []
            assert (await http.get("/runs?caller=owner")).status_code == 400
            assert (await http.get("/health")).status_code == 403
        async with client(server, reader) as http:
            assert (await http.get(f"/runs/{run['id']}")).status_code == 200
            assert (await http.post(f"/runs/{run['id']}/cancel")).status_code == 403
            assert (await http.post("/runs", json={"agent": "echo", "input": "x"})).status_code == 403
            assert len((await http.get("/questions")).json()["questions"]) == 1
        async with client(server, narrow) as http:
            assert [agent["card"]["name"] for agent in (await http.get("/agents")).json()["agents"]] == ["echo"]
            assert (await http.get(f"/runs/{run['id']}")).status_code == 404
            assert (await http.get("/runs")).json()["runs"] == []
            assert (await http.get("/questions")).json()["questions"] == []
            assert (await http.post("/runs", json={"agent": "asker"})).status_code == 404
        async with client(server, admin) as http:
            assert (await http.get(f"/runs/{run['id']}")).status_code == 200
            answer = await http.get(f"/runs/{run['id']}/audit")
            assert answer.status_code == 403, "an export has sealed runs and secrets, which are the owner's"
        async with client(server) as http:
            assert (await http.get("/runs")).status_code == 401


async def test_an_audit_export_verifies(store: Path) -> None:
    async with serve(store) as server, client(server) as http:
        run = await _start(http, "worker")
        await _ended(http, run["id"])
        checker = Checker(genuine, lambda key: True)
        answer = await http.get(f"/runs/{run['id']}/audit")
        for line in answer.content.splitlines(keepends=True):
            checker.feed(line)
        assert not checker.finish().problems

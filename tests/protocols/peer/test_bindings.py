"""One suite over every binding, between two processes: a connection behaves alike, whatever carries it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.commands import process_env

from .processes import BINDINGS, LIMIT, REPLY, Pair, pair

NAMES = {"A": "p2p_direct", "B": "stdio", "C": "relay", "D": "http", "E": "tcp"}


@pytest.fixture(scope="module", params=BINDINGS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp(f"binding-{request.param}")
    with pair(request.param, process_env(home), home) as found:
        yield found


def text(content: str) -> list[dict[str, Any]]:
    return [{"type": "text", "content": content}]


def test_a_message_is_answered_while_its_sender_waits(both: Pair) -> None:
    answer = both.near.post("/message:send", role="user", text="grüß dich", sync=True, timeout=REPLY)
    assert answer["reply"]["parts"] == text("GRÜSS DICH")
    assert answer["reply"]["correlation_id"] == answer["message_id"]
    (far,) = both.near.get("/peers")["peers"]
    assert (far["name"], far["connected"], far["connection_type"]) == ("Far", True, NAMES[both.binding])


def test_the_envelope_is_the_same_whatever_carries_it(both: Pair) -> None:
    sent = both.near.post("/message:send", role="user", text="envelope", context_id="ctx_1", priority="high")
    (came,) = both.near.replies(sent["message_id"])
    frame = came["raw"]
    assert (frame["type"], frame["from"], frame["role"]) == ("acp.message", "Far", "agent")
    assert (frame["parts"], frame["context_id"]) == (text("ENVELOPE"), "ctx_1")
    assert frame["message_id"].startswith("msg_")
    assert frame["ts"].endswith("Z")


def test_a_task_goes_through_its_states_and_its_result_comes_before_its_end(both: Pair) -> None:
    before = both.near.head
    task = both.near.task("words", "one two three")
    told = both.near.until(lambda event: event.get("state") == "completed" and event["task_id"] == task, before)
    seen = [event.get("state", event["type"]) for event in told if event.get("task_id") == task]
    assert seen[:2] == ["submitted", "working"]
    assert set(seen[2:-1]) == {"artifact"}
    held = both.near.get(f"/tasks/{task}")
    assert held["artifact"]["parts"] == text("one two three ")
    pieces = [event["artifact"] for event in told if event["type"] == "artifact"]
    assert "".join(part["content"] for piece in pieces for part in piece["parts"]) == "one two three "
    assert [event["seq"] for event in told] == list(range(before + 1, before + 1 + len(told)))


def test_a_task_that_asks_goes_on_when_it_is_continued(both: Pair) -> None:
    task = both.near.task("painter", "a wall")
    assert "question" in both.near.state(task, "input_required")
    both.near.post(f"/tasks/{task}:continue", text="blue")
    both.near.state(task, "completed")
    assert both.near.get(f"/tasks/{task}")["artifact"]["parts"] == text("a wall in blue")


def test_a_task_that_is_cancelled_is_cancelling_first_and_canceled_then(both: Pair) -> None:
    before = both.near.head
    task = both.near.task("stuck", "for ever")
    both.near.state(task, "working")
    assert both.near.post(f"/tasks/{task}:cancel")["status"] == "cancelling"
    told = both.near.until(lambda event: event.get("state") == "canceled" and event["task_id"] == task, before)
    states = [event["state"] for event in told if event.get("task_id") == task and "state" in event]
    assert states == ["submitted", "working", "cancelling", "canceled"]


def test_both_sign_and_each_knows_that_it_is_the_other(both: Pair) -> None:
    answer = both.near.post("/message:send", role="user", text="ünterschrieben", sync=True, timeout=REPLY)
    assert answer["reply"]["_ed25519_verified"] is True
    card = both.near.get("/peers")["peers"][0]["agent_card"]
    assert answer["reply"]["identity"]["public_key"] == card["identity"]["public_key"]
    verified = both.near.get("/peer/verify")
    assert (verified["valid"], verified["did"]) == (True, card["identity"]["did"])
    if both.far_api is not None:
        there = both.far_api.get("/messages", direction="inbound", limit=500)["messages"]
        assert {one["raw"].get("_ed25519_verified") for one in there} == {True}


def test_a_message_of_the_largest_size_passes_and_a_larger_one_is_refused_and_ends_nothing(both: Pair) -> None:
    refused = both.near.post("/message:send", 413, role="user", text="x" * LIMIT, message_id="msg_large")
    assert (refused["error_code"], refused["failed_message_id"]) == ("ERR_MSG_TOO_LARGE", "msg_large")
    large = "y" * (LIMIT - 4096)
    answer = both.near.post("/message:send", role="user", text=large, sync=True, timeout=REPLY)
    assert answer["reply"]["parts"] == text(large.upper())


def test_nothing_is_lost_when_the_other_process_is_killed_and_comes_back(both: Pair) -> None:
    near = both.near
    task = near.task("painter", "a door")
    near.state(task, "input_required")
    both.far.kill()
    for n in range(3):
        sent = near.http.post("/message:send", json={"role": "user", "text": f"no {n}", "message_id": f"msg_{n}"})
        assert sent.status_code == 200 or sent.json()["queued"] is True
    both.far.again()
    answers = near.replies(*(f"msg_{n}" for n in range(3)))
    assert [one["parts"] for one in answers] == [text(f"NO {n}") for n in range(3)]
    again = near.post("/message:send", role="user", text="no 0", message_id="msg_0")
    assert again["deduplicated"] is True
    near.post(f"/tasks/{task}:continue", text="green")
    near.state(task, "completed")
    assert near.get(f"/tasks/{task}")["artifact"]["parts"] == text("a door in green")
    sync = near.post("/message:send", role="user", text="last", sync=True, timeout=REPLY)
    assert sync["reply"]["parts"] == text("LAST")
    assert near.get("/message:recv")["messages"] == []

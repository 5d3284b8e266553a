"""The rules of the specification for HTTP and for events, each on its own, on one recorded scene.

In the scene, tasks succeed, fail, ask, are cancelled and say something on the way; a peer comes, one is found near, and
the node is started anew in between. It is played once, through real HTTP, and every rule looks at what came of it.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import websockets.asyncio.client

import interlingua as il
from interlingua.protocols.peer.discovery.beacons import FoundPeer
from interlingua.protocols.peer.translate.task_states import STATES
from tests.kit.peer_nodes import (
    WAIT,
    Event,
    Running,
    at_door,
    breaks,
    checked,
    echo,
    events,
    painter,
    running_node,
    stuck,
    text,
)

_TERMINAL = ("completed", "failed", "canceled")


@il.agent
async def reporter(text: str, ctx: il.Context[None, None]) -> str:
    await ctx.message("Working on it")
    return f"Summary: {text}"


class Scene(msgspec.Struct):
    """What was seen."""

    stream: list[Event] = []  # all of the feed, read in one piece after the restart
    live: list[Event] = []  # what was heard as it happened, before it
    after: list[Event] = []  # and after it
    tasks: dict[str, str] = {}  # id by how it ends
    watched: dict[str, list[Event]] = {}  # the stream of each task
    socket: list[Event] = []
    well_known: list[httpx2.Response] = []
    refused: dict[str, list[httpx2.Response]] = {}  # by what is wrong
    errors: list[httpx2.Response] = []


async def _play() -> Scene:
    scene = Scene()
    agents = (echo, reporter, painter, stuck, breaks)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.db"
        async with at_door(*agents, store=store) as (node, http):
            async with events(http) as stream:
                await stream.ready()
                await _tasks(scene, node, http)
                await _peers(node)
                head = await node.node.journal.feed().head()
                scene.live = [await stream.next() for _ in range(head)]
            for state, task in scene.tasks.items():
                async with events(http, f"/tasks/{task}:subscribe") as stream:
                    scene.watched[state] = await stream.rest()
            address = node.base.replace("http://", "ws://") + "/ws/stream?since=0"
            async with websockets.asyncio.client.connect(address) as socket:
                await socket.recv()
                scene.socket = [json.loads(await asyncio.wait_for(socket.recv(), WAIT))["data"] for _ in range(head)]
            await _mistakes(scene, node, http)
        async with at_door(*agents, store=store) as (node, http):
            body = {"role": "user", "text": "after the restart", "sync": True}
            async with events(http) as stream:
                await stream.ready()
                checked(await http.post("/message:send", json=body), 200)
                scene.after = [await stream.next() for _ in range(2)]
            async with events(http, since=0) as stream:
                scene.stream = [await stream.next() for _ in range(await node.node.journal.feed().head())]
    return scene


async def _tasks(scene: Scene, node: Running, http: httpx2.AsyncClient) -> None:
    async def create(state: str, **body: Any) -> str:
        made = checked(await http.post("/tasks", json={"role": "user", "text": "x", "context_id": state, **body}), 201)
        scene.tasks[state] = made["id"]
        return str(made["id"])

    async def ended(task: str) -> None:
        checked(await http.get(f"/tasks/{task}:wait"), 200)

    await ended(await create("completed"))
    await ended(await create("failed", skill_id="breaks"))
    asks = await create("input_required", skill_id="painter")
    await ended(asks)
    checked(await http.post(f"/tasks/{asks}:continue", json={"text": "red"}), 200)
    await ended(asks)
    hangs = await create("canceled", skill_id="stuck")
    await node.state(hangs, "working")
    checked(await http.post(f"/tasks/{hangs}:cancel"), 200)
    await ended(hangs)
    said = {"role": "user", "text": "the document", "skill_id": "reporter", "create_task": True, "sync": True}
    told = checked(await http.post("/message:send", json=said), 200)
    scene.tasks["reported"] = told["task"]["id"]


async def _peers(node: Running) -> None:
    async with running_node("Guest") as guest:
        await guest.connect(node)
        head = await node.node.journal.feed().head()
    await node.until(lambda event: event.get("event") == "disconnected", head)
    head = await node.node.journal.feed().head()
    node.node._found(FoundPeer("Cid", "tok_1", "acp://192.0.2.1:7801/tok_1", "192.0.2.1", 7801, 7901, 0.0))
    await node.until(lambda event: event["type"] == "mdns", head)


async def _mistakes(scene: Scene, node: Running, http: httpx2.AsyncClient) -> None:
    wrong: dict[str, Any] = {
        "no role": {"text": "x"},
        "null role": {"role": None, "text": "x"},
        "another role": {"role": "system", "text": "x"},
        "a list as role": {"role": ["user"], "text": "x"},
        "no content": {"role": "user"},
        "unknown task": {"role": "user", "text": "x", "task_id": "task_unknown"},
    }
    for client in (node.http, http):
        for what, body in wrong.items():
            scene.refused.setdefault(what, []).append(await client.post("/message:send", json=body))
        for path in ("/.well-known/acp.json", "/.well-known/jwks.json", "/.well-known/did.json", "/.well-known/none"):
            scene.well_known += [await client.get(path), await client.request("DELETE", path)]
        scene.errors += [
            await client.get("/nothing"),
            await client.delete("/status"),
            await client.get("/tasks/task_none"),
            await client.get("/tasks?status=banana"),
            await client.post("/tasks", content=b"{"),
            await client.post("/tasks", content=b" " * 3_000_000),
            await client.put("/tasks/task_none", json={"status": "working"}),
            await client.get("/wait/msg_none?timeout=0"),
            await client.get("/peers/peer_999"),
        ]
    scene.errors += [
        await node.http.post("/message:send", json={"role": "user", "text": "x", "sync": True}),
        await node.http.get("/status", headers={"host": "evil.example"}),
    ]
    assert await node.node.journal.feed().head() >= len(scene.live)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return asyncio.run(_play())


# -- what the rules look at -----------------------------------------------------------------------------------


def _of(events: list[Event], kind: str) -> list[Event]:
    found = [event for event in events if event["type"] == kind]
    assert found, f"there is no event of type {kind}"
    return found


def _states(scene: Scene, ended: str) -> list[str]:
    return [event["state"] for event in scene.watched[ended] if event["type"] == "status"]


def _in_utc(stamp: Any) -> bool:
    read = datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    return stamp.endswith("Z") and read.utcoffset() == datetime.timedelta(0)


def _seqs(events: list[Event]) -> list[int]:
    found = [event["seq"] for event in events]
    assert all(type(seq) is int for seq in found)
    return found


def _streams(scene: Scene) -> list[list[Event]]:
    return [scene.stream, scene.live, scene.socket, *scene.watched.values()]


def _rejects(scene: Scene, *whats: str) -> bool:
    answers = [answer for what in whats for answer in scene.refused[what]]
    return all(answer.status_code == 400 and answer.json()["error_code"] == "ERR_INVALID_REQUEST" for answer in answers)


def _positions(scene: Scene, first: str, then: str) -> bool:
    for told in scene.watched.values():
        states = [event.get("state") for event in told]
        if then in states and (first not in states or states.index(first) > states.index(then)):
            return False
    return True


def _counts_on(scene: Scene) -> bool:
    return _seqs(scene.after)[0] > max(_seqs(scene.live))


def _shaped(scene: Scene, state: str, *more: str) -> bool:
    found = [event for event in scene.stream if event.get("state") == state]
    return bool(found) and all({"type", "ts", "seq", "task_id", "state", *more} <= set(event) for event in found)


Rule = Callable[[Scene], bool]

RULES: dict[str, Rule] = {
    "peer.1-1.role-missing-rejected": lambda s: _rejects(s, "no role"),
    "peer.1-1.role-invalid-rejected": lambda s: _rejects(s, "another role"),
    "peer.1-1.role-not-defaulted": lambda s: _rejects(s, "no role", "null role") and not _of_text(s, "x", "inbound"),
    "peer.4-2.role-required": lambda s: all("/role" in answer.json()["error"] for answer in s.refused["no role"]),
    "peer.4-2.role-values": lambda s: _rejects(s, "another role", "a list as role"),
    "peer.4-2.content-required": lambda s: _rejects(s, "no content"),
    "peer.4-2.task-id-exists": lambda s: _rejects(s, "unknown task"),
    "peer.4-2.upgrade-validates": lambda s: _rejects(s, "null role", "a list as role"),
    "peer.4-2.upgrade-no-default": lambda s: _rejects(s, "null role"),
    "peer.8-1.type": lambda s: {e["type"] for e in s.stream} == {"status", "artifact", "message", "peer", "mdns"},
    "peer.8-1.ts": lambda s: all(_in_utc(e["ts"]) for e in s.stream),
    "peer.8-1.seq": lambda s: sorted(set(_seqs(s.stream))) == _seqs(s.stream),
    "peer.8-1.seq-global": lambda s: all(
        told["seq"] == whole["seq"]
        for watched in s.watched.values()
        for told in watched
        for whole in s.stream
        if whole["type"] == told["type"] and whole["ts"] == told["ts"] and whole.get("task_id") == told["task_id"]
        and whole.get("state") == told.get("state") and whole.get("artifact") == told.get("artifact")
    ),
    "peer.8-1.task-id-related": lambda s: all(
        e["task_id"] == s.tasks[state] for state in s.tasks for e in s.watched[state]
    ),
    "peer.8-1.task-id-status": lambda s: {e["task_id"] for e in _of(s.stream, "status")} == set(s.tasks.values()),
    "peer.8-1.task-id-artifact": lambda s: {e["task_id"] for e in _of(s.stream, "artifact")} <= set(s.tasks.values()),
    "peer.8-2.submitted-first": lambda s: all(
        (told[0]["type"], told[0]["state"]) == ("status", "submitted") for told in s.watched.values()
    ),
    "peer.8-2.working-second": lambda s: all(_states(s, state)[1] == "working" for state in s.tasks),
    "peer.8-2.completed-last": lambda s: all(
        [e for e in s.stream if e.get("task_id") == s.tasks[state]][-1].get("state") == "completed"
        for state in ("completed", "reported", "input_required")
    ),
    "peer.8-2.failed-path": lambda s: _states(s, "failed") == ["submitted", "working", "failed"],
    "peer.8-2.input-required-path": lambda s: (
        _states(s, "input_required")[:3] == ["submitted", "working", "input_required"]
    ),
    "peer.8-2.cancel-path": lambda s: _states(s, "canceled") == ["submitted", "working", "cancelling", "canceled"],
    "peer.8-2.cancelling-before-canceled": lambda s: _positions(s, "cancelling", "canceled"),
    "peer.8-3.type": lambda s: all(e["type"] == "status" for e in s.stream if e["_name"] == "acp.task.status"),
    "peer.8-3.ts": lambda s: all(_in_utc(e["ts"]) for e in _of(s.stream, "status")),
    "peer.8-3.seq": lambda s: set(_seqs(_of(s.stream, "status"))) < set(_seqs(s.stream)),
    "peer.8-3.task-id": lambda s: all(
        e["task_id"] == s.tasks[state] for state in s.tasks for e in _of(s.watched[state], "status")
    ),
    "peer.8-3.state": lambda s: all(isinstance(e["state"], str) for e in _of(s.stream, "status")),
    "peer.8-3.state-values": lambda s: {e["state"] for e in _of(s.stream, "status")} == STATES,
    "peer.8-4.type": lambda s: all(e["type"] == "artifact" for e in s.stream if e["_name"] == "acp.task.artifact"),
    "peer.8-4.ts": lambda s: all(_in_utc(e["ts"]) for e in _of(s.stream, "artifact")),
    "peer.8-4.seq": lambda s: set(_seqs(_of(s.stream, "artifact"))) < set(_seqs(s.stream)),
    "peer.8-4.task-id": lambda s: all(
        e["task_id"] == s.tasks["completed"] for e in _of(s.watched["completed"], "artifact")
    ),
    "peer.8-4.artifact": lambda s: all(isinstance(e["artifact"], dict) for e in _of(s.stream, "artifact")),
    "peer.8-4.artifact-parts": lambda s: all(
        isinstance(e["artifact"]["parts"], list) and e["artifact"]["parts"] for e in _of(s.stream, "artifact")
    ),
    "peer.8-5.type": lambda s: all(e["type"] == "message" for e in s.stream if "message_id" in e),
    "peer.8-5.ts": lambda s: all(_in_utc(e["ts"]) for e in _of(s.stream, "message")),
    "peer.8-5.seq": lambda s: set(_seqs(_of(s.stream, "message"))) < set(_seqs(s.stream)),
    "peer.8-5.message-id": lambda s: (
        len({e["message_id"] for e in _of(s.stream, "message")}) == len(_of(s.stream, "message"))
    ),
    "peer.8-5.role": lambda s: {e["role"] for e in _of(s.stream, "message")} == {"user", "agent"},
    "peer.8-5.parts": lambda s: all(
        len(e["parts"]) >= 1 and all(part["type"] in ("text", "file", "data") for part in e["parts"])
        for e in _of(s.stream, "message")
    ),
    "peer.8-7.m1-type": lambda s: all(isinstance(e["type"], str) for told in _streams(s) for e in told),
    "peer.8-7.m1-ts": lambda s: all(_in_utc(e["ts"]) for told in _streams(s) for e in told),
    "peer.8-7.m1-seq": lambda s: all(type(e["seq"]) is int for told in _streams(s) for e in told),
    "peer.8-7.m2-status": lambda s: all(
        isinstance(e["task_id"], str) for told in _streams(s) for e in told if e["type"] == "status"
    ),
    "peer.8-7.m2-artifact": lambda s: all(
        isinstance(e["task_id"], str) for told in _streams(s) for e in told if e["type"] == "artifact"
    ),
    "peer.8-7.m3-submitted-before-working": lambda s: _positions(s, "submitted", "working"),
    "peer.8-7.m4-nothing-before-submitted": lambda s: all(
        _states(s, state).index("submitted") == 0 for state in s.tasks
    ),
    "peer.8-7.m5-terminal": lambda s: all(
        state not in _TERMINAL for name in s.tasks for state in _states(s, name)[:-1]
    ),
    "peer.8-7.m6-one-submitted": lambda s: (
        sum(e.get("state") == "submitted" for e in s.stream) == len(s.tasks)
    ),
    "peer.8-7.m7-seq-rises": lambda s: all(sorted(set(_seqs(told))) == _seqs(told) for told in _streams(s)),
    "peer.8-7.m7-seq-no-reset": _counts_on,
    "peer.8-7.m7-seq-no-gap": lambda s: _seqs(s.stream) == list(range(1, len(s.stream) + 1)),
    "peer.8-7.m8-role": lambda s: _rejects(s, "no role", "null role", "another role", "a list as role"),
    "peer.8-7.m10-cache-control": lambda s: all(
        a.headers["cache-control"] == "no-cache, no-store" for a in s.well_known
    ),
    "peer.8-7.m10-vary": lambda s: all(a.headers["vary"] == "Accept" for a in s.well_known),
    "peer.8-7.m10-nosniff": lambda s: all(a.headers["x-content-type-options"] == "nosniff" for a in s.well_known),
    "peer.14.error-code": lambda s: all(a.json()["error_code"].startswith("ERR_") for a in s.errors),
    "peer.14.role": lambda s: _rejects(s, "no role", "another role"),
    "peer.6.ok-false": lambda s: all(a.json()["ok"] is False for a in s.errors),
    "peer.6.error": lambda s: all(isinstance(a.json()["error"], str) and a.json()["error"] for a in s.errors),
    "peer.8-1-1.status-named": lambda s: {e["_name"] for e in _of(s.stream, "status")} == {"acp.task.status"},
    "peer.8-1-1.artifact-named": lambda s: {e["_name"] for e in _of(s.stream, "artifact")} == {"acp.task.artifact"},
    "peer.8-1-1.message-unnamed": lambda s: {e["_name"] for e in _of(s.stream, "message")} == {None},
    "peer.8-1-1.peer-unnamed": lambda s: {e["_name"] for e in _of(s.stream, "peer")} == {None},
    "peer.8-1-1.mdns-unnamed": lambda s: {e["_name"] for e in _of(s.stream, "mdns")} == {None},
    "peer.8-2.continue-resumes": lambda s: _states(s, "input_required")[2:4] == ["input_required", "working"],
    "peer.8-2.artifacts-third": lambda s: (
        [e["type"] for e in s.watched["completed"]][2:-1] == ["artifact"] * (len(s.watched["completed"]) - 3)
    ),
    "peer.8-3.error": lambda s: [e["error"] for e in s.stream if e.get("state") == "failed"] == ["it cannot be done"],
    "peer.8-3.context-id": lambda s: {e["context_id"] for e in s.watched["failed"]} == {"failed"},
    "peer.8-4.context-id": lambda s: all(
        e["context_id"] == "completed" for e in _of(s.watched["completed"], "artifact")
    ),
    "peer.8-5.task-id": lambda s: {e["task_id"] for e in _of(s.watched["reported"], "message")} == {
        s.tasks["reported"]
    },
    "peer.8-7.y-messages-between": lambda s: "message" in [e["type"] for e in s.watched["reported"]][3:-1],
    "peer.8-7.y-several-artifacts": lambda s: len(_of(s.watched["completed"], "artifact")) > 1,
    "peer.6.error-code": lambda s: all(set(a.json()) >= {"ok", "error_code", "error"} for a in s.errors),
    "peer.6.failed-message-id-others": lambda s: not any("failed_message_id" in a.json() for a in s.errors),
    "peer.8-1.json-object": lambda s: all(isinstance(e, dict) for e in s.stream),
    "peer.8-1.type-status": lambda s: bool(_of(s.stream, "status")),
    "peer.8-1.type-artifact": lambda s: bool(_of(s.stream, "artifact")),
    "peer.8-1.type-message": lambda s: bool(_of(s.stream, "message")),
    "peer.8-1.type-peer": lambda s: {e["event"] for e in _of(s.stream, "peer")} >= {"connected", "disconnected"},
    "peer.8-1.type-mdns": lambda s: [e["name"] for e in _of(s.stream, "mdns")] == ["Cid"],
    "peer.8-1.seq-all-types": lambda s: all(e["seq"] == place for place, e in enumerate(s.stream, 1)),
    "peer.8-2.final-artifact": lambda s: s.watched["reported"][-2]["type"] == "artifact",
    "peer.8-2.continue-outcomes": lambda s: _states(s, "input_required")[3:] == ["working", "completed"],
    "peer.8-3.example-submitted": lambda s: _shaped(s, "submitted"),
    "peer.8-3.example-working": lambda s: _shaped(s, "working"),
    "peer.8-3.example-completed": lambda s: _shaped(s, "completed"),
    "peer.8-3.example-failed": lambda s: _shaped(s, "failed", "error"),
    "peer.8-3.example-input-required": lambda s: _shaped(s, "input_required"),
    "peer.8-3.example-cancelling": lambda s: _shaped(s, "cancelling"),
    "peer.8-3.example-canceled": lambda s: _shaped(s, "canceled"),
    "peer.8-4.example": lambda s: [e["artifact"]["parts"] for e in _of(s.watched["reported"], "artifact")] == [
        text("Summary: the document")
    ],
    "peer.8-5.direction": lambda s: {e["direction"] for e in _of(s.stream, "message")} == {"inbound", "outbound"},
    "peer.8-5.context-id": lambda s: {e["context_id"] for e in _of(s.watched["input_required"], "message")} == {
        "input_required"
    },
    "peer.8-5.example": lambda s: [
        e["parts"] for e in _of(s.watched["reported"], "message") if e["role"] == "agent"
    ] == [text("Working on it")],
    "peer.8-7.s-final-event": lambda s: all(
        s.watched[state][-1].get("state") in ("completed", "failed") for state in s.tasks if state != "canceled"
    ),
    "peer.8-7.s-failed-error": lambda s: all(e.get("error") for e in s.stream if e.get("state") == "failed"),
}  # fmt: skip


def _of_text(scene: Scene, said: str, direction: str) -> list[Event]:
    return [
        event
        for event in scene.stream
        if event["type"] == "message" and event["parts"] == text(said) and event["direction"] == direction
    ]


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_holds(scene: Scene, rule: str) -> None:
    assert RULES[rule](scene)


def test_what_is_heard_as_it_happens_is_what_is_read_later(scene: Scene) -> None:
    assert scene.stream[: len(scene.live)] == scene.live
    assert scene.stream[-len(scene.after) :] == scene.after

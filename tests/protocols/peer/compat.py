"""What every implementation of the protocol must do, as checks of an HTTP address: a compatibility suite.

`ACP_BASE_URL=http://127.0.0.1:7901 python -m pytest tests/protocols/peer/compat.py` checks the node at that address,
whoever wrote it. Nothing here knows of the code under test, and nothing needs a peer to be connected.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

ENDPOINTS = [
    ("POST", "/message:send"), ("GET", "/message:recv"), ("GET", "/stream"), ("GET", "/.well-known/acp.json"),
    ("GET", "/tasks"), ("POST", "/tasks"), ("GET", "/tasks/{id}"), ("PUT", "/tasks/{id}"),
    ("POST", "/tasks/{id}:cancel"), ("POST", "/tasks/{id}:continue"), ("POST", "/skills/query"), ("GET", "/peers"),
    ("GET", "/peer/{id}"), ("POST", "/peer/{id}/send"), ("POST", "/peers/connect"), ("GET", "/status"),
    ("GET", "/extensions"),
]  # fmt: skip
CARD = {
    "name": str, "acp_version": str, "timestamp": str, "skills": list, "transport_modes": list, "capabilities": dict,
    "trust": dict, "auth": dict, "endpoints": dict, "extensions": list,
}  # fmt: skip
FLAGS = {
    "streaming": bool, "push_notifications": bool, "input_required": bool, "part_types": list, "max_msg_bytes": int,
    "query_skill": bool, "server_seq": bool, "multi_session": bool, "error_codes": bool, "hmac_signing": bool,
    "context_id": bool, "identity": str, "supported_transports": list,
}  # fmt: skip
UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=os.environ["ACP_BASE_URL"], timeout=20, verify=False) as client:
        yield client


@pytest.fixture(scope="module")
def card(http: httpx2.Client) -> dict[str, Any]:
    found: dict[str, Any] = http.get("/.well-known/acp.json").json()
    return found


def is_error(answer: httpx2.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert (told["ok"], told["error_code"]) == (False, code)
    assert isinstance(told["error"], str)


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_every_stable_endpoint_is_there(http: httpx2.Client, method: str, path: str) -> None:
    with http.stream(method, path.replace("{id}", "no-such-id"), json={} if method != "GET" else None) as answer:
        assert answer.status_code not in (405, 501)
        if answer.status_code == 404:
            assert "{id}" in path
            answer.read()
            is_error(answer, 404, "ERR_NOT_FOUND")


def test_the_card_has_every_stable_field(card: dict[str, Any]) -> None:
    assert {name: type(card.get(name)) for name in CARD} == CARD
    assert UTC.fullmatch(card["timestamp"])


def test_the_card_has_every_stable_flag(card: dict[str, Any]) -> None:
    assert {name: type(card["capabilities"].get(name)) for name in FLAGS} == FLAGS


def test_the_version_of_the_protocol_is_a_semantic_one(card: dict[str, Any]) -> None:
    major, minor, *_ = map(int, card["acp_version"].split("."))
    assert (major, minor) == (1, 0)


def test_a_well_known_answer_is_not_kept_by_caches(http: httpx2.Client, card: dict[str, Any]) -> None:
    headers = http.get("/.well-known/acp.json").headers
    if card["capabilities"].get("well_known_rfc8615"):
        assert "no-cache" in headers["cache-control"]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("role", [None, "", "robot", "USER", 7, ["user"]])
def test_a_role_that_is_missing_or_none_of_the_two_is_refused(http: httpx2.Client, role: Any) -> None:
    body = {"text": "hello", **({} if role is None else {"role": role})}
    is_error(http.post("/message:send", json=body), 400, "ERR_INVALID_REQUEST")


@pytest.mark.parametrize("said", [{}, {"parts": []}, {"parts": "x"}, {"parts": [{"type": "text"}]}, {"parts": [7]}])
def test_a_message_without_content_is_refused(http: httpx2.Client, said: dict[str, Any]) -> None:
    is_error(http.post("/message:send", json={"role": "user", **said}), 400, "ERR_INVALID_REQUEST")


def test_a_body_that_is_no_json_object_is_refused(http: httpx2.Client) -> None:
    for body in ("{", "[]", '"text"', "7"):
        is_error(
            http.post("/message:send", content=body, headers={"content-type": "application/json"}), 400,
            "ERR_INVALID_REQUEST",
        )  # fmt: skip


def test_what_is_too_large_is_refused_with_its_id(http: httpx2.Client, card: dict[str, Any]) -> None:
    large = "x" * (card["capabilities"]["max_msg_bytes"] + 1)
    answer = http.post("/message:send", json={"role": "user", "text": large, "message_id": "msg_too_large"})
    is_error(answer, 413, "ERR_MSG_TOO_LARGE")
    assert answer.json()["failed_message_id"] == "msg_too_large"


def test_what_does_not_exist_is_not_found(http: httpx2.Client) -> None:
    is_error(http.get("/tasks/task_none"), 404, "ERR_NOT_FOUND")
    is_error(http.get("/peer/peer_999"), 404, "ERR_NOT_FOUND")
    is_error(http.get("/no/such/path"), 404, "ERR_NOT_FOUND")


def test_unknown_members_are_passed_over(http: httpx2.Client) -> None:
    answer = http.post("/skills/query", json={"query": "x", "limit": 5, "a_member_of_a_later_version": {"x": [1]}})
    assert answer.status_code == 200
    assert isinstance(answer.json()["skills"], list)


def test_a_task_is_created_and_told_in_order(http: httpx2.Client) -> None:
    body = {"role": "user", "parts": [{"type": "text", "content": "work"}], "input": {"parts": []}}
    body["input"] = {"parts": body["parts"]}
    made = http.post("/tasks", json=body)
    assert made.status_code in (200, 201)
    id_ = made.json()["task"]["id"]
    assert http.get(f"/tasks/{id_}").json()["status"] in ("submitted", "working")
    with http.stream("GET", f"/tasks/{id_}:subscribe", params={"since": 0}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:") and (event := json.loads(line[5:])).get("task_id") == id_:
                break
    assert (event["type"], event["state"]) == ("status", "submitted")
    assert isinstance(event["seq"], int)
    assert UTC.fullmatch(event["ts"])
    stopped = http.post(f"/tasks/{id_}:cancel")
    assert (stopped.status_code, stopped.json()["status"]) == (200, "cancelling")
    again = http.post(f"/tasks/{id_}:cancel")
    assert again.status_code == 200
    assert again.json()["status"] in ("cancelling", "canceled")
    is_error(http.put(f"/tasks/{id_}", json={"status": "submitted"}), 400, "ERR_INVALID_REQUEST")

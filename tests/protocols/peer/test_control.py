"""The control API as a server: who may use it, what web pages may not, and that every error is in the envelope."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from interlingua.transports.http.body import HttpLimits
from tests.kit.peer_nodes import WAIT, Running, at_door, checked, client, echo, running_node, text


def _is_error(answer: Any, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()
    assert (error["ok"], error["error_code"]) == (False, code)
    assert isinstance(error["error"], str)
    assert error["error"]
    assert answer.headers["content-type"] == "application/json"


async def test_every_error_is_in_the_envelope_with_its_code() -> None:
    async with at_door(echo) as (node, http):
        for client_ in (node.http, http):
            _is_error(await client_.get("/nothing/here"), 404, "ERR_NOT_FOUND")
            _is_error(await client_.get("/"), 404, "ERR_NOT_FOUND")
            _is_error(await client_.get("/peers/discover/x"), 404, "ERR_NOT_FOUND")
            for method, path in (("DELETE", "/message:send"), ("POST", "/status"), ("PATCH", "/tasks/task_1")):
                answer = await client_.request(method, path)
                _is_error(answer, 405, "ERR_INVALID_REQUEST")
                assert method not in answer.headers["allow"]
            for path in ("/message:send", "/tasks", "/skills/query"):
                for body in (b"{", b"\xff\xfe", b"{} {}", b'{"a": NaN}', b"[" * 100_000):
                    answer = await client_.post(path, content=body)
                    assert answer.status_code in (400, 413), (path, body[:10])
                    assert answer.json()["error_code"] in ("ERR_INVALID_REQUEST", "ERR_MSG_TOO_LARGE")
                _is_error(await client_.post(path, content=b"[]"), 400, "ERR_INVALID_REQUEST")
            _is_error(await client_.get("/tasks/task_none"), 404, "ERR_NOT_FOUND")
            _is_error(await client_.get("/message:recv?limit=abc"), 400, "ERR_INVALID_REQUEST")
        _is_error(await node.http.get("/peers/peer_999"), 404, "ERR_NOT_FOUND")


async def test_what_nobody_expected_is_an_internal_error_and_says_nothing_of_the_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(*_: Any) -> None:
        raise RuntimeError("a secret of the inside")

    async with at_door(echo) as (node, http):
        monkeypatch.setattr(node.node.tasking, "page", fails)
        for client_ in (node.http, http):
            answer = await client_.get("/tasks")
            _is_error(answer, 500, "ERR_INTERNAL")
            assert "secret" not in answer.text
            checked(await client_.get("/status"), 200)


async def test_a_body_that_is_too_large_or_too_slow_is_refused() -> None:
    async with running_node("Ann", max_msg_bytes=1000) as ann:
        _is_error(await ann.http.post("/tasks", content=b" " * 200_000), 413, "ERR_MSG_TOO_LARGE")

        async def pieces() -> Any:
            for _ in range(100):
                yield b" " * 10_000

        _is_error(await ann.http.post("/tasks", content=pieces()), 413, "ERR_MSG_TOO_LARGE")
        ann.app._api.limits = HttpLimits(max_body_bytes=1000, body_timeout=0.05)
        answer = await _raw(ann, b"POST /tasks HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body)["error_code"] == "ERR_INVALID_REQUEST"


async def _raw(node: Running, request: bytes) -> bytes:
    host, _, port = node.base.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    async with asyncio.timeout(WAIT):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
    writer.close()
    return head + body


async def test_a_web_page_of_another_site_can_neither_send_nor_read() -> None:
    body = json.dumps({"role": "user", "text": "x"}).encode()
    async with running_node("Ann") as ann:
        for headers in (
            {"origin": "https://evil.example", "content-type": "application/json"},
            {"origin": "https://evil.example", "content-type": "text/plain"},
            {"origin": "null"},
        ):
            _is_error(await ann.http.post("/message:send", content=body, headers=headers), 403, "ERR_FORBIDDEN")
            _is_error(await ann.http.get("/link", headers=headers), 403, "ERR_FORBIDDEN")
        # A name of theirs that leads to this machine.
        _is_error(await ann.http.get("/link", headers={"host": "rebound.example"}), 403, "ERR_FORBIDDEN")
        # A page of this machine, but not one that asked: a form can be sent by anybody's script there.
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None):
            headers = {"origin": "http://localhost:3000", **({"content-type": kind} if kind else {})}
            _is_error(await ann.http.post("/peers/connect", content=body, headers=headers), 400, "ERR_INVALID_REQUEST")
        assert (await ann.get("/offline-queue"))["total_queued"] == 0
        local = {"origin": "http://localhost:3000", "content-type": "application/json"}
        _is_error(await ann.http.post("/message:send", content=body, headers=local), 503, "ERR_NOT_CONNECTED")


async def test_no_answer_allows_other_sites_to_read_it() -> None:
    async with running_node("Ann") as ann:
        for method, path in (("GET", "/status"), ("GET", "/none"), ("OPTIONS", "/message:send"), ("GET", "/card")):
            answer = await ann.http.request(method, path, headers={"origin": ann.base})
            assert not [name for name in answer.headers if name.startswith("access-control")]
        allowed = await ann.http.options("/tasks/task_1")
        assert (allowed.status_code, allowed.content) == (204, b"")
        assert allowed.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"
        assert "POST" in (await ann.http.options("/message:send")).headers["allow"]


async def test_a_body_is_read_whatever_its_type_where_no_page_sent_it() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        for kind in ("application/x-www-form-urlencoded", "text/plain", "application/octet-stream"):  # curl -d
            body = json.dumps({"role": "user", "text": kind}).encode()
            checked(await ann.http.post("/message:send", content=body, headers={"content-type": kind}), 200)
            await ben.message(parts=text(kind))


async def test_a_token_is_wanted_where_one_is_set() -> None:
    async with running_node("Ann", http_token="s3cret") as ann, client(ann.base) as nobody:
        for path in ("/status", "/link", "/message:recv", "/stream", "/.well-known/acp.json"):
            answer = await nobody.get(path)
            if path.startswith("/.well-known/"):
                assert answer.json()["auth"] == {"schemes": ["bearer"]}
                continue
            _is_error(answer, 401, "ERR_UNAUTHORIZED")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        for wrong in ("Bearer wrong", "Bearer", "Basic czNjcmV0", "s3cret", "Bearer s3cret2"):
            answer = await nobody.get("/status", headers={"authorization": wrong})
            _is_error(answer, 401, "ERR_UNAUTHORIZED")
            assert "s3cret" not in answer.text
        assert (await ann.get("/status"))["ok"] is True
        assert (await ann.get("/.well-known/acp.json"))["auth"] == {"schemes": ["bearer"]}
        _is_error(await nobody.get("/nothing"), 404, "ERR_NOT_FOUND")


async def test_a_head_takes_nothing_away() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)
        await ann.post("/message:send", {"role": "user", "text": "x"})
        await ben.message(parts=text("x"))
        for path in ("/message:recv", "/recv", "/stream", "/wait/msg_1"):
            assert (await ben.http.head(path)).status_code == 405
        assert (await ben.http.head("/status")).status_code == 200
        assert (await ben.get("/message:recv"))["count"] == 1


async def test_many_clients_at_once_are_all_served_and_numbered_without_a_gap() -> None:
    async with running_node("Ann") as ann, running_node("Ben") as ben:
        await ann.connect(ben)

        async def send(index: int) -> list[int]:
            async with client(ann.base) as http:
                body = {"role": "user", "text": str(index)}
                return [checked(await http.post("/message:send", json=body), 200)["server_seq"] for _ in range(10)]

        numbers = await asyncio.gather(*(send(index) for index in range(20)))
        assert sorted(number for some in numbers for number in some) == list(range(1, 201))
        assert all(some == sorted(some) for some in numbers)
        got = 0
        async with asyncio.timeout(WAIT):
            while got < 200:
                got += (await ben.get("/message:recv", wait=5, limit=500))["count"]
        assert (got, (await ben.get("/message:recv"))["count"]) == (200, 0)

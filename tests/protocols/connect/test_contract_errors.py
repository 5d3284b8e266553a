"""What the document asks of errors: every operation can say one, and every one is defined where callers can read it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import interlingua as il

from .test_door import NOBODY, Gate, OutOfStamps, Receiver, chat, echo, greeter, mailer, postman, sleeper, up

T = f"/threads/{NOBODY}"
R = f"/runs/{NOBODY}"
RUN: dict[str, Any] = {"agent_id": NOBODY}

# One request for each operation of the OpenAPI that cannot be granted, and the code of what is wrong.
REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/agents/search", {"limit": 0}, 422, "invalid_request"),
    ("GET", f"/agents/{NOBODY}", None, 404, "agent_not_found"),
    ("GET", f"/agents/{NOBODY}/descriptor", None, 404, "agent_not_found"),
    ("POST", "/threads", {"if_exists": "sometimes"}, 422, "invalid_request"),
    ("POST", "/threads/search", {"status": "tired"}, 422, "invalid_request"),
    ("GET", T, None, 404, "thread_not_found"),
    ("PATCH", T, {"metadata": {}}, 404, "thread_not_found"),
    ("DELETE", T, None, 404, "thread_not_found"),
    ("GET", f"{T}/history", None, 404, "thread_not_found"),
    ("POST", f"{T}/copy", None, 404, "thread_not_found"),
    ("GET", f"{T}/runs", None, 404, "thread_not_found"),
    ("POST", f"{T}/runs", RUN, 404, "agent_not_found"),
    ("POST", f"{T}/runs/stream", RUN, 404, "agent_not_found"),
    ("POST", f"{T}/runs/wait", RUN, 404, "agent_not_found"),
    ("GET", T + R, None, 404, "run_not_found"),
    ("POST", T + R, {"approved": True}, 404, "run_not_found"),
    ("DELETE", T + R, None, 404, "run_not_found"),
    ("GET", f"{T}{R}/wait", None, 404, "run_not_found"),
    ("GET", f"{T}{R}/stream", None, 404, "run_not_found"),
    ("POST", f"{T}{R}/cancel", None, 404, "run_not_found"),
    ("POST", "/runs", RUN, 404, "agent_not_found"),
    ("POST", "/runs/search", {"status": "tired"}, 422, "invalid_request"),
    ("POST", "/runs/stream", RUN, 404, "agent_not_found"),
    ("POST", "/runs/wait", RUN, 404, "agent_not_found"),
    ("GET", R, None, 404, "run_not_found"),
    ("POST", R, {"approved": True}, 404, "run_not_found"),
    ("DELETE", R, None, 404, "run_not_found"),
    ("GET", f"{R}/wait", None, 404, "run_not_found"),
    ("GET", f"{R}/stream", None, 404, "run_not_found"),
    ("POST", f"{R}/cancel", None, 404, "run_not_found"),
    # and what the document asks for beyond it
    ("GET", f"/agents/{NOBODY}/capabilities", None, 404, "agent_not_found"),
    ("GET", f"/agents/{NOBODY}/errors", None, 404, "agent_not_found"),
    ("POST", f"/agents/{NOBODY}/configurations", {"config": {}}, 404, "agent_not_found"),
    ("GET", f"/configurations/{NOBODY}", None, 404, "not_found"),
]


async def test_every_operation_answers_with_an_error_of_the_protocol_when_it_cannot_be_granted(store: Path) -> None:
    async with up(store) as s:
        table = {entry["code"]: entry for entry in await s.get("/errors")}
        for method, path, body, status, code in REFUSED:
            answer = await s.http.request(method, path, **({} if body is None else {"json": body}))
            assert answer.status_code == status, (method, path)
            assert isinstance(answer.json(), str), "the protocol's error is a text"
            assert answer.headers["x-error-code"] == code
            assert answer.headers["x-error-transient"] == str(table[code]["transient"]).lower()


async def test_errors_come_with_an_explanation_that_names_what_was_wrong(store: Path) -> None:
    async with up(store) as s:
        assert NOBODY in await s.get(R, 404)
        assert NOBODY in await s.post("/runs", RUN, 404)
        said = await s.post("/runs", {"agent_id": "echo", "input": {"text": 3}}, 422)
        assert said == 'input: 3 is not of type "string" (at /text)'
        assert "/style" in await s.post(
            "/runs", {"agent_id": "greeter", "input": {"name": "a"}, "config": {"configurable": {"style": 3}}}, 422
        )
        failed = await s.output(await s.run("postman"))
        assert (failed["code"], failed["description"]) == ("out_of_stamps", "two stamps are missing")
        late = await s.output(await s.run("sleeper"))
        assert late["code"] == "timed_out"
        assert "0.05" in late["description"], "it says how long it may take"


async def test_an_error_of_a_run_is_told_in_its_stream_and_by_its_callback(store: Path) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @il.agent(errors=[OutOfStamps])
    async def clerk() -> str:
        started.set()
        await go.wait()
        raise OutOfStamps("two stamps are missing", details={"needed": 2})

    async with up(store, clerk) as s, Receiver() as receiver:
        run = await s.run("clerk", webhook=receiver.url)
        await started.wait()
        async with s.stream("GET", f"/runs/{run}/stream") as updates:
            go.set()
            told = [update async for _, update in updates]
        _, called = (await receiver.until("error"))[-1]
        assert called["run_id"] == run
        output = await s.output(run)
        assert output == {key: value for key, value in told[-1].items() if key != "status"}
        assert (told[-1]["type"], told[-1]["status"]) == ("error", "error")
        assert (output["code"], output["details"]) == ("out_of_stamps", {"needed": 2})


async def test_the_common_conditions_have_errors_of_their_own_and_these_are_what_callers_meet(store: Path) -> None:
    @il.agent
    async def crashing() -> str:
        raise ValueError("oops")

    gate = Gate()
    async with up(store, echo, greeter, chat, mailer, sleeper, crashing, gate.agent) as s:
        table = {entry["code"]: entry for entry in await s.get("/errors")}
        thread = await s.thread()
        await s.run("held", base=f"/threads/{thread}/runs")
        await gate.entered.get()
        refused = {
            "agent_not_found": ("/runs", RUN),
            "run_not_found": (R, {}),
            "thread_not_found": (f"{T}/runs", {"agent_id": "echo", "input": {"text": "a"}}),
            "thread_exists": ("/threads", {"thread_id": thread}),
            "thread_busy": (f"/threads/{thread}/runs", {"agent_id": "held"}),
            "invalid_request": ("/runs", {"metadata": 3}),
            "invalid_input": ("/runs", {"agent_id": "echo", "input": {}}),
            "invalid_config": (
                "/runs", {"agent_id": "greeter", "input": {"name": "a"}, "config": {"configurable": {"style": 3}}},
            ),
        }  # fmt: skip
        for code, (path, body) in refused.items():
            answer = await s.http.post(path, json=body)
            assert answer.headers.get("x-error-code") == code, (path, answer.text)
            assert str(table[code]["errcode"]).startswith(str(answer.status_code)), "the number is of HTTP's family"
        cancelled = await s.run("mailer")
        await s.output(cancelled)
        await s.ask("POST", f"/runs/{cancelled}/cancel?wait=true", None, 204)
        failed = {
            "cancelled": cancelled,
            "timed_out": await s.run("sleeper"),
            "agent_crashed": await s.run("crashing"),
        }
        for code, run in failed.items():
            output = await s.output(run)
            assert (output["type"], output["code"], output["errcode"]) == ("error", code, table[code]["errcode"])
            assert output["transient"] == table[code]["transient"]
        gate.go.set()


async def test_every_error_definition_has_a_code_and_a_number_that_no_other_has(store: Path) -> None:
    async with up(store) as s:
        table = await s.get("/errors") + await s.get("/agents/postman/errors")
        for name, kind in (("code", str), ("errcode", int)):
            values = [entry[name] for entry in table]
            assert all(isinstance(value, kind) and value for value in values)
            assert len(set(values)) == len(values)


async def test_every_error_definition_describes_its_condition(store: Path) -> None:
    async with up(store) as s:
        for entry in await s.get("/errors") + await s.get("/agents/postman/errors"):
            assert len(entry["description"].split()) >= 3, f"{entry['code']} is not described in words"
            assert entry["description"][-1] in ".`"
            assert entry["description"] != entry["code"]


async def test_every_error_definition_says_whether_trying_again_can_help(store: Path) -> None:
    async with up(store) as s:
        table = {entry["code"]: entry["transient"] for entry in await s.get("/errors")}
        assert {type(flag) for flag in table.values()} == {bool}
        for passing in ("overloaded", "unavailable", "store_error", "thread_busy", "timed_out", "run_lost"):
            assert table[passing] is True, passing
        for lasting in ("agent_not_found", "invalid_input", "invalid_config", "denied", "cancelled", "too_large"):
            assert table[lasting] is False, lasting
        (own,) = await s.get("/agents/postman/errors")
        assert own["transient"] is True
        assert (await s.output(await s.run("postman")))["transient"] is True


class Bounced(il.AgentError):
    """The mail came back."""

    code = "bounced"

    class Details(msgspec.Struct):
        address: str
        attempts: int = 1


@il.agent(errors=[Bounced, OutOfStamps])
async def courier(address: str) -> str:
    if address:
        raise Bounced("nobody lives there", details={"address": address, "attempts": 3})
    raise OutOfStamps("one stamp is missing", details={"needed": 1})


async def test_an_endpoint_gives_the_schemas_of_all_errors_that_are_an_agents_own(store: Path) -> None:
    async with up(store, courier, postman, echo) as s:
        own = {entry["code"]: entry for entry in await s.get("/agents/courier/errors")}
        assert set(own) == {"bounced", "out_of_stamps"}
        assert own["bounced"]["description"] == "The mail came back."
        assert (own["bounced"]["transient"], own["out_of_stamps"]["transient"]) == (False, True)
        schema = own["bounced"]["details"]
        assert schema["properties"]["address"] == {"type": "string"}
        assert schema["required"] == ["address"]
        assert own["out_of_stamps"]["details"]["properties"]["needed"] == {"type": "integer"}
        general = {entry["code"] for entry in await s.get("/errors")}
        assert not set(own) & general, "they are no part of the protocol's"
        assert await s.get("/agents/echo/errors") == []
        for address, code, details in (
            ("x", "bounced", {"address": "x", "attempts": 3}),
            ("", "out_of_stamps", {"needed": 1}),
        ):
            output = await s.output(await s.run("courier", {"address": address}))
            assert (output["errcode"], output["code"]) == (own[code]["errcode"], code)
            assert output["details"] == details


@pytest.mark.parametrize("way", ["wait", "stream"])
async def test_an_invocation_that_fails_at_once_says_so_in_its_own_answer(store: Path, way: str) -> None:
    async with up(store, postman) as s:
        if way == "wait":
            told = (await s.post("/runs/wait", {"agent_id": "postman"}))["output"]
        else:
            _, told = (await s.streamed("POST", "/runs/stream", {"agent_id": "postman"}))[-1]
        assert (told["type"], told["description"]) == ("error", "two stamps are missing")

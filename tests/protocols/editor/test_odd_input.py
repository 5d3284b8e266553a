"""What no client should send: the door answers what can be answered, never a response, and goes on."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.protocols.editor.config import DoorSettings
from interlingua.transports.jsonrpc.core import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from tests.kit.clients.editor import Client, in_process, stdio

ECHO = """
import interlingua as il

@il.agent
async def echo(text: str):
    yield text
"""


@il.agent
async def echo(text: str) -> str:
    return text


async def answers_to(client: Client, line: bytes) -> list[Any]:
    """The lines that come because of one line, and no others: what comes before the answer to a request behind it."""
    before = len(client.frames)
    await client.raw(line + b"\n")
    await client.answer(await client.send("session/list"))
    return client.frames[before:-1]


@pytest.mark.parametrize("ready", [True, False], ids=["after initialize", "before initialize"])
@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param(b"{broken", PARSE_ERROR, id="broken JSON"),
        pytest.param(b"1", INVALID_REQUEST, id="a number"),
        pytest.param(b'"x"', INVALID_REQUEST, id="a string"),
        pytest.param(b"null", INVALID_REQUEST, id="null"),
        pytest.param(b'{"jsonrpc":"2.0","id":null,"method":"session/list"}', INVALID_REQUEST, id="id null"),
        pytest.param(b'{"jsonrpc":"2.0","id":1.5,"method":"session/list"}', INVALID_REQUEST, id="id 1.5"),
        pytest.param(b'{"jsonrpc":"2.0","id":true,"method":"session/list"}', INVALID_REQUEST, id="id true"),
        pytest.param(b"[" * 50_000 + b"]" * 50_000, PARSE_ERROR, id="50k nesting"),
        pytest.param(b'{"a":' * 50_000 + b"1" + b"}" * 50_000, PARSE_ERROR, id="50k objects"),
        pytest.param(b"[]", INVALID_REQUEST, id="an empty batch"),
        pytest.param(b"\x00\x01\x02", PARSE_ERROR, id="control characters"),
    ],
)
async def test_a_line_that_is_no_message_gets_one_error_with_id_null(
    store: Path, line: bytes, code: int, ready: bool
) -> None:
    async with in_process(store, echo) as client:
        if ready:
            await client.initialize()
        [answer] = await answers_to(client, line)
        assert (answer["id"], answer["error"]["code"]) == (None, code)


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (b'{"id":"a","method":"session/list"}', INVALID_REQUEST, '"jsonrpc": "2.0"'),
        (b'{"jsonrpc":"1.0","id":"a","method":"session/list"}', INVALID_REQUEST, '"jsonrpc": "2.0"'),
        (b'{"jsonrpc":"2.0","id":"a","method":"session/li\xff"}', METHOD_NOT_FOUND, "session/li\ufffd"),
        (b'{"jsonrpc":"2.0","id":"a","method":"session/li\\ud83d"}', METHOD_NOT_FOUND, "session/li\ufffd"),
        (b'{"jsonrpc":"2.0","id":"a","method":"session/list","params":{"cwd":NaN}}', PARSE_ERROR, "NaN is no number"),
        (b'{"jsonrpc":"2.0","id":"a","method":"session/list","params":{"cwd":"x', PARSE_ERROR, "cut off at byte 68"),
        (b'{"params":{"id":"b","cwd":no},"method":"session/list","id":"a"}', PARSE_ERROR, "expecting value at byte 26"),
    ],
)
async def test_a_line_that_is_no_message_gets_its_id_where_that_can_be_read(
    store: Path, line: bytes, code: int, says: str
) -> None:
    async with in_process(store, echo) as client:
        await client.initialize()
        [answer] = await answers_to(client, line)
        assert (answer["id"], answer["error"]["code"]) == ("a", code)
        assert says in answer["error"]["message"]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"", id="a blank line"),
        pytest.param(b"  \t\r", id="a line of spaces"),
        pytest.param(b'{"jsonrpc":"2.0","method":"_unknown"}', id="an unknown notification"),
        pytest.param(b'{"jsonrpc":"2.0","method":"session/new"}', id="a request as a notification"),
        pytest.param(b'{"jsonrpc":"2.0","method":"session/cancel"}', id="a cancel without a session"),
        pytest.param(b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":5}}', id="a strange cancel"),
        pytest.param(b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"x"}}', id="cancel nothing"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"result":{}}', id="an answer to nothing"),
        pytest.param(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}', id="an error for nobody"),
        pytest.param(b'{"jsonrpc":"2.0","error":{"code":-32601,"message":"?"}}', id="an error without an id"),
        pytest.param(b'{"error":[]}', id="a strange error"),
    ],
)
async def test_blank_lines_notifications_and_responses_get_silence(store: Path, line: bytes) -> None:
    async with in_process(store, echo) as client:
        await client.initialize()
        assert await answers_to(client, line) == []


async def test_ids_are_kept_exactly(store: Path) -> None:
    async with in_process(store, echo) as client:
        await client.initialize()
        for id_ in (2**63, 2**53 + 1, -5, 0, "", "ü\u2028"):
            await client.send("session/list", id_=id_)
            answer = await client.answer(id_)
            assert "result" in answer
            assert json.dumps(answer["id"]) == json.dumps(id_)


async def test_of_duplicate_keys_the_last_wins(store: Path) -> None:
    async with in_process(store, echo) as client:
        await client.initialize()
        await client.raw(b'{"jsonrpc":"2.0","id":"a","method":"_nothing","id":"b","method":"session/list"}\n')
        answer = await client.answer("b")
        assert answer["id"] == "b"
        assert "result" in answer


async def test_carriage_returns_line_separators_and_long_lines_are_fine(store: Path) -> None:
    async with in_process(store, echo) as client:
        await client.initialize()
        session = await client.new_session()
        text = "a\u2028b\u2029c\x85d" + "x" * 5_000_000
        message = client.message("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})
        await client.raw(json.dumps(message, ensure_ascii=False).encode() + b"\r\n")
        answer = await client.answer(message["id"])
        assert answer["result"]["stopReason"] == "end_turn"
        assert client.text(session) == text


async def test_requests_before_initialize_are_refused_and_it_can_still_come(store: Path) -> None:
    async with in_process(store, echo) as client:
        for method in ("session/new", "session/list", "_extension"):
            answer = await client.call(method)
            assert answer["error"]["code"] == INVALID_REQUEST
        answer = await client.call("initialize", {"protocolVersion": "1"})
        assert answer["error"]["code"] == INVALID_PARAMS
        assert (await client.initialize())["protocolVersion"] == 1


async def test_unknown_methods_and_bad_params_have_codes_of_their_own(store: Path) -> None:
    async with in_process(store, echo) as client:
        await client.initialize()
        for params in ([], [1], {"cwd": 5}, {"cwd": "relative", "mcpServers": []}, {"cwd": "/", "mcpServers": [1]}):
            assert (await client.call("session/new", params))["error"]["code"] == INVALID_PARAMS, params
        for method in ("nothing", "_extension", "", "session/update", "rpc.discover"):
            assert (await client.call(method))["error"]["code"] == METHOD_NOT_FOUND, method


async def test_nesting_that_can_just_be_read_ends_nothing(store: Path) -> None:
    async with in_process(store, echo) as client:
        await client.initialize()
        for depth in (100, 500, 800, 900, 950, 990, 1000):
            server = b'{"name":"x","command":"x","args":[],"env":[],"deep":' + b"[" * depth + b"]" * depth + b"}"
            params = b'{"cwd":"/","mcpServers":[' + server + b"]}"
            before = len(client.messages)
            await client.raw(b'{"jsonrpc":"2.0","id":"%d","method":"session/new","params":%b}\n' % (depth, params))
            await client.wait_for(lambda m, id_=str(depth): m.get("id", 0) in (id_, None), after=before)  # type: ignore[misc]
        await client.new_session()


async def test_the_limit_on_lines_is_told_and_the_next_line_is_read(store: Path) -> None:
    async with in_process(store, echo, door=DoorSettings(max_frame_bytes=1000)) as client:
        await client.initialize()
        [answer] = await answers_to(client, b"x" * 1001)
        assert (answer["id"], answer["error"]["code"]) == (None, INVALID_REQUEST)
        assert "1000 bytes" in answer["error"]["message"]


# -- random input ---------------------------------------------------------------------------------------------

_WORDS = [
    "initialize", "session/new", "session/prompt", "session/list", "session/load", "session/cancel", "session/close",
    "$/cancel_request", "session/set_mode", "session/set_config_option", "authenticate", "logout", "session/resume",
    "session/delete", "_session/steering", "auth/login", "x",
]  # fmt: skip


def _value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(12 if depth < 3 else 8)
    match kind:
        case 0:
            return None
        case 1:
            return dice.choice([True, False])
        case 2:
            return dice.choice([0, 1, 2, -1, 2**31, 2**63, 2**70])
        case 3:
            return dice.random() * 1e6
        case 4 | 5:
            return dice.choice(_WORDS)
        case 6 | 7:
            return "".join(chr(dice.choice([65, 0x2028, 0xE9, 0x1F600, 0, 10])) for _ in range(dice.randrange(8)))
        case 8 | 9:
            return [_value(dice, depth + 1) for _ in range(dice.randrange(4))]
    names = ["sessionId", "cwd", "mcpServers", "prompt", "type", "text", "requestId", "protocolVersion", "methodId"]
    return {dice.choice(names): _value(dice, depth + 1) for _ in range(dice.randrange(4))}


def _message(dice: random.Random, sessions: list[str]) -> Any:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": dice.randrange(1000, 9999), "method": dice.choice(_WORDS)}
    params = _value(dice)
    if dice.random() < 0.7:
        params = {
            "sessionId": dice.choice([*sessions, "none"]),
            "cwd": "/tmp",
            "mcpServers": [],
            "prompt": [{"type": "text", "text": "hello"}],
        }
        if dice.random() < 0.3:
            params[dice.choice(list(params))] = _value(dice)
    message["params"] = params
    if dice.random() < 0.3:
        message.pop(dice.choice(list(message)), None)
    if dice.random() < 0.1:
        message[dice.choice(["result", "error", "id", "jsonrpc"])] = _value(dice)
    return message


def _line(dice: random.Random, sessions: list[str]) -> bytes:
    """A message, an almost message, a batch of them, or noise."""
    kind = dice.random()
    if kind < 0.15:
        return dice.randbytes(dice.randrange(1, 400)).replace(b"\n", b"")
    if kind < 0.3:
        return json.dumps(_value(dice)).encode()
    if kind < 0.45:
        frame = [_message(dice, sessions) if dice.random() < 0.8 else _value(dice) for _ in range(dice.randrange(5))]
        return json.dumps(frame).encode()
    line = bytearray(json.dumps(_message(dice, sessions), ensure_ascii=dice.random() < 0.5).encode())
    if kind < 0.7:
        for _ in range(dice.randrange(1, 4)):
            place = dice.randrange(len(line) + 1)
            line[place : place + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
    return bytes(line).replace(b"\n", b"")


@pytest.mark.parametrize("version", [1, 2])
async def test_random_messages_never_end_the_door_and_get_only_valid_messages(store: Path, version: int) -> None:
    dice = random.Random(version)
    async with in_process(store, echo) as client:
        client.allow()
        await client.initialize(version)
        sessions = [await client.new_session() for _ in range(2)]
        for _ in range(100):
            await client.raw(b"".join(_line(dice, sessions) + b"\n" for _ in range(25)))
            await client.answer(await client.send("session/list"))
        session = await client.new_session()
        await client.prompt(session, "still here")
        await client.update("agent_message_chunk", lambda update: update["content"]["text"] == "still here")


async def test_megabytes_of_random_bytes_never_end_the_process(tmp_path: Path) -> None:
    dice = random.Random(4)
    async with stdio(tmp_path, ECHO) as client:
        await client.raw(dice.randbytes(500_000) + b"\n")
        await client.initialize()
        session = await client.new_session()
        client.keep = False
        for round_ in range(6):
            await client.raw(dice.randbytes(400_000))  # about every 256th byte ends a line
            await client.raw(b"\n" + bytes(dice.choices(b'[]{}",:01e\\nu \n', k=100_000)))
            await client.raw(b"\n" + b"".join(_line(dice, [session]) + b"\n" for _ in range(100)))
            await client.answer(await client.send("session/list", id_=f"round {round_}"), timeout=60)
        client.keep = True
        session = await client.new_session()
        await client.prompt(session, "still here")
        assert client.text(session) == "still here"
        before = client.memory()
        await client.raw(dice.randbytes(1000) * 1000)
        assert client.memory() < before + 200_000_000
        await client.end_input()
        assert await client.wait() == 0
        await client.end()
        assert client.broken is None


async def test_a_client_that_is_killed_in_the_middle_of_a_line_leaves_a_process_that_ends(tmp_path: Path) -> None:
    async with stdio(tmp_path, ECHO) as client:
        await client.initialize()
        await client.raw(b'{"jsonrpc":"2.0","id":1,"meth')
        await client.end_input()
        async with asyncio.timeout(20):
            assert await client.wait() == 0

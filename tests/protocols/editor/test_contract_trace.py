"""`--trace FILE`: the wire as JSON lines, both directions, without secrets."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from interlingua.server.wire_trace import WireTrace, without_secrets
from tests.kit.clients.editor import Process, stdio

from . import agents

SECRETS = ["v4riable", "h3ader", "b3arer", "pa55word", "obj3ct", "t0ken", "qu3ry", "l0gin"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


async def traced(client: Process) -> None:
    """A conversation with every kind of message, and with secrets wherever clients put them."""
    await client.initialize()
    servers = [
        {
            "name": "a", "command": "/a", "args": [],
            "env": [{"name": "ONE", "value": "v4riable"}, {"name": "TWO", "value": "v4riable", "_meta": {}}],
        },
        {
            "type": "http", "name": "b", "url": "https://user:pa55word@b.test/?token=qu3ry",
            "headers": [{"name": "Authorization", "value": "Bearer b3arer0000"}, {"name": "X-Own", "value": "h3ader"}],
        },
    ]  # fmt: skip
    session = await client.new_session(mcpServers=servers)
    wrong = {"name": "c", "command": "/c", "args": [], "env": {"ANY": "obj3ct"}}
    await client.call("session/new", {"cwd": "/", "mcpServers": [wrong]})
    await client.call("authenticate", {"methodId": "none", "_meta": {"apiKey": "t0ken", "password": "pa55word"}})
    await client.raw(b"no message; Authorization: Bearer b3arer0000\n")
    await client.ask("session/set_mode", {"sessionId": session, "modeId": "careful@0.1.0"})
    client.allow()
    await client.prompt(session, "it")
    await client.line([client.message("session/list", id_="batched")])
    await client.answer("batched")


async def test_the_trace_has_every_message_of_both_directions_in_order(tmp_path: Path) -> None:
    trace = tmp_path / "logs" / "wire.jsonl"
    options = ("--trace", str(trace))
    async with stdio(tmp_path, Path(agents.__file__), *options) as client:
        await traced(client)
        await client.end_input()
        assert await client.wait() == 0
        await client.end()
    written = lines(trace)
    for line in written:
        assert set(line) in ({"time", "protocol", "direction", "message"}, {"time", "protocol", "direction", "text"})
        assert line["protocol"] == "editor"
        assert line["direction"] in ("in", "out")
        assert datetime.datetime.fromisoformat(line["time"]).utcoffset() == datetime.timedelta()
    times = [line["time"] for line in written]
    assert times == sorted(times)
    out = [line["message"] for line in written if line["direction"] == "out"]
    assert [_shape(frame) for frame in out] == [_shape(frame) for frame in client.frames]
    came = [line.get("message", line.get("text")) for line in written if line["direction"] == "in"]
    methods = [frame.get("method", "response") for frame in came if isinstance(frame, dict)]
    assert methods == [
        "initialize", "session/new", "session/new", "authenticate", "session/set_mode", "session/prompt", "response",
    ]  # fmt: skip
    assert next(frame for frame in came if isinstance(frame, str)).startswith("no message")
    assert [type(frame) for frame in came].count(list) == 1


def _shape(frame: Any) -> Any:
    return [_shape(entry) for entry in frame] if isinstance(frame, list) else (frame.get("id"), frame.get("method"))


async def test_the_trace_has_no_secrets(tmp_path: Path) -> None:
    trace = tmp_path / "wire.jsonl"
    options = ("--trace", str(trace))
    async with stdio(tmp_path, Path(agents.__file__), *options) as client:
        await traced(client)
        await client.end_input()
        assert await client.wait() == 0
    text = trace.read_text()
    for secret in SECRETS:
        assert secret not in text
    opened = next(line["message"] for line in lines(trace) if line.get("message", {}).get("method") == "session/new")
    one, two = opened["params"]["mcpServers"]
    assert [variable["name"] for variable in one["env"]] == ["ONE", "TWO"], "what is hidden can still be named"
    assert [header["name"] for header in two["headers"]] == ["Authorization", "X-Own"]
    assert one["command"] == "/a"


async def test_tracing_again_appends(tmp_path: Path) -> None:
    trace = tmp_path / "wire.jsonl"
    for times in (1, 2):
        async with stdio(tmp_path, agents_source(), "--trace", str(trace)) as client:
            await client.initialize()
            await client.end_input()
            assert await client.wait() == 0
        assert [line["direction"] for line in lines(trace)] == ["in", "out"] * times


def agents_source() -> str:
    return "import interlingua as il\n\n@il.agent\nasync def echo(text: str) -> str:\n    return text\n"


@pytest.mark.parametrize(
    ("message", "hidden"),
    [
        ({"env": [{"name": "A", "value": "s3cret"}]}, {"env": [{"name": "A", "value": "***"}]}),
        ({"env": {"A": "s3cret"}}, {"env": {"A": "***"}}),
        ({"headers": [{"name": "A", "value": "s3cret", "a": 1}]}, {"headers": [{"name": "A", "value": "***", "a": 1}]}),
        ({"headers": {"Cookie": ["s3cret"]}}, {"headers": {"Cookie": ["***"]}}),
        ({"Authorization": "s3cret"}, {"Authorization": "***"}),
        ({"authorization": {"a": "s3cret"}}, {"authorization": {"a": "***"}}),
        ({"accessToken": "s3cret", "apiKey": "s3cret"}, {"accessToken": "***", "apiKey": "***"}),
        ({"client_secret": "s3cret"}, {"client_secret": "***"}),
        ({"passwords": ["s3cret", 5]}, {"passwords": ["***", 5]}),
    ],
)  # fmt: skip
def test_values_under_telling_names_are_hidden(message: Any, hidden: Any) -> None:
    assert without_secrets(message) == hidden


@pytest.mark.parametrize(
    "message",
    [
        {"configOptions": [{"id": "tone", "options": [{"value": "dry", "name": "Dry"}]}]},
        {"prompt": [{"type": "text", "text": "say value"}], "name": "x", "value": "y"},
        {"usage": {"totalTokens": 5, "inputTokens": 3}},
        {"params": {"sessionId": "s", "environment": "test"}},
    ],
)
def test_what_is_no_secret_is_shown(message: Any) -> None:
    assert without_secrets(message) == message


async def test_random_input_ends_neither_the_trace_nor_the_process(tmp_path: Path) -> None:
    trace = tmp_path / "wire.jsonl"
    async with stdio(tmp_path, agents_source(), "--trace", str(trace)) as client:
        await client.initialize()
        for odd in (
            b'{"a":"\\ud800"}',
            b"\xff\xfe",
            b"[" * 5000,
            b"1e999",
            b"NaN",
            b"",
            b'"\\u0000"',
            b"[" * 990 + b"]" * 990,
        ):
            await client.raw(odd + b"\n")
        await client.answer(await client.send("session/list", id_="alive"))
        await client.end_input()
        assert await client.wait() == 0
    assert lines(trace)[-1]["message"]["id"] == "alive"


def test_a_line_cannot_be_forged_and_random_bytes_are_kept_as_text(tmp_path: Path) -> None:
    trace = WireTrace(tmp_path / "wire.jsonl", "editor")
    trace.received(b'{"a": "one\\n{\\"direction\\": \\"out\\"}"}')
    trace.received(b"\xff\xfe\n\x00 half")
    trace.received(b"[" * 100_000)
    trace.received(b'{"a": NaN}')
    trace.received(b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}")
    trace.sent(b'{"half": "\\ud800"}')
    trace.close()
    written = lines(tmp_path / "wire.jsonl")
    assert "NaN" not in (tmp_path / "wire.jsonl").read_text().replace('{\\"a\\": NaN}', ""), "no JSON has that"
    assert [line["direction"] for line in written] == ["in"] * 5 + ["out"]
    assert written[-1]["message"] == {"half": "\ud800"}
    assert written[0]["message"] == {"a": 'one\n{"direction": "out"}'}
    assert "half" in written[1]["text"]

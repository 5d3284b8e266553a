"""Random JSON-RPC, whole and cut at random bytes: the door answers what the specification says, and never stops.

What must come back is worked out here from the text of each line, without the door's own code, except for whether a
line is JSON at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from interlingua.transports.jsonrpc.core import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from tests.kit.clients.mcp import PATIENCE, Client, echo, in_process, stdio
from tests.kit.examples import share

SOURCE = """
import interlingua as il

@il.agent
async def echo(text: str):
    for word in text.split():
        yield word + " "
"""

# -- what is sent ---------------------------------------------------------------------------------------------

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text("a\ud83d\ude00 ", max_size=4)
_scalar = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.sampled_from([2**64, -(2**70), 10**40])
    | st.floats(-1e9, 1e9, allow_nan=False)
    | _text
)
_json = st.recursive(_scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3))
_token = st.sampled_from(["t", "", 0, 7, None, 1.5, True, [], {}])
_meta = st.fixed_dictionaries({}, optional={"progressToken": _token, "traceparent": _json, "x": _json}) | _json
_run = st.fixed_dictionaries(
    {"name": st.sampled_from(["echo", "nobody"]) | _json, "input": st.fixed_dictionaries({"text": _text}) | _json},
    optional={"_meta": _meta, "requestState": _json},
)
_call = st.fixed_dictionaries(
    {"name": st.sampled_from(["echo", "nobody"])}, optional={"arguments": _json, "_meta": _meta}
)
_METHODS: dict[str, st.SearchStrategy[Any]] = {
    "agents/run": _run | _json,
    "tools/call": _call | _json,
    "agents/list": st.fixed_dictionaries({}, optional={"cursor": _json}),
    "tools/list": st.fixed_dictionaries({}, optional={"cursor": _json}),
    "initialize": st.fixed_dictionaries({"protocolVersion": st.sampled_from(["2024-11-05", "2025-11-25"]) | _json}),
    "logging/setLevel": st.fixed_dictionaries({"level": st.sampled_from(["info", "loud"])}),
    "ping": _json,
    "agents/templates/list": _json,
    "server/discover": st.just({}),
    "resources/list": _json,
    "notifications/initialized": _json,
    "notifications/cancelled": st.fixed_dictionaries({"requestId": st.just("nothing") | _json}),
}
_request = st.sampled_from(sorted(_METHODS)).flatmap(
    lambda method: st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0"), "method": st.just(method)}, optional={"params": _METHODS[method]}
    )
)
_odd = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | _json, "method": st.sampled_from(sorted(_METHODS)) | _json, "params": _json,
        "result": _json, "error": _json, "cursor": _json,
    },
)  # fmt: skip
_message = st.tuples(_request | _request | _request | _odd, st.sampled_from(["id", "id", "no id", "odd id"]), _json)
_frame = (
    _message.map(lambda one: ("message", [one]))
    | st.lists(_message, max_size=4).map(lambda many: ("batch", many))
    | _json.map(lambda value: ("value", value))
    | st.binary(max_size=40).map(lambda data: ("bytes", data))
)
_cut = st.none() | st.integers(0, 120)  # where a line is broken off
_frames = st.lists(st.tuples(_frame, _cut), min_size=1, max_size=8)
_chunks = st.lists(st.integers(1, 90), max_size=30)  # how many bytes are written at once


class Lines:
    """Frames as lines; each request has an id of its own, so that its answer can be told from all others."""

    def __init__(self) -> None:
        self._next = 1_000_000  # the client has numbers of its own

    def line(self, frame: tuple[str, Any], cut: int | None) -> bytes:
        kind, value = frame
        if kind == "bytes":
            data: bytes = value
        elif kind == "value":
            data = json.dumps(value).encode()
        else:
            messages = [self._message(*one) for one in value]
            data = json.dumps(messages if kind == "batch" else messages[0]).encode()
        data = data.replace(b"\n", b" ")
        return data if cut is None else data[:cut]

    def _message(self, message: dict[str, Any], kind: str, odd: Any) -> dict[str, Any]:
        if kind == "no id":
            return message
        self._next += 1
        id_: Any = self._next if self._next % 2 else f"request {self._next}"
        if kind == "odd id" and type(odd) not in (int, str):
            id_ = odd
        return {**message, "id": id_}


# -- what must come back --------------------------------------------------------------------------------------

OK = "result"


def answers(line: bytes) -> list[list[tuple[str, set[Any]]]]:
    """The frames that a line is answered with: for each answer in it the id, and what it may be."""
    if not line.strip():
        return []
    try:
        frame = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        try:
            # Halves of characters and bytes that are no UTF-8 are replaced.
            text = json.dumps(json.loads(line.decode(errors="replace")), ensure_ascii=False)
            frame = json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
        except (ValueError, RecursionError):
            return unreadable(line.decode(errors="replace"))
    if type(frame) is not list:
        answer = answer_to(frame)
        return [[answer]] if answer is not None else []
    if not frame:
        return [[("null", {INVALID_REQUEST})]]
    if all(is_response(entry) for entry in frame):
        return []
    told = [("null", {INVALID_REQUEST}) if is_response(entry) else answer_to(entry) for entry in frame]
    batch = [answer for answer in told if answer is not None]
    return [batch] if batch else []


def unreadable(line: str) -> list[list[tuple[str, set[Any]]]]:
    """A line that is broken off carries the id of its request where that is there, and what looks like an answer is
    not answered."""
    read = json.JSONDecoder()
    found: dict[str, Any] = {}
    rest = line.strip()
    if rest.startswith("{"):
        rest = rest[1:]
        with contextlib.suppress(ValueError):
            while True:
                key, end = read.raw_decode(rest.lstrip())
                rest = rest.lstrip()[end:].lstrip()
                if not rest.startswith(":"):
                    break
                found[key] = None
                value, end = read.raw_decode(rest[1:].lstrip())
                rest = rest[1:].lstrip()[end:].lstrip()
                if not rest.startswith(","):
                    break
                found[key], rest = value, rest[1:]
    if not {"method", "params"} & found.keys() and {"result", "error"} & found.keys():
        return []
    id_ = found.get("id")
    return [[(json.dumps(id_) if type(id_) in (int, str) else "null", {PARSE_ERROR})]]


def answer_to(message: Any) -> tuple[str, set[Any]] | None:
    if is_response(message):
        return None
    id_ = message.get("id") if type(message) is dict else None
    refused = (json.dumps(id_) if type(id_) in (int, str) else "null", {INVALID_REQUEST})
    if type(message) is not dict or message.get("jsonrpc") != "2.0" or type(message.get("method")) is not str:
        return refused
    if "id" in message and type(message["id"]) not in (int, str):
        return refused
    params = message.get("params")
    if params is not None and type(params) not in (dict, list):
        return refused
    if "id" not in message:
        return None
    return json.dumps(message["id"]), outcomes(message["method"], params, message)


def is_response(message: Any) -> bool:
    return type(message) is dict and "method" not in message and ("result" in message or "error" in message)


def outcomes(method: str, params: Any, message: dict[str, Any]) -> set[Any]:
    """A code, or what stands in the result: the output of a run, the text of a tool, or just that there is one."""
    known = {"ping", "initialize", "logging/setLevel", "agents/list", "tools/list", "agents/run", "tools/call"}
    if method in ("agents/templates/list", "server/discover"):
        return {INVALID_PARAMS} if type(params) is list else {METHOD_NOT_FOUND}
    if method not in known:
        return {METHOD_NOT_FOUND}
    if type(params) is list:
        return {INVALID_PARAMS}
    params = params or {}
    match method:
        case "ping":
            return {OK}
        case "initialize":
            return {OK if type(params.get("protocolVersion")) in (str, int) else INVALID_PARAMS}
        case "logging/setLevel":
            return {OK if params.get("level") == "info" else INVALID_PARAMS}
        case "agents/list" | "tools/list":
            cursor = params.get("cursor")
            if cursor is not None and type(cursor) is not str:
                return {INVALID_PARAMS}
            cursor = cursor or message.get("cursor")
            return {OK, INVALID_PARAMS} if type(cursor) is str and cursor else {OK}
        case "agents/run":
            fits = params.get("name") == "echo" and _is_text(params.get("input"))
            return {_words(params["input"]["text"])} if fits else {INVALID_PARAMS}
    if params.get("name") != "echo" or type(params.get("arguments", {})) not in (dict, type(None)):
        return {INVALID_PARAMS}
    if not _is_text(params.get("arguments")):
        return {INVALID_PARAMS, "failed"}  # which of them, the revision decides
    return {_words(params["arguments"]["text"])}


def _is_text(value: Any) -> bool:
    return type(value) is dict and set(value) == {"text"} and type(value["text"]) is str


def _words(text: str) -> str:
    return "said " + "".join(word + " " for word in text.split())


def told(answer: dict[str, Any]) -> tuple[str, Any]:
    """An answer that came, in the same terms."""
    id_ = json.dumps(answer["id"])
    if "error" in answer:
        return id_, answer["error"]["code"]
    result = answer["result"]
    if "output" in result:
        return id_, "said " + result["output"].get("text", "")
    if "content" in result:
        return id_, "failed" if result["isError"] else "said " + result["structuredContent"].get("text", "")
    return id_, OK


# -- the play -------------------------------------------------------------------------------------------------


async def play(client: Client, lines: list[bytes], chunks: list[int], mark: str) -> None:
    expected = [batch for line in lines for batch in answers(line)]
    client.frames.clear()
    client.messages.clear()
    data = b"".join(line + b"\n" for line in lines)
    for size in chunks:
        await client.raw(data[:size])
        await asyncio.sleep(0)
        data = data[size:]
    await client.raw(data)
    await client.send("ping", id_=mark)
    async with asyncio.timeout(PATIENCE):
        while len(found := _answered(client)) < len(expected) + 1:
            await client.wait_for(_is_answer, after=len(client.messages))
    marked = {"jsonrpc": "2.0", "id": mark, "result": {}}
    assert marked in found
    found.remove(marked)
    compare(expected, found, lines)


def _is_answer(message: Any) -> bool:
    return "method" not in message


def _answered(client: Client) -> list[Any]:
    return [frame for frame in client.frames if type(frame) is list or _is_answer(frame)]


def compare(expected: list[list[tuple[str, set[Any]]]], found: list[Any], lines: list[bytes]) -> None:
    got = [[told(answer) for answer in (frame if type(frame) is list else [frame])] for frame in found]
    ids = Counter(tuple(sorted(id_ for id_, _ in batch)) for batch in got)
    assert ids == Counter(tuple(sorted(id_ for id_, _ in batch)) for batch in expected), (lines, got)
    # Those for nobody are told apart by their code alone.
    assert Counter(what for batch in got for id_, what in batch if id_ == "null") == Counter(
        what for batch in expected for id_, may_be in batch if id_ == "null" for what in may_be
    ), (lines, got)
    allowed = {id_: may_be for batch in expected for id_, may_be in batch if id_ != "null"}
    for batch in got:
        for id_, what in batch:
            assert id_ == "null" or what in allowed[id_], (id_, what, allowed[id_], lines)


def fuzz(examples: int, run: Callable[[Coroutine[Any, Any, None]], None], client: Client) -> None:
    numbered = Lines()
    rounds = 0

    # A missing answer costs all the patience there is: lines that fail are shown as they are, not made smaller.
    phases = [Phase.explicit, Phase.generate]

    @settings(
        max_examples=share(examples), deadline=None, suppress_health_check=list(HealthCheck), database=None,
        phases=phases,
    )  # fmt: skip
    @given(_frames, _chunks)
    def check(frames: list[tuple[tuple[str, Any], int | None]], chunks: list[int]) -> None:
        nonlocal rounds
        rounds += 1
        lines = [numbered.line(frame, cut) for frame, cut in frames]
        run(play(client, lines, chunks, f"mark {rounds}"))

    check()


def test_random_messages_get_what_the_specification_says(store: Path) -> None:
    with asyncio.Runner() as runner:
        door = in_process(store, echo)
        client, _ = runner.run(door.__aenter__())
        try:
            runner.run(ready(client))
            fuzz(400, runner.run, client)
            runner.run(still_there(client))
        finally:
            runner.run(door.__aexit__(None, None, None))


def test_random_messages_never_end_the_process(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        process = stdio(tmp_path, SOURCE)
        client = runner.run(process.__aenter__())
        try:
            runner.run(ready(client))
            fuzz(100, runner.run, client)
            runner.run(still_there(client))
            runner.run(ends_well(client))
        finally:
            runner.run(process.__aexit__(None, None, None))


async def ready(client: Client) -> None:
    await client.initialize()


async def still_there(client: Client) -> None:
    await client.initialize()
    assert await client.run("echo", {"text": "still here"}, token="end") == {"text": "still here "}
    assert client.joined("end") == {"text": "still here "}


async def ends_well(client: Any) -> None:
    await client.raw(b'{"jsonrpc":"2.0","id":1,"meth')  # broken off for good
    await client.end_input()
    assert await client.wait() == 0
    await client.end()
    assert client.broken is None

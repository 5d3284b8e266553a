"""Random posts to the MCP door over HTTP, whole and cut off, under headers that fit and that do not: each is answered
with a status that says what is wrong and with the id of its request, and the door still serves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from interlingua.model.filters import RunFilter
from interlingua.protocols.mcp import wire
from interlingua.transports.jsonrpc.core import INVALID_PARAMS
from tests.kit.clients.mcp_http import BOTH, WAIT, Client, Message, clients, up
from tests.kit.examples import share

from .test_fuzz import is_response, unreadable

YES = {"action": "accept", "content": {"choice": "yes"}}
STATUSES = {200, 202, 400, 404, 406, 413, 415}
_odd = st.none() | st.integers() | st.text("ab{", max_size=3) | st.just([]) | st.just({"x": 1})
_blank = st.sampled_from(["", "", " ", "\t", " \t "])

# -- what is sent ---------------------------------------------------------------------------------------------

_able = st.sampled_from([{}, {}, {"elicitation": {}}, {"elicitation": {"form": {}}}, {"elicitation": 1}, [], None])
_meta = st.fixed_dictionaries(
    {
        wire.META_VERSION: st.sampled_from([wire.MODERN] * 5 + ["2025-11-25", "2099-01-01", 5]),
        wire.META_CAPABILITIES: _able,
    },
    optional={"progressToken": st.sampled_from(["t", 0, None]), "example/mark": st.integers()},
)
_input = st.fixed_dictionaries({"text": st.sampled_from(["you", "ask"]) | _odd}) | _odd
_params = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["helper"] * 4 + ["nobody"]) | _odd, "input": _input, "arguments": _input,
        "_meta": _meta, "requestState": st.text("AZ09-_=.", max_size=60) | _odd, "inputResponses": _odd,
    },
)  # fmt: skip
_method = st.sampled_from(
    ["agents/run", "tools/call", "agents/list", "tools/list", "server/discover", "no/such", "ping"]
)
_message = st.fixed_dictionaries(
    {
        "jsonrpc": st.sampled_from(["2.0"] * 6 + ["1.0"]),
        "id": st.sampled_from(["mine", "7", 0, 7, -1, 2**60, None, 1.5]),
    },
    optional={"method": _method | _odd, "params": _params | _odd},
)
_body = (
    _message.map(lambda message: json.dumps(message).encode())
    | st.tuples(_message, st.integers(0, 200)).map(lambda cut: json.dumps(cut[0]).encode()[: cut[1]])
    | _message.map(lambda message: json.dumps({**message, "x": float("nan")}).encode())
    | _message.map(lambda message: json.dumps([message]).encode())
    | _message.map(lambda message: json.dumps({**message, "x": "x" * 5000}).encode())
)
_version = st.sampled_from([wire.MODERN] * 6 + ["2025-11-25", "2099-01-01", ""])
_headers = st.fixed_dictionaries(
    {"content-type": st.sampled_from(["application/json"] * 8 + ["text/plain", ""]), "accept": st.just(BOTH)},
    optional={
        "mcp-protocol-version": _version, "mcp-method": st.just("") | _method, "mcp-session-id": st.just("nobody"),
        "mcp-name": st.sampled_from(["helper"] * 4 + ["=?base64?aGVscGVy?=", "=?base64?%%?=", "nobody"]),
    },
)  # fmt: skip
_fits = st.booleans()  # the headers say what the body says
_posts = st.lists(st.tuples(_headers, _body, _blank, _blank, _fits), min_size=1, max_size=6)


def head(headers: dict[str, str], body: bytes, fits: bool) -> dict[str, str]:
    """The headers, or those that belong to the body, where it can be read."""
    try:
        message = json.loads(body)
    except ValueError:
        return headers
    method, params = (message.get("method"), message.get("params")) if isinstance(message, dict) else (None, None)
    if not fits or not isinstance(method, str):
        return headers
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(wire.META_VERSION) if isinstance(meta, dict) else wire.MODERN
    name = params.get("name") if isinstance(params, dict) else None
    told = {"mcp-protocol-version": str(version), "mcp-method": method.strip() or "-", "mcp-name": str(name)}
    return {**{key: value for key, value in headers.items() if key != "mcp-session-id"}, **told}


def expected(body: bytes) -> Any:
    """The id that the answer has."""
    try:
        message = json.loads(body)
    except ValueError:
        found = unreadable(body.decode())
        return json.loads(found[0][0][0]) if found else None
    if not isinstance(message, dict) or is_response(message):
        return None
    return message.get("id") if type(message.get("id")) in (int, str) else None


# -- the play -------------------------------------------------------------------------------------------------


async def post(client: Client, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
    """The answer to these bytes: the status, and the message in it."""
    place = client.url.removeprefix("http://")
    host, _, path = place.partition("/")
    lines = [f"POST /{path} HTTP/1.1", f"host: {host}", *(f"{name}:{value}" for name, value in headers.items())]
    lines += [f"content-length: {len(body)}", "connection: close", "", ""]
    async with asyncio.timeout(WAIT):
        reader, writer = await asyncio.open_connection(*host.split(":"))
        writer.write("\r\n".join(lines).encode() + body)
        answer = await reader.read()
        writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    if b"text/event-stream" in top:
        events = [line[5:] for line in rest.splitlines() if line.startswith(b"data:") and line[5:].strip()]
        rest = events[-1]
    return int(top.split()[1]), json.loads(rest) if rest.strip() else None


async def play(client: Client, posts: list[Any], waiting: set[str]) -> None:
    for headers, body, before, after, fits in posts:
        given_ = {name: f"{before}{value}{after}" for name, value in head(headers, body, fits).items()}
        status, told = await post(client, given_, body)
        assert status in STATUSES, (status, given_, body)
        if status == 202:
            assert told is None
            continue
        assert told is not None, (status, given_, body)
        assert told["id"] == expected(body), (status, told, given_, body)
        assert type(told["id"]) is type(expected(body))
        error: Message = told.get("error") or {}
        assert (status == 200) == ("result" in told) or "code" in error, (status, told)
        if error.get("code") == wire.MISSING_CAPABILITY:
            assert error["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}
            waiting.add(error["data"]["run"])


async def still_there(client: Client) -> None:
    answer = await client.modern("agents/run", {"name": "helper", "input": {"text": "you"}})
    assert (await answer.json())["result"]["output"] == {"text": "grüße you"}


def fuzz(examples: int, strategy: Any, run: Any) -> None:
    @settings(
        max_examples=share(examples), deadline=None, suppress_health_check=list(HealthCheck), database=None,
        phases=[Phase.explicit, Phase.generate],
    )  # fmt: skip
    @given(strategy)
    def check(value: Any) -> None:
        run(value)

    check()


def test_random_posts_get_a_status_and_the_id_of_their_request(store: Path) -> None:
    waiting: set[str] = set()

    with asyncio.Runner() as runner:
        door = up(store, patience=WAIT, max_body_bytes=4000)
        server, _ = runner.run(door.__aenter__())
        connected = clients(server)
        client = runner.run(connected.__aenter__())
        try:
            fuzz(150, _posts, lambda posts: runner.run(play(client, posts, waiting)))
            assert len(waiting) <= 1, "a client that cannot be asked leaves one run waiting, however often it tries"
            runner.run(still_there(client))
        finally:
            runner.run(connected.__aexit__(None, None, None))
            runner.run(door.__aexit__(None, None, None))


# -- states that were changed ---------------------------------------------------------------------------------

_change = st.tuples(
    st.sampled_from(["letter", "cut", "more", "odd"]),
    st.integers(0, 200),
    st.text("AZ09-_= é", min_size=1, max_size=4),
    _odd,
)


def changed(state: str, kind: str, place: int, letters: str, odd: Any) -> Any:
    place %= len(state)
    match kind:
        case "letter":
            return state[:place] + letters[0] + state[place + 1 :]
        case "cut":
            return state[:place]
        case "more":
            return state[:place] + letters + state[place:]
    return odd


def test_no_changed_state_answers_a_question(store: Path) -> None:
    able = {wire.META_CAPABILITIES: {"elicitation": {}}}

    def run(state: Any = None, **more: Any) -> Message:
        given_ = {} if state is None else {"requestState": state}
        return {"name": "helper", "input": {"text": "ask"}, "_meta": able, **given_, **more}

    async def refused(client: Client, asked: Message, change: Any) -> None:
        bent = changed(asked["requestState"], *change)
        if bent is None or bent == asked["requestState"]:
            return
        [question] = asked["inputRequests"]
        answer = await client.modern("agents/run", run(bent, inputResponses={question: YES}))
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, INVALID_PARAMS), bent

    with asyncio.Runner() as runner:
        door = up(store, patience=WAIT)
        server, _ = runner.run(door.__aenter__())
        connected = clients(server)
        client = runner.run(connected.__aenter__())
        try:

            async def ask(params: Message) -> Message:
                result: Message = (await (await client.modern("agents/run", params)).json())["result"]
                return result

            asked = runner.run(ask(run()))
            fuzz(150, _change, lambda change: runner.run(refused(client, asked, change)))
            assert len(runner.run(server.engine.runs.search(RunFilter(limit=100)))) == 1
            [question] = asked["inputRequests"]
            done = runner.run(ask(run(asked["requestState"], inputResponses={question: YES})))
            assert done["output"] == {"text": "done"}
        finally:
            runner.run(connected.__aexit__(None, None, None))
            runner.run(door.__aexit__(None, None, None))

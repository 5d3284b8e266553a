"""Checks of what no client should send: it is answered where it can be, once, and the connection goes on."""

from __future__ import annotations

import json
from typing import Any

from ...base import NotApplicable, applies, expect, member, shown
from ..driver import Driver, check
from ..links import Message
from ..reading import is_error
from ..talk import PING, Client

_MEGABYTES = 65  # size of a line above the limits of most servers
_NESTED = 100_000


async def answered_once(driver: Driver, line: bytes, what: str, *codes: int, id_: Any = None) -> None:
    """A line gets one error, whose id is null, or the one that could be read in it."""
    client = await driver.lines()
    came = await client.heard_after(line, wanted=True)
    expect(came, f"{what} was not answered")
    wanted = f"{' or '.join(map(str, codes))} and " + ("id null" if id_ is None else f"id null or {shown(id_)}")
    expect(
        len(came) == 1 and is_error(came[0], *codes, id_=id_), f"{what} was not answered with {wanted}: {shown(came)}"
    )


@check("editor.input.broken-json")
async def a_line_that_is_no_json_is_a_parse_error(driver: Driver) -> None:
    await answered_once(driver, b'{"jsonrpc":"2.0","id":1,"method":', "a line that is no JSON", -32700, id_=1)


@check("editor.input.no-object")
async def a_line_that_is_no_object_is_an_invalid_request(driver: Driver) -> None:
    for line in (b"1", b'"x"', b"null"):
        await answered_once(driver, line, f"the line {line.decode()}", -32600)


@check("editor.input.version")
async def a_message_without_its_version_is_an_invalid_request(driver: Driver) -> None:
    client = await driver.lines()
    for message in ({"id": "old", "method": PING}, {"jsonrpc": "1.0", "id": "old", "method": PING}):
        came = await client.heard_after(json.dumps(message).encode(), wanted=True)
        refused = [m for m in came if isinstance(m.get("error"), dict) and m["error"].get("code") == -32600]
        fits = len(came) == 1 and refused and came[0].get("id", 0) in (None, "old")
        expect(fits, f"the message {shown(message)} was not answered with -32600: {shown(came)}")


@check("editor.input.ids")
async def an_id_of_another_kind_is_an_invalid_request(driver: Driver) -> None:
    for id_ in (b"true", b"{}", b"[1]"):
        line = b'{"jsonrpc":"2.0","id":%b,"method":"_interlingua/ping"}' % id_
        await answered_once(driver, line, f"a request with the id {id_.decode()}", -32600)


@check("editor.input.ids-exact")
async def ids_come_back_exactly(driver: Driver) -> None:
    client = await driver.lines()
    for id_ in (0, -7, 2**53 + 1, 2**63 - 1, "", 'ids may be words: ü \U0001f600 \u2028 \\ "'):
        await _comes_back(client, id_, refusable=False)
    await _comes_back(client, 2**63, refusable=True)  # the schema has no room for it


async def _comes_back(client: Client, id_: Any, refusable: bool) -> None:
    came = await client.heard_after(json.dumps(client.request(PING, id_=id_)).encode(), wanted=True)
    expect(len(came) == 1, f"a request with the id {shown(id_)} was answered with {shown(came)}")
    if refusable and is_error(came[0], -32600):
        return
    back = member(came[0], "id", object, "the answer")
    expect(back == id_ and type(back) is type(id_), f"the id {shown(id_)} came back as {shown(back)}")


@check("editor.input.unknown-notification")
async def an_unknown_notification_gets_silence(driver: Driver) -> None:
    client = await driver.lines()
    came = await client.heard_after(
        b'{"jsonrpc":"2.0","method":"_interlingua/news","params":{"a":1}}', b'{"jsonrpc":"2.0","method":"nonsense"}'
    )
    expect(not came, f"a notification that is not known was answered: {shown(came)}")


@check("editor.input.invalid-utf-8")
async def bytes_that_are_no_utf_8_are_a_parse_error(driver: Driver) -> None:
    client = await driver.lines()
    applies(client.link.kind == "stdio", "a WebSocket carries no such text")
    line = b'{"jsonrpc":"2.0","id":"bad bytes","method":"_interlingua/\xff\xfe"}'
    # A server may read it with replacement characters; then it does not know the method.
    await answered_once(driver, line, "a line that is not UTF-8", -32700, -32601, id_="bad bytes")


@check("editor.input.blank-lines")
async def blank_lines_are_ignored_and_none_are_written(driver: Driver) -> None:
    client = await driver.lines()
    applies(client.link.kind == "stdio", "the server is no command, but at an address")
    came = await client.heard_after(b"", b"", b"\r")
    for link in driver.links:
        blank = [line for line in link.lines if not line.strip()]
        expect(not blank, "the server writes blank lines")
    if came and all(is_error(message, -32700) for message in came):
        raise NotApplicable("the server takes a blank line for a message that is no JSON, which it is not forbidden")
    expect(not came, f"blank lines were answered: {shown(came)}")


@check("editor.input.nan")
async def nan_is_no_json(driver: Driver) -> None:
    for word in (b"NaN", b"Infinity", b"-Infinity"):
        line = b'{"jsonrpc":"2.0","id":"no number","method":"_interlingua/ping","params":{"n":%b}}' % word
        await answered_once(driver, line, f"a message with {word.decode()} in it", -32700, id_="no number")
    for link in driver.links:
        for line in link.lines:
            expect(_without_nan(line), f"the server writes what is no JSON: {shown(line.decode(errors='replace'))}")


def _without_nan(line: bytes) -> bool:
    if b"NaN" not in line and b"Infinity" not in line:
        return True
    found: list[str] = []
    try:
        json.loads(line, parse_constant=found.append)
    except (ValueError, RecursionError):
        return True  # something else is wrong with it
    return not found


@check("editor.input.duplicate-keys")
async def of_a_key_that_stands_twice_the_last_value_counts(driver: Driver) -> None:
    client = await driver.lines()
    line = b'{"jsonrpc":"2.0","id":"first","id":"last","method":"_interlingua/ping"}'
    came = await client.heard_after(line, wanted=True)
    expect(len(came) == 1, f"a message with a key that stands twice was answered with {shown(came)}")
    if is_error(came[0], -32700) or is_error(came[0], -32600):
        raise NotApplicable("the server refuses a key that stands twice, as JSON allows")
    expect(came[0].get("id") == "last", f"of two ids the first one counts: {shown(came[0])}")


@check("editor.input.nesting")
async def nesting_without_bounds_ends_nothing(driver: Driver) -> None:
    client = await driver.lines()
    for opening, inner, closing in ((b"[", b"", b"]"), (b'{"a":', b"1", b"}")):
        deep = opening * _NESTED + inner + closing * _NESTED
        came = await client.heard_after(
            b'{"jsonrpc":"2.0","id":"deep","method":"_interlingua/ping","params":%b}' % deep, wanted=True
        )
        expect(
            len(came) == 1 and "error" in came[0],
            f"a message that is nested {_NESTED} times was not answered with one error: {shown(came)}",
        )


@check("editor.input.long-lines")
async def long_lines_and_odd_characters_are_nothing_special(driver: Driver) -> None:
    client = await driver.lines()
    long = {"text": "x" * 2_000_000}
    odd = {"text": "\u2028 \u2029 \x85 \x0b \x0c"}
    for what, params in (("of two megabytes", long), ("with line separators in a string", odd)):
        message = client.request(PING, params, f"a line {what}")
        await client.link.put_bytes(json.dumps(message, ensure_ascii=False).encode())
        await client.response(message["id"], f"a line {what}")
    if client.link.kind == "stdio":
        message = client.request(PING, id_="a line with a carriage return")
        await client.link.put_bytes(json.dumps(message).encode() + b"\r")
        await client.response(message["id"], "a line that ends with a carriage return and a newline")


@check("editor.input.responses")
async def responses_are_never_answered(driver: Driver) -> None:
    client = await driver.lines()
    stray: list[Message] = [
        {"jsonrpc": "2.0", "id": "never asked", "result": {}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no JSON"}},
        {"jsonrpc": "2.0", "id": 4711, "error": {"code": -32601, "message": "unknown"}},
    ]
    came = await client.heard_after(*(json.dumps(message).encode() for message in stray))
    expect(not came, f"a response was answered: {shown(came)}")


@check("editor.input.too-long")
async def a_line_above_the_limit_is_told_and_the_next_is_read(driver: Driver) -> None:
    client = await driver.lines()
    applies(client.link.kind == "stdio", "the server is no command, but at an address")
    line = b'{"jsonrpc":"2.0","method":"_interlingua/news","params":{"text":"%b"}}' % (b"x" * (_MEGABYTES * 1_048_576))
    came = await client.heard_after(line)
    applies(came, f"a line of {_MEGABYTES} MiB is not too long")
    expect(
        len(came) == 1 and "error" in came[0] and came[0].get("id", 0) is None,
        f"a line of {_MEGABYTES} MiB was not answered with one error with id null: {shown(came)}",
    )

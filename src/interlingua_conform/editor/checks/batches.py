"""Checks of batches, as the page on transports has them: what they are answered with."""

from __future__ import annotations

from typing import Any

from ...base import Broken, Gone, NotApplicable, applies, expect, shown
from ...remembering import once
from ..driver import Driver, batch, check
from ..links import Message
from ..reading import is_answer, is_error, note, objects
from ..talk import PING, Client

NEWS = note("_interlingua/news")


async def array(client: Client, entries: list[Any]) -> list[Message]:
    """The array that answers a batch."""
    frame = await batch(client, entries)
    if not isinstance(frame, list):
        raise Broken(f"a batch was answered with one object and no array: {shown(frame)}")
    found = objects(frame)
    expect(len(found) == len(frame), f"the array that answers a batch has an entry that is no object: {shown(frame)}")
    return found


def unpacked(frames: list[Any]) -> list[Message]:
    """The messages that are in frames."""
    return [entry for frame in frames for entry in objects(frame if isinstance(frame, list) else [frame])]


def ids(entries: list[Message]) -> list[Any]:
    return [entry.get("id") for entry in entries]


async def frames_after(client: Client, data: bytes, wanted: bool) -> list[Any]:
    """The frames that come because of one: those before the answers to two pings behind it, or in a moment after, where
    an answer is `wanted`."""
    frames, before = len(client.link.frames), client.now
    await client.link.put_bytes(data)
    for _ in range(2):
        await client.ping()
    if wanted:
        await client.link.silent(client.odd, before)
    return [
        frame
        for frame in client.link.frames[frames:]
        if is_answer(frame) and (isinstance(frame, list) or client.odd(frame))
    ]


@check("editor.batch.combines", "editor.batch.client-sends")
async def requests_and_notifications_come_together(driver: Driver) -> None:
    client = await driver.batches()
    entries = [client.request(PING), NEWS, client.request(PING)]
    answers = await array(client, entries)
    expect(
        sorted(map(str, ids(answers))) == sorted(str(entry["id"]) for entry in entries if "id" in entry),
        f"a batch of two requests and a notification was answered with {shown(answers)}",
    )


@check("editor.batch.v2-json-rpc-rules")
async def version_2_has_the_rules_of_json_rpc(driver: Driver) -> None:
    client = await driver.v2()
    applies(client.link.kind != "http", "over Streamable HTTP there are no batches")
    request = client.request(PING)
    answers = await array(client, [request, NEWS, 1])
    expect(
        len(answers) == 2 and request["id"] in ids(answers) and any(is_error(answer, -32600) for answer in answers),
        f"a batch of a request, a notification and a number was answered with {shown(answers)}",
    )


@check("editor.batch.mixed")
async def a_mixed_batch_is_valid(driver: Driver) -> None:
    client = await driver.batches()
    request = client.request(PING)
    answers = await array(client, [NEWS, request, NEWS])
    expect(request["id"] in ids(answers), f"the request among notifications was not answered: {shown(answers)}")
    expect(
        not any(is_error(answer, -32600) for answer in answers),
        f"notifications in a batch are refused: {shown(answers)}",
    )


@check("editor.batch.response-array")
async def one_request_is_answered_by_an_array_of_one(driver: Driver) -> None:
    client = await driver.batches()
    request = client.request(PING)
    answers = await array(client, [request])
    expect(ids(answers) == [request["id"]], f"a batch of one request was answered with {shown(answers)}")


@check("editor.batch.response-per-request")
async def each_request_has_its_response(driver: Driver) -> None:
    client = await driver.batches()
    requests = [client.request(PING, id_=f"entry {number}") for number in range(5)]
    answers = await array(client, requests)
    expect(
        sorted(map(str, ids(answers))) == sorted(ids(requests)),
        f"a batch with the ids {shown(ids(requests))} was answered for {shown(ids(answers))}",
    )


@check("editor.batch.no-response-per-notification", "editor.batch.no-reply-to-notification-in-batch")
async def notifications_in_a_batch_have_no_response(driver: Driver) -> None:
    client = await driver.batches()
    request = client.request(PING)
    answers = await array(client, [note(PING), request, note("session/prompt", {"nonsense": True})])
    expect(ids(answers) == [request["id"]], f"beside one request two notifications are answered: {shown(answers)}")
    more = await client.heard_after()
    expect(not more, f"a notification in a batch is answered: {shown(more)}")


@check("editor.batch.notification-has-no-id")
async def a_request_without_an_id_is_a_notification(driver: Driver) -> None:
    client = await driver.lines()
    odd = await client.heard_after(b'{"jsonrpc":"2.0","method":"_interlingua/ping","params":{}}')
    expect(not odd, f"a request without an id was answered: {shown(odd)}")


@check("editor.batch.no-reply-to-notification")
async def a_notification_is_not_replied_to(driver: Driver) -> None:
    client = await driver.lines()
    odd = await client.heard_after(
        b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"no such session"}}',
        b'{"jsonrpc":"2.0","method":"session/prompt","params":{"nonsense":true}}',
        b'{"jsonrpc":"2.0","method":"session/cancel","params":[]}',
    )
    expect(not odd, f"a notification was replied to: {shown(odd)}")


# -- batches that nothing comes of -------------------------------------------------------------------------------


@once
async def _notes(driver: Driver) -> list[Any]:
    client = await driver.batches()
    data = b'[{"jsonrpc":"2.0","method":"_interlingua/news"},{"jsonrpc":"2.0","method":"_interlingua/more"}]'
    return await frames_after(client, data, wanted=False)


@check("editor.batch.notifications-only")
async def a_batch_of_notifications_is_valid(driver: Driver) -> None:
    refused = [entry for entry in unpacked(await _notes(driver)) if "error" in entry]
    expect(not refused, f"a batch of notifications alone is refused: {shown(refused)}")


@check("editor.batch.no-empty-response-array")
async def there_is_no_empty_response_array(driver: Driver) -> None:
    came = await _notes(driver)
    expect([] not in came, "a batch of notifications alone was answered with an empty array")


@check("editor.batch.nothing-to-return")
async def nothing_comes_of_notifications(driver: Driver) -> None:
    came = await _notes(driver)
    expect(not came, f"a batch of notifications alone was answered: {shown(came)}")


# -- batches that are none -------------------------------------------------------------------------------------


@once
async def _broken(driver: Driver) -> list[Any]:
    client = await driver.batches()
    return await frames_after(client, b'[{"jsonrpc":"2.0","id":"cut","method":"_interlingua/ping"},', wanted=True)


@check("editor.batch.parse-error")
async def a_batch_that_is_no_json_is_a_parse_error(driver: Driver) -> None:
    came = await _broken(driver)
    expect(came, "a batch that is no JSON was not answered")
    expect(
        all(is_error(entry, -32700) for entry in unpacked(came)),
        f"a batch that is no JSON was not answered with -32700 and id null: {shown(came)}",
    )


@check("editor.batch.parse-error-single")
async def a_parse_error_is_no_array(driver: Driver) -> None:
    came = await _broken(driver)
    expect(len(came) == 1 and isinstance(came[0], dict), f"a batch that is no JSON was answered with {shown(came)}")


@once
async def _empty(driver: Driver) -> list[Any]:
    return await frames_after(await driver.batches(), b"[]", wanted=True)


@check("editor.batch.not-empty")
async def an_empty_batch_is_refused_and_never_sent(driver: Driver) -> None:
    came = await _empty(driver)
    expect(any("error" in entry for entry in unpacked(came)), f"an empty array was not refused: {shown(came)}")
    for link in driver.links:
        expect([] not in link.frames, "the server sent an empty array")


@check("editor.batch.empty-invalid-request")
async def an_empty_batch_is_an_invalid_request(driver: Driver) -> None:
    came = await _empty(driver)
    expect(
        unpacked(came) and all(is_error(entry, -32600) for entry in unpacked(came)),
        f"an empty array was not answered with -32600 and id null: {shown(came)}",
    )


@check("editor.batch.empty-single")
async def the_answer_to_an_empty_batch_is_no_array(driver: Driver) -> None:
    came = await _empty(driver)
    expect(len(came) == 1 and isinstance(came[0], dict), f"an empty array was answered with {shown(came)}")


# -- entries that are none -------------------------------------------------------------------------------------


@check("editor.batch.invalid-entry")
async def each_invalid_entry_is_an_error_of_its_own(driver: Driver) -> None:
    client = await driver.batches()
    wrong: list[list[Any]] = [[1, 2, 3], ["x", None, {}], [{"jsonrpc": "2.0", "id": {}, "method": PING}]]
    for entries in wrong:
        answers = await array(client, entries)
        expect(
            len(answers) == len(entries) and all(is_error(answer, -32600) for answer in answers),
            f"the batch {shown(entries)} was not answered with -32600 and id null for each entry: {shown(answers)}",
        )


@check("editor.batch.invalid-entry-isolated")
async def valid_entries_beside_an_invalid_one_are_answered(driver: Driver) -> None:
    client = await driver.batches()
    one, two = client.request(PING), client.request(PING)
    answers = await array(client, [one, 1, two])
    expect(
        {one["id"], two["id"]} <= {i for i in ids(answers) if isinstance(i, int)},
        f"the requests beside an invalid entry were not answered: {shown(answers)}",
    )


@check("editor.batch.nested")
async def an_array_in_a_batch_is_an_invalid_entry(driver: Driver) -> None:
    client = await driver.batches()
    request, inner = client.request(PING), client.request(PING)
    answers = await array(client, [[inner], request])
    expect(
        len(answers) == 2 and request["id"] in ids(answers) and any(is_error(answer, -32600) for answer in answers),
        f"a batch with an array in it was answered with {shown(answers)}",
    )


@check("editor.batch.duplicate-ids")
async def two_requests_with_one_id_are_both_answered(driver: Driver) -> None:
    client = await driver.batches()
    answers = await array(client, [client.request(PING, id_="twice"), client.request(PING, id_="twice")])
    expect(ids(answers) == ["twice", "twice"], f"two requests with one id were answered with {shown(answers)}")


@check("editor.batch.responses")
async def responses_in_a_batch_are_not_answered(driver: Driver) -> None:
    client = await driver.batches()
    data = b'[{"jsonrpc":"2.0","id":"never","result":{}},{"jsonrpc":"2.0","id":"nor this","result":null}]'
    came = await frames_after(client, data, wanted=False)
    expect(not came, f"a batch of responses was answered: {shown(came)}")
    request = client.request(PING)
    answers = await array(client, [{"jsonrpc": "2.0", "id": "never", "result": {}}, request])
    rest = [answer for answer in answers if answer.get("id") != request["id"]]
    expect(
        len(rest) < len(answers) and all(is_error(answer, -32600) for answer in rest) and len(rest) < 2,
        f"a batch of a response and a request was answered with {shown(answers)}",
    )


@check("editor.batch.limits")
async def a_batch_that_is_too_long_is_one_error(driver: Driver) -> None:
    client = await driver.batches()
    data = b"[" + b",".join([b'{"jsonrpc":"2.0","method":"_interlingua/news"}'] * 20_000) + b"]"
    came = await frames_after(client, data, wanted=False)
    applies(came, "a batch of 20000 notifications is not too long")
    expect(
        len(came) == 1 and isinstance(came[0], dict) and "error" in came[0],
        f"a batch of 20000 notifications was answered with {shown(came)}",
    )


@check("editor.batch.every-version")
async def batches_are_taken_whatever_version_was_agreed_on(driver: Driver) -> None:
    for version in (driver.v1, driver.v2):
        try:
            client = await version()
        except NotApplicable:
            continue
        applies(client.link.kind != "http", "over Streamable HTTP there are no batches")
        request = client.request(PING)
        try:
            frame = await batch(client, [request])
            await client.ping()
        except Gone as error:
            expect(False, f"a batch in version {client.version}: {error}")
        applies(
            client.version == 2 or not is_error(frame, -32600),
            "in version 1, which does not speak of batches, the server refuses them with -32600",
        )
        expect(
            isinstance(frame, list) and ids(objects(frame)) == [request["id"]],
            f"a batch in version {client.version} was answered with {shown(frame)}",
        )

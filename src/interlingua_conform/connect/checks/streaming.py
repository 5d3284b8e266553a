"""Output as a stream of events: their form, the two modes, taking a stream up, and how it ends."""

from __future__ import annotations

from typing import Any

import msgspec

from ...base import NotApplicable, applies, expect, member, shown
from ...remembering import once
from ...rows import Row, Source, add
from ...schemas import fits
from ..driver import OVER, Driver, at, result_of, suite
from ..shapes import UPDATES
from ..streams import Streamed

_SOON = 2.0  # seconds in which an agent that streams says something
_SAYS = ("type", "values", "result", "update")  # the members by which two updates are equal
_ENOUGH = 5  # updates that are read of an agent that never stops
_NASTY = "hé\u2028lo\u0085 thère"  # a reader that splits at every line end of Unicode would cut this


async def _streams(d: Driver, *modes: str) -> None:
    able = await d.able()
    for mode in modes:
        applies(mode in able, f"the agent does not stream {mode}, says its descriptor")


@once
async def values(d: Driver) -> Streamed:
    """A whole stream in the mode values."""
    await _streams(d, "values")
    return await d.streamed("POST", "/runs/stream", await d.request(stream_mode="values"))


@once
async def custom(d: Driver) -> Streamed:
    await _streams(d, "custom")
    return await d.streamed("POST", "/runs/stream", await d.request(stream_mode="custom"))


@once
async def ended(d: Driver) -> Streamed:
    """A stream in the mode values that has updates."""
    seen = await values(d)
    expect(seen.updates(), f"{seen.what} has no events{f': {seen.trouble}' if seen.trouble else ''}")
    return seen


class Going(msgspec.Struct):
    """Streams of slow runs that were watched for a moment and then left."""

    first: dict[str, Any] | None  # the first update, where one came
    pending: bool  # true if the run still went on then
    joined: list[dict[str, Any]]  # the updates for a client that joined, while the agent said nothing new
    runs: dict[str, str]  # by what is to become of them without their connection: cancel, continue


@once
async def going(d: Driver) -> Going:
    applies("values" in await d.able("slow"), "the slow agent does not stream values, says its descriptor")
    runs = {}
    first: dict[str, Any] | None = None
    joined: list[dict[str, Any]] = []
    pending = False
    for choice in ("cancel", "continue"):
        tag = {**d.mark, "on_disconnect": choice}
        body = await d.request("slow", stream_mode="values", on_disconnect=choice, metadata=tag)
        async with d.flow("POST", "/runs/stream", body) as flow:
            flow.seen.expect_stream()
            first = await flow.next(_SOON)
            run = runs[choice] = await _run_of(d, first, tag)
            d.going[at("runs", run)] = None
            pending = await d.status(run) not in OVER
            if choice == "continue" and pending:
                async with d.flow("GET", at("runs", run, "stream")) as joining:
                    joining.seen.expect_stream()
                    while len(joined) < _ENOUGH and (update := await joining.next(d.quiet)) is not None:
                        joined.append(update)
    return Going(first, pending, joined, runs)


async def _run_of(d: Driver, update: dict[str, Any] | None, tag: dict[str, Any]) -> str:
    """The run that a stream is of: it says so itself, or else the run is found by its tag."""
    told = None if update is None else update.get("run_id")
    if isinstance(told, str):
        return told
    found = await d.listed("POST", "/runs/search", {"metadata": tag})
    if len(found) != 1:
        raise NotApplicable("the slow agent says nothing, and its run is not found")
    return member(found[0], "run_id", str, "a run that was found")


# -- the form of a stream -------------------------------------------------------------------------------------


@suite.check("connect.streaming.post", "connect.streaming.stream-mode")
async def a_run_is_started_and_streamed(d: Driver) -> None:
    (await values(d)).expect_stream()


@suite.check("connect.streaming.sse")
async def a_stream_is_server_sent_events(d: Driver) -> None:
    seen = await values(d)
    seen.expect_stream()
    expect(seen.events(), f"{seen.what} has no events: {shown(seen.received.decode(errors='replace'))}")


async def _blocks(d: Driver) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(block) for block in (await ended(d)).events()]


async def _updates(d: Driver) -> list[dict[str, Any]]:
    return (await ended(d)).updates()


async def _values(d: Driver) -> list[dict[str, Any]]:
    found = (await ended(d)).of_type("values")
    applies(found, "no event of the stream has the type values")
    return found


def _has_result(update: Any, where: str) -> None:
    result_of(update)


_EVENT, _DATA = Source(_blocks, "an event", each=True), Source(_updates, "the data of an event", each=True)
add(
    suite,
    Row("connect.streaming.event-id", _EVENT, "id", str, filled=True),
    Row("connect.streaming.event-name", _EVENT, "event", equals="agent_event"),
    Row("connect.streaming.event-is-update", _DATA, "type", str, one_of=UPDATES),
    Row("connect.streaming.data-result", Source(_values, "an update", each=True), fits=_has_result),
)


@suite.check("connect.streaming.data-run-id")
async def every_event_says_of_which_run_it_is(d: Driver) -> None:
    runs = {member(u, "run_id", str, "the data of an event") for u in (await ended(d)).updates()}
    expect(len(runs) == 1, f"the events of one stream are of {len(runs)} runs: {shown(sorted(runs))}")


@suite.check("connect.streaming.data-type")
async def events_in_the_mode_values_have_that_type(d: Driver) -> None:
    seen = await ended(d)
    expect(seen.of_type("values"), f"no event of the stream has the type values: {shown(seen.updates())}")
    for update in seen.updates():
        expect(update.get("type") != "custom", f"a custom event in a stream of values: {shown(update)}")


@suite.check("connect.streaming.run-returned")
async def a_stream_makes_a_run_that_can_be_asked_for(d: Driver) -> None:
    run = (await values(d)).run_id()
    got = await d.told("GET", at("runs", run))
    told = member(got, "run_id", str, f"the answer to GET /runs/{run}")
    expect(told == run, f"GET /runs/{run} gives the run {told}")


@suite.check("connect.streaming.closes")
async def the_stream_is_closed_when_the_output_is_complete(d: Driver) -> None:
    seen = await values(d)
    seen.expect_stream()
    expect(seen.closed, f"{seen.what} was not closed: {seen.trouble}")


# -- the mode values ------------------------------------------------------------------------------------------


@suite.check("connect.streaming.mode-values")
async def every_value_is_a_whole_output(d: Driver) -> None:
    schema = member(await d.specs(), "output", dict, "specs")
    for update in (await ended(d)).of_type("values"):
        applies("values" in update or "result" in update, "the agent streams messages only")
        fits(result_of(update), schema, "an update of the mode values")


@suite.check("connect.streaming.values-replace")
async def the_last_value_is_the_result(d: Driver) -> None:
    seen = await ended(d)
    output = await d.waited(seen.run_id())
    applies(output.get("type") == "result", f"the run that was streamed did not succeed: {shown(output)}")
    told = seen.of_type("values")
    expect(told, f"no event of the stream has the type values: {shown(seen.updates())}")
    last, whole = result_of(told[-1]), result_of(output)
    expect(last == whole, f"the last value of the stream is {shown(last)}, and the result of the run {shown(whole)}")


@suite.check("connect.streaming.flow", "connect.requirements.mode-streaming")
async def a_run_is_streamed_until_its_end(d: Driver) -> None:
    seen = await ended(d)
    expect(seen.closed, f"{seen.what} was not closed: {seen.trouble}")
    status = await d.status(seen.run_id())
    expect(status in OVER, f"the run {seen.run_id()} is {status}, though its stream has ended")


@suite.check("connect.streaming.supported", "connect.streaming.connection-open", "connect.output.when-partial")
async def output_comes_while_the_run_goes_on(d: Driver) -> None:
    if d.subject.roles.slow is not None:
        seen = await going(d)
        if seen.first is not None:
            applies(seen.pending, "the slow agent was done at once")
            return
    updates = (await ended(d)).updates()
    applies(len(updates) > 1, "the agent gives its output in one piece; name one that is slow (--slow)")
    expect(updates[0].get("status") == "pending", f"the first of {len(updates)} updates is {shown(updates[0])}")


# -- the mode custom ------------------------------------------------------------------------------------------


@suite.check("connect.streaming.mode-custom")
async def custom_updates_are_what_the_descriptor_says(d: Driver) -> None:
    seen = await custom(d)
    found = seen.of_type("custom")
    applies(found, "the agent gave no custom updates")
    schema = (await d.specs()).get("custom_streaming_update")
    for update in found:
        told = member(update, "update", dict, "the data of a custom event")
        if isinstance(schema, dict):
            fits(told, schema, "a custom update")


@suite.check("connect.openapi.stream-mode-list")
async def both_modes_at_once_give_both_kinds(d: Driver) -> None:
    await _streams(d, "values", "custom")
    applies((await custom(d)).of_type("custom"), "the agent gave no custom updates")
    seen = await d.streamed("POST", "/runs/stream", await d.request(stream_mode=["values", "custom"]))
    for kind in ("values", "custom"):
        expect(seen.of_type(kind), f"a stream of both modes has no update of the type {kind}: {shown(seen.updates())}")


@suite.check("connect.openapi.stream-mode-subset")
async def a_mode_that_the_descriptor_lacks_is_refused(d: Driver) -> None:
    able = await d.able()
    lacking = [mode for mode in ("values", "custom") if mode not in able]
    applies(lacking, "the agent streams in both modes")
    seen = await d.streamed("POST", "/runs/stream", await d.request(stream_mode=lacking[0]))
    refused = seen.status >= 400 and seen.status != 500  # that would be an accident
    expect(refused, f"{seen.what} in the mode {lacking[0]}, which the descriptor lacks, is answered {seen.status}")


# -- joining --------------------------------------------------------------------------------------------------


@suite.check("connect.openapi.join-stream")
async def whoever_joins_is_told_only_what_comes_after(d: Driver) -> None:
    seen = await going(d)
    applies(seen.first is not None, "the slow agent says nothing while it runs")
    assert seen.first is not None
    said = [seen.first.get(name) for name in _SAYS]
    again = [update for update in seen.joined if [update.get(name) for name in _SAYS] == said]
    expect(not again, f"a stream that was joined begins with what was said before: {shown(again)}")


# -- what published clients need ------------------------------------------------------------------------------


@suite.check("connect.clients.sse-one-line")
async def the_data_of_an_event_is_one_line_of_ascii(d: Driver) -> None:
    seen = await ended(d)
    given = _with_text(await d.input(), _NASTY)
    if given is not None:
        other = await d.streamed("POST", "/runs/stream", await d.request(stream_mode="values", input=given))
        seen = other if other.status == 200 else seen
    expect(b"\r" not in seen.received, "lines of the stream end with CR LF, or CR")
    for block in seen.events():
        lines = block.data or []
        expect(len(lines) == 1, f"the data of an event has {len(lines)} lines: {shown(lines)}")
        expect(lines[0].isascii(), f"the data of an event has letters beyond ASCII: {shown(ascii(lines[0]))}")


def _with_text(value: Any, text: str) -> Any:
    """An input like another, with a text in it; None where it has none."""
    if isinstance(value, str):
        return text
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, str):
                return {**value, name: text}
    return None


@suite.check("connect.clients.last-event-id")
async def a_stream_is_taken_up_after_the_last_event(d: Driver) -> None:
    seen = await (custom(d) if "custom" in await d.able() else values(d))
    blocks = seen.events()
    applies(len(blocks) > 1, "the agent gives its output in one piece")
    first = blocks[0].id
    applies(first and first.isascii(), "the events have no ids that could be sent back")
    assert first is not None
    path = at("runs", seen.run_id(), "stream")
    again = await d.streamed("GET", path, headers={"last-event-id": first})
    applies(again.status == 200 and again.closed, "a stream that has ended cannot be taken up")
    told, wanted = ([block.data for block in part] for part in (again.events(), blocks[1:]))
    if told == wanted:
        return
    joined = await d.streamed("GET", path)
    applies(again.received != joined.received, "the server takes no notice of Last-Event-ID")
    expect(told and told[0] != blocks[0].data, f"the stream after the event {first} begins with {shown(told[:1])}")
    expect(told[-1] == wanted[-1], f"the stream after the event {first} ends with {shown(told[-1])}, not as it did")


@suite.check("connect.clients.keep-alive")
async def a_comment_is_no_event(d: Driver) -> None:
    """Seen on the streams of the other checks: the comments of some servers come only after a while."""
    if not d.streams:
        await values(d)
    counts = [(seen.what, *seen.comments()) for seen in d.streams]
    applies(any(total for _, total, _ in counts), "no comment came on any stream")
    for what, _, alone in counts:
        expect(not alone, f"a comment of {what} has an empty line after it, which published clients take for an event")

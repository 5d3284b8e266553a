"""Progress: when it comes, under which token, and what a notification holds."""

from __future__ import annotations

from typing import Any

from ...base import Broken, Gone, NotApplicable, applies, expect, member, shown
from ..driver import TOKEN, Driver, afterwards, check, ended, pair, plain, shown_progress, under
from ..joining import judged
from ..links import Message
from ..shapes import strange
from ..talk import PROGRESS, Seen, same, token_of

_TOKENS = (7, 0, "")  # whole numbers and texts, also those that careless code takes for nothing


@check("mcp.progress.server-may-notify")
async def progress_may_be_told(d: Driver) -> None:
    seen = await shown_progress(d)
    expect("result" in seen.answer, f"a run that told of its progress has no result: {shown(seen.answer)}")


@check("mcp.progress.none-without-token")
async def without_a_token_nothing_is_told(d: Driver) -> None:
    seen = await ended(d)
    expect(not seen.progress, f"progress is told, though there was no progressToken: {shown(seen.progress[:1])}")
    try:
        late = [message for message in await afterwards(d) if not same(token_of(message), TOKEN)]
    except NotApplicable:
        late = []
    expect(not late, f"progress is told under a token that nobody gave: {shown(late[:1])}")


@check("mcp.progress.throughout-run")
async def progress_comes_before_the_answer(d: Driver) -> None:
    seen = await ended(d, TOKEN)
    late = [message for message in await afterwards(d) if same(token_of(message), TOKEN)]
    expect(not late, f"progress comes after the answer of its run: {shown(late[:1])}")
    applies(seen.progress, "the server sends no progress of its agent, as it may")


@check("mcp.progress.notification-method")
async def progress_has_its_method(d: Driver) -> None:
    for message in (await shown_progress(d)).progress:
        expect(
            message.get("method") == PROGRESS,
            f"a delta comes with the method {shown(message.get('method'))}: {shown(message)}",
        )


@check("mcp.progress.notification-no-id")
async def progress_is_a_notification(d: Driver) -> None:
    for message in (await shown_progress(d)).progress:
        expect("id" not in message, f"a progress notification has an id, as if it were a request: {shown(message)}")
        expect(message.get("jsonrpc") == "2.0", f"jsonrpc of a progress notification is not 2.0: {shown(message)}")


@check("mcp.progress.notification-token")
async def progress_has_its_token(d: Driver) -> None:
    for token in (TOKEN, 7):
        seen = await shown_progress(d, token)
        for message in seen.progress:
            told = member(message, "params", dict, "a progress notification").get("progressToken")
            expect(
                same(told, token),
                f"progressToken is {shown([told])[1:-1]}, and the request had {shown([token])[1:-1]}: {shown(message)}",
            )
    await _two_at_once(d)


async def _two_at_once(d: Driver) -> None:
    """Checks that each of two runs at once has its own deltas."""
    try:
        both = await pair(d)
    except Broken:
        return
    tokens = [seen.token for seen in both]
    deltas: dict[Any, list[Any]] = {token: [] for token in tokens}
    for message in _between(both):
        token = token_of(message)
        expect(token in tokens, f"two runs at once: there is progress under a token of neither: {shown(message)}")
        delta = message["params"].get("delta")
        if isinstance(delta, dict):
            deltas[token].append(delta)
    left, right = both
    if any("output" not in seen.answer.get("result", {}) for seen in both):
        return
    mixed = (
        judged(deltas[left.token], right.output()).problem == "" == judged(deltas[right.token], left.output()).problem
    )
    alone = (
        judged(deltas[left.token], left.output()).problem == "" == judged(deltas[right.token], right.output()).problem
    )
    expect(alone or not mixed, "two runs at once: the progress of each comes under the token of the other")


def _between(both: tuple[Seen, Seen]) -> list[Message]:
    """Returns the progress messages of both runs, each message once."""
    found: list[Message] = []
    for seen in both:
        found += [message for message in seen.progress if not any(message is other for other in found)]
    return found


@check("mcp.progress.notification-delta")
async def progress_has_a_delta(d: Driver) -> None:
    for message in (await shown_progress(d)).progress:
        member(message, "params.delta", dict, "a progress notification")


@check("mcp.progress.delta-subset")
async def deltas_follow_the_output_schema(d: Driver) -> None:
    seen = await shown_progress(d)
    applies(seen.deltas, "no progress notification has a delta that is an object")
    schema = (await d.agent()).item.get("outputSchema")
    for delta in seen.deltas:
        wrong = strange(delta, seen.output(), schema)
        expect(wrong is None, f"a delta does not follow outputSchema: {wrong}, in {shown(delta)}")


@check("mcp.progress.deltas-make-output")
async def deltas_make_the_output(d: Driver) -> None:
    seen = await shown_progress(d)
    applies(seen.deltas, "no progress notification has a delta that is an object")
    problem = judged(seen.deltas, seen.output()).problem
    expect(not problem, problem)


@check("mcp.progress.example-howd")
async def gpa_tells_progress_as_in_the_example(d: Driver) -> None:
    applies((await d.agent()).name == "gpa", "the agent that may be run is not gpa")
    for message in (await shown_progress(d)).progress:
        params = member(message, "params", dict, "a progress notification")
        expect(
            set(message) == {"jsonrpc", "method", "params"},
            f"a progress notification has other members: {shown(message)}",
        )
        expect(
            set(params) - {"_meta"} == {"progressToken", "delta"},
            f"params of a progress notification has other members: {shown(message)}",
        )
        expect(params["progressToken"] == TOKEN, f"the token was {TOKEN}, and is another: {shown(message)}")
        member(message, "params.delta.text", str, "a progress notification of gpa")


@check("mcp.progress.token-as-in-mcp")
async def a_token_is_a_text_or_a_whole_number_in_meta(d: Driver) -> None:
    await plain(d)
    try:
        beside = await d.run(progressToken="beside")
    except (Broken, Gone) as error:
        raise Broken(f"a run with another member beside name and input is not answered: {error}") from None
    told = [message for message in beside.progress if same(token_of(message), "beside")]
    expect(not told, f"a progressToken counts although it is not in _meta: {shown(told[:1])}")
    await shown_progress(d)
    none = [shown([token])[1:-1] for token in _TOKENS if not await _is_a_token(d, token)]
    names = " and ".join(none)
    expect(not none, f"progress comes under the progressToken {TOKEN}, and none under {names}: that is a token, too")


async def _is_a_token(d: Driver, token: Any) -> bool:
    """Returns whether the server takes a value as a progressToken. It does not if progress comes under another token,
    and none under this one, twice."""
    shows = shown([token])[1:-1]
    try:
        seen = await under(d, token)
    except Gone as error:
        raise Broken(f"a run under the progressToken {shows} is not answered: {error}") from None
    expect("result" in seen.answer, f"a run under the progressToken {shows} is refused: {shown(seen.answer)}")
    if seen.progress:
        return True
    again = (await d.run(TOKEN), await d.run(token))
    return bool(again[1].progress or not again[0].progress)

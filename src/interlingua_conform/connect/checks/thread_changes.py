"""Checks changes of threads from outside: searching, patching, copying, deleting, and keeping the thread of a run."""

from __future__ import annotations

import uuid
from typing import Any

from ...base import applies, expect, member, shown
from ..driver import Driver, Json, answered, at, suite
from .runs import succeeded
from .threads import fresh, got, history, threaded, used


async def _found(d: Driver, body: Json) -> list[str]:
    threads = await d.listed("POST", "/threads/search", body)
    return [member(thread, "thread_id", str, "a thread that was found") for thread in threads]


@suite.check("connect.openapi.search-threads")
async def threads_are_found_by_metadata_values_and_status_in_pages(d: Driver) -> None:
    await threaded(d)
    mark = {"conform": uuid.uuid4().hex}
    ours = {await fresh(d, metadata={**mark, "more": n}) for n in range(2)}
    found = await _found(d, {"metadata": mark})
    expect(set(found) == ours, f"POST /threads/search {shown(mark)} finds {shown(found)}, not {shown(sorted(ours))}")
    one = await _found(d, {"metadata": mark, "limit": 1})
    other = await _found(d, {"metadata": mark, "limit": 1, "offset": 1})
    expect(len(one) == 1, f"POST /threads/search with limit 1 finds {len(one)}")
    expect(
        {*one, *other} == ours, f"two pages of one thread each have {shown([*one, *other])}, not {shown(sorted(ours))}"
    )
    expect(set(await _found(d, {"metadata": mark, "status": "idle"})) == ours, "a search for idle threads misses some")
    busy = await _found(d, {"metadata": mark, "status": "busy"})
    expect(not busy, f"a search for busy threads finds {shown(busy)}, which are idle")
    if (await d.specs()).get("thread_state") is not None:
        seen = await used(d)
        values = seen.after.get("values")
        if isinstance(values, dict) and values:
            found = await _found(d, {"metadata": d.mark, "values": values})
            expect(seen.id in found, f"a search for the values {shown(values)} does not find the thread {seen.id}")


@suite.check("connect.openapi.patch-thread")
async def a_patch_merges_metadata_and_changes_values(d: Driver) -> None:
    await threaded(d)
    thread = await fresh(d, metadata={"a": 1, "b": 1})
    path = at("threads", thread)
    told = member(await d.told("PATCH", path, {"metadata": {"b": 2, "c": 3}}), "", dict, f"the answer to PATCH {path}")
    for where, value in (("the answer to a patch", told), ("the thread after a patch", await got(d, thread))):
        metadata = member(value, "metadata", dict, where)
        merged = {name: metadata.get(name) for name in ("a", "b", "c")} == {"a": 1, "b": 2, "c": 3}
        expect(merged, f"metadata a=1 b=1, patched with b=2 c=3, is {shown(metadata)} in {where}")
    if (await d.specs()).get("thread_state") is None:
        return
    states = {shown(entry.get("values"), 10_000): entry for entry in await history(d)}
    thread = (await used(d)).id
    now = (await got(d, thread)).get("values")
    earlier = [entry for entry in states.values() if entry.get("values") not in (now, None, {}, [])]
    if not earlier:
        return  # the thread has had one state only: there is none to go back to
    entry = earlier[0]
    await d.told("PATCH", at("threads", thread), {"checkpoint": entry.get("checkpoint"), "values": entry["values"]})
    after = (await got(d, thread)).get("values")
    expect(after == entry["values"], f"a thread that was patched with {shown(entry['values'])} has {shown(after)}")


@suite.check("connect.openapi.copy-thread")
async def a_copy_has_the_state_and_goes_its_own_way(d: Driver) -> None:
    await threaded(d)
    seen = await used(d)
    path = at("threads", seen.id)
    before = await got(d, seen.id)
    copy = member(await d.told("POST", f"{path}/copy"), "thread_id", str, f"the answer to POST {path}/copy")
    expect(copy != seen.id, f"POST {path}/copy gives the thread itself")
    same = (await got(d, copy)).get("values")
    expect(same == before.get("values"), f"a copy has {shown(same)}, and what was copied {shown(before.get('values'))}")
    if (await d.specs()).get("thread_state") is not None:
        theirs, mine = [
            [entry.get("values") for entry in await d.listed("GET", at("threads", name, "history"))]
            for name in (seen.id, copy)
        ]
        expect(theirs == mine, f"the history of a copy is {shown(mine)}, and of what was copied {shown(theirs)}")
    await d.told("PATCH", at("threads", copy), {"metadata": {"copied": True}})
    metadata = member(await got(d, seen.id), "metadata", dict, "the thread that was copied")
    expect("copied" not in metadata, "a change of a copy shows on the thread that was copied")


@suite.check("connect.openapi.delete-thread")
async def a_thread_is_deleted_but_not_while_a_run_is_pending(d: Driver) -> None:
    await threaded(d)
    thread = await fresh(d)
    await d.told("DELETE", at("threads", thread), status=204)
    answer = await d.ask("GET", at("threads", thread))
    expect(answer.status == 404, answered(f"GET /threads/{thread} of a thread that was deleted", answer))
    if d.subject.roles.slow is None or "threads" not in await d.able("slow"):
        return
    thread = await fresh(d)
    base = at("threads", thread, "runs")
    run = await d.start("slow", base)
    answer = await d.ask("DELETE", at("threads", thread))
    still = await d.ask("GET", at("threads", thread))
    await d.stop(run, base)
    refused = 400 <= answer.status < 500
    expect(refused, answered(f"DELETE /threads/{thread} of a thread with a pending run", answer))
    expect(still.status == 200, answered(f"GET /threads/{thread} after its deletion was refused", still))


@suite.check("connect.openapi.on-completion")
async def the_thread_of_a_run_without_one_is_kept_or_deleted(d: Driver) -> None:
    await threaded(d)
    await succeeded(d)
    threads: dict[str, Any] = {}
    for choice in ("keep", "delete"):
        told = await d.told("POST", "/runs/wait", await d.request(on_completion=choice))
        run = member(told, "", dict, "the answer to POST /runs/wait").get("run")
        threads[choice] = run.get("thread_id") if isinstance(run, dict) else None
    applies(isinstance(threads["keep"], str), "a run does not tell which thread was made for it")
    await got(d, threads["keep"])
    if isinstance(threads["delete"], str):
        answer = await d.ask("GET", at("threads", threads["delete"]))
        expect(answer.status == 404, answered("GET of the thread of a run with on_completion delete", answer))

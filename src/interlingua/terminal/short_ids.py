"""Ids as people type them: any part that fits only one.

Ids begin with a time, so those of one minute begin alike; lists show the end of an id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ..model.errors import NotFound, QuestionNotFound, RunNotFound, ThreadNotFound
from .errors import CommandError

if TYPE_CHECKING:
    from ..engine.reading import AnyEngine

_PAGE = 1000
_SHORT = 8
_FULL = 36


def short(id_: str) -> str:
    """Returns the form of an id that lists show: the end of a long id. Names that people gave stay whole."""
    return id_[-_SHORT:] if len(id_) == _FULL and id_.count("-") == 4 else id_


async def find_run(engine: AnyEngine, part: str) -> str:
    if part == "last":
        async for id_ in _run_ids(engine):
            return id_
        raise RunNotFound("there are no runs yet")
    if len(part) == _FULL:
        return part
    return await _only("run", part, _run_ids(engine), RunNotFound)


async def find_thread(engine: AnyEngine, part: str) -> str:
    if await engine.threads.find(part) is not None:
        return part
    return await _only("thread", part, _thread_ids(engine), ThreadNotFound)


async def find_question(engine: AnyEngine, part: str) -> str:
    if len(part) == _FULL:
        return part
    return await _only("question", part, _question_ids(engine), QuestionNotFound)


async def thread_to_use(engine: AnyEngine, name: str) -> str:
    """Returns the thread for a new run: a thread with this name, or with this end of its id as lists show it; else a
    new one of that name."""
    if len(name) == _SHORT and await engine.threads.find(name) is None:
        found = [id_ async for id_ in _thread_ids(engine) if short(id_) == name]
        if len(found) == 1:
            return found[0]
    return name


async def _only(what: str, part: str, ids: AsyncIterator[str], missing: type[NotFound]) -> str:
    wanted = part.lower()
    found = [id_ async for id_ in ids if wanted and wanted in id_.lower()]
    ends = [id_ for id_ in found if id_.lower().endswith(wanted)]
    if len(found) == 1 or len(ends) == 1:
        return (ends or found)[0]
    if not found:
        raise missing(f"there is no {what} {part!r}")
    some = ", ".join(short(id_) for id_ in found[:5]) + (", …" if len(found) > 5 else "")
    raise CommandError(f"{len(found)} {what}s fit {part!r}: {some}", hint="give more of its end")


async def _run_ids(engine: AnyEngine) -> AsyncIterator[str]:
    from ..model.filters import RunFilter

    offset = 0
    while page := await engine.runs.search(RunFilter(limit=_PAGE, offset=offset)):
        for run in page:
            yield run.id
        offset += len(page)


async def _thread_ids(engine: AnyEngine) -> AsyncIterator[str]:
    from ..model.filters import ThreadFilter

    offset = 0
    while page := await engine.threads.search(ThreadFilter(limit=_PAGE, offset=offset)):
        for thread in page:
            yield thread.id
        offset += len(page)


async def _question_ids(engine: AnyEngine) -> AsyncIterator[str]:
    from ..model.filters import QuestionFilter

    for record in await engine.questions.search(QuestionFilter(state=None, limit=100_000)):
        yield record.question.id

"""Filters of searches for runs, questions and threads."""

from __future__ import annotations

from typing import Any

import msgspec

from .status import Status


class RunFilter(msgspec.Struct, kw_only=True):
    agent: str | None = None
    version: str | None = None
    agents: list[str] | None = None  # NAME, NAME@VERSION or PREFIX*; any of them may match
    status: list[Status] | None = None
    caller: str | None = None
    thread: str | None = None
    parent: str | None = None
    root: str | None = None
    metadata: dict[str, Any] | None = None
    tag: str | None = None
    before: str | None = None  # only runs older than this id; ids of runs rise with time
    since: str | None = None  # only runs with this id, or newer
    blocked: bool = False  # only runs that wait for other code, because theirs could not resume them
    sealed: bool = False  # include runs that only overseers and the owner may read
    limit: int = 10
    offset: int = 0


class QuestionFilter(msgspec.Struct, kw_only=True):
    run: str | None = None  # this run and the runs that it called
    state: str | None = "open"
    caller: str | None = None  # only questions of its runs that it may answer
    anyones: bool = False  # with `caller`: it may see all runs, not only its own
    after: int | None = None  # only questions changed after this number, in the order of change; else oldest first
    newest: bool = False  # order by last change, the latest first
    limit: int = 100


class ThreadFilter(msgspec.Struct, kw_only=True):
    status: str | None = None
    caller: str | None = None
    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    limit: int = 10
    offset: int = 0

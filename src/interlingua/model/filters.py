"""Filters: which runs, questions and threads a search gives back."""

from __future__ import annotations

from typing import Any

import msgspec

from .status import Status


class RunFilter(msgspec.Struct, kw_only=True):
    agent: str | None = None
    version: str | None = None
    agents: list[str] | None = None  # any of these: NAME, NAME@VERSION or PREFIX*
    status: list[Status] | None = None
    caller: str | None = None
    thread: str | None = None
    parent: str | None = None
    root: str | None = None
    metadata: dict[str, Any] | None = None
    marked: str | None = None
    blocked: bool = False  # only those that some code could not go on with, and that wait for other code
    sealed: bool = False  # also those that only overseers and the owner may read
    limit: int = 10
    offset: int = 0


class QuestionFilter(msgspec.Struct, kw_only=True):
    run: str | None = None  # and the runs that it called
    state: str | None = "open"
    caller: str | None = None  # whose runs, without what only somebody else may answer
    anyones: bool = False  # with `caller`: who may see all runs, not only its own
    after: int | None = None  # only those that changed since, in the order of their changes; else the oldest first
    newest: bool = False  # the one that changed last first
    limit: int = 100


class ThreadFilter(msgspec.Struct, kw_only=True):
    status: str | None = None
    caller: str | None = None
    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    limit: int = 10
    offset: int = 0

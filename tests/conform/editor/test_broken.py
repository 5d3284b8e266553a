"""Servers that break one rule each are caught by the requirement that they break; one that keeps them all is not."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from interlingua_conform import suite
from interlingua_conform.base import Subject

from ..common import ROLES, failures, findings
from . import broken, broken_web

pytestmark = pytest.mark.faults  # many servers, each broken in one way: too long for every change

HERE = Path(__file__).parent
PATIENCE = 3.0

# They wait for what does not come, or fail with any of their neighbours.
LONG = {"editor.http.taken-up", "editor.http.back-pressure", "editor.http.vanished", "editor.http.keep-alive"}

BATCHES = {
    "editor.batch.v2-json-rpc-rules", "editor.batch.invalid-entry", "editor.batch.nested", "editor.batch.responses",
}  # fmt: skip

CAUGHT: dict[str, tuple[str, set[str]]] = {
    # The requirement, and those that cannot hold either where it does not.
    "echoes-version": ("editor.v1.negotiation", set()),
    "version-1-shape": ("editor.v2.initialize", {"editor.v1.negotiation"}),
    "boolean-markers": ("editor.v2.initialize", set()),
    "answers-at-the-end": ("editor.v2.prompt-accepted", set()),
    "error-is-null": ("editor.messages.json-rpc", set()),
    "banner": ("editor.stdio.agent-stdout-clean", set()),
    "empty-array": (
        "editor.batch.no-empty-response-array",
        {"editor.batch.nothing-to-return", "editor.batch.limits"},
    ),
    "whole-batch-fails": ("editor.batch.invalid-entry-isolated", BATCHES),
    "no-array": (
        "editor.batch.response-array",
        {
            *BATCHES, "editor.batch.combines", "editor.batch.client-sends", "editor.batch.mixed",
            "editor.batch.response-per-request", "editor.batch.no-response-per-notification",
            "editor.batch.no-reply-to-notification-in-batch", "editor.batch.invalid-entry-isolated",
            "editor.batch.duplicate-ids", "editor.batch.every-version",
        },
    ),
    "early-array": (
        "editor.batch.response-after-all",
        {
            "editor.batch.concurrent", "editor.batch.any-parallelism", "editor.batch.any-order",
            "editor.batch.response-any-order",
        },
    ),
    "no-id": (
        "editor.input.broken-json",
        {
            "editor.input.no-object", "editor.input.version", "editor.input.ids", "editor.input.invalid-utf-8",
            "editor.input.nan", "editor.messages.json-rpc",
        },
    ),
    "answers-notifications": (
        "editor.input.unknown-notification", {"editor.v1.extensions", "editor.batch.notification-has-no-id"},
    ),
    "answers-responses": ("editor.input.responses", set()),
    "rounds-ids": ("editor.input.ids-exact", set()),
    "splits-lines": ("editor.input.long-lines", set()),
    "short-lines": ("editor.input.long-lines", {"editor.input.nesting", "editor.input.too-long"}),
    "outlives-input": (
        "editor.stdio.ends-with-input", {"editor.batch.end-inside", "editor.stdio.files-and-sockets"},
    ),
    "before-initialize": ("editor.v1.initialize-first", {"editor.batch.lifecycle-affects-later"}),
    "invalid-params": ("editor.v1.bad-params", {"editor.v1.tool-server-env"}),
    "late-update": ("editor.v1.updates-before-answer", set()),
    "early-update": ("editor.v1.update-after-session", {"editor.batch.follows-array"}),
    "text-only": ("editor.v1.content", set()),
    "cancel-is-an-error": (
        "editor.v1.cancel-no-error",
        {"editor.v1.cancel", "editor.v1.cancel-permission", "editor.v1.cancel-queue"},
    ),
    "failure-is-a-stop": ("editor.v1.failure", set()),
    "any-option-approves": ("editor.v1.permission-approval", set()),
    "one-option": ("editor.v1.options-whole", set()),
    "late-replay": ("editor.v1.load", set()),
    "resume-replays": ("editor.v1.resume", set()),
    "close-lets-run": ("editor.v1.close", set()),
}  # fmt: skip

CAUGHT_ON_THE_WEB: dict[str, tuple[str, set[str]]] = {
    "batch-is-bad": ("editor.http.batch", set()),
    "any-content": ("editor.http.statuses", set()),
    "drops-unread": ("editor.http.waits-for-reader", set()),
    "one-stream": ("editor.http.streams", {"editor.http.waits-for-reader"}),
    "keeps-streams": ("editor.http.delete", set()),
    "open-socket": ("editor.http.origin", set()),
    "socket-first": ("editor.http.websocket-initialize", {"editor.v1.initialize-first"}),
}


def command(*defect: str, patience: float = PATIENCE) -> Subject:
    return Subject(command=(sys.executable, str(HERE / "broken.py"), *defect), roles=ROLES, patience=patience)


@contextlib.asynccontextmanager
async def served(*defect: str) -> AsyncIterator[Subject]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "broken_web.py"), *defect, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            address = (await process.stdout.readline()).decode().strip()
        yield Subject(address=address, roles=ROLES, patience=PATIENCE)
    finally:
        process.kill()
        await process.wait()


def neighbours(id_: str) -> set[str]:
    """What else is looked at in the module that looks at this."""
    module = next(check.function.__module__ for check in suite("editor").checks if id_ in check.ids)
    return {other for check in suite("editor").checks if check.function.__module__ == module for other in check.ids}


def test_every_defect_is_tried_and_there_are_more_than_ten() -> None:
    assert set(CAUGHT) == set(broken.DEFECTS)
    assert set(CAUGHT_ON_THE_WEB) == set(broken_web.DEFECTS)
    assert len({id_ for id_, _ in CAUGHT.values()}) > 10


async def test_a_command_that_keeps_the_rules_has_no_failures() -> None:
    found = await findings("editor", command(patience=30))
    assert failures(found) == {}
    assert sum(finding.verdict == "pass" for finding in found.values()) > 110


async def test_a_server_that_keeps_the_rules_has_no_failures() -> None:
    async with served() as subject:
        found = await findings("editor", subject)
    assert failures(found) == {}
    assert sum(finding.verdict == "pass" for finding in found.values()) > 100


async def test_a_server_without_a_websocket_is_judged_by_what_it_has() -> None:
    async with served("no-socket") as subject:
        found = await findings("editor", subject, ["editor.v", "editor.http.", "editor.custom.", "editor.messages."])
    assert failures(found) == {}
    passed = {id_ for id_, finding in found.items() if finding.verdict == "pass"}
    assert {"editor.v1.prompt", "editor.v1.permission", "editor.v2.states", "editor.http.streams"} <= passed
    assert not {id_ for id_ in passed if id_.startswith(("editor.custom.", "editor.http.websocket"))}


@pytest.mark.parametrize("defect", CAUGHT)
async def test_a_command_that_breaks_a_rule_is_caught(defect: str) -> None:
    id_, follow = CAUGHT[defect]
    found = await findings("editor", command(defect), [*neighbours(id_), *follow])
    assert set(failures(found)) == {id_, *follow}, failures(found)


@pytest.mark.parametrize("defect", CAUGHT_ON_THE_WEB)
async def test_a_server_that_breaks_a_rule_is_caught(defect: str) -> None:
    id_, follow = CAUGHT_ON_THE_WEB[defect]
    async with served(defect) as subject:
        found = await findings("editor", subject, [*(neighbours(id_) - LONG), *follow])
    assert set(failures(found)) == {id_, *follow}, failures(found)

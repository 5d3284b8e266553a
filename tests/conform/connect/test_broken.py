"""A server that breaks one rule is caught by the requirement that says so, and a correct one by none."""

from __future__ import annotations

import pytest

from interlingua.model.errors import InvalidRequest, Unavailable
from interlingua_conform.base import UNREADABLE, Finding, Roles, Subject, conform
from interlingua_conform.connect import suite

from ..common import failures, findings
from .broken import KEY, serving
from .garbled import garbling
from .textual import textual

pytestmark = pytest.mark.faults  # many servers, each broken in one way: too long for every change

ROLES = Roles(agent="echo", asking="asks", slow="sleeps", failing="fails")


async def looked_at(
    defect: str | None, *only: str, key: str | None = None, patience: float = 10, quiet: float = 0.05
) -> dict[str, Finding]:
    async with serving(defect, key) as address:
        headers = {"x-api-key": key} if key else {}
        subject = Subject(address=address, roles=ROLES, headers=headers, patience=patience, quiet=quiet)
        return await findings("connect", subject, list(only) or None)


async def test_a_correct_server_of_another_maker_has_no_failures() -> None:
    found = await looked_at(None, key=KEY)
    assert failures(found) == {}
    assert set(found) == set(suite.ids)
    assert {name for name, finding in found.items() if finding.verdict == "not applicable"} == LACKING


async def test_a_server_may_use_the_words_of_the_text_where_the_openapi_document_has_others() -> None:
    """It fails what only that document asks for, and what published clients need, who go by it."""
    async with textual() as address:
        found = await findings("connect", Subject(address=address, roles=ROLES, patience=5, quiet=0.05))
    assert set(failures(found)) == {
        "connect.openapi.operations", "connect.openapi.default-agent", "connect.clients.interrupt-type-first",
    }  # fmt: skip


# What the documents leave open, and this server does without; and what no agent of it is like.
LACKING = {
    "connect.metadata.ref-url", "connect.clients.keep-alive", "connect.runs.wait-timeout",
    "connect.schemas.threads-optional", "connect.schemas.streaming-optional", "connect.openapi.stream-mode-subset",
    "connect.threads.state-inaccessible",
    "connect.configuration.purpose", "connect.configuration.invocation-only", "connect.invocation.config-scope",
    "connect.configuration.endpoint", "connect.configuration.endpoint-distinct", "connect.configuration.error",
    "connect.configuration.returns-identifier", "connect.configuration.identifier-reusable",
    "connect.configuration.several-invocations", "connect.invocation.configured-instance",
    "connect.errors.transient-flag", "connect.errors.info-schema", "connect.errors.agent-specific",
    "connect.errors.agent-specific-endpoint",
}  # fmt: skip

STREAMS = (
    "connect.streaming",
    "connect.clients",
    "connect.output",
    "connect.requirements.mode",
    "connect.openapi.join",
)
INTERRUPTS = (
    "connect.interrupts", "connect.invocation", "connect.clients.interrupt", "connect.requirements.interrupt",
    "connect.openapi.resume",
)  # fmt: skip
CALLBACKS = ("connect.callbacks", "connect.invocation", "connect.output", "connect.openapi.webhook")
THREADS = (
    "connect.threads", "connect.specs.thread-state", "connect.openapi.delete-thread", "connect.openapi.copy-thread",
    "connect.openapi.patch-thread", "connect.openapi.thread-history", "connect.openapi.search-threads",
    "connect.openapi.multitask",
)  # fmt: skip
RUNS = ("connect.runs", "connect.openapi.operations", "connect.openapi.search-runs", "connect.openapi.delete-run")
CONTROL = ("connect.openapi.cancel", "connect.openapi.on-disconnect", "connect.openapi.after-seconds")
ERRORS = ("connect.errors", "connect.openapi.unknown-ids", "connect.openapi.invalid-requests", "connect.requirements")
AUTH = ("connect.auth", "connect.requirements.authentication")
DESCRIPTORS = (
    "connect.descriptor", "connect.specs", "connect.metadata", "connect.agents", "connect.openapi.descriptor",
    "connect.streaming.custom-schema",
)  # fmt: skip

# A defect, where it is looked for, the requirement that catches it, and those that cannot but fail with it.
DEFECTS: list[tuple[str, tuple[str, ...], str, set[str]]] = [
    # Errors are objects, as web frameworks have them: the published server does this.
    ("detail", ERRORS, "connect.openapi.invalid-requests", set()),
    ("unknown-500", ERRORS, "connect.openapi.unknown-ids",
     {"connect.errors.synchronous", "connect.errors.common-conditions"}),
    ("errcode-text", ERRORS, "connect.errors.code", {"connect.requirements.error-codes"}),
    # A status of its own for runs that work.
    ("running", RUNS, "connect.runs.initial-pending",
     {"connect.runs.run-status", "connect.runs.polling", "connect.openapi.operations"}),
    ("no-creation", RUNS, "connect.openapi.operations", set()),
    ("any-status", RUNS, "connect.openapi.search-runs", set()),
    # The fragments of a text, where each should be all of it so far.
    ("deltas", STREAMS, "connect.streaming.values-replace", set()),
    ("event-name", STREAMS, "connect.streaming.event-name", set()),
    ("first-id-only", STREAMS, "connect.streaming.event-id", set()),
    # What breaks the readers of published clients: the published server ends lines with CR LF and has such comments.
    ("crlf", STREAMS, "connect.clients.sse-one-line", set()),
    ("raw-unicode", STREAMS, "connect.clients.sse-one-line", set()),
    ("empty-comment", STREAMS, "connect.clients.keep-alive", set()),
    ("type-not-first", INTERRUPTS, "connect.clients.interrupt-type-first", set()),
    ("nameless", INTERRUPTS, "connect.interrupts.type", {"connect.interrupts.output-interrupt-type"}),
    # The stream of a run that asks just ends: the published server does this.
    ("silent-interrupt", INTERRUPTS, "connect.requirements.interrupt-handling", set()),
    ("late-answers", INTERRUPTS, "connect.openapi.resume-interrupted-only", set()),
    ("resumes-another", INTERRUPTS, "connect.interrupts.resume-same-run", set()),
    ("bare-callback", CALLBACKS, "connect.callbacks.payload-run", set()),
    ("puts-callback", CALLBACKS, "connect.callbacks.on-status-change",
     {"connect.callbacks.supported", "connect.output.asynchronous", "connect.invocation.callback-async"}),
    ("patch-replaces", THREADS, "connect.openapi.patch-thread", set()),
    ("deletes-busy", THREADS, "connect.openapi.delete-thread", set()),
    ("never-rejects", THREADS, "connect.openapi.multitask-reject", set()),
    ("stays-busy", THREADS, "connect.threads.idle-after-runs", set()),
    ("no-limit", THREADS, "connect.openapi.thread-history", set()),
    ("empty-copy", THREADS, "connect.openapi.copy-thread", set()),
    ("forgetful", THREADS, "connect.threads.state-kept",
     {"connect.threads.current-state", "connect.threads.state-accessible", "connect.threads.values",
      "connect.threads.state-history", "connect.openapi.thread-history", "connect.threads.flow"}),
    # Options of a cancel are refused: the published server does this.
    ("no-cancel-options", CONTROL, "connect.openapi.cancel-wait", {"connect.openapi.cancel-rollback"}),
    ("early-cancel", CONTROL[:1], "connect.openapi.cancel-wait", set()),
    ("hasty", CONTROL, "connect.openapi.after-seconds", set()),
    ("any-name", DESCRIPTORS, "connect.agents.search-name",
     {"connect.agents.search-version", "connect.metadata.name-and-version"}),
    ("no-custom-schema", DESCRIPTORS, "connect.openapi.descriptor-rules", {"connect.streaming.custom-schema"}),
]  # fmt: skip


@pytest.mark.parametrize(("defect", "only", "caught", "follow"), DEFECTS, ids=[entry[0] for entry in DEFECTS])
async def test_a_broken_rule_is_caught_by_its_requirement(
    defect: str, only: tuple[str, ...], caught: str, follow: set[str]
) -> None:
    found = failures(await looked_at(defect, *only))
    assert set(found) == {caught, *follow}
    assert all(why and UNREADABLE not in why for why in found.values())


@pytest.mark.parametrize(
    ("defect", "only", "caught", "follow"),
    [
        ("stays-open", ("connect.streaming.closes", "connect.streaming.flow"), "connect.streaming.closes",
         {"connect.streaming.flow"}),
        ("never-cancels", ("connect.openapi.on-disconnect",), "connect.openapi.on-disconnect", set()),
        ("replays", ("connect.openapi.join-stream",), "connect.openapi.join-stream", set()),
    ],
    ids=["stays-open", "never-cancels", "replays"],
)  # fmt: skip
async def test_what_is_known_only_by_waiting_is_waited_for(
    defect: str, only: tuple[str, ...], caught: str, follow: set[str]
) -> None:
    assert set(failures(await looked_at(defect, *only, patience=2, quiet=1))) == {caught, *follow}


@pytest.mark.parametrize(
    ("defect", "caught", "follow"),
    [
        ("unguarded", "connect.auth.authenticate-caller", {"connect.requirements.authentication"}),
        ("hidden-scheme", "connect.auth.scheme-endpoint-open", set()),
    ],
)
async def test_whoever_has_no_credentials_is_looked_after(defect: str, caught: str, follow: set[str]) -> None:
    assert set(failures(await looked_at(defect, *AUTH, key=KEY))) == {caught, *follow}


async def test_a_failure_says_what_the_server_did() -> None:
    found = failures(await looked_at("detail", "connect.openapi.invalid-requests"))
    (why,) = found.values()
    assert why.startswith('POST /agents/search {"limit": "many"} is answered 422: {"detail":"limit is no int"}')


# -- servers that make no sense -------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"[null]", b"{}", b"5", b"\xff\xfe", b"[" * 20_000, b"<html>"])
async def test_a_server_that_always_says_the_same_gets_a_verdict_on_everything(body: bytes) -> None:
    async with garbling(always=body) as address:
        found = await findings("connect", Subject(address=address, roles=ROLES, patience=2, quiet=0.02))
    assert set(found) == set(suite.ids)
    assert all(UNREADABLE not in finding.why for finding in found.values())


@pytest.mark.parametrize(("seed", "often"), [(1, 0.003), (2, 0.01), (3, 0.05), (4, 0.3)])
async def test_a_server_that_garbles_its_answers_gets_a_verdict_on_everything(seed: int, often: float) -> None:
    async with garbling(seed, often) as address:
        found = await findings("connect", Subject(address=address, roles=ROLES, patience=1, quiet=0.02))
    assert set(found) == set(suite.ids)
    assert failures(found)
    assert all(UNREADABLE not in finding.why for finding in found.values())


async def test_a_server_that_is_not_there_and_a_command_are_told_as_such() -> None:
    for subject, error, said in [
        (Subject(address="http://127.0.0.1:1"), Unavailable, "nothing answers"),
        (Subject(command=("cat",)), InvalidRequest, "spoken over HTTP"),
    ]:
        with pytest.raises(error, match=said):
            async for _ in conform(suite, subject):
                pass

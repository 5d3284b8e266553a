"""A server that breaks one rule is caught by the requirement that says so, and a correct one by none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from interlingua.model.errors import Unavailable
from interlingua_conform.base import UNREADABLE, Finding, Roles, Subject
from interlingua_conform.cap import suite

from ..common import failures, findings, not_applicable
from ..connect.garbled import Garbler
from .broken import Server, listening, serving

pytestmark = pytest.mark.faults  # many servers, each broken in one way: too long for every change

ROLES = Roles(agent="pm-1", asking="asks", slow="sleeps", failing="fails")
ROOT = Path(__file__).parents[3]


async def looked_at(defect: str | None, only: list[str] | None = None) -> dict[str, Finding]:
    async with serving(defect) as address:
        return await findings("cap", Subject(address=address, roles=ROLES, patience=2, quiet=0.05), only)


def command(defect: str | None = None) -> Subject:
    words = [sys.executable, "-m", "tests.conform.cap.broken", *([defect] if defect else [])]
    start = f"import os, sys; os.chdir({str(ROOT)!r}); os.execv(sys.executable, {words!r})"
    return Subject(command=(sys.executable, "-c", start), roles=ROLES, quiet=0.05)


async def test_a_correct_server_of_another_maker_has_no_failures() -> None:
    found = await looked_at(None)
    assert failures(found) == {}
    assert set(found) == set(suite.ids)
    # Its pm-1 has an overseer of nobody; and the one who has one is not run from outside.
    assert not_applicable(found) == {
        "cap.example-agents.same-overseer-and-target": "no such agent was run",
    }


async def test_a_correct_program_of_another_maker_has_no_failures() -> None:
    found = await findings("cap", command())
    assert failures(found) == {}
    assert sum(finding.verdict == "pass" for finding in found.values()) > 50


_RECORD = ("cap.audit.carries-metadata", "cap.message.unified-envelope")
_ATTACHED = (
    "cap.message.attachment-tool-call-result", "cap.message.attachment-file", "cap.message.attachment-file-url",
    "cap.message.attachment-python-object-json", "cap.message.attachment-text-snippet", "cap.mcp.result-kinds",
    "cap.example-flow.structured-result", "cap.example-flow.pm-attachments", "cap.example-flow.analyst-attachments",
)  # fmt: skip

_NEED_ONE = (  # what is done about a failure needs one
    "cap.observability.retry", "cap.audit.retry", "cap.error-response.handled-by", "cap.observability.standard-codes",
    "cap.observability.reassign", "cap.audit.reassign",
)  # fmt: skip

DEFECTS: dict[str, tuple[str, ...]] = {
    # the envelope
    "no-timestamp": ("cap.observability.metadata-timestamp", "cap.audit.carries-metadata"),
    "own-type": ("cap.overview.message-types", "cap.message.type", "cap.messaging.unified-format"),
    "text-code": (
        "cap.error-response.error-code",
        # where the number is looked at
        "cap.observability.signals-timeout", "cap.audit.error-example",
    ),
    "forgets-sender": ("cap.delegation.records-sender", "cap.delegation-notice.sender-id",
                       "cap.observability.metadata-sender-id", *_RECORD),
    "forgets-summary": ("cap.delegation.records-summary",),
    "forgets-attachments": _ATTACHED,
    # who it goes to
    "result-to-user": ("cap.example-flow.orchestrator-id", "cap.example-flow.final-result",
                       # the example has no report then
                       "cap.example-flow.whole-flow"),
    "result-to-client": ("cap.message.participant-ids", "cap.example-flow.orchestrator-id",
                         "cap.example-flow.final-result", "cap.example-flow.whole-flow"),
    # talking
    "busy": ("cap.messaging.user-to-agent", "cap.messaging.any-time", "cap.messaging.anyone-to-anyone"),
    "message-begins": ("cap.delegation.distinct-from-messaging",),
    # manifests
    "no-rules": ("cap.schema.delegate-rules-required", "cap.overview.roles"),
    "rules-as-text": ("cap.schema.delegate-rules-pattern",),
    "rules-without-condition": ("cap.schema.when-to-delegate-required",),
    "rule-for-stranger": ("cap.schema.delegate-rules-keys",),
    "same-agent-twice": ("cap.definition.unique-id", "cap.schema.id-unique"),
    "scopes-as-text": ("cap.schema.binding-scopes-strings",),
    "no-tools": ("cap.schema.binding-allowed-tools-required",
                 # nothing is allowed then
                 "cap.mcp.permissions-enforced", "cap.schema.binding-permission", "cap.definition.mcp-bindings"),
    "overseer-as-list": ("cap.schema.overseer-string-or-null", "cap.definition.overseer"),
    "names-only": ("cap.schema.json-manifest", "cap.schema.is-object"),
    # handing over
    "anyone-delegates": ("cap.delegation.allowed-recipients-only", "cap.delegation.explicit-permission",
                         "cap.definition.boundaries-enforced"),
    "oversteps": ("cap.delegation.allowed-recipients-only", "cap.schema.allowed-agents-meaning",
                  "cap.definition.allowed-agents"),
    "blank-summary": ("cap.delegation.summary-content",),
    "unannounced": ("cap.delegation.explicit",
                    # the analyst hands over what it was never handed
                    "cap.delegation.lineage", "cap.example-flow.subtask-ids"),
    "lettered": ("cap.example-flow.subtask-ids",),
    "same-id": ("cap.delegation.instance-id",),
    "shared-context": ("cap.delegation.instance-context",),
    # oversight and tools
    "unapproved": ("cap.oversight.approval-before-return", "cap.schema.overseer-vets"),
    "unseen": ("cap.oversight.overseer-monitors", "cap.overview.oversight", "cap.oversight.approval-before-return",
               "cap.schema.overseer-vets"),
    "unbound-tool": ("cap.mcp.permissions-enforced", "cap.schema.binding-permission", "cap.definition.mcp-bindings"),
    "reference": ("cap.mcp.concrete-context", "cap.message.attachment-tool-call-result"),
    "unworded-inquiry": ("cap.example-flow.inquiry-field", "cap.oversight.inquiry-as-message"),
    "own-verdicts": ("cap.oversight.same-message-type", "cap.overview.message-types", "cap.message.type"),
    # failures
    "own-errors": ("cap.observability.signals-permission", "cap.error-response.use"),
    "says-sorry": ("cap.observability.signals-failure", "cap.audit.errors-by-message", "cap.overview.tracking",
                   *_NEED_ONE),
    "random-code": ("cap.observability.standard-codes",),
    "timeout-500": ("cap.audit.error-example",),
    "timeout-as-text": ("cap.observability.signals-timeout", "cap.observability.signals-failure",
                        "cap.audit.errors-by-message", "cap.overview.tracking", *_NEED_ONE),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_defect_is_caught_by_the_requirement_that_it_breaks(defect: str) -> None:
    found = await looked_at(defect)
    assert set(failures(found)) == set(DEFECTS[defect]), failures(found)


@pytest.mark.parametrize(
    ("defect", "wanted"),
    [
        ("no-timestamp", {"cap.observability.metadata-timestamp"}),
        ("result-to-client", {"cap.message.participant-ids", "cap.example-flow.orchestrator-id",
                              "cap.example-flow.final-result"}),
        ("random-code", {"cap.observability.standard-codes"}),
        ("wants-attachments", {
            "cap.example-flow.attachments-omitted", "cap.example-flow.user-replies", "cap.messaging.unified-format",
            "cap.messaging.feedback-loops", "cap.messaging.user-to-agent", "cap.messaging.any-time",
            "cap.messaging.anyone-to-anyone",
        }),
    ],
)  # fmt: skip
async def test_a_program_is_caught_like_a_server(defect: str, wanted: set[str]) -> None:
    found = await findings("cap", command(defect))
    assert set(failures(found)) >= wanted, failures(found)


# -- odd servers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_a_server_says_is_no_end_of_the_report(seed: int) -> None:
    server = Server()
    async with listening(server, Garbler(server.app, seed, 0.1, None)) as address:  # type: ignore[arg-type]
        found = await findings("cap", Subject(address=address, roles=ROLES, patience=0.3, quiet=0.01))
    assert set(found) == set(suite.ids)
    assert failures(found)
    assert not [why for why in failures(found).values() if UNREADABLE in why]


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b'{"agents": [5, {"id": []}]}', json.dumps({"a": 1}).encode()]
)
async def test_a_server_that_speaks_of_something_else_fails_readably(body: bytes) -> None:
    server = Server()
    async with listening(server, Garbler(server.app, 0, 0, body)) as address:  # type: ignore[arg-type]
        found = await findings("cap", Subject(address=address, roles=ROLES, patience=0.1, quiet=0.01))
    assert failures(found)
    assert not [why for why in failures(found).values() if UNREADABLE in why]


@pytest.mark.parametrize(
    "line", ["", "nonsense", "5", "[]", '{"type": []}', '{"type": "message"}', '{"sender_id": 5, "attachments": 7}']
)
async def test_a_program_that_says_anything_at_all_fails_readably(line: str) -> None:
    code = f"import sys\nfor _ in sys.stdin: print({line!r}, flush=True)"
    found = await findings(
        "cap", Subject(command=(sys.executable, "-c", code), roles=ROLES, patience=0.1, quiet=0.01)
    )  # fmt: skip
    assert failures(found)
    assert not [why for why in failures(found).values() if UNREADABLE in why]


async def test_a_program_that_ends_at_once_fails() -> None:
    found = await findings("cap", Subject(command=(sys.executable, "-c", ""), roles=ROLES, patience=1))
    assert "the process" in failures(found)["cap.delegation-notice.handoff"]


async def test_a_server_that_is_not_there_is_no_server_that_fails() -> None:
    async with serving() as address:
        pass
    with pytest.raises(Unavailable):
        await findings("cap", Subject(address=address, roles=ROLES, patience=1))

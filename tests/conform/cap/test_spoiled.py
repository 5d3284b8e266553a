"""Every requirement that is looked at can be broken: what the correct server shows is spoiled in one place each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from interlingua_conform.base import Roles, Subject
from interlingua_conform.cap import suite

from ..common import findings
from .broken import Json, serving
from .test_broken import DEFECTS, ROLES

pytestmark = pytest.mark.faults  # many servers, each broken in one way: too long for every change

Spoil = Callable[[Json], None]


def put(name: str, value: Any, **only: Any) -> Spoil:
    """Something else as a member of what has these others; None takes it away."""

    def spoil(told: Json) -> None:
        if name in told and all(told.get(key) == wanted for key, wanted in only.items()):
            if value is None:
                del told[name]
            else:
                told[name] = value

    return spoil


def message(name: str, value: Any = None, **only: Any) -> Spoil:
    return put(name, value, type="message", **only)


def notice(name: str, value: Any = None, **only: Any) -> Spoil:
    return put(name, value, type="delegation_notice", **only)


def error(name: str, value: Any = None, **only: Any) -> Spoil:
    return put(name, value, type="error_response", **only)


def inquiry(name: str, value: Any) -> Spoil:
    return put(name, value, type="oversight_inquiry")


def manifest(name: str, value: Any = None) -> Spoil:
    return put(name, value, id="pm-1")


def binding(name: str, value: Any = None) -> Spoil:
    def spoil(told: Json) -> None:
        for one in told.get("mcp_bindings", []):
            put(name, value)(one)

    return spoil


def renumbered(old: str, new: str) -> Spoil:
    def spoil(told: Json) -> None:
        if str(told.get("task_id")).endswith(old):
            told["task_id"] = told["task_id"].removesuffix(old) + new

    return spoil


def strangely_sent(told: Json) -> None:
    if told.get("sender_id") == "pm-1":
        told["sender_id"] = "somebody"


def nameless_tool(told: Json) -> None:
    for one in told.get("attachments", []):
        if told["sender_id"] == "pm-1" and "server_id" in one:
            one["server_id"] = ""


def researched_later(told: Json) -> None:
    if told.get("sender_id") == "pm-1":
        spec = {"type": "tool_call_result", "server_id": "DocsServer", "tool": "read_file", "result": "spec"}
        told["attachments"] = [spec] if told["recipient_id"] == "orchestrator" else []


def failing(told: Json) -> None:
    if told.get("sender_id") == "analyst-1" and told["recipient_id"] == "orchestrator":
        told |= {"type": "error_response", "error_code": 500, "error_message": told.pop("content")}


RULE = {"analyst-1": {"when_to_delegate": 5}}
ODD = [{"type": "blob"}]

SPOILED: dict[str, Spoil] = {
    **{f"cap.message.{name.replace('_', '-')}": message(name, 5)
       for name in ("task_id", "sender_id", "recipient_id", "content")},
    **{f"cap.delegation-notice.{name.replace('_', '-')}": notice(name)
       for name in ("task_id", "sender_id", "recipient_id")},
    **{f"cap.error-response.{name.replace('_', '-')}": error(name)
       for name in ("task_id", "sender_id", "recipient_id")},
    **{f"cap.observability.metadata-{name.replace('_', '-')}": message(name)
       for name in ("task_id", "sender_id", "recipient_id", "type")},
    **{f"cap.schema.{name.replace('_', '-')}-required": manifest(name)
       for name in ("system_prompt", "allowed_agents", "mcp_bindings")},
    **{f"cap.schema.binding-{name.replace('_', '-')}-required": binding(name) for name in ("server_id", "scopes")},
    "cap.message.attachments": message("attachments", {}),
    "cap.delegation-notice.type": notice("type", "handoff"),
    "cap.delegation-notice.context-summary": notice("context_summary", ["do it"]),
    "cap.delegation-notice.attachments": notice("attachments", ODD, sender_id="pm-1"),
    "cap.error-response.type": error("type", "error"),
    "cap.error-response.error-message": error("error_message", {"text": "no"}),
    "cap.delegation-notice.handoff": strangely_sent,
    "cap.delegation.records-recipient": notice("recipient_id", "helper", sender_id="orchestrator"),
    "cap.delegation.records-task": notice("task_id", "T0", sender_id="orchestrator"),
    # talking
    "cap.messaging.agent-to-user": message("content", " ", sender_id="asks", recipient_id="user"),
    "cap.workflows.interactive-loops": message("content", None, sender_id="asks", recipient_id="user"),
    "cap.messaging.feedback-loops": message("task_id", "T0", sender_id="asks"),
    "cap.overview.messaging": message("content", "", sender_id="asks"),
    # manifests
    "cap.schema.id-required": manifest("id"),
    "cap.schema.id-string": manifest("id", 1),
    "cap.schema.system-prompt-string": manifest("system_prompt", ["You are pm-1."]),
    "cap.schema.allowed-agents-strings": manifest("allowed_agents", ["analyst-1", {"id": "helper"}]),
    "cap.schema.delegate-rules-object": manifest("delegate_rules", []),
    "cap.schema.when-to-delegate-string": manifest("delegate_rules", RULE),
    "cap.definition.delegate-rules": manifest("delegate_rules", RULE),
    "cap.schema.bindings-array": manifest("mcp_bindings", {"DocsServer": []}),
    "cap.schema.binding-server-id-string": binding("server_id", 7),
    "cap.schema.binding-allowed-tools-strings": binding("allowed_tools", "*"),
    "cap.schema.binding-description": binding("description", ["Docs"]),
    # handing over
    "cap.overview.delegation": notice("recipient_id", "pm-1", recipient_id="analyst-1"),
    "cap.delegation.out-of-scope-work": notice("recipient_id", "", recipient_id="analyst-1"),
    "cap.delegation.hierarchical": renumbered(".1.1", ".1"),
    "cap.delegation.reusable": notice("context_summary", "", sender_id="analyst-1"),
    **dict.fromkeys(
        ("cap.delegation.parallel-trees", "cap.delegation.parallel-instances", "cap.delegation.concurrent-subtasks",
         "cap.workflows.parallel-execution"), renumbered(".3", ".2"),
    ),
    "cap.overview.workflows": message("type", None, recipient_id="orchestrator"),
    # oversight and tools
    "cap.example-flow.inquiry-type": inquiry("type", "inquiry"),
    "cap.example-flow.inquiry-attachments": inquiry("attachments", ODD),
    "cap.oversight.inquiry-attachments": inquiry("attachments", ["report.md"]),
    "cap.overview.mcp": nameless_tool,
    "cap.mcp.tool-results-attached": nameless_tool,
    "cap.observability.escalate": error("error_message", " ", sender_id="fails"),
    "cap.audit.escalate": error("error_message", " ", sender_id="fails"),
    # the example
    "cap.example-flow.pm-asks-user": message("attachments", [], recipient_id="user"),
    "cap.example-flow.research-before-handoff": researched_later,
    "cap.example-flow.pm-delegates": notice("context_summary", "", recipient_id="analyst-1"),
    "cap.example-flow.analyst-asks-pm": message("task_id", "T0", sender_id="analyst-1", recipient_id="pm-1"),
    "cap.example-flow.pm-clarifies": message("content", "", sender_id="pm-1", recipient_id="analyst-1"),
    "cap.example-flow.analyst-to-qa": notice("task_id", "T0", recipient_id="qa-1"),
    "cap.example-flow.analyst-responds": message("content", "", sender_id="analyst-1", recipient_id="qa-1"),
    "cap.example-flow.qa-approves": message("task_id", "T0", sender_id="qa-1"),
}  # fmt: skip

DEFECTIVE = {
    "cap.workflows.orchestrator-spawns": "users-only",
    "cap.example-flow.user-prompt": "users-only",
    "cap.schema.overseer-optional": "users-only",
    "cap.example-flow.user-replies": "wants-attachments",
    "cap.example-flow.attachments-omitted": "wants-attachments",
}
TARGET = "cap.example-agents.same-overseer-and-target"


async def verdict(name: str, defect: str | None, spoil: Spoil | None, roles: Roles = ROLES) -> str:
    async with serving(defect, spoil) as address:
        found = await findings("cap", Subject(address=address, roles=roles, patience=0.5, quiet=0.01), [name])
    return found[name].verdict


@pytest.mark.parametrize("name", SPOILED)
async def test_what_is_spoiled_is_caught(name: str) -> None:
    assert await verdict(name, None, SPOILED[name]) == "fail"


@pytest.mark.parametrize("name", DEFECTIVE)
async def test_what_is_refused_without_need_is_caught(name: str) -> None:
    assert await verdict(name, DEFECTIVE[name], None) == "fail"


async def test_an_overseer_that_is_a_target_as_well_is_no_obstacle() -> None:
    roles = Roles(agent="analyst-1")
    assert await verdict(TARGET, None, None, roles) == "pass"
    assert await verdict(TARGET, None, failing, roles) == "fail"


def test_every_requirement_that_is_looked_at_is_broken_by_something() -> None:
    assert {*SPOILED, *DEFECTIVE, TARGET, *(name for names in DEFECTS.values() for name in names)} == set(suite.ids)

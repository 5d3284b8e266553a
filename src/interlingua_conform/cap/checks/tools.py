"""Checks the results that agents get from MCP servers and attach to their messages: within their bindings, and
unchanged."""

from __future__ import annotations

from typing import Any

from ...base import applies, expect, member, shown
from ..driver import Driver, attached, by_us, suite
from ..scenes import talks
from ..teams import agent_of, text
from ..wires import Json


async def _results(d: Driver) -> list[tuple[str, Json, bool]]:
    """Returns the tool results that agents attached: the sender, the result, and whether that agent had received it
    from another."""
    found = []
    for talk in await talks(d):
        given: list[tuple[str, Json]] = []
        for told in talk.said:
            for one in attached(told):
                if isinstance(one, dict) and one.get("type") == "tool_call_result":
                    sender = text(told, "sender_id")
                    if not by_us(told, talk):
                        found.append((sender, one, (sender, _plain(one)) in given))
                    given.append((text(told, "recipient_id"), _plain(one)))
    applies(found, "no agent attached the result of a tool to what it said")
    return found


def _plain(one: Json) -> Json:
    return {name: one.get(name) for name in ("server_id", "tool", "result")}


@suite.check("cap.overview.mcp", "cap.mcp.tool-results-attached")
async def results_of_tools_go_with_messages(d: Driver) -> None:
    for _, one, _ in await _results(d):
        for name in ("server_id", "tool"):
            expect(
                member(one, name, str, "a tool_call_result"), f"a tool_call_result has an empty {name}: {shown(one)}"
            )


@suite.check("cap.mcp.concrete-context")
async def what_is_attached_is_the_result_itself(d: Driver) -> None:
    for _, one, _ in await _results(d):
        expect("result" in one, f"a tool_call_result has no result: {shown(one)}")


@suite.check("cap.mcp.permissions-enforced", "cap.schema.binding-permission", "cap.definition.mcp-bindings")
async def agents_use_the_tools_of_their_bindings(d: Driver) -> None:
    known = await d.known()
    own = [(agent_of(sender, known), one) for sender, one, passed_on in await _results(d) if not passed_on]
    judged = [(known[sender], one) for sender, one in own if sender in known]
    applies(judged, "no agent whose manifest is listed attached the result of a tool")
    for manifest, one in judged:
        bindings = manifest.get("mcp_bindings")
        tools = [
            tool
            for binding in (bindings if isinstance(bindings, list) else [])
            if isinstance(binding, dict) and binding.get("server_id") == one.get("server_id")
            for tool in _listed(binding.get("allowed_tools"))
        ]
        what = f"{manifest['id']} has a result of {one.get('tool')} of {one.get('server_id')}"
        expect(one.get("tool") in tools, f"{what}, and its mcp_bindings are {shown(bindings)}")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

"""What a client hears beside its answers: that lists have changed, where it listens for that; and what one hears that
has taken a request back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlingua.protocols.mcp.wire import META_SUBSCRIPTION
from interlingua.transports.jsonrpc.core import CANCELLED, INVALID_PARAMS, METHOD_NOT_FOUND
from tests.kit.clients.mcp import DELTA, MODERN, Client, Message, client_of, echo, in_process, slow, styled

IO = "io.modelcontextprotocol/"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TOOLS, AGENTS = "notifications/tools/list_changed", "notifications/agents/list_changed"
META = {IO + "protocolVersion": MODERN, IO + "clientCapabilities": {}}


async def listen(client: Client, id_: Any, **wanted: Any) -> Message:
    """Listen, and give what is acknowledged."""
    await client.send("subscriptions/listen", {"notifications": wanted, "_meta": META}, id_=id_)
    told = await client.wait_for(
        lambda m: m.get("method") == ACKNOWLEDGED and m["params"]["_meta"][META_SUBSCRIPTION] == id_
    )
    honoured: Message = told["params"]["notifications"]
    return honoured


async def create(client: Client) -> None:
    assert "result" in await client.modern("agents/create", {"templateName": "styled", "config": {}})


async def test_who_listens_hears_of_what_it_asked_for_and_of_nothing_else(store: Path) -> None:
    async with in_process(store, styled) as (client, _):
        assert await listen(client, 0, toolsListChanged=True, promptsListChanged=True) == {"toolsListChanged": True}
        assert await listen(client, "both", toolsListChanged=True, agentsListChanged=True) == {
            "toolsListChanged": True,
            "agentsListChanged": True,
        }
        assert await listen(client, "none", toolsListChanged=False) == {}
        await create(client)
        await client.notice(AGENTS)
        await client.modern("agents/list")
        told = [(m["method"], m["params"]["_meta"][META_SUBSCRIPTION]) for m in client.messages if "method" in m]
        expected = [(ACKNOWLEDGED, 0), (ACKNOWLEDGED, "both"), (ACKNOWLEDGED, "none")]
        expected += [(TOOLS, 0), (TOOLS, "both"), (AGENTS, "both")]
        assert sorted(map(str, told)) == sorted(map(str, expected))


async def test_a_subscription_ends_when_it_is_taken_back(store: Path) -> None:
    async with in_process(store, styled) as (client, _):
        await listen(client, "s", toolsListChanged=True)
        await client.notify("notifications/cancelled", {"requestId": "s"})
        await create(client)
        await client.modern("tools/list")
        assert not client.notices(TOOLS)
        assert not any(message.get("id") == "s" for message in client.messages)


async def test_a_subscription_ends_with_a_result_when_the_door_stops(store: Path) -> None:
    async with in_process(store, echo) as (_, engine), client_of(engine) as (client, connection):
        await listen(client, "s", toolsListChanged=True)
        await connection.shared.stop()
        result = (await client.answer("s"))["result"]
        assert (result["_meta"][META_SUBSCRIPTION], result["resultType"]) == ("s", "complete")


@pytest.mark.parametrize("params", [{}, {"notifications": True}, {"notifications": {"toolsListChanged": "yes"}}])
async def test_what_cannot_be_listened_for_is_refused(store: Path, params: Message) -> None:
    async with in_process(store, echo) as (client, _):
        assert (await client.modern("subscriptions/listen", params))["error"]["code"] == INVALID_PARAMS


async def test_a_session_cannot_listen(store: Path) -> None:
    async with in_process(store, echo) as (client, _):
        await client.initialize()
        refused = await client.call("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        assert refused["error"]["code"] == METHOD_NOT_FOUND


# acp-sdk 0.0.6 calls itself so, and waits for an answer to what it has cancelled.
@pytest.mark.parametrize(
    ("version", "name", "release", "answered"),
    [
        ("2024-11-05", "mcp", "0.1.0", True),
        ("2024-11-05", "mcp", "0.2.0", False),
        ("2024-11-05", "inspector", "0.1.0", False),
        ("2025-11-25", "mcp", "0.1.0", False),
    ],
)
async def test_only_a_client_that_is_known_to_wait_is_answered_when_it_cancels(
    store: Path, version: str, name: str, release: str, answered: bool
) -> None:
    async with in_process(store, slow, echo) as (client, _):
        await client.initialize(version, clientInfo={"name": name, "version": release})
        run = await client.start_run("slow", {"text": ""}, token="t")
        await client.notice(DELTA)
        await client.notify("notifications/cancelled", {"requestId": run})
        if answered:
            assert (await client.answer(run))["error"]["code"] == CANCELLED
        assert await client.run("echo", {"text": "on"}) == {"text": "on "}
        assert any(message.get("id") == run for message in client.messages) is answered

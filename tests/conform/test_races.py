"""Our doors may answer in any order and at any speed: the checker then sees the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import msgspec
import pytest

from interlingua_conform.base import Finding, Roles
from interlingua_conform.mcp.links import SseLink
from interlingua_conform.mcp.talk import is_answer
from interlingua_conform.peer.feed import Feed
from interlingua_conform.peer.tasks import Story

from .common import findings
from .looks import LOOKS, ROLES, Servers


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


def seen(servers: Servers, look: str, *only: str, roles: Roles = ROLES) -> dict[str, tuple[str, str]]:
    (taken,) = (each for each in LOOKS if each.name == look)
    subject = msgspec.structs.replace(servers.subject(taken), roles=roles)
    found: dict[str, Finding] = asyncio.run(findings(taken.protocol, subject, list(only)))
    return {name: (finding.verdict, finding.why) for name, finding in found.items()}


def test_a_question_may_come_before_the_post_that_led_to_it_is_answered(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream and the answers to posts of the older pair come over two connections, in any order."""
    post = SseLink.put

    async def answered_late(link: SseLink, message: Any, headers: dict[str, str] | None = None) -> None:
        before = len(link.messages)
        await post(link, message, headers)
        if "careful" in str(message.get("params")):
            await link.until(lambda news: "method" in news or is_answer(news), "a question, or the answer", before)

    monkeypatch.setattr(SseLink, "put", answered_late)
    found = seen(servers, "mcp sse", "mcp.door.question", "mcp.tools.questions")
    assert "fail" not in {verdict for verdict, _ in found.values()}, found
    assert found["mcp.door.question-asked"] == found["mcp.tools.questions"] == ("pass", "")


@pytest.mark.parametrize(
    ("roles", "verdict", "why"),
    [
        (ROLES, "pass", ""),
        (
            Roles(agent="echo"),
            "not applicable",
            "this node works on tasks itself, and no agent of it is named for this (--slow: one that runs for a while)",
        ),
    ],
)
def test_the_cancel_of_a_task_does_not_depend_on_luck(servers: Servers, roles: Roles, verdict: str, why: str) -> None:
    """A task that may have ended by then is none to look at."""
    for _ in range(3):
        found = seen(servers, "peer door", "peer.4-1.task-cancel", roles=roles)
        assert found == {"peer.4-1.task-cancel": (verdict, why)}


def test_a_task_that_ends_while_its_stream_is_opened_is_read_to_its_end(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events come one by one, and the first of them with the stream."""
    read, look = Feed._read, Story.look
    ended = asyncio.Event()

    async def late(self: Feed, answer: httpx2.Response) -> None:
        pieces = answer.aiter_bytes

        async def slowly(*args: Any) -> AsyncIterator[bytes]:
            async for piece in pieces(*args):
                for event in piece.split(b"\n\n"):
                    yield event + b"\n\n"
                    if b"submitted" in event:
                        await ended.wait()

        answer.aiter_bytes = slowly  # type: ignore[method-assign]
        await read(self, answer)

    async def sees_its_end(self: Story) -> dict[str, Any]:
        while (view := await look(self)).get("status") != "completed":
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(ended.set)
        return view

    monkeypatch.setattr(Feed, "_read", late)
    monkeypatch.setattr(Story, "look", sees_its_end)
    assert seen(servers, "peer door", "peer.8.subscribe") == {"peer.8.subscribe": ("pass", "")}

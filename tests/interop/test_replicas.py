"""PyPI `mcp` 2.3 behind a balancer that sends each of its requests to another of three servers, one of which is killed
under it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.fleet import fleet

from .mcp_peers import HERE, driven

pytestmark = pytest.mark.interop


async def test_the_sdk_works_at_three_servers_as_at_one(mcp_sdk: Path, tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_:
        command = [str(mcp_sdk), str(HERE / "mcp_sdk_client.py"), "legacy", "http", f"{all_.address}/mcp"]
        async with driven(command, tmp_path) as client:
            await client.ask("initialize")
            assert await client.agents() == await client.tools() == ["helper"]
            output = await client.run("helper", {"text": "hello"}, token="t")
            await client.joins_to("t", output)
            client.on("elicitation/create", lambda _: {"action": "accept", "content": {"choice": "yes"}})
            assert await client.run("helper", {"text": "ask"}) == {"text": "asking done"}
        assert set(all_.sent) == {member.port for member in all_.members}


async def test_the_sdk_goes_on_when_the_server_is_killed_that_has_its_session(mcp_sdk: Path, tmp_path: Path) -> None:
    async with fleet(tmp_path) as all_:
        command = [str(mcp_sdk), str(HERE / "mcp_sdk_client.py"), "legacy", "http", f"{all_.address}/mcp"]
        async with driven(command, tmp_path, quiet=False) as client:
            await client.ask("initialize")
            run = await client.begun("helper", {"text": "gate open"}, "t")
            holders = [member for member in all_.members if not await member.metric("passed_on_total")]
            assert len(holders) == 1, "the others have passed on what came for its session"
            await holders[0].kill()
            (tmp_path / "open").touch()
            answer = await client.answer(run)
            assert answer["result"]["output"] == {"text": "one two three"}
            await client.joins_to("t", {"text": "one two three"})
            assert await client.run("helper", {"text": "again"}) == {"text": "heard again"}

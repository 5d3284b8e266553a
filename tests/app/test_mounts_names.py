"""What agents of mounts are called here, and what becomes of names that others have."""

from __future__ import annotations

from pathlib import Path

import pytest

import interlingua as il

from .test_mounts import AGENTS, Far, far, hub, names, run, state, until

__all__ = ["far"]


async def test_agents_of_a_mount_can_have_other_names_here(tmp_path: Path, far: Far) -> None:
    with far.up():
        mounts = (
            {"target": f"{far.target}#echo", "as": "parrot"},
            {"target": far.target, "prefix": "far-", "only": ["confirm"]},
        )
        async with hub(tmp_path, *mounts) as server:
            assert names(server) == ["far-confirm", "local", "parrot"]
            assert (await run(server, "parrot")).output == {"text": "hi"}
            assert [view.mount for view in server.mounts.views()] == [
                f"{far.target}#echo as parrot", f"{far.target} as far-*",
            ]  # fmt: skip
        async with hub(tmp_path, {"target": far.target, "as": "x"}, {"target": far.target, "only": ["y"]}) as server:
            as_, only = server.mounts.views()
            assert "it has 2 agents" in as_.reason
            assert "it has no agent y; it has echo, confirm" in only.reason


async def test_an_agent_whose_name_is_taken_is_left_out_and_the_others_are_not(
    tmp_path: Path, far: Far, caplog: pytest.LogCaptureFixture
) -> None:
    @il.agent(name="echo")
    async def mine(text: str) -> str:
        return f"mine: {text}"

    with far.up():
        async with hub(tmp_path, far.target, agents=[mine]) as server:
            (view,) = server.mounts.views()
            assert view.agents == ["confirm@0.1.0"]
            assert ["there are two agents echo@0.1.0" in one for one in view.left_out] == [True]
            assert "`prefix`" in view.left_out[0], "whoever mounts it does not write it"
            assert "echo@0.1.0 is left out" in caplog.text
            assert (await run(server, "echo")).output == {"text": "mine: hi"}


async def test_an_agent_of_a_mount_that_has_the_name_of_another_and_not_its_version_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @il.agent(name="echo")
    async def mine(text: str) -> str:
        return f"mine: {text}"

    far = Far(tmp_path, AGENTS.replace("@il.agent\nasync def echo", '@il.agent(version="2.0")\nasync def echo'))
    with far.up():
        async with hub(tmp_path, far.target, agents=[mine]) as server:
            await until(server, lambda: state(server) == "up")
            assert (
                f"mount {far.target}: echo@2.0 has the name of echo@0.1.0, which is here; whoever asks for echo gets "
                "echo@2.0: give the mount a `prefix`, or `as` where it has one agent"
            ) in caplog.text
            (mount,) = server.mounts
            changed = mount._changed
            mount.look()
            await changed.wait()
            assert caplog.text.count("has the name of") == 1
            assert (await run(server, "echo")).output == {"text": "hi"}

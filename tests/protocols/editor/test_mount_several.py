"""A mount of a server with several agents: each is an agent here, over one connection."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import interlingua as il
from interlingua.mounts.loader import local_agents
from interlingua.protocols.targets import TargetError, parse
from interlingua.server.loading.target import load
from tests.kit.engines import engine, finish
from tests.kit.mounts.editor import AGENT, mount
from tests.kit.mounts.watch import SETTINGS

from .test_mount_remote import at, careful, mount_of, plain, there


class Tone(msgspec.Struct):
    tone: Literal["cool", "warm"] = "cool"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_where_there_are_several_each_is_an_agent(tmp_path: Path, store: Path, scheme: str, version: Any) -> None:
    @il.agent(version="2.5", skills=[il.Skill("count", "Count", "Counts what was said")])
    async def styled(text: str, ctx: il.Context[None, Tone]) -> str:
        """Says it in a tone."""
        return f"{ctx.config.tone}: {text}"

    async with there(tmp_path, plain, styled, careful) as server:
        made = mount_of(server, scheme, version=version)
        found = await local_agents(made)
        cards = {agent.card.name: agent.card for agent in found}
        assert list(cards) == ["plain", "styled", "careful"]
        assert (cards["styled"].version, cards["styled"].description) == ("2.5", "Says it in a tone.")
        assert {name: [skill.id for skill in card.skills] for name, card in cards.items()} == {
            "plain": [], "styled": ["count"], "careful": [],
        }  # fmt: skip
        assert {name: [asks.type for asks in card.questions][:1] for name, card in cards.items()} == {
            "plain": [], "styled": [], "careful": ["permission"],
        }, "an agent of ours says whether it asks"  # fmt: skip
        assert cards["plain"].config is None
        assert list((cards["styled"].config or {})["properties"]) == ["tone"]
        async with engine(store, *found, settings=SETTINGS) as eng:
            for _ in range(2):  # with sessions that were made ahead, and without
                runs = [finish(eng, name, {"text": "hi"}) for name in ("plain", "styled", "plain", "styled")]
                told = [run.output for run in await asyncio.gather(*runs)]
                assert told == [{"text": "hi"}, {"text": "cool: hi"}, {"text": "hi"}, {"text": "cool: hi"}]
            for name, said in (("plain", "hi"), ("styled", "warm: hi")):  # on one thread, each has its own session
                config = {"tone": "warm"} if name == "styled" else None
                run = await finish(eng, name, {"text": "hi"}, config=config, thread="t", create_thread=name == "plain")
                assert run.output == {"text": said}
        assert made.keeper.starts == 1, "one connection is enough for all"
        await made.close()


async def test_an_option_of_another_maker_that_is_called_agent_stays_an_option() -> None:
    choices = [{"value": one, "name": one.title()} for one in ("build", "plan")]
    option = {"id": "agent", "name": "Agent", "type": "select", "currentValue": "build", "options": choices}
    made = mount({"new": {"configOptions": [option]}})
    (agent,) = await local_agents(made)
    assert (agent.card.name, list((agent.card.config or {})["properties"])) == (AGENT, ["agent"])
    await made.close()
    made = mount({"new": {"configOptions": [option]}})
    (agent,) = await local_agents(made, "plan")
    assert (agent.card.name, agent.card.config) == ("plan", None)
    await made.close()


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_who_wants_to_run_one_has_to_say_which(tmp_path: Path, scheme: str) -> None:
    async with there(tmp_path) as server:
        target = f"editor+{at(server, scheme)}"
        with pytest.raises(TargetError, match=re.escape(f"{target} has 2 agents: careful, plain")) as raised:
            await load(parse(target))
        assert raised.value.hint == f"say which one, for instance {target}#careful"
        with pytest.raises(TargetError, match=r"there is no agent 'simple' in .*; there are: careful, plain"):
            await load(parse(f"{target}#simple"))
        for wanted in ("plain", "plain@0.1.0"):
            assert (await load(parse(f"{target}#{wanted}"))).chosen.card.key == "plain@0.1.0"


@pytest.mark.parametrize("thread", [None, "t"])
async def test_where_one_of_two_is_gone_the_other_does_not_answer_for_it(
    tmp_path: Path, store: Path, thread: str | None
) -> None:
    @il.agent
    async def loud(text: str) -> str:
        return text.upper()

    async with there(tmp_path, loud, plain) as server:
        made = mount_of(server, "ws")
        found = await local_agents(made)
        async with engine(store, *found, settings=SETTINGS) as eng:
            more: dict[str, Any] = {} if thread is None else {"thread": thread, "create_thread": True}
            run = await finish(eng, "plain", {"text": "hi"}, **more)
            assert run.output == {"text": "hi"}
            server.engine.agents.remove(plain.card.key)
            await made.close()  # the next run begins with a new connection, and nothing at hand
            for _ in range(2):
                run = await finish(eng, "plain", {"text": "hi"}, thread=thread)
                assert run.error is not None, run.output
                assert run.error.code == "agent_not_found"
                assert "no longer has an agent plain@0.1.0" in run.error.message
            assert (await finish(eng, "loud", {"text": "hi"})).output == {"text": "HI"}
        await made.close()

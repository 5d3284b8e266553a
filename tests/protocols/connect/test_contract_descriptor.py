"""What the document asks of descriptors and schemas: what is in them, and that agents keep to what is in them."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import interlingua as il
from interlingua.cli.demo.processes import example
from interlingua.model.errors import DefinitionError
from interlingua.protocols.connect.mount.server import load
from interlingua.protocols.targets import Target

from .reference import Reference, listening
from .test_door import AGENTS, NOBODY, Up, chat, echo, greeter, mailer, plain, up


def fits(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema_rs.validator_for(schema).is_valid(value)


async def specs_of(s: Up, agent: str) -> dict[str, Any]:
    (found,) = await s.post("/agents/search", {"name": agent})
    specs: dict[str, Any] = (await s.get(f"/agents/{found['agent_id']}/descriptor"))["specs"]
    return specs


# -- schemas: what the descriptor says is what the agent takes and gives -----------------------------------------


@pytest.mark.parametrize("config", [{"style": "friendly"}, {"style": "rude"}, {"style": 3}, {}])
async def test_the_configuration_schema_that_is_given_is_the_one_that_counts(store: Path, config: Any) -> None:
    async with up(store, greeter) as s:
        schema = (await s.get("/agents/greeter/descriptor"))["specs"]["config"]
        body = {"agent_id": "greeter", "input": {"name": "Ada"}, "config": {"configurable": config}}
        await s.post("/runs/wait", body, 200 if fits(schema, config) else 422)
        assert fits(schema, {"style": "formal"})
        assert not fits(schema, {"style": "rude"})


@pytest.mark.parametrize("input_", [{"text": "a"}, {"text": 3}, {}, {"text": "a", "more": 1}])
async def test_the_input_schema_that_is_given_is_the_one_that_counts(store: Path, input_: Any) -> None:
    async with up(store, echo) as s:
        schema = (await s.get("/agents/echo/descriptor"))["specs"]["input"]
        await s.post("/runs/wait", {"agent_id": "echo", "input": input_}, 200 if fits(schema, input_) else 422)
        assert fits(schema, {"text": "a"})
        assert not fits(schema, {})


async def test_the_output_schema_that_is_given_is_the_one_that_outputs_fit(store: Path) -> None:
    @il.agent
    async def liar() -> int:
        return "a text"  # type: ignore[return-value]

    async with up(store, greeter, liar) as s:
        schema = (await s.get("/agents/greeter/descriptor"))["specs"]["output"]
        output = await s.output(await s.run("greeter", {"name": "Ada"}))
        assert fits(schema, output["result"])
        assert not fits(schema, {"message": 3})
        refused = await s.output(await s.run("liar"))
        assert (refused["type"], refused["code"]) == ("error", "invalid_output")


async def test_the_capabilities_that_an_endpoint_tells_are_those_that_the_agent_has(store: Path) -> None:
    async with up(store, plain, mailer) as s:
        for agent in ("plain", "mailer"):
            able = await s.get(f"/agents/{agent}/capabilities")
            assert able == (await specs_of(s, agent))["capabilities"]
            body = {"agent_id": agent, "input": {"text": "a"} if agent == "plain" else {}}
            thread = await s.thread()
            await s.post(f"/threads/{thread}/runs/wait", body, 200 if able["threads"] else 422)
            for mode in ("values", "custom"):
                expected = 200 if able["streaming"][mode] else 422
                answer = await s.http.post("/runs/stream", json={**body, "stream_mode": mode})
                assert answer.status_code == expected
            told = (await s.post("/runs/wait", body))["output"]
            assert (told["type"] == "interrupt") is able["interrupts"]


# -- what a descriptor holds -------------------------------------------------------------------------------------


async def test_every_descriptor_holds_the_schema_of_the_run_input(store: Path) -> None:
    async with up(store) as s:
        wanted = {agent.card.name: agent.card.input for agent in AGENTS}
        assert {name: (await specs_of(s, name))["input"] for name in wanted} == wanted
        assert wanted["echo"]["properties"] == {"text": {"type": "string"}}


async def test_every_descriptor_holds_the_schema_of_the_run_output(store: Path) -> None:
    async with up(store) as s:
        wanted = {agent.card.name: agent.card.output for agent in AGENTS}
        assert {name: (await specs_of(s, name))["output"] for name in wanted} == wanted
        assert wanted["greeter"]["properties"] == {"message": {"type": "string"}}


async def test_the_descriptor_of_an_agent_that_asks_holds_the_schemas_of_question_and_answer(store: Path) -> None:
    async with up(store, mailer, echo) as s:
        (kind,) = (await specs_of(s, "mailer"))["interrupts"]
        assert set(kind) == {"interrupt_type", "interrupt_payload", "resume_payload"}
        run = await s.run("mailer")
        asked = await s.output(run)
        assert asked["interrupt_type"] == kind["interrupt_type"]
        assert fits(kind["interrupt_payload"], asked["interrupt_payload"])
        assert not fits(kind["interrupt_payload"], {"subject": "Lunch"})
        for answer in ({}, {"approved": "yes"}, {"approved": True, "reason": "fine"}):
            await s.post(f"/runs/{run}", answer, 200 if fits(kind["resume_payload"], answer) else 422)
        assert (await s.output(run))["type"] == "result"
        assert "interrupts" not in await specs_of(s, "echo")


async def test_the_descriptor_of_an_agent_with_state_holds_the_schema_of_what_its_threads_show(store: Path) -> None:
    async with up(store, chat, echo) as s:
        schema = (await specs_of(s, "chat"))["thread_state"]
        thread = await s.chatted("Hello, my name is John")
        shown = (await s.get(f"/threads/{thread}"))["values"]
        assert fits(schema, shown)
        assert shown["messages"]
        assert not fits(schema, {"messages": "none"})
        await s.ask("PATCH", f"/threads/{thread}", {"values": {"messages": ["a"]}})
        assert "thread_state" not in await specs_of(s, "echo")


class Anything(il.Question[dict[str, Any]]):
    """What do you make of this?"""

    about: dict[str, Any]


@il.agent(asks=[Anything])
async def loose(ctx: il.Context[dict[str, Any], dict[str, Any]], data: Any) -> Any:
    answer = await ctx.ask(Anything(about={"given": data}))
    ctx.state["seen"] = [*ctx.state.get("seen", []), data]
    return {"config": ctx.config, "answer": answer, "data": data}


ODD: list[Any] = [
    {"deep": [{"er": [None, True, -1.5e300, "\u2028"]}], "": {}},
    {"type": "result", "run_id": NOBODY, "values": {"interrupt": 1}},  # looks like the protocol's own members
]


@pytest.mark.parametrize("odd", ODD, ids=["nested", "protocol-like"])
async def test_input_output_config_payloads_and_state_are_whatever_json_the_agent_takes(store: Path, odd: Any) -> None:
    async with up(store, loose) as s:
        thread = await s.thread()
        base = f"/threads/{thread}/runs"
        run = await s.run("loose", {"data": odd}, base, config={"configurable": odd})
        asked = await s.output(run, base)
        assert asked["interrupt"] == {"anything": {"about": {"given": odd}}}
        await s.post(f"{base}/{run}", odd)
        assert (await s.output(run, base))["result"] == {"config": odd, "answer": odd, "data": odd}
        assert (await s.get(f"/threads/{thread}"))["values"] == {"seen": [odd]}


async def test_agents_with_formats_that_have_nothing_in_common_are_served_side_by_side(store: Path) -> None:
    @il.agent
    async def adder(numbers: list[int]) -> int:
        return sum(numbers)

    @il.agent
    async def shapes(sides: dict[str, float], closed: bool = True) -> list[dict[str, float]]:
        return [sides] if closed else []

    async with up(store, adder, shapes, loose, echo) as s:
        assert (await s.output(await s.run("adder", {"numbers": [1, 2]})))["result"] == {"value": 3}
        shape = {"a": 1.5, "b": 2.0}
        assert (await s.output(await s.run("shapes", {"sides": shape})))["result"] == {"value": [shape]}
        described = [(await specs_of(s, name))["input"] for name in ("adder", "shapes", "loose", "echo")]
        assert len({tuple(schema["properties"]) for schema in described}) == 4, "each says what it takes"


# -- metadata ----------------------------------------------------------------------------------------------------


async def test_the_address_of_a_descriptor_is_told_where_the_agent_has_one(store: Path) -> None:
    @il.agent(version="1.2.0", metadata={"url": "https://agents.example/located.json"})
    async def located() -> str:
        return "here"

    async with up(store, located, echo) as s:
        (found,) = await s.post("/agents/search", {"name": "located"})
        ref = {"name": "located", "version": "1.2.0", "url": "https://agents.example/located.json"}
        assert found["metadata"]["ref"] == ref
        assert (await s.get(f"/agents/{found['agent_id']}/descriptor"))["metadata"]["ref"] == ref
        (other,) = await s.post("/agents/search", {"name": "echo"})
        assert "url" not in other["metadata"]["ref"]


async def test_a_server_refuses_two_agents_of_one_name_and_version(store: Path) -> None:
    def named(version: str, text: str) -> il.Agent[..., Any]:
        @il.agent(name="twin", version=version)
        async def twin() -> str:
            return text

        return twin

    with pytest.raises(DefinitionError, match=r"twin@1\.0\.0"):
        async with up(store, named("1.0.0", "a"), named("1.0.0", "b")):
            pass
    async with up(store, named("1.0.0", "a"), named("1.0.1", "b")) as s:
        found = await s.post("/agents/search", {"name": "twin"})
        said = {a["metadata"]["ref"]["version"]: (await s.output(await s.run(a["id"])))["result"] for a in found}
        assert said == {"1.0.0": {"text": "a"}, "1.0.1": {"text": "b"}}


# -- other servers, and the sample of the document ----------------------------------------------------------------

SAMPLE_METADATA = {
    "ref": {"name": "org.agntcy.mailcomposer", "version": "0.0.1", "url": "https://agents.example/mailcomposer.json"},
    "description": "Learns in a chat what its user wants to write, and composes the mail.",
}


class Catalogue:
    """A server that only lists agents, as a directory does. Any number of them may have the same metadata."""

    def __init__(self, *agents: dict[str, Any]) -> None:
        self._agents = {f"{number:08}-0000-4000-8000-000000000000": agent for number, agent in enumerate(agents)}
        self.app = Starlette(
            routes=[
                Route("/agents/search", self._search, methods=["POST"]),
                Route("/agents/{agent_id}/descriptor", self._descriptor),
            ]
        )

    async def close(self) -> None:
        pass

    async def _search(self, request: Request) -> Response:
        offset = (await request.json()).get("offset", 0)
        found = [{"agent_id": id_, "metadata": agent["metadata"]} for id_, agent in self._agents.items()]
        return JSONResponse(found[offset:])

    async def _descriptor(self, request: Request) -> Response:
        return JSONResponse(self._agents[request.path_params["agent_id"]])


def described(name: str, version: str = "1.0.0") -> dict[str, Any]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {
        "metadata": {"ref": {"name": name, "version": version}, "description": "One of many."},
        "specs": {"capabilities": {}, "input": schema, "output": schema, "config": {"type": "object"}},
    }


@asynccontextmanager
async def mounted(other: Any) -> AsyncIterator[list[il.Agent[..., Any]]]:
    async with listening(other) as address:
        yield await load(Target("connect+http", f"connect+{address}"))


async def test_agents_that_are_brought_together_from_several_servers_never_share_name_and_version(store: Path) -> None:
    async with mounted(Catalogue(described("echo", "0.1.3"))) as agents:
        with pytest.raises(DefinitionError, match=r"echo@0\.1\.3"):
            async with up(store, echo, *agents):
                pass
    async with mounted(Catalogue(described("twin"), described("twin"), described("twin", "2.0.0"))) as agents:
        async with up(store, *agents) as s:
            refs = [agent["metadata"]["ref"] for agent in await s.post("/agents/search", {})]
        assert len({(ref["name"], ref["version"]) for ref in refs}) == len(refs) == 3


async def test_an_agent_has_the_same_id_wherever_it_is_served_and_another_version_has_another(tmp_path: Path) -> None:
    @il.agent(name="echo", version="0.2.0")
    async def newer(text: str) -> str:
        return text

    ids = []
    for place, agents in (("one.db", (echo, newer)), ("two.db", (greeter, echo))):
        async with up(tmp_path / place, *agents) as s:
            found = await s.post("/agents/search", {"name": "echo"})
            ids.append({agent["metadata"]["ref"]["version"]: agent["agent_id"] for agent in found})
    assert ids[0]["0.1.3"] == ids[1]["0.1.3"]
    assert ids[0]["0.1.3"] != ids[0]["0.2.0"]


async def test_the_metadata_of_the_sample_is_read_and_shown_again(store: Path) -> None:
    sample = {**described("x"), "metadata": SAMPLE_METADATA}
    async with mounted(Catalogue(sample)) as agents, up(store, *agents) as s:
        (found,) = await s.post("/agents/search", {"name": "org.agntcy.mailcomposer", "version": "0.0.1"})
        assert found["metadata"] == SAMPLE_METADATA


def composer() -> il.Agent[..., Any]:
    """The document's sample, as we have it among our examples."""
    spec = importlib.util.spec_from_file_location("mailcomposer", example("mailcomposer"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: il.Agent[..., Any] = module.compose
    return made


async def test_the_recipients_of_the_sample_are_texts_in_the_format_email(store: Path) -> None:
    async with up(store, composer()) as s:
        (kind,) = (await specs_of(s, "org.agntcy.mailcomposer"))["interrupts"]
        recipients = kind["interrupt_payload"]["properties"]["recipients"]
        assert (recipients["type"], recipients["items"]["type"]) == ("array", "string")
        assert recipients["items"]["format"] == "email"


async def test_agents_of_another_makers_server_are_called_like_our_own(store: Path) -> None:
    """The other one is a fake of the published server: another framework, another process as far as we can tell."""
    async with mounted(Reference()) as agents, up(store, echo, *agents) as s:
        for name, result in (("echo", {"text": "a "}), ("org.example-Echo-Agent", {"text": "a"})):
            (found,) = await s.post("/agents/search", {"name": name})
            told = await s.post("/runs/wait", {"agent_id": found["agent_id"], "input": {"text": "a"}})
            assert told["run"]["status"] == "success", told
            assert told["output"]["result"]["text"].strip() == result["text"].strip()

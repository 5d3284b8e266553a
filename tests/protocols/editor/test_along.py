"""What goes along with a prompt beside its text, and what an agent gives beside its message."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from interlingua import DataPart, Engine
from interlingua.protocols.editor import translate
from tests.kit.clients.editor import client_of

from ..porter import FILE, VALUE, came, porter

DATA, METADATA = "interlingua/data", "interlingua/metadata"


@pytest.mark.parametrize("version", [1, 2])
async def test_a_value_goes_both_ways_as_text_that_shows_it_with_the_value_beside(store: Path, version: int) -> None:
    async with Engine(store, agents=[porter]) as engine, client_of(engine) as (client, _):
        await client.initialize(version)
        session = await client.new_session()
        shown = {"type": "text", "text": "a value", "_meta": {DATA: {"n": None}, "mine": 1}}
        await client.ask("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}, shown]})
        if version == 2:
            await client.update("state_update", lambda update: update["state"] == "idle")
        chunks = [one["content"] for one in client.updates() if one["sessionUpdate"] == "agent_message_chunk"]
        values = [one for one in chunks if DATA in one.get("_meta", {})]
        assert [one["_meta"][DATA] for one in values] == [VALUE]
        assert json.loads(values[0]["text"].removeprefix("```json").removesuffix("```")) == VALUE
        files = [one["resource"] for one in chunks if one["type"] == "resource"]
        assert [base64.b64decode(one["blob"]) for one in files] == [FILE.data]
        told = came(next(one["text"] for one in chunks if one.get("text", "").startswith('{"text"')))
        assert (told["text"], told["parts"]) == ("go", ["go", {"data": {"n": None}}])


def test_a_value_comes_back_as_it_was_with_what_else_was_said_of_it() -> None:
    part = DataPart([1, {"two": None}], meta={"mine": 1})
    block = translate.block(part)
    assert block["_meta"] == {DATA: part.data, "mine": 1}
    assert translate.parts([block], open_types=False) == [part]


async def test_members_of_meta_that_are_nobodys_are_metadata_of_the_run(store: Path) -> None:
    async with Engine(store, agents=[porter]) as engine, client_of(engine) as (client, _):
        await client.initialize()
        session = await client.new_session()
        meta: dict[str, Any] = {"com.example/ticket": 7, "traceparent": "nonsense", "interlingua": {"x": 1}}
        meta |= {"interlingua/unknown": 1, METADATA: {"traceparent": "mine"}}
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "go"}], "_meta": meta}
        ended = await client.ask("session/prompt", prompt)
        run = await engine.runs.get(ended["_meta"]["interlingua"]["run"])
        assert run.metadata == {"com.example/ticket": 7, "traceparent": "mine"}

"""The blocking client: the same names, for callers without an event loop."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path

import pytest

import interlingua as il
from interlingua.client import client, handles, sync
from tests.control.agents import AGENTS
from tests.kit.engines import QUICK


def _engine() -> il.Engine:
    return il.Engine(":memory:", agents=AGENTS, settings=QUICK)


def test_a_script_runs_agents_streams_and_answers() -> None:
    with il.SyncClient(_engine()) as client:
        assert client.run("echo", "hello", output=str) == "hello "
        run = client.start("echo", text="one two")
        assert "".join(run.text()) == "one two "
        assert [event.kind for event in run.events()][-1] == "finished"
        assert client.run("asker", "go", on_question=lambda question: {"approved": "go" in question.prompt}) == {
            "text": "yes"
        }
        with pytest.raises(il.Waiting) as caught:
            client.run("asker", "go")
        caught.value.questions[0].answer(approved=False)
        assert caught.value.run.result() == {"text": "no"}
        with pytest.raises(il.RunFailed) as failed:
            client.run("failing")
        assert failed.value.run.get().error is not None


def test_leaving_a_stream_early_leaves_nothing_behind() -> None:
    threads = threading.active_count()
    with il.SyncClient(_engine()) as client:
        run = client.start("echo", text="one two")
        for _ in run.events():
            break
        assert client.run("echo", "x", output=str) == "x "
    assert threading.active_count() <= threads


async def test_in_a_coroutine_it_says_what_to_use_instead() -> None:
    with pytest.raises(il.InterlinguaError, match="async with il"):
        il.SyncClient(_engine()).__enter__()


def test_a_client_that_is_not_open_says_how() -> None:
    with pytest.raises(il.InterlinguaError, match="with il"):
        il.SyncClient(":memory:").agents()


@pytest.mark.parametrize("name", ["Client", "RunHandle", "ThreadHandle", "OpenQuestion"])
def test_every_public_name_of_the_client_is_there_and_blocks(name: str) -> None:
    one = getattr(client, name, None) or getattr(handles, name)
    other = getattr(sync, f"Sync{name}")
    for member, function in inspect.getmembers(one, inspect.isfunction):
        if not member.startswith("_"):
            blocking = getattr(other, member)
            assert not inspect.iscoroutinefunction(blocking)
            assert list(inspect.signature(blocking).parameters) == list(inspect.signature(function).parameters)


def test_the_file_is_what_the_tool_writes() -> None:
    text = Path(sync.__file__).read_text(encoding="utf-8")
    assert "Written by tools/sync_client.py" in text

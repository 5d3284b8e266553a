"""The door over stdin and stdout: one message per line, as whoever starts the process sees it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import interlingua as il
from interlingua.model.filters import RunFilter
from interlingua.protocols.cap.door.stdio import StdioDoor
from interlingua.transports.process.pipes import PipeChannel
from tests.kit import warm_python
from tests.kit.engines import engine, parked

from .door_common import Json, message, notice, words

AGENTS = """
import asyncio
import interlingua as il

@il.agent
async def words(text: str):
    print("noise of an agent")
    for place, word in enumerate(text.split()):
        yield f" {word}" if place else word

@il.agent(asks=[il.AskText])
async def curious(text: str, ctx: il.Context) -> str:
    answer = await ctx.ask(il.AskText(f"What is {text}?"))
    return f"{text} is {answer.text}"

@il.agent
async def patient(text: str) -> str:
    await asyncio.Event().wait()
    return text

@il.agent
async def failing(text: str) -> str:
    raise ValueError(text)

@il.agent
async def listening(text: str, ctx: il.Context) -> str:
    await ctx.thought("I am all ears")
    return f"{text}: {(await ctx.receive()).text}"

@il.agent
async def above(text: str, ctx: il.Context) -> str:
    return str((await ctx.call(listening, text=text))["text"])

@il.agent
async def slow(text: str, ctx: il.Context) -> str:
    await ctx.sleep(1)
    return text
"""

MANIFESTS = {
    "pm-1": {"allowed_agents": ["analyst-1"], "delegate_rules": {"analyst-1": {"when_to_delegate": "always"}}},
    "analyst-1": {"allowed_agents": [], "delegate_rules": {}},
}
HANDLERS = """
import interlingua as il

@il.agent(name="pm-1", asks=[il.AskText])
async def pm(text: str, ctx: il.Context) -> str:
    region = await ctx.ask(il.AskText("Which region?"))
    found = await ctx.delegate("analyst-1", f"{text} in {region.text}")
    return f"Report: {found['text']}"

@il.agent(name="analyst-1")
async def analyst(text: str) -> str:
    return text.upper()
"""


class Other:
    """The one that started the process, at the other end of its pipes."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        assert popen.stdin is not None
        assert popen.stdout is not None
        self._in, self._out = popen.stdin, popen.stdout

    def say(self, *messages: Json) -> None:
        for told in messages:
            self.write(json.dumps(told).encode() + b"\n")

    def write(self, data: bytes) -> None:
        self._in.write(data)
        self._in.flush()

    def hear(self, **members: Any) -> Json:
        """The next line with these members."""
        for line in self._out:
            told: Json = json.loads(line)
            if all(told.get(name) == value for name, value in members.items()):
                return told
        assert self.popen.stderr is not None
        raise AssertionError(f"its output ended without {members}: {self.popen.stderr.read().decode()}")

    def end(self) -> list[Json]:
        """Close its input, and read what it still says."""
        rest, _ = self.popen.communicate(timeout=60)
        return [json.loads(line) for line in rest.splitlines()]


@pytest.fixture
def start(tmp_path: Path, env: dict[str, str]) -> Any:
    (tmp_path / "agents.py").write_text(AGENTS)

    @contextmanager
    def started(*targets: str) -> Iterator[Other]:
        command = [warm_python.interlingua(), "stdio", "--as", "cap", *(targets or ("agents.py",))]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=tmp_path, env=env) as popen:
            try:
                yield Other(popen)
            finally:
                if popen.poll() is None:
                    popen.kill()

    return started


def test_a_notice_is_a_line_and_so_is_the_result(start: Any) -> None:
    with start() as other:
        other.say(notice("T1", "words", "hello there", sender="orchestrator"))
        result = other.hear(type="message")
        assert (result["sender_id"], result["recipient_id"]) == ("words", "orchestrator")
        assert result["content"] == "hello there"
        assert result["metadata"] == {"final": True}
        assert other.end() == []
        assert other.popen.returncode == 0


def test_without_being_asked_it_says_only_what_is_for_the_peer(start: Any) -> None:
    with start() as other:
        other.say(notice("T1", "words", "a b c"))
        (line,) = other.end()
        assert line["type"] == "message"
        assert line["content"] == "a b c"


def test_a_peer_that_wants_the_stream_is_told_of_status_and_output_as_they_come(start: Any) -> None:
    with start() as other:
        other.say(notice("T1", "words", "hello there", metadata={"stream": True}))
        lines = other.end()
        kinds = [line["type"] for line in lines]
        assert kinds[0] == "status"
        assert kinds[-2:] == ["message", "status"]
        assert "".join(line["delta"]["text"] for line in lines if line["type"] == "delta") == "hello there"
        assert lines[-1]["output"] == {"text": "hello there"}


def test_the_same_notice_again_is_the_same_task_and_is_told_again(start: Any) -> None:
    with start() as other:
        other.say(notice("T1", "words", "hello"))
        first = other.hear(type="message")
        other.say(notice("T1", "words", "hello", metadata={"stream": True}))
        again = [other.hear(type="message"), other.hear(type="status", final=True)]
        assert again[0] == first
        assert other.end() == []


def test_the_user_is_asked_and_answers_over_the_same_pipes(start: Any) -> None:
    with start() as other:
        other.say(notice("T1", "curious", "love"))
        asked = other.hear(recipient_id="user")
        assert asked["content"] == "What is love?"
        other.say(message("T1", "curious", "", metadata={"answer": {"wrong": 1}}))
        refused = other.hear(type="error_response")
        assert refused["error_code"] == 400
        assert refused["metadata"]["details"]["answer_schema"]["required"] == ["text"]
        other.say(message("T1", "curious", "a battlefield"))
        assert other.hear(type="message", sender_id="curious")["content"] == "love is a battlefield"


def test_several_tasks_are_under_way_at_the_same_time(start: Any) -> None:
    with start() as other:
        other.say(*(notice(f"T{number}", "curious", f"number {number}") for number in range(1, 4)))
        for _ in range(3):
            other.hear(recipient_id="user", type="message")
        other.say(*(message(f"T{number}", "curious", str(number)) for number in (3, 1, 2)))
        results = {other.hear(type="message", metadata={"final": True})["content"] for _ in range(3)}
        assert results == {"number 1 is 1", "number 2 is 2", "number 3 is 3"}


def test_a_failure_and_a_cancelled_task_are_error_responses(start: Any) -> None:
    with start() as other:
        other.say(notice("T1", "failing", "oops"), notice("T2", "patient", "x"))
        assert other.hear(type="error_response", task_id="T1")["error_code"] == 502
        stop = {"type": "error_response", "error_code": 499, "error_message": "enough"}
        other.say({**stop, "task_id": "T2", "sender_id": "user", "recipient_id": "patient"})
        assert other.hear(type="error_response", task_id="T2")["error_code"] == 499


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"hello\n", 400),
        (b'{"type": "message"\n', 400),
        (b"[1, 2]\n", 400),
        (b'"text"\n', 400),
        (b"\xff\xfe{}\n", 400),
        (b'{"type": "greeting", "task_id": "T9"}\n', 400),
        (b"[" * 100_000 + b"\n", 400),
        (json.dumps(notice("T1", "nobody", "x")).encode() + b"\n", 404),
        (json.dumps(notice("T1", "words", "x", sender="curious")).encode() + b"\n", 403),
        (json.dumps(message("T7", "words", "x")).encode() + b"\n", 404),
    ],
)
def test_a_line_that_is_wrong_is_answered_with_an_error_and_ends_nothing(start: Any, line: bytes, code: int) -> None:
    with start() as other:
        other.write(b"\n\r\n" + line)
        refused = other.hear(type="error_response")
        assert refused["error_code"] == code
        other.say(notice("T2", "words", "still there"))
        assert other.hear(type="message", task_id="T2")["content"] == "still there"
        assert other.end() == []
        assert other.popen.returncode == 0


def test_a_process_for_one_agent_takes_whatever_it_is_called_and_whoever_calls(start: Any) -> None:
    with start("agents.py:words") as other:
        other.say(notice("T1.1", "analyst-1", "hello", sender="pm-1"))
        result = other.hear(type="message")
        assert (result["task_id"], result["recipient_id"], result["content"]) == ("T1.1", "pm-1", "hello")


def test_a_team_is_served_with_its_conversation(start: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sales"
    folder.mkdir()
    for id_, manifest in MANIFESTS.items():
        whole = {"id": id_, "system_prompt": f"You are {id_}.", "mcp_bindings": [], **manifest}
        (folder / f"{id_}.json").write_text(json.dumps(whole))
    (folder / "handlers.py").write_text(HANDLERS)
    with start("team:sales") as other:
        other.say(notice("T5", "pm-1", "Analyze", sender="orchestrator", metadata={"stream": True}))
        asked = other.hear(type="message", recipient_id="user")
        other.say(message("T5", "pm-1", "Europe", metadata={"question": asked["metadata"]["question"]}))
        handed = other.hear(type="delegation_notice")
        assert (handed["task_id"], handed["sender_id"], handed["recipient_id"]) == ("T5.1", "pm-1", "analyst-1")
        assert handed["context_summary"] == "Analyze in Europe"
        result = other.hear(type="message", recipient_id="orchestrator")
        assert result["content"] == "Report: ANALYZE IN EUROPE"
        assert other.hear(type="status", final=True)["output"] == {"text": "Report: ANALYZE IN EUROPE"}
        other.say(notice("T5.2", "analyst-1", "Do as I say", sender="pm-1"))
        assert other.hear(type="error_response")["error_code"] == 403


def test_a_task_that_waits_when_the_peer_has_gone_is_taken_up_by_the_next_process(start: Any) -> None:
    with start() as other:
        other.say(notice("T1", "curious", "love"))
        other.hear(recipient_id="user")
        assert other.end() == []
    with start() as other:
        other.say(notice("T1", "curious", "love"))  # the same notice: the same task
        other.hear(recipient_id="user")
        other.say(message("T1", "curious", "blind"))
        assert other.hear(sender_id="curious", metadata={"final": True})["content"] == "love is blind"


def test_so_is_one_that_waits_for_a_message(start: Any) -> None:
    with start() as other:
        other.say(notice("T1", "listening", "heard", metadata={"stream": True}))
        other.hear(type="activity")
        assert [line["type"] for line in other.end()] == []
    with start() as other:
        other.say(notice("T1", "listening", "heard", metadata={"stream": True}))
        other.say(message("T1", "listening", "you"))
        assert other.hear(sender_id="listening", metadata={"final": True})["content"] == "heard: you"


def test_what_only_somebody_else_could_wake_is_not_waited_for_and_what_goes_on_by_itself_is(start: Any) -> None:
    with start() as other:
        other.say(notice("T1", "above", "never"))
        other.say(notice("T2", "slow", "in the end"))
        (line,) = other.end()
        assert line["content"] == "in the end"


async def test_nor_is_a_run_waited_for_that_was_set_aside(store: Path) -> None:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    @il.agent
    async def listening(text: str, ctx: il.Context[None, None]) -> str:
        return f"{text}: {(await ctx.receive()).text}"

    async with engine(store, listening) as eng:
        channel, peer = PipeChannel(theirs_in, theirs_out), PipeChannel(ours_in, ours_out)
        serving = asyncio.ensure_future(StdioDoor(eng, channel).run())
        peer.send(json.dumps(notice("T1", "listening", "x")).encode())
        async with asyncio.timeout(20):
            while not (runs := await eng.runs.search(RunFilter())):
                await eng.runs.next_hint("work")
            await parked(eng, runs[0].id)
            await peer.close_writing()
            await serving
        await peer.close()
        await channel.close()


def test_an_error_is_not_answered_with_an_error(start: Any) -> None:
    """Two that answer each other's errors would never end."""
    error = {"type": "error_response", "sender_id": "orchestrator", "recipient_id": "words", "error_message": "no"}
    with start() as other:
        for code in (404, 499):
            other.say({**error, "task_id": "T404", "error_code": code})
        other.say({**error, "task_id": "T404", "error_code": 404, "sender_id": "curious"})
        other.say({"type": "error_response", "task_id": "T404"})
        other.say(notice("T1", "words", "hello"))
        (line,) = other.end()
        assert line["content"] == "hello"


def test_it_ends_when_it_is_asked_to(start: Any) -> None:
    with start() as other:
        other.say(notice("T1", "patient", "x", metadata={"stream": True}))
        other.hear(type="status", status="running")
        other.popen.send_signal(signal.SIGTERM)
        assert other.popen.wait(timeout=60) == 0


async def test_a_line_that_is_too_long_is_answered_with_an_error(store: Path) -> None:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    async with engine(store, words) as eng:
        channel = PipeChannel(theirs_in, theirs_out, max_line=1000)
        serving = asyncio.ensure_future(StdioDoor(eng, channel).run())
        peer = PipeChannel(ours_in, ours_out)
        peer.send(json.dumps(notice("T1", "words", "x" * 2000)).encode())
        peer.send(json.dumps(notice("T2", "words", "short")).encode())
        lines: list[Json] = []
        async with asyncio.timeout(20):
            while len(lines) < 2:
                lines += [json.loads(frame) for frame in await peer.receive()]
            await peer.close_writing()
            await serving
        assert [line.get("error_code") for line in lines] == [413, None]
        assert lines[1]["content"] == "short"
        await peer.close()
        await channel.close()

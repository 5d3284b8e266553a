"""Binding B: a node over the stdin and stdout of a process, as whoever starts it sees it."""

from __future__ import annotations

import hashlib
import hmac
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit import warm_python

AGENTS = """
import interlingua as il
from pathlib import Path

@il.agent
async def shout(text: str) -> str:
    print("noise of an agent")
    with Path("runs.txt").open("a") as runs:
        runs.write(text + "\\n")
    return text.upper()

@il.agent(asks=[il.Confirm])
async def ask(text: str, ctx: il.Context) -> str:
    verdict = await ctx.ask(il.Confirm("Shall I?"))
    return "I did" if verdict.approved else "I did not"
"""

Frame = dict[str, Any]


class Other:
    """The one that started the process, at the other end of its pipes."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        assert popen.stdin is not None
        assert popen.stdout is not None
        self._in, self._out = popen.stdin, popen.stdout

    def say(self, **frame: Any) -> None:
        self.write(json.dumps(frame).encode() + b"\n")

    def write(self, data: bytes) -> None:
        self._in.write(data)
        self._in.flush()

    def hear(self, kind: str, **members: Any) -> Frame:
        """The next frame of a kind, with these members."""
        for line in self._out:
            frame: Frame = json.loads(line)
            if frame["type"] == kind and all(frame.get(name) == value for name, value in members.items()):
                return frame
        assert self.popen.stderr is not None
        raise AssertionError(f"its output ended without {kind}: {self.popen.stderr.read().decode()}")

    def introduce(self) -> Frame:
        """Cards both ways. Gives theirs."""
        card = {"name": "Starter", "capabilities": {"delivery_ack": True, "task_delegation": True, "resume": True}}
        self.say(type="acp.agent_card", message_id="card_1", ts="2026-11-15T00:00:00Z", card=card)
        found: Frame = self.hear("acp.agent_card")["card"]
        return found

    def ask(self, id_: str, text: str) -> None:
        parts = [{"type": "text", "content": text}]
        more = {"ts": "2026-11-15T00:00:00Z", "from": "Starter", "role": "user"}
        self.say(type="acp.message", message_id=id_, correlation_id=id_, parts=parts, skill_id="shout", **more)

    def end(self) -> list[Frame]:
        """Close its input, and read what it still says."""
        rest, _ = self.popen.communicate(timeout=60)
        return [json.loads(line) for line in rest.splitlines()]


@pytest.fixture
def home(env: dict[str, str], tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


@contextmanager
def process(env: dict[str, str], home: Path, *options: str) -> Iterator[Other]:
    command = [warm_python.interlingua(), "stdio", "--as", "peer", "agents.py:shout", *options]
    if options[:1] == ("all",):
        command[-2:] = ["agents.py"]
    popen = subprocess.Popen(
        command, env=env, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield Other(popen)
    finally:
        if popen.stdin is not None and not popen.stdin.closed:
            popen.communicate(timeout=60)
    assert popen.returncode == 0


def runs(home: Path) -> list[str]:
    return (home / "runs.txt").read_text().split()


def test_cards_go_both_ways_and_a_message_is_answered(env: dict[str, str], home: Path) -> None:
    with process(env, home) as other:
        card = other.introduce()
        assert "shout" in [skill["id"] for skill in card["skills"]]
        other.ask("msg_1", "hello")
        assert other.hear("acp.delivered")["message_id"] == "msg_1"
        reply = other.hear("acp.reply", correlation_id="msg_1")
        assert reply["parts"] == [{"type": "text", "content": "HELLO"}]


def test_what_an_agent_prints_is_not_on_the_wire(env: dict[str, str], home: Path) -> None:
    with process(env, home) as other:
        other.introduce()
        other.ask("msg_1", "hello")
        other.hear("acp.reply")
        _, stderr = other.popen.communicate(timeout=60)
        assert b"noise of an agent" in stderr


def test_answers_to_the_last_words_still_come(env: dict[str, str], home: Path) -> None:
    with process(env, home) as other:
        other.ask("msg_1", "hello")
        frames = other.end()
    assert [frame["parts"][0]["content"] for frame in frames if frame["type"] == "acp.reply"] == ["HELLO"]


def test_a_task_asks_goes_on_with_the_answer_and_completes(env: dict[str, str], home: Path) -> None:
    with process(env, home, "all") as other:
        other.introduce()
        payload = {"skill_id": "ask", "parts": [{"type": "text", "content": "go"}]}
        told = {"ts": "2026-11-15T00:00:00Z", "from": "Starter", "task_id": "task_1"}
        other.say(type="task.delegate", message_id="msg_1", payload=payload, **told)
        other.hear("task.updated", task_id="task_1", status="input_required")
        answer = [{"type": "data", "content": {"answer": {"approved": True}}}]
        other.say(type="acp.message", message_id="msg_2", role="user", parts=answer, **told)
        done = other.hear("task.updated", task_id="task_1", status="completed")
        assert "I did" in json.dumps(done)


def test_a_frame_that_is_too_long_or_none_is_answered_and_ends_nothing(
    env: dict[str, str],
    home: Path,
) -> None:
    with process(env, home) as other:
        other.introduce()
        other.write(b"[1, 2]\nnonsense\n" + b'{"type": "acp.message", "x": "' + b"x" * 1_048_576 + b'"}\n')
        assert [other.hear("error")["code"] for _ in range(3)] == ["invalid_frame", "invalid_json", "message_too_large"]
        other.ask("msg_1", "hello")
        other.hear("acp.reply", correlation_id="msg_1")


def test_a_message_that_is_sent_again_to_the_next_process_is_not_run_again(
    env: dict[str, str],
    home: Path,
) -> None:
    with process(env, home) as other:
        other.introduce()
        token = other.hear("acp.session")["resume"]
        other.ask("msg_1", "once")
        other.hear("acp.reply", correlation_id="msg_1")
    with process(env, home) as other:
        other.say(type="acp.resume", token=token)
        other.introduce()
        other.ask("msg_1", "once")
        other.hear("acp.delivered", message_id="msg_1")
        other.ask("msg_2", "twice")
        other.hear("acp.reply", correlation_id="msg_2")
    assert runs(home) == ["once", "twice"]


def test_two_processes_on_one_store_do_not_hear_each_other(env: dict[str, str], home: Path) -> None:
    with process(env, home) as one, process(env, home) as two:
        one.introduce()
        two.introduce()
        one.ask("msg_1", "first")
        two.ask("msg_2", "second")
        assert two.hear("acp.reply")["parts"][0]["content"] == "SECOND"
        assert one.hear("acp.reply")["parts"][0]["content"] == "FIRST"
        assert "acp.reply" not in [frame["type"] for frame in one.end()]


def test_name_secret_and_identity_come_from_the_environment(env: dict[str, str], home: Path) -> None:
    told = {"NAME": "Child", "SECRET": "shared", "IDENTITY": str(home / "key.json")}
    with process({**env, **{f"INTERLINGUA_PEER_{name}": value for name, value in told.items()}}, home) as other:
        card = other.introduce()
        assert (card["name"], card["capabilities"]["identity"]) == ("Child", "ed25519")
        other.ask("msg_1", "hello")
        reply = other.hear("acp.reply")
        signed = f"{reply['message_id']}:{reply['ts']}".encode()
        assert reply["sig"] == hmac.new(b"shared", signed, hashlib.sha256).hexdigest()
        assert reply["identity"]["public_key"] == card["identity"]["public_key"]


def test_the_wire_can_be_written_down(env: dict[str, str], home: Path) -> None:
    with process(env, home, "--trace", "wire.jsonl") as other:
        other.introduce()
        other.ask("msg_1", "hello")
        other.hear("acp.reply")
    written = (home / "wire.jsonl").read_text()
    assert "acp.reply" in written
    assert "acp.message" in written

"""The door as editors start it: a process, its stdin and its stdout."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from interlingua.transports.jsonrpc.core import INVALID_REQUEST
from tests.kit.clients.editor import COMMAND, PATIENCE, Process, check_frame, prompt, stdio
from tests.kit.wait_for import wait_for

ECHO = """
import interlingua as il

@il.agent
async def echo(text: str):
    for word in text.split():
        yield word + " "
"""

NOISY = """
import logging, os, subprocess, sys, warnings
import interlingua as il

print("printed while it is imported")
os.write(1, b"written while it is imported\\n")

@il.agent
async def noisy(text: str):
    print("printed", "\\u2028")
    sys.stdout.write("half a line")
    sys.stdout.flush()
    sys.__stdout__.write("to the first stdout\\n")
    os.write(1, b"written to 1\\n")
    subprocess.run(["sh", "-c", "echo said by a child; echo and on its stderr >&2"], check=True)
    done = subprocess.run(["cat"], stdout=subprocess.PIPE, check=True)
    logging.getLogger().error("logged")
    warnings.warn("warned")
    yield f"stdin of children: {done.stdout!r}; ours: {sys.stdin.read()!r}"

@il.agent
def threaded(text: str):
    print("printed in a thread")
    return "quiet"
"""

SLOW = """
import interlingua as il

@il.agent
async def slow(text: str, ctx: il.Context[None, None]):
    yield "begun"
    await ctx.sleep(3600)
"""

FLOOD = """
import interlingua as il

@il.agent
async def flood(text: str):
    megabytes = int(text)
    for number in range(megabytes * 100):
        yield f"{number:08d}" + "x" * 10_000 + "\\n"
"""

THINKER = """
import interlingua as il

@il.agent
async def thinker(text: str, ctx: il.Context[None, None]):
    for number in range(int(text) * 100):
        await ctx.thought(f"{number:08d}" + "x" * 10_000)
    yield "done"
"""


async def talk(client: Process, *texts: str) -> str:
    """A whole session: the texts as prompts, and what was said to them."""
    await client.initialize()
    session = await client.new_session()
    for text in texts:
        assert (await client.prompt(session, text))["stopReason"] == "end_turn"
    return client.text(session)


async def test_a_client_starts_the_agent_and_speaks_with_it_over_its_stdin_and_stdout(tmp_path: Path) -> None:
    async with stdio(tmp_path, ECHO) as client:
        assert await talk(client, "hello there", "again") == "hello there again "
        await client.end_input()
        assert await client.wait() == 0
        await client.end()
        assert client.broken is None
        assert client.stderr == ""


async def test_what_agents_and_their_children_print_never_reaches_stdout(tmp_path: Path) -> None:
    async with stdio(tmp_path, NOISY) as client:
        said = await talk(client, "go")
        assert said == "stdin of children: b''; ours: ''"
        await client.end_input()
        assert await client.wait() == 0
        await client.end()
        assert client.broken is None, "something else than messages was on stdout"
        for told in (
            "printed while it is imported", "written while it is imported", "printed \u2028", "half a line",
            "to the first stdout", "written to 1", "said by a child", "and on its stderr", "logged",
        ):  # fmt: skip
            assert told in client.stderr


async def test_what_threads_print_never_reaches_stdout(tmp_path: Path) -> None:
    async with stdio(tmp_path, NOISY) as client:
        await client.initialize()
        session = await client.new_session()
        opened = await client.ask("session/resume", {"sessionId": session, "cwd": "/tmp"})
        [option] = opened["configOptions"]
        other = next(choice["value"] for choice in option["options"] if choice["name"] == "threaded")
        await client.ask("session/set_config_option", {"sessionId": session, "configId": option["id"], "value": other})
        await client.prompt(session, "go")
        assert client.text(session) == "quiet"
        await client.end_input()
        assert await client.wait() == 0
        await client.end()
        assert client.broken is None
        assert "printed in a thread" in client.stderr


async def test_messages_are_lines_of_utf8_without_embedded_newlines(tmp_path: Path) -> None:
    text = "new\nline \u2028 ü \U0001f600 \r\n \x85 \x00"
    source = ECHO.replace("for word in text.split():", "if True:").replace('word + " "', "text")
    async with stdio(tmp_path, source) as client:
        assert await talk(client, text) == text  # the client splits at newlines, and decodes each line strictly
        kinds = {message.get("method", "answer") for message in client.messages}
        assert kinds == {"answer", "session/update"}


async def test_a_message_may_arrive_byte_by_byte_and_many_in_one_write(tmp_path: Path) -> None:
    async with stdio(tmp_path, ECHO) as client:
        for byte in json.dumps(client.message("initialize", {"protocolVersion": 1}, id_="a")).encode() + b"\n":
            await client.raw(bytes([byte]))
        assert "result" in await client.answer("a")
        many = [client.message("session/list") for _ in range(500)]
        await client.raw(b"".join(json.dumps(message).encode() + b"\n" for message in many))
        for message in many:
            assert "result" in await client.answer(message["id"])


async def test_a_line_above_the_limit_is_refused_and_the_process_goes_on(tmp_path: Path) -> None:
    async with stdio(tmp_path, ECHO) as client:
        await client.initialize()
        before = client.memory()
        for _ in range(70):
            await client.raw(b"x" * 1_000_000)
        for _ in range(70):
            await client.raw(b"x" * 1_000_000)
        assert client.memory() - before < 150_000_000, "a line that is too long is not kept"
        await client.raw(b"\n")
        refused = await client.wait_for(lambda message: message.get("id", 0) is None)
        assert refused["error"]["code"] == INVALID_REQUEST
        session = await client.new_session()
        await client.prompt(session, "hello")
        assert client.text(session) == "hello "


async def test_the_end_of_input_ends_the_process_whatever_still_runs(tmp_path: Path) -> None:
    async with stdio(tmp_path, SLOW) as client:
        await client.initialize()
        session = await client.new_session()
        await client.start_prompt(session, "go")
        await client.update("agent_message_chunk")
        await client.end_input()
        assert await client.wait(60) == 0
        await client.end()
        assert client.broken is None
        assert client.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_a_signal_ends_the_process(tmp_path: Path, number: signal.Signals, busy: bool) -> None:
    async with stdio(tmp_path, SLOW) as client:
        await client.initialize()
        if busy:
            session = await client.new_session()
            await client.start_prompt(session, "go")
            await client.update("agent_message_chunk")
        client.process.send_signal(number)
        assert await client.wait(60) in (0, -number, 128 + number)
        await client.end()
        assert client.broken is None
        assert "Traceback" not in client.stderr


async def test_a_client_that_closes_our_stdout_does_not_keep_the_process(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(ECHO)
    process = subprocess.Popen(
        [*COMMAND, "--store", str(tmp_path / "store.db"), str(tmp_path / "agents.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        for number in range(100):
            process.stdin.write(b'{"jsonrpc":"2.0","id":%d,"method":"session/list"}\n' % number)
        process.stdin.close()
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
        assert b"Traceback" not in process.stderr.read()


def _lines(*messages: Any) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def _call(id_: Any, method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}


async def test_stdin_and_stdout_may_be_files_and_every_request_is_answered(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(ECHO)
    new = {"cwd": "/tmp", "mcpServers": []}
    requests = [_call(0, "initialize", {"protocolVersion": 1}), *(_call(n, "session/new", new) for n in range(1, 50))]
    (tmp_path / "in").write_bytes(_lines(*requests))
    with (tmp_path / "in").open("rb") as given, (tmp_path / "out").open("wb") as taken:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "--store", str(tmp_path / "store.db"), str(tmp_path / "agents.py"), stdin=given, stdout=taken
        )
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
    frames = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    for frame in frames:
        check_frame(frame)
    assert sorted(frame["id"] for frame in frames) == list(range(50))
    assert all("result" in frame for frame in frames)


async def test_a_shell_may_pipe_requests_into_it_and_read_the_answers(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(ECHO)
    requests = _lines(_call(0, "initialize", {"protocolVersion": 2}), _call(1, "session/list", {}))
    done = await asyncio.to_thread(
        subprocess.run, [*COMMAND, "--store", str(tmp_path / "store.db"), str(tmp_path / "agents.py")],
        input=requests, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [0, 1]


async def test_a_socket_may_be_both_stdin_and_stdout(tmp_path: Path) -> None:
    import socket

    (tmp_path / "agents.py").write_text(ECHO)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *COMMAND, "--store", str(tmp_path / "store.db"), str(tmp_path / "agents.py"),
                stdin=theirs.fileno(), stdout=theirs.fileno(),
            )  # fmt: skip
        ours.settimeout(PATIENCE)
        ours.sendall(_lines(_call(0, "initialize", {"protocolVersion": 1})))
        data = b""
        while not data.endswith(b"\n"):
            data += await asyncio.to_thread(ours.recv, 65536)
        assert json.loads(data)["result"]["protocolVersion"] == 1
        ours.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
        assert await asyncio.to_thread(ours.recv, 100) == b""


async def test_a_session_outlives_its_process(tmp_path: Path) -> None:
    async with stdio(tmp_path, ECHO) as client:
        await client.initialize()
        session = await client.new_session()
        await client.prompt(session, "remember me")
        await client.end_input()
        assert await client.wait() == 0
    async with stdio(tmp_path, ECHO) as client:
        await client.initialize()
        await client.ask("session/load", {"sessionId": session, "cwd": "/tmp", "mcpServers": []})
        assert client.text(session) == "remember me "
        assert client.text(session, "user_message_chunk") == "remember me"


class Texts:
    """Takes the place of a client's memory: only the texts of one kind of update are kept, as they come."""

    def __init__(self, client: Process, kind: str) -> None:
        self.kind = kind
        self.kept: list[str] = []
        self._take = client._take
        client.keep = False
        client._take = self.take  # type: ignore[method-assign]

    def take(self, frame: Any) -> None:
        self._take(frame)
        update = frame.get("params", {}).get("update", {})
        if update.get("sessionUpdate") == self.kind:
            self.kept.append(update["content"]["text"])


async def until_it_waits(client: Process) -> int:
    """Until the process has nothing left to do but wait for us. The most memory that it held meanwhile."""
    highest, quiet = 0, 0
    while quiet < 10:
        used = _cpu(client.process.pid)
        await asyncio.sleep(0.1)
        quiet = quiet + 1 if _cpu(client.process.pid) - used <= 1 else 0
        highest = max(highest, client.memory())
    return highest


async def test_a_client_that_reads_nothing_for_a_while_gets_everything_in_order(tmp_path: Path) -> None:
    async with stdio(tmp_path, FLOOD) as client:
        await client.initialize()
        session = await client.new_session()
        texts = Texts(client, "agent_message_chunk")
        client.stop_reading()
        prompted = await client.start_prompt(session, "40")
        await until_it_waits(client)
        assert len(texts.kept) < 10
        client.read_on()
        answer = await client.answer(prompted, timeout=100)
        assert answer["result"]["stopReason"] == "end_turn"
        lines = "".join(texts.kept).split("\n")
        assert len(lines) == 4001
        assert lines[:-1] == [f"{number:08d}" + "x" * 10_000 for number in range(4000)]


async def test_a_client_that_reads_nothing_for_a_while_costs_no_memory(tmp_path: Path) -> None:
    await unread_costs_no_memory(tmp_path, 40, 140)  # `make faults` does more


async def unread_costs_no_memory(folder: Path, first: int, then: int) -> None:
    """Megabytes that are not read for a while. The first ones fill the database's caches, and show what that takes:
    how much of it the system gets back in between is nobody's promise."""
    async with stdio(folder, THINKER) as client:
        await client.initialize()
        session = await client.new_session()
        texts = Texts(client, "agent_thought_chunk")

        async def fall_behind(megabytes: int) -> tuple[int, int]:
            """The most memory that the process holds while nobody reads, and while everything is read after that."""
            texts.kept.clear()
            client.stop_reading()
            prompted = await client.start_prompt(session, str(megabytes))
            waiting = await until_it_waits(client)
            client.read_on()
            reading = 0
            answering = asyncio.create_task(client.answer(prompted, timeout=100))
            while not answering.done():
                await asyncio.wait({answering}, timeout=0.1)
                reading = max(reading, client.memory())
            assert (await answering)["result"]["stopReason"] == "end_turn"
            assert [text[:8] for text in texts.kept] == [f"{number:08d}" for number in range(megabytes * 100)]
            return waiting, reading

        before = max(await fall_behind(first))
        waiting, reading = await fall_behind(then)
        most = min(80_000_000, (then - first) * 1_000_000 * 2 // 3)
        assert waiting - before < most, "what the client does not read is kept in memory"
        assert reading - before < most, "what the client has not read yet is kept in memory"


def _cpu(pid: int) -> int:
    """Clock ticks that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


async def test_a_client_that_reads_nothing_can_still_cancel(tmp_path: Path) -> None:
    source = THINKER.replace("range(int(text) * 100)", "__import__('itertools').count()")
    async with stdio(tmp_path, source) as client:
        await client.initialize()
        session = await client.new_session()
        other = await client.new_session()
        texts = Texts(client, "agent_thought_chunk")
        prompted = await client.start_prompt(session, "for ever")
        await wait_for(lambda: texts.kept)
        client.stop_reading()
        for _ in range(20):
            await client.notify("session/cancel", {"sessionId": other})
        await client.notify("session/cancel", {"sessionId": session})
        await until_it_waits(client)  # an agent that goes on would never let it
        client.read_on()
        answer = await client.answer(prompted, timeout=60)
        assert answer["result"]["stopReason"] == "cancelled"


async def test_a_client_that_hangs_up_without_reading_leaves_a_process_that_ends(tmp_path: Path) -> None:
    source = THINKER.replace("range(int(text) * 100)", "__import__('itertools').count()")
    async with stdio(tmp_path, source) as client:
        await client.initialize()
        session = await client.new_session()
        texts = Texts(client, "agent_thought_chunk")
        await client.start_prompt(session, "for ever")
        await wait_for(lambda: texts.kept)
        client.stop_reading()
        await client.end_input()
        async with asyncio.timeout(12):
            while client.process.returncode is None:  # what is in the pipe is read only after it has ended
                await asyncio.sleep(0.05)
        client.read_on()
        assert await client.wait() == 0


async def test_two_prompts_in_two_sessions_run_at_once(tmp_path: Path) -> None:
    async with stdio(tmp_path, SLOW) as client:
        await client.initialize()
        sessions = [await client.new_session(), await client.new_session()]
        prompts = [await client.send("session/prompt", prompt(session, "go")) for session in sessions]
        for session in sessions:
            await client.wait_for(
                lambda m, s=session: (
                    m.get("params", {}).get("sessionId") == s  # type: ignore[misc]
                    and m["params"]["update"]["sessionUpdate"] == "agent_message_chunk"
                )
            )
        for session, prompted in zip(sessions, prompts, strict=True):
            await client.notify("session/cancel", {"sessionId": session})
            assert (await client.answer(prompted))["result"]["stopReason"] == "cancelled"
        assert os.getpid() != client.process.pid

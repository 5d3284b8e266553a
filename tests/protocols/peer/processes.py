"""Two nodes in processes of their own, connected by any binding: Near, whose owner a test is, and Far, whose agents
answer. Far can be killed and started again where it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx2

from tests.kit.commands import start_command
from tests.kit.ports import free_port
from tests.kit.servers import Process

WAIT = 90.0
REPLY = 60  # seconds that an agent may take to answer
LIMIT = 65_536  # bytes of a message
ROOT = Path(__file__).resolve().parents[3]
BINDINGS = ("A", "B", "C", "D", "E")

AGENTS = '''
import asyncio

import interlingua as il


@il.agent
async def shout(text: str) -> str:
    return text.upper()


@il.agent
async def words(text: str):
    for word in text.split():
        yield word + " "


class Colour(il.Question[str]):
    """Which colour?"""


@il.agent(asks=[Colour])
async def painter(text: str, ctx: il.Context) -> str:
    return f"{text} in {await ctx.ask(Colour())}"


@il.agent
async def stuck(text: str) -> str:
    await asyncio.sleep(3600)
    return text
'''


class Near:
    """The owner's side: the control API of a node."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http

    def get(self, path: str, **query: Any) -> Any:
        return self.http.get(path, params=query).raise_for_status().json()

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def events(self, since: int = 0, path: str = "/stream") -> Generator[dict[str, Any]]:
        with self.http.stream("GET", path, params={"since": since}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:") and (event := json.loads(line.removeprefix("data:")))["type"] != "ready":
                    yield event

    def until(self, test: Callable[[dict[str, Any]], bool], since: int = 0) -> list[dict[str, Any]]:
        """What was told from a place on until something fits; that is the last one."""
        told = []
        with contextlib.closing(self.events(since)) as events:
            for event in events:
                told.append(event)
                if test(event):
                    return told
        raise AssertionError(f"the stream has ended: {told}")

    @property
    def head(self) -> int:
        """How far the stream is."""
        with self.http.stream("GET", "/stream") as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    return int(json.loads(line.removeprefix("data:"))["seq"])
        raise AssertionError("the stream did not greet")

    def task(self, skill: str, text: str, **more: Any) -> str:
        body = {"role": "user", "parts": [{"type": "text", "content": text}], "skill_id": skill, **more}
        return str(self.post("/tasks", 201, **body)["task"]["id"])

    def state(self, task: str, state: str) -> dict[str, Any]:
        found = self.until(lambda event: event.get("task_id") == task and event.get("state") == state)
        return found[-1]

    def replies(self, *sent: str) -> list[dict[str, Any]]:
        """What was replied to these messages, in the order in which it came."""
        found: list[dict[str, Any]] = []
        while len(found) < len(sent):
            page = self.get("/message:recv", wait=REPLY)
            assert page["messages"], f"no more came: {found}"
            found += [one for one in page["messages"] if one["raw"].get("correlation_id") in sent]
        return found


@contextlib.contextmanager
def near_at(base: str) -> Iterator[Near]:
    # Nothing here is encrypted, and to load the authorities of the system takes longer than most tests.
    with httpx2.Client(base_url=base, timeout=WAIT, verify=False) as http:
        yield Near(http)


class Far:
    """A process that can be killed without a word, and started again."""

    def __init__(self, command: list[str], env: dict[str, str], cwd: Path) -> None:
        self._command, self._env, self._cwd = command, env, cwd
        self.process = self._begin()

    def _begin(self) -> Process:
        if self._command[0] == "interlingua":
            return Process(start_command(self._command[1:], self._env, self._cwd, stdout=None))
        return Process(
            subprocess.Popen(
                [sys.executable, "-m", *self._command], env=self._env, cwd=self._cwd, stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL, text=True,
            )
        )  # fmt: skip

    def up(self) -> Process:
        """Wait until it is."""
        if not self.process.said:
            self.process.read_until("Ctrl-C stops.")
        return self.process

    def kill(self) -> None:
        self.process.kill()

    def again(self) -> Process:
        self.process = self._begin()
        return self.up()

    def end(self) -> None:
        if self.process.popen.poll() is None:
            assert self.process.end() == 0, self.process.said + self.process.rest
        assert "Traceback" not in self.process.rest


class PipedFar:
    """Far at the end of Near's pipes: Near starts it again by itself."""

    def __init__(self, near: Process) -> None:
        self._near = near
        self._pid = int(near.find(r"the process is (\d+)"))

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def again(self) -> None:
        before = len(self._near.said)
        self._near.read_until("the process is ")
        self._pid = int(self._near.said[before:].rpartition(" ")[2])


class Pair:
    """Both, connected. `link` is what Near dialled; of binding B there is none."""

    def __init__(self, binding: str, near: Near, far: Far | PipedFar, link: str | None, far_api: Near | None) -> None:
        self.binding = binding
        self.near = near
        self.far = far
        self.link = link
        self.far_api = far_api  # its control API, where it has one


@contextlib.contextmanager
def pair(binding: str, env: dict[str, str], home: Path) -> Iterator[Pair]:
    """Near and Far, each with an identity."""
    (home / "agents.py").write_text(AGENTS)
    with contextlib.ExitStack() as stack:
        if binding == "B":
            yield _by_pipes(stack, env, home)
            return
        quiet, limit = ["--log", "off"], ["--max-msg-bytes", str(LIMIT)]

        def begin(*command: str) -> Far:
            one = Far(["interlingua", *command], env, home)
            stack.callback(one.end)
            return one

        relay = ["--relay", f"acp+ws://127.0.0.1:{free_port()}"] if binding == "C" else []
        if relay:
            begin("relay", "--port", relay[1].rpartition(":")[2])
        if binding == "D":
            config = {"name": "Far", "identity": "far.json", "max_msg_bytes": LIMIT}
            (home / "peer.json").write_text(json.dumps(config))
            http = str(free_port())
            far = begin("serve", "agents.py", "--port", http, "--peer-config", "peer.json", "--no-peer-ports",
                        "--store", "far.db", *quiet)  # fmt: skip
        else:
            ports = ["--port", str(free_port()), "--http-port", str(free_port())]
            ports += ["--tcp-port", str(free_port())] if binding == "E" else []
            far = begin("peer", "agents.py", "--name", "Far", "--identity", "far.json", "--store", "far.db",
                        *ports, *relay, *limit, *quiet)  # fmt: skip
        one = begin("peer", "--name", "Near", "--identity", "near.json", "--store", "near.db", "--port", "0",
                    "--http-port", "0", *limit, *quiet)  # fmt: skip
        known = far.up()
        if binding == "D":
            link, api = f"http://127.0.0.1:{http}/peer", None
        else:
            patterns = {"A": r"with (acp://\S+)", "C": r"by the relay, with (\S+)", "E": r"with (tcp://\S+)"}
            link, api = known.find(patterns[binding]), stack.enter_context(near_at(known.control))
        near = stack.enter_context(near_at(one.up().control))
        near.post("/peers/connect", link=link)
        near.until(lambda event: event.get("event") == "card")
        yield Pair(binding, near, far, link, api)


def _by_pipes(stack: contextlib.ExitStack, env: dict[str, str], home: Path) -> Pair:
    command = [sys.executable, "-m", "interlingua", "stdio", "--as", "peer", "agents.py", "--store", "far.db"]
    paths = os.pathsep.join([env["PYTHONPATH"], str(ROOT)])
    mine = {**env, "PYTHONPATH": paths, "INTERLINGUA_PEER_IDENTITY": "far.json", "INTERLINGUA_PEER_NAME": "Far"}
    parent = Far(["tests.protocols.peer.pipe_parent", "near.json", "near.db", str(LIMIT), *command], mine, home)
    stack.callback(parent.end)
    process = parent.up()
    near = stack.enter_context(near_at(process.control))
    near.until(lambda event: event.get("event") == "card")
    return Pair("B", near, PipedFar(process), None, None)

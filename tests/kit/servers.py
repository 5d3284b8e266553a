"""Servers, workers, nodes and relays as people start them: real processes, and their output."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from .commands import start_command
from .wait_for import PATIENCE


class Process:
    """A command that stays up. `said` is its output on stderr, as far as a test has read it.

    The output is read all the time: a process whose pipe is full stands still.
    """

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        self.said = ""
        self.was_killed = False
        self.rest = ""  # the output after that; known when it has ended
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()  # an empty one is the end
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self._lines.put(line)
        self._lines.put("")

    def read_until(self, last: str) -> None:
        """Reads on until a line has this text in it."""
        with contextlib.suppress(queue.Empty):
            while line := self._lines.get(timeout=PATIENCE):
                self.said += line
                if last in line:
                    return
        raise AssertionError(f"it did not say {last!r}:\n{self.said}")

    def hear(self, pattern: str) -> re.Match[str]:
        """Reads on until its output has a match for the pattern, if it has none yet."""
        while (match := re.search(pattern, self.said)) is None:
            try:
                line = self._lines.get(timeout=PATIENCE)
            except queue.Empty:
                line = ""
            assert line, f"it never said {pattern!r}, but:\n{self.said}"
            self.said += line
        return match

    def find(self, pattern: str) -> str:
        found = re.search(pattern, self.said)
        assert found is not None, self.said
        return found[1]

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def address(self) -> str:
        return self.find(r"Serving on (http://\S+)")

    @property
    def link(self) -> str:
        return self.find(r"peers connect to .* with (acps?://\S+)")

    @property
    def control(self) -> str:
        return self.find(r"control API at (https?://\S+)")

    def get(self, path: str, **query: Any) -> Any:
        return httpx2.get(self.control + path, params=query, timeout=PATIENCE).raise_for_status().json()

    def post(self, path: str, **body: Any) -> Any:
        answer = httpx2.post(self.control + path, json=body, timeout=PATIENCE)
        assert answer.is_success, answer.text
        return answer.json()

    def until(self, event: str) -> dict[str, Any]:
        """Wait until the node has told this of a peer, at any time since it is there."""
        with httpx2.stream("GET", f"{self.control}/stream", params={"since": 0}, timeout=PATIENCE) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    told: dict[str, Any] = json.loads(line.removeprefix("data:"))
                    if told.get("event") == event:
                        return told
        raise AssertionError(f"the stream ended without {event}")

    def end(self, number: int = signal.SIGINT) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        self.popen.wait(PATIENCE)
        self._reading.join(PATIENCE)
        assert self.popen.stderr is not None
        self.popen.stderr.close()
        while not self._lines.empty():
            self.rest += self._lines.get()
        return self.popen.returncode

    def kill(self) -> None:
        """Ends it without a word."""
        self.was_killed = True
        self.end(signal.SIGKILL)


@contextmanager
def started(
    arguments: Sequence[str], env: dict[str, str], cwd: Path, last: str = "Ctrl-C stops.", command: Sequence[str] = ()
) -> Iterator[Process]:
    """A command that stays up, until the context ends; it must then end well, unless the test has killed it."""
    popen: subprocess.Popen[str]
    if command:
        popen = subprocess.Popen(
            [*command, *arguments], env=env, cwd=cwd, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
    else:
        popen = start_command(arguments, env, cwd, stdout=None)
    process = Process(popen)
    try:
        process.read_until(last)
        yield process
    finally:
        if popen.stderr is not None and not popen.stderr.closed:
            process.end()
    assert process.was_killed or popen.returncode == 0, process.said + process.rest


@contextmanager
def node(env: dict[str, str], cwd: Path, *options: str, command: Sequence[str] = ()) -> Iterator[Process]:
    """`interlingua peer` on free ports, with a store of its own unless the options name one."""
    arguments = list(options)
    for option in ("--port", "--http-port"):
        if option not in options:
            arguments += [option, "0"]
    with started(arguments if command else ["peer", *arguments], env, cwd, command=command) as process:
        yield process

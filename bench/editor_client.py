"""A client that starts an agent and speaks to it over its pipes, in bytes: the same for every agent that is measured.

While the clock runs it reads what there is, in big pieces, and looks for nothing but the ends of turns. What the turns
said is parsed and compared afterwards: every token, once, in order, in the session that it belongs to.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from .load import memory_of, time_of

PIECE = 1 << 20
END = b'"stopReason"'  # stands in the answer to a prompt, and nowhere else in what the agents say
ERROR = b'"error":'


class Said(msgspec.Struct):
    """One message of an agent, of whichever kind."""

    id: int | None = None
    method: str = ""
    params: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    error: Any = None


_said = msgspec.json.Decoder(Said)


class Found(msgspec.Struct):
    turns: int
    tokens: int
    updates: int  # messages that carried them; fewer than tokens, where an agent joins what waits
    seconds: float
    busy: float  # share of the time in which this client computed
    server_time: float  # seconds that the agent's process computed
    longest: int = 0  # bytes of the longest message
    memory: list[int] = []  # bytes that it held before each read, where it was read slowly


def peak_of(process: int) -> int:
    """The most memory that a process ever held; what it holds now, where nobody can tell."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:  # not Linux
        return memory_of(process)
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def expected(count: int, width: int = 0) -> str:
    return "".join(f"token{index}".ljust(width) + " " for index in range(count))


class Client:
    """One agent process. Blocking: one thread that waits costs least."""

    def __init__(self, command: list[str], log: Path) -> None:
        begun = time.perf_counter()
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
            )
        self._log = log
        self._last = 0  # id of a request
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._rest = b""  # of a line that has not ended
        try:
            self.call("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        except BaseException:
            self.close()
            raise
        self.start = time.perf_counter() - begun

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"the agent did not end when its input did; {self._errors()}") from None
        finally:
            self.process.stdout.close()

    def _errors(self) -> str:
        return f"it wrote: {self._log.read_text(errors='replace')[-2000:] or 'nothing'}"

    # -- bytes --------------------------------------------------------------------------------------------

    def _send(self, method: str, params: Any) -> int:
        self._last += 1
        message = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        self._write(msgspec.json.encode(message) + b"\n")
        return self._last

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._in, data) :]

    def _read(self, size: int = PIECE) -> bytes:
        data = os.read(self._out, size)
        if not data:
            raise RuntimeError(f"the agent ended; {self._errors()}")
        return data

    def call(self, method: str, params: Any) -> dict[str, Any]:
        """Ask something that is no prompt."""
        wanted = self._send(method, params)
        while True:
            *lines, self._rest = (self._rest + self._read()).split(b"\n")
            for line in lines:
                said = _said.decode(line)
                if said.id == wanted:
                    if said.result is None:
                        raise RuntimeError(f"{method}: {said.error}")
                    return said.result

    def sessions(self, count: int, cwd: Path) -> list[str]:
        made = [self.call("session/new", {"cwd": str(cwd), "mcpServers": []})["sessionId"] for _ in range(count)]
        assert len(set(made)) == count, made
        return made

    # -- turns --------------------------------------------------------------------------------------------

    def turns(
        self, sessions: list[str], each: int, prompt: str, says: str, tokens: int, *, rate: float | None = None
    ) -> Found:
        """So many turns in each session, one after the other, all sessions at once. `says` is what each turn says.

        With a `rate`, that many bytes are read in a second, and the process's memory is looked at meanwhile.
        """
        for_session: dict[int, str] = {}
        left = dict.fromkeys(sessions, each)
        pieces: list[bytes] = []

        def begin(session: str) -> None:
            left[session] -= 1
            for_session[self._send("session/prompt", ask[session])] = session

        ask = {s: {"sessionId": s, "prompt": [{"type": "text", "text": prompt}]} for s in sessions}
        memory: list[int] = []
        reader = self._slowly(rate, memory) if rate else self._read
        with _undisturbed():
            used, begun, cpu = time_of(self.process.pid), time.perf_counter(), time.process_time()
            for session in sessions:
                begin(session)
            waiting = each * len(sessions)
            tail = [self._rest]
            while waiting:
                piece = reader()
                tail.append(piece)
                if b"\n" not in piece:
                    continue
                whole = b"".join(tail)
                cut = whole.rindex(b"\n") + 1
                tail = [whole[cut:]]
                pieces.append(whole := whole[:cut])
                if ERROR in whole:
                    raise RuntimeError(f"the agent said {whole[-2000:]!r}")
                at = whole.find(END)
                while at >= 0:
                    line = whole[whole.rfind(b"\n", 0, at) + 1 : whole.index(b"\n", at)]
                    session = for_session[_said.decode(line).id or 0]
                    waiting -= 1
                    if left[session]:
                        begin(session)
                    at = whole.find(END, at + 1)
            seconds, busy = time.perf_counter() - begun, time.process_time() - cpu
            used = time_of(self.process.pid) - used
        self._rest = b"".join(tail)
        lines = b"".join(pieces).split(b"\n")[:-1]
        updates = check(lines, for_session, says)
        turns = each * len(sessions)
        return Found(turns, turns * tokens, updates, seconds, busy / seconds, used, max(map(len, lines)), memory)

    def _slowly(self, rate: float, memory: list[int]) -> Callable[[], bytes]:
        begun = time.perf_counter()
        read = 0

        def reader() -> bytes:
            nonlocal read
            memory.append(memory_of(self.process.pid))
            time.sleep(max(0.0, begun + read / rate - time.perf_counter()))
            read += len(data := self._read(max(1, int(rate / 50))))
            return data

        return reader


def check(lines: list[bytes], for_session: dict[int, str], says: str) -> int:
    """See that every turn ended, and that all of its tokens came, in order. Returns the number of updates with text."""
    said: dict[str, list[str]] = {session: [] for session in for_session.values()}
    open_ = set(for_session)
    updates = 0
    for line in lines:
        message = _said.decode(line)
        if message.method == "session/update":
            update = message.params["update"]
            if update["sessionUpdate"] == "agent_message_chunk":
                said[message.params["sessionId"]].append(update["content"]["text"])
                updates += 1
        elif message.id is not None:
            session = for_session[message.id]
            if message.result is None or message.result["stopReason"] != "end_turn":
                raise RuntimeError(f"a turn ended with {line!r}")
            if message.id not in open_:
                raise RuntimeError(f"request {message.id} was answered twice")
            open_.discard(message.id)
            text = "".join(said[session])
            if text != says:
                raise RuntimeError(f"a turn said {text[:200]!r}…, {len(text)} characters of {len(says)}")
            said[session].clear()
    if open_ or any(said.values()):
        raise RuntimeError(f"{len(open_)} turns have no answer, {sum(map(bool, said.values()))} said more afterwards")
    return updates


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the garbage collector, which would count as a pause of the agent."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def started(command: list[str], log: Path) -> Iterator[Client]:
    client = Client(command, log)
    try:
        yield client
    finally:
        client.close()

"""Agents over MCP: `interlingua stdio --as mcp` and `interlingua serve` beside the same agents on the published SDK.

Both are driven by the same client, which speaks in bytes and costs little. What the two do for a run differs: the SDK
forgets it; ours has it on the disk (synchronous=FULL) before the client sees any of it, and joins tokens while it is
busy writing others. So tokens are counted, and the notifications that carried them are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from .mcp_client import HANDSHAKE, MODERN, Asks, Found, counting, echo, installed, started
from .mcp_posts import Job
from .measure import ROUNDS, Line, Rounds, disk_folder
from .peers import NoPeer, virtualenv
from .servers import interlingua, new_key

SDK = ("mcp==2.3.0", "httptools==0.9.0")  # the parser that our own uvicorn has
HERE = Path(__file__).parent
AT_ONCE = 16
KEPT = "ours is on the disk (SQLite, synchronous=FULL), the SDK's in memory"

Measured = dict[str, list[Found]]  # by what was measured: a value for each round


async def mcp(quick: bool) -> list[Line]:
    with disk_folder() as folder:
        try:
            sdk = [str(virtualenv(*SDK, make=not quick)), str(HERE / "mcp_sdk.py")]
            missing = ""
        except NoPeer as error:
            if not quick:  # a benchmark that compares with nothing must not look as if it had
                raise
            sdk, missing = [], f"nothing to compare with: {error}"
        pipes = [_ours("stdio", "--as", "mcp", folder=folder), *([[*sdk, "stdio"]] if sdk else [])]
        http = [_ours("serve", "--port", "0", "--log", "off", folder=folder), *([[*sdk, "http"]] if sdk else [])]
        plain = [*sdk, "json"] if sdk else None
        key = new_key(folder / "serve.db")
        before = os.getloadavg()[0]
        lines = [*_starts(pipes, folder, quick), *_pipes(pipes, folder, quick)]
        for revision in (HANDSHAKE, MODERN):
            lines += await _http(http, plain, key, revision, quick)
        load = f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    lines[0].note += "; ".join(["", load, *([missing] if missing else [])])
    return lines


def _ours(*arguments: str, folder: Path) -> list[str]:
    return interlingua(*arguments, "--store", str(folder / f"{arguments[0]}.db"), str(HERE / "mcp_ours.py"))


def _line(found: list[list[float]], line: Line) -> Line:
    """The line with what our rounds and the SDK's measured; alone where there is no SDK."""
    if len(found) == 2:
        line.beside = line.beside or f"the same agent on {SDK[0].replace('==', ' ')}"
        return Rounds(found).line(0, 1, line)
    line.ours, line.asked = statistics.median(found[0]), None
    return line


# -- start-up and memory --------------------------------------------------------------------------------------


def _starts(commands: list[list[str]], folder: Path, quick: bool) -> list[Line]:
    """From starting the process until `initialize` is answered, and what it holds after a hundred runs."""
    starts: list[list[float]] = [[] for _ in commands]
    memory: list[list[float]] = [[] for _ in commands]
    for at in range(2 if quick else 8):
        for began, held, command in zip(starts, memory, commands, strict=True):
            with started(command, folder / "log") as client:
                client.runs(echo(), 100, 1)
                if at:  # the first start compiles modules, and makes our store
                    began.append(client.start * 1000)
                    held.append(client.memory() / 2**20)
    note = f"`interlingua stdio --as mcp`, median of {len(starts[0])} starts"
    what = "start-up, until initialize is answered"
    return [
        _line(starts, Line("mcp", what, "ms", asked=0.5, bound="at most", note=note)),
        _line(memory, Line("mcp", "memory after 100 runs over stdio", "MiB", asked=0.5, bound="at most", note=KEPT)),
    ]


# -- runs and tokens ------------------------------------------------------------------------------------------


class Measure(msgspec.Struct):
    """One thing to measure: requests of a kind, so many at once."""

    what: str
    asks: Asks
    at_once: int
    counts: tuple[int, int]  # of requests, ours and the SDK's: enough of each to see a rate, and no more


def _measures(quick: bool) -> list[Measure]:
    tokens = 320 if quick else 4000
    few = tokens // AT_ONCE

    def counts(ours: int, theirs: int) -> tuple[int, int]:
        return (AT_ONCE, AT_ONCE) if quick else (ours, theirs)

    return [
        Measure("agents/run, one after the other", echo(), 1, counts(500, 500)),
        Measure(f"agents/run, {AT_ONCE} at once", echo(), AT_ONCE, counts(3000, 2000)),
        Measure("tokens of one run at a time, as progress", counting(tokens), 1, counts(8, 1)),
        Measure(f"tokens of {AT_ONCE} runs at once, as progress", counting(few), AT_ONCE, counts(8 * AT_ONCE, AT_ONCE)),
    ]


def _lines(where: str, measured: list[Measured], asked: float, quick: bool) -> list[Line]:
    def line(name: str, unit: str, of: Callable[[Found], float], asked: float | None, note: str) -> Line:
        made = Line("mcp", f"{where}: {name}", unit, asked=asked, note=note)
        return _line([[of(found) for found in kept[name]] for kept in measured], made)

    def effort(name: str, each: Callable[[Found], int], unit: str) -> str:
        used = [statistics.median(f.server_time / each(f) * 1e6 for f in kept[name]) for kept in measured]
        busy = max(found.busy for kept in measured for found in kept[name])
        told = f"{used[0]:,.0f} µs computed for each {unit}" + (f", the SDK {used[1]:,.0f} µs" if used[1:] else "")
        return f"{told}; the client was busy {busy:.0%} of the time at most"

    lines = []
    for measure in _measures(quick):
        name = measure.what
        if not measure.asks.tokens:
            # One after the other, a run takes as long as a commit to the disk does: it is shown, and not asked for.
            wanted = asked if measure.at_once > 1 else None
            note = f"{KEPT}; {effort(name, lambda f: f.runs, 'run')}"
            lines.append(line(name, "runs/s", lambda f: f.runs / f.seconds, wanted, note))
        else:
            carried = [statistics.median(f.tokens / f.messages for f in kept[name]) for kept in measured]
            note = f"none lost, all join to the output; {carried[0]:.1f} tokens in a notification"
            note += f", the SDK {carried[1]:.1f}; " if carried[1:] else "; "
            note += f"{KEPT}; {effort(name, lambda f: f.tokens, 'token')}"
            lines.append(line(name, "tokens/s", lambda f: f.tokens / f.seconds, asked, note))
            told = "the notifications that they came in"
            lines.append(line(name, "messages/s", lambda f: f.messages / f.seconds, None, told))
    return lines


def _pipes(commands: list[list[str]], folder: Path, quick: bool) -> list[Line]:
    measured: list[Measured] = [{} for _ in commands]
    for _ in range(1 if quick else ROUNDS):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(started(command, folder / "log")) for command in commands]
            for client in clients:
                client.runs(echo(), AT_ONCE if quick else 500, AT_ONCE)
            for measure in _measures(quick):
                for side, client in enumerate(clients):
                    found = client.runs(measure.asks, measure.counts[side], measure.at_once)
                    measured[side].setdefault(measure.what, []).append(found)
    return _lines("stdio", measured, 3.0, quick)


# -- over HTTP ------------------------------------------------------------------------------------------------


class Running(msgspec.Struct):
    """A server that was started."""

    process: int
    port: int


@contextlib.contextmanager
def serving(command: list[str]) -> Iterator[Running]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=installed())
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        found = re.search(rb"Serving on http://127\.0\.0\.1:(\d+)", said)
        if found is None:
            raise RuntimeError(f"{command[0]} said {(said + process.stderr.read())[-2000:]!r}")
        os.set_blocking(process.stderr.fileno(), False)
        yield Running(process.pid, int(found[1]))
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stderr.close()


async def _load(job: Job) -> Found:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.mcp_posts", cwd=HERE.parent,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate(msgspec.json.encode(job))
    if process.returncode:
        raise RuntimeError(f"the load ended with {process.returncode}")
    return msgspec.json.decode(output, type=Found)


async def _measure(server: Running, key: str, revision: str, measure: Measure, side: int) -> Found:
    # The SDK's server does not look at the key, and is sent it too: the client then does the same for both.
    job = Job(server.port, revision, measure.asks, measure.counts[side], measure.at_once, server.process, key)
    return await _load(job)


async def _http(commands: list[list[str]], plain: list[str] | None, key: str, revision: str, quick: bool) -> list[Line]:
    """Both servers are up all the time, and measured in turn."""
    measured: list[Measured] = [{} for _ in commands]
    alone: list[float] = []
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(command)) for command in commands]
        only = stack.enter_context(serving(plain)) if plain is not None else None
        measures = _measures(quick)
        for server in [*servers, *([only] if only is not None else [])]:
            count = AT_ONCE if quick else 1000
            await _measure(server, key, revision, Measure("", echo(), AT_ONCE, (count, count)), 0)
        for _ in range(1 if quick else ROUNDS):
            for measure in measures:
                for side, server in enumerate(servers):
                    found = await _measure(server, key, revision, measure, side)
                    measured[side].setdefault(measure.what, []).append(found)
            if only is not None:
                found = await _measure(only, key, revision, measures[1], 1)
                alone.append(found.runs / found.seconds)
    lines = _lines(f"HTTP, {revision}", measured, 2.0, quick)
    if alone:
        name = measures[1].what
        ours = [found.runs / found.seconds for found in measured[0][name]]
        beside = "the SDK with json_response=True"
        note = "for information: an SDK that answers in this way drops all progress"
        made = Line("mcp", f"HTTP, {revision}: {name}", "runs/s", beside=beside, note=note)
        lines.insert(2, _line([ours, alone], made))
    return lines

"""Over stdio, as editors start agents: `interlingua stdio --as editor` beside the same agent on the published SDK.

Both are driven by the same client, which speaks in bytes and costs little. What the two do for a turn differs: the SDK
forgets it; ours has it on the disk before the client sees any of it, and joins tokens while it is busy writing others.
So tokens are counted, and the messages that carried them are told.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from .editor_client import Client, Found, expected, peak_of, started
from .load import memory_of
from .measure import ROUNDS, Line, Rounds, disk_folder
from .peers import NoPeer, virtualenv

SDK = "agent-client-protocol==0.12.1"
HERE = Path(__file__).parent
SESSIONS = 16
ANSWER = 200  # tokens of an answer that is worth asking for

Measured = dict[str, list[Found]]  # by what was measured: a value for each round


async def editor(quick: bool) -> list[Line]:
    with disk_folder() as folder:
        try:
            sdk = [str(virtualenv(SDK, make=not quick)), str(HERE / "editor_sdk.py")]
            missing = ""
        except NoPeer as error:
            if not quick:  # a benchmark that compares with nothing must not look as if it had
                raise
            sdk, missing = [], f"nothing to compare with: {error}"
        commands = [_ours(folder), *([sdk] if sdk else [])]
        before = os.getloadavg()[0]
        lines = [*_starts(commands, folder, quick), *_turns(commands, folder, quick), *_memory(folder, quick)]
        load = f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    lines[0].note += "; ".join(["", load, *([missing] if missing else [])])
    return lines


def _ours(folder: Path, store: str = "ours.db") -> list[str]:
    script = Path(sys.executable).with_name("interlingua")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "interlingua"]
    return [*command, "stdio", "--as", "editor", "--store", str(folder / store), str(HERE / "editor_ours.py")]


def _line(found: list[list[float]], line: Line) -> Line:
    """The line with what our rounds and the SDK's measured; alone where there is no SDK."""
    if len(found) == 2:
        line.beside = f"the same agent on {SDK.replace('==', ' ')}"
        return Rounds(found).line(0, 1, line)
    line.ours, line.asked = statistics.median(found[0]), None
    return line


# -- start-up -------------------------------------------------------------------------------------------------


def _starts(commands: list[list[str]], folder: Path, quick: bool) -> list[Line]:
    """From starting the process until `initialize` is answered."""
    found: list[list[float]] = [[] for _ in commands]
    for at in range(2 if quick else 12):
        for side, command in zip(found, commands, strict=True):
            with started(command, folder / "log") as client:
                if at:  # the first start compiles modules, and makes our store
                    side.append(client.start * 1000)
    first = []
    for at in range(1 if quick else 3):
        with started(_ours(folder, f"first-{at}.db"), folder / "log") as client:
            first.append(client.start * 1000)
    what = "start-up, until initialize is answered"
    note = f"median of {len(found[0])} starts; {statistics.median(first):.0f} ms where the store has to be made first"
    alone = Line("editor", what, "ms", statistics.median(found[0]), asked=400.0, bound="at most", note=note)
    if len(found) == 1:
        return [alone]
    return [alone, _line(found, Line("editor", f"{what}, compared", "ms", asked=1.0, bound="at most"))]


# -- turns and tokens -----------------------------------------------------------------------------------------


def _turns(commands: list[list[str]], folder: Path, quick: bool) -> list[Line]:
    measured: list[Measured] = [{} for _ in commands]
    for _ in range(1 if quick else ROUNDS):
        for kept, command in zip(measured, commands, strict=True):
            with started(command, folder / "log") as client:
                for name, found in _round(client, folder, quick).items():
                    kept.setdefault(name, []).append(found)

    def line(name: str, unit: str, of: Callable[[Found], float], asked: float | None, note: str) -> Line:
        made = Line("editor", name, unit, asked=asked, note=note)
        return _line([[of(found) for found in kept[name]] for kept in measured], made)

    def effort(name: str) -> str:
        each = [statistics.median(f.server_time / f.turns * 1e6 for f in kept[name]) for kept in measured]
        joined = [statistics.median(f.tokens / f.updates for f in kept[name]) for kept in measured]
        busy = max(found.busy for kept in measured for found in kept[name])
        told = f"ours computed {each[0]:,.0f} µs for a turn and sent an update for {joined[0]:.1f} tokens"
        if len(each) == 2:
            told += f", the SDK {each[1]:,.0f} µs and {joined[1]:.1f}"
        return f"{told}; the client was busy {busy:.0%} of the time at most"

    lines = []
    for name in measured[0]:
        if name.startswith("turns"):
            # The shortest turn is all overhead: a durable run beside a function call. It is shown, not asked for.
            asked, note = (2.0, "") if str(ANSWER) in name else (None, "; ours is on the disk then, the SDK's nowhere")
            lines.append(line(name, "turns/s", lambda f: f.turns / f.seconds, asked, effort(name) + note))
        else:
            note = f"all came, in order; {effort(name)}"
            lines.append(line(name, "tokens/s", lambda f: f.tokens / f.seconds, 3.0, note))
            carried = "the updates that they came in"
            lines.append(line(name, "messages/s", lambda f: f.updates / f.seconds, None, carried))
    return lines


def _round(client: Client, folder: Path, quick: bool) -> dict[str, Found]:
    sessions = client.sessions(SESSIONS, folder)
    one = sessions[:1]

    def turns(which: list[str], each: int, tokens: int) -> Found:
        return client.turns(which, 1 if quick else each, str(tokens), expected(tokens), tokens)

    turns(sessions, 5, 1)  # warms up, and titles the sessions
    many = 500 if quick else 30_000
    return {
        f"turns of {ANSWER} tokens, one after the other": turns(one, 40, ANSWER),
        f"turns of {ANSWER} tokens, {SESSIONS} sessions at once": turns(sessions, 15, ANSWER),
        "turns of 1 token, one after the other": turns(one, 300, 1),
        f"turns of 1 token, {SESSIONS} sessions at once": turns(sessions, 100, 1),
        "tokens of one turn, as fast as it goes": turns(one, 1, many),
        f"tokens of {SESSIONS} sessions at once, as fast as they go": turns(sessions, 1, many // SESSIONS),
    }


# -- memory ---------------------------------------------------------------------------------------------------


def _memory(folder: Path, quick: bool) -> list[Line]:
    return [_memory_of_turns(folder, quick), _memory_of_an_answer(folder, quick)]


def _memory_of_turns(folder: Path, quick: bool) -> Line:
    """Turn after turn for a client that reads slowly: what is not read yet must be nowhere in memory."""
    width, tokens, each, rate = (200, 50, 3, 1e6) if quick else (1000, 100, 16, 2.5e6)
    grown, most, took = [], 0, 0.0
    for at in range(1 if quick else 3):
        with started(_ours(folder, f"turns-{at}.db"), folder / "log") as client:
            sessions = client.sessions(SESSIONS, folder)
            prompt, says = f"{tokens} {width} 10 0.001", expected(tokens, width)
            # Enough to fill what has a fixed size and fills once: the last runs that have ended, above all.
            client.turns(sessions, 1 if quick else 40, prompt, says, tokens)
            found = client.turns(sessions, each, prompt, says, tokens, rate=rate)
            grown.append((max(found.memory) - found.memory[0]) / 2**20)
            most, took = max(most, *found.memory), found.seconds
    text = SESSIONS * each * tokens * width / 1e6
    return Line(
        "editor",
        "memory that grows while a client reads slowly",
        "MiB",
        statistics.median(grown),
        asked=8.0,
        bound="at most",
        note=f"{SESSIONS} sessions at once, {text:.0f} MB of text in {SESSIONS * each} turns, read at "
        f"{rate / 1e6:.1f} MB/s in {took:.0f} s, after many that were read at once; {most / 2**20:.0f} MiB at most",
    )


def _memory_of_an_answer(folder: Path, quick: bool) -> Line:
    """One long answer, read slowly and read at once.

    An answer is the output of its run, and in memory until the run ends, however it is read. That is shown, and what
    slow reading adds to it is asked.
    """
    count, width, rate = (200, 200, 1e6) if quick else (6000, 2000, 1.2e6)
    prompt = f"{count} {width} 20 0.002"
    slow: list[float] = []
    fast: list[float] = []
    longest = 0
    for at in range(1 if quick else 3):
        for kept, speed in ((fast, None), (slow, rate)):
            with started(_ours(folder, f"answer-{at}-{len(slow) + len(fast)}.db"), folder / "log") as client:
                session = client.sessions(1, folder)
                client.turns(session, 5, str(ANSWER), expected(ANSWER), ANSWER)
                before = memory_of(client.process.pid)
                found = client.turns(session, 1, prompt, expected(count, width), count, rate=speed)
                longest = max(longest, found.longest)
                kept.append((peak_of(client.process.pid) - before) / 2**20)
    return Line(
        "editor",
        "memory that slow reading adds to one long answer",
        "MiB",
        statistics.median(one - other for one, other in zip(slow, fast, strict=True)),
        asked=8.0,
        bound="at most",
        note=f"{count * width / 1e6:.0f} MB of text, read at {rate / 1e6:.1f} MB/s; in all the process grew by "
        f"{statistics.median(slow):.0f} MiB, and by {statistics.median(fast):.0f} MiB where it was read at once; "
        f"the longest message had {longest / 1e6:.1f} MB",
    )

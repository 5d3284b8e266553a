"""`python -m bench`: ours beside the ceiling. Ends with an error where an asked ratio is not reached."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from interlingua.store.sqlite.connection import connect

from . import bridge, deltas, editor, mcp_agents, memory, peer, runs, serving, teams
from .measure import RESULTS, Line, disk_folder, fsync_time, machine

BENCHMARKS: dict[str, Callable[[bool], Coroutine[Any, Any, list[Line]]]] = {
    "throughput": runs.throughput,
    "alone": runs.alone,
    "streaming": deltas.streaming,
    "joining": deltas.joining,
    "waiting": memory.waiting,
    "beside-cpu": runs.beside_cpu,
    "teams": teams.teams,
    "serving": serving.serving,
    "sse": serving.sse,
    "editor": editor.editor,
    "mcp": mcp_agents.mcp,
    "peer": peer.peer,
    "bridge": bridge.bridge,
}


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def table(lines: list[Line]) -> Table:
    made = Table("measured", "ours", "ceiling", "beside", "ratio", "asked", "")
    for column in (1, 2, 4, 5):
        made.columns[column].justify = "right"
    last = ""
    for line in lines:
        if last and line.bench != last:
            made.add_section()
        last = line.bench
        asked = "" if line.asked is None else f"{'≥' if line.bound == 'at least' else '≤'} {line.asked:g}"
        verdict = {None: "", True: "[green]reached", False: "[red bold]MISSED"}[line.reached]
        made.add_row(
            line.what + (f"\n[dim]{line.note}" if line.note else ""),
            f"{number(line.ours)} {line.unit}",
            "" if line.ceiling is None else number(line.ceiling),
            line.beside,
            "" if line.ratio is None else f"{line.ratio:.2f}",
            asked,
            verdict,
        )
    return made


def disk() -> dict[str, float]:
    """What the disk under all this can do, in milliseconds."""
    with disk_folder() as folder:
        conn = connect(folder / "raw.db")
        conn.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, body BLOB)")
        commits = []
        for _ in range(50):
            begun = time.perf_counter()
            conn.execute("INSERT INTO t (body) VALUES (?)", (bytes(500),))
            commits.append(time.perf_counter() - begun)
        conn.close()
        return {"fsync_ms": fsync_time(folder) * 1000, "commit_ms": statistics.median(commits) * 1000}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ours beside the ceiling, in the same run.")
    parser.add_argument("--quick", action="store_true", help="only see that everything works; the numbers mean nothing")
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), metavar="NAME", help=", ".join(BENCHMARKS))
    options = parser.parse_args()
    os.environ.setdefault("INTERLINGUA_PROJECT", "bench")  # stores outside of a project's folder need its name
    console = Console(width=None if sys.stdout.isatty() else 160)
    about = machine()
    pace = disk()
    console.print(
        f"{about['cores']} cores ({about['processor']}), Python {about['python']}, SQLite {about['sqlite']}; "
        f"fsync {pace['fsync_ms']:.2f} ms, commit {pace['commit_ms']:.2f} ms",
        highlight=False,
    )
    lines: list[Line] = []
    for name in options.only or BENCHMARKS:
        begun = time.perf_counter()
        lines += asyncio.run(BENCHMARKS[name](options.quick))
        console.print(f"[dim]{name}: {time.perf_counter() - begun:.0f} s", highlight=False)
    if options.quick:
        for line in lines:
            line.asked = None
    console.print(table(lines))
    if options.quick:
        console.print("quick: the numbers mean nothing, nothing was asked of them, and nothing was written")
        return 0
    missed = [line for line in lines if line.reached is False]
    now = datetime.datetime.now(datetime.UTC)
    report = {
        "time": now.isoformat(timespec="seconds"),
        "machine": about,
        "disk": pace,
        "lines": [{**msgspec.to_builtins(line), "ratio": line.ratio, "reached": line.reached} for line in lines],
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y-%m-%d-%H%M%S}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    console.print(f"written to {path.relative_to(RESULTS.parent.parent)}")
    for line in missed:
        measured = line.ours if line.ratio is None else line.ratio
        console.print(f"[red]{line.what}: {measured:.2f}, asked {line.bound} {line.asked:g}", highlight=False)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

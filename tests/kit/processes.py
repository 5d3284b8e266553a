"""Modules of the tests that run in processes of their own, and speak with a test in lines of JSON.

`say` is for the module, the rest for the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.kit import warm_python
from tests.kit.wait_for import wait_for

ROOT = Path(__file__).parents[2]


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def start(
    module: str, *args: object, program: str = sys.executable, stderr: int | None = None, **environment: str
) -> Process:
    """`python -m tests.MODULE ARGS`, with pipes for its input and output."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return await asyncio.create_subprocess_exec(
        program, "-m", f"tests.{module}", *map(str, args), stdin=PIPE, stdout=PIPE, stderr=stderr, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip


async def start_warm(module: str, *args: object, **environment: str) -> Process:
    """The same without the time that a Python needs to start, also for the tool servers that the module starts. Not for
    tests of how processes start."""
    python = warm_python.python()
    return await start(module, *args, program=python, **{warm_python.STARTED: python, **environment})


async def said(process: Process) -> Any:
    """The next line."""
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


def tell(process: Process, line: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())


async def end(process: Process, *, gently: bool = False) -> None:
    """Kill the process if it has not ended, or close its input and let it end by itself."""
    if process.returncode is None:
        if gently:
            assert process.stdin is not None
            process.stdin.close()
        else:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    await process.wait()
    process._transport.close()  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def ended(process: Process, *, gently: bool = False) -> AsyncIterator[Process]:
    try:
        yield process
    finally:
        await end(process, gently=gently)


def lives(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


async def wait_for_end(*pids: int) -> None:
    await wait_for(lambda: not any(map(lives, pids)), 30)

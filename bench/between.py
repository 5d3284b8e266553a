"""Two processes on one store: how long until the other one hears, by NATS and by looking at the file.

Not part of `python -m bench`, since it needs a NATS server: `python -m bench.between`.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import interlingua as il
from interlingua.model.events import OutputDelta
from interlingua.server.dev.local_nats import LocalNats

_TOKENS = 500
_PAUSE = 0.02
_ANSWERS = 100
_RARE, _QUIET = 10, 5.5  # seconds after which a process looks at the file less often
_SETTINGS = il.Settings(stall_warning=0)


@il.agent
async def ticks(n: int) -> AsyncIterator[str]:
    for _ in range(n):
        yield f"{time.time_ns()} "
        await asyncio.sleep(_PAUSE)


@il.agent(asks=[il.Confirm])
async def told(n: int, ctx: il.Context[None, None]) -> str:
    """Says when each answer reached it."""
    heard = []
    for number in range(n):
        await ctx.ask(il.Confirm(str(number)))
        heard.append(str(time.time_ns()))
        await ctx.thought(heard[-1])
    return " ".join(heard)


async def _work(store: str, bus: str | None) -> None:
    async with il.Engine(store, agents=[ticks, told], bus=bus, settings=_SETTINGS):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _tokens(engine: il.Engine) -> list[float]:
    run = await engine.runs.submit(il.RunRequest("ticks", input={"n": _TOKENS}))
    late = []
    async for event in engine.runs.events(run.id):
        if isinstance(event.body, OutputDelta):
            now = time.time_ns()
            late += [(now - int(said)) / 1e6 for said in event.body.delta["text"].split()]
    return late[10:]  # until it was listened to


async def _wakes(engine: il.Engine, count: int, pause: float) -> list[float]:
    run = await engine.runs.submit(il.RunRequest("told", input={"n": count}))
    sent = []
    for number in range(count):
        while True:
            view = await engine.runs.wait(run.id, settled=True, timeout=20)
            if view.questions and view.questions[0].payload["message"] == str(number):
                break
        await asyncio.sleep(pause)
        sent.append(time.time_ns())
        await engine.questions.answer(view.questions[0].id, {"approved": True})
    output = (await engine.runs.wait(run.id, timeout=20)).output
    heard = [int(at) for at in output["text"].split()]
    return [(there - here) / 1e6 for here, there in zip(sent, heard, strict=True)]


async def _measure(name: str, bus: str | None, folder: Path) -> None:
    store = folder / f"{name}.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.between", "work", str(store), bus or "",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        async with il.Engine(store, bus=bus, settings=_SETTINGS) as engine:
            for what, late in (
                ("token", await _tokens(engine)),
                ("answer", await _wakes(engine, _ANSWERS, 0.0)),
                ("answer after a pause", await _wakes(engine, _RARE, _QUIET)),
            ):
                late.sort()
                p50, p99 = statistics.median(late), late[int(len(late) * 0.99)]
                print(f"{name:>5}  {what:>20}  p50 {p50:7.2f} ms   p99 {p99:7.2f} ms   ({len(late)})", flush=True)
    finally:
        process.stdin.close()
        await process.wait()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = stack.enter_context(LocalNats(Path(folder) / "nats"))
        await _measure("file", None, Path(folder))
        await _measure("nats", server.url, Path(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        asyncio.run(_work(sys.argv[2], sys.argv[3] or None))
    else:
        asyncio.run(main())

"""A process that runs agents and does what it is told, one JSON line each way: the thing that is killed.

It answers a line only after the engine has acknowledged it. `python -m tests.faults.server STORE [PARK_AFTER]`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import interlingua as il
from tests.faults.agents import ALL
from tests.kit.processes import say


async def main() -> None:
    settings = il.Settings(
        park_after=float(sys.argv[2]) if len(sys.argv) > 2 else 0.05,
        sweep_every=0.05,
        shutdown_grace=1,
        stall_warning=0,
    )
    loop = asyncio.get_running_loop()
    async with il.Engine(sys.argv[1], agents=ALL, settings=settings) as engine:
        say("ready")
        tasks: set[asyncio.Task[None]] = set()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            task = loop.create_task(obey(engine, json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def obey(engine: il.Engine, order: dict[str, Any]) -> None:
    try:
        match order["do"]:
            case "submit":
                result: Any = (await engine.runs.submit(il.RunRequest(**order["request"]))).id
            case "answer":
                result = await engine.questions.answer(order["question"], {"approved": True})
            case "send":
                result = await engine.runs.send(order["run"], order["text"])
            case "questions":
                result = [question.id for question in await engine.questions.open(limit=50)]
        say({"tag": order["tag"], "ok": result})
    except il.InterlinguaError as error:
        say({"tag": order["tag"], "error": error.code})


if __name__ == "__main__":
    asyncio.run(main())

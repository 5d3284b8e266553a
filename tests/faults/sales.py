"""A process in which the example team works on one task, and which is killed: `python -m tests.faults.sales`.

    STORE FOLDER PARK_AFTER

It begins the task, or goes on with it, and tells every event once it is on disk, a line of JSON each. FOLDER holds the
team; its servers write down what they are called for in calls.log there.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import msgspec

import interlingua as il
from interlingua.engine.log.run_log import RunLog, Sealed
from interlingua.engine.runs.commit_fanout import CommitFanout
from interlingua.model.errors import Conflict
from interlingua.model.events import ToolCall
from tests.kit.processes import say

TASK = "Analyze last quarter's sales trends"
ANSWER = "By region."
LOG = "calls.log"


async def main() -> None:
    store, folder, park_after = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    made = il.team(folder)
    for name, server in made.team.servers.items():
        made.team.servers[name] = msgspec.structs.replace(server, env={**server.env, "CALLS_LOG": str(folder / LOG)})
    tell_commits()
    settings = il.Settings(park_after=park_after, sweep_every=0.05, shutdown_grace=1, stall_warning=0)
    async with il.Engine(store, agents=[made], settings=settings) as eng:
        run = await eng.runs.submit(il.RunRequest("sales-team", input={"text": TASK}, key="the task"))
        view = await eng.runs.wait(run.id, settled=True)
        for question in view.questions:
            with contextlib.suppress(Conflict):  # it was answered in the life before
                await eng.questions.answer(question.id, {"text": ANSWER})
        done = await eng.runs.wait(run.id)
        say({"ended": done.status.value, "run": run.id})


def tell_commits() -> None:
    before = CommitFanout.on_commit

    def on_commit(self: CommitFanout, log: RunLog, sealed: Sealed | None) -> None:
        before(self, log, sealed)
        for body in sealed.bodies if sealed is not None and log.lost is None else ():
            told: dict[str, Any] = {"agent": log.row.agent, "kind": type(body).__name__}
            if isinstance(body, ToolCall):
                told |= {"tool": body.tool, "status": body.status}
            say(told)

    CommitFanout.on_commit = on_commit  # type: ignore[method-assign]


if __name__ == "__main__":
    asyncio.run(main())

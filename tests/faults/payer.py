"""A process with an agent that must not be repeated: `python -m tests.faults.payer STORE EFFECTS WHAT`.

Each call of the agent is a line of the file EFFECTS. WHAT is the kind of life that it leads:

- `race`: it says that it is ready, submits all keys at once when a line comes, and tells the runs that it got, with how
  they ended.
- `die`: it submits one run, and is killed by the first call. The rest of the line says how: `plain`, `key`, `thread`,
  `sync` or `delay`.
- `flood`: it says that it is ready, submits more than its queue takes when a line comes, stops its engine meanwhile,
  and tells the runs that it got and the keys that were refused.
- `live`: it says that it is ready, and runs what there is until its input ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

import interlingua as il
from tests.faults.paying import agents
from tests.kit.processes import say

KEYS = 40
FLOOD = 400


def request(how: str) -> il.RunRequest:
    asked = il.RunRequest("pay_sync" if how == "sync" else "pay", input={"what": how})
    if how == "key":
        asked.key = "once"
    elif how == "thread":
        asked.thread, asked.create_thread = "t", True
    elif how == "delay":
        asked.delay = 0.05
    return asked


async def main() -> None:
    store, effects, what, *rest = sys.argv[1:]
    settings = il.Settings(sweep_every=0.05, shutdown_grace=1, stall_warning=0)
    if what == "flood":
        settings = msgspec.structs.replace(settings, max_running=2, max_pending=20)
    loop = asyncio.get_running_loop()
    async with il.Engine(store, agents=agents(Path(effects), dies=what == "die"), settings=settings) as engine:
        say("ready")
        if what == "die":
            await engine.runs.wait((await engine.runs.submit(request(*rest))).id)
        elif what == "flood":
            await loop.run_in_executor(None, sys.stdin.readline)
            await flood(engine)
        elif what == "live":
            await loop.run_in_executor(None, sys.stdin.read)
        else:
            await loop.run_in_executor(None, sys.stdin.readline)
            asked = (il.RunRequest("pay", input={"what": str(n)}, key=f"key {n}") for n in range(KEYS))
            made = [run.id for run in await asyncio.gather(*map(engine.runs.submit, asked))]
            say([[run, (await engine.runs.wait(run)).status] for run in made])
            await loop.run_in_executor(None, sys.stdin.readline)  # the others may wait for runs that are here


async def flood(engine: il.Engine) -> None:
    made, refused = dict[str, str](), list[str]()

    async def submit(key: str) -> None:
        try:
            made[key] = (await engine.runs.submit(il.RunRequest("pay", input={"what": key}))).id
        except il.InterlinguaError:
            refused.append(key)

    async with asyncio.TaskGroup() as tasks:
        for n in range(FLOOD):
            tasks.create_task(submit(str(n)))
            if n % 20 == 19:
                await asyncio.sleep(0.005)
            if n == FLOOD * 3 // 4:
                tasks.create_task(engine.stop())
    say([made, refused])


if __name__ == "__main__":
    asyncio.run(main())

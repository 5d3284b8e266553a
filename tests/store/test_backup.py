"""A backup that is made while runs go on is a whole store."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

import interlingua as il
from interlingua.server.dev.local_servers import postgres_programs
from interlingua.store.integrity import check_logs, counts
from interlingua.store.postgres.store import PostgresStore

pytestmark = pytest.mark.cluster


@il.agent
async def work(n: int = 20) -> str:
    for _ in range(n):
        await asyncio.sleep(0.001)
    return "done"


async def tool(*words: str) -> None:
    program = str(postgres_programs() / words[0])
    done = await asyncio.to_thread(subprocess.run, [program, *words[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_a_dump_of_a_database_in_use_is_restored_as_a_whole_store(tmp_path: Path, postgres: str) -> None:
    file, restored = tmp_path / "backup", postgres.rpartition("/")[0] + "/restored"
    async with il.Engine(f"{postgres}?schema=backup", agents=[work]) as engine:
        over = asyncio.Event()
        done: list[str] = []

        async def busy() -> None:
            while not over.is_set():
                run = await engine.runs.submit(il.RunRequest("work"))
                await engine.runs.wait(run.id)
                done.append(run.id)

        tasks = [asyncio.create_task(busy()) for _ in range(8)]
        while len(done) < 40:
            await asyncio.sleep(0)
        before = len(done)
        await tool("pg_dump", "--format=custom", "--schema=backup", f"--file={file}", postgres)
        over.set()
        await asyncio.gather(*tasks)
    await tool("createdb", f"--maintenance-db={postgres}", "restored")
    await tool("pg_restore", f"--dbname={restored}", "--exit-on-error", str(file))
    store = PostgresStore(f"{restored}?schema=backup")
    await store.open()
    try:
        assert await check_logs(store, None) == []
        found = await counts(store)
        assert before <= found.runs["succeeded"] <= len(done)
    finally:
        await store.close()
    async with il.Engine(f"{restored}?schema=backup", agents=[work]) as engine:  # what was under way then is ended now
        async with asyncio.timeout(60):
            while (await counts(engine.core.store)).runs.keys() != {"succeeded"}:  # type: ignore[arg-type]
                await asyncio.sleep(0.05)

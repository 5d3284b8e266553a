"""A SQLite file that is removed or replaced under a process: it is noticed, and nothing more is accepted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import interlingua as il
from interlingua.model.errors import StoreError
from interlingua.server.health import Probes
from tests.kit.engines import QUICK, engine, finish, parked, submit
from tests.kit.wait_for import wait_for


@il.agent
async def echo(text: str) -> str:
    return text


@il.agent
async def receives(ctx: il.Context[None, None]) -> str:
    return (await ctx.receive()).text


def remove(store: Path) -> None:
    store.unlink()


def replace(store: Path) -> None:
    copy = store.with_name("copy.db")
    shutil.copy(store, copy)
    copy.replace(store)


@pytest.mark.parametrize("harm", [remove, replace])
async def test_a_file_that_is_removed_or_replaced_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: object
) -> None:
    store = tmp_path / "store.db"
    async with engine(store, echo, receives, settings=QUICK) as eng:
        probes = Probes(eng)
        assert (await finish(eng, "echo", {"text": "hello"})).output == {"text": "hello"}
        waits = await submit(eng, "receives")
        await parked(eng, waits.id)
        assert (await probes.readyz()).status_code == 200
        kept = store.with_name("kept.db")
        kept.hardlink_to(store)

        harm(store)  # type: ignore[operator]
        answer = await probes.readyz()
        assert answer.status_code == 503
        assert b"store file" in answer.body
        with pytest.raises(StoreError, match=r"store\.db (is gone|was replaced)") as refused:
            await submit(eng, "echo", {"text": "lost"}, key="k")
        assert str(tmp_path) not in refused.value.info().message  # what callers are told
        with pytest.raises(StoreError):
            await eng.runs.send(waits.id, "lost")
        await wait_for(lambda: any(r.levelname == "ERROR" and "store.db" in r.message for r in caplog.records))

        kept.replace(store)
        assert (await probes.readyz()).status_code == 200
        assert (await finish(eng, "echo", {"text": "again"}, key="k")).output == {"text": "again"}
        await eng.runs.send(waits.id, "found")
        assert (await eng.runs.wait(waits.id, timeout=20)).output == {"text": "found"}


async def test_a_file_that_was_replaced_gets_nothing_from_a_process_that_stops(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    eng = engine(store, receives)
    await eng.start()
    await submit(eng, "receives")
    remove(store)
    with pytest.raises(StoreError):
        await eng.stop()
    assert not store.exists()

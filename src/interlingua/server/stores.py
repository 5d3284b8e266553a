"""Opens, migrates and checks stores without an engine. No other module of server and cli imports the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.errors import StoreError
from ..store.open import CannotOpen as CannotOpen
from ..store.open import is_postgres as is_postgres
from ..store.open import migrate as migrate
from ..store.open import open_store as open_store
from ..store.open import shown as shown
from ..store.ports import Store as Store

if TYPE_CHECKING:
    from ..store.integrity import Counts as Counts
    from ..store.integrity import Damage as Damage
    from ..store.schema import Plan

Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Shows how many of so many runs were checked."""


def never_opened(path: Path) -> Store:
    """Returns a store that stands for one that cannot be opened."""
    from ..store.sqlite.store import SQLiteStore

    return SQLiteStore(path)


def refuse_beside_others(where: str, plan: Plan) -> None:
    """Raises Conflict where processes that work as before are alive, and a step of the plan must be alone."""
    from ..store import schema

    schema.refuse_beside_others(where, plan)


async def check(where: Path, sample: int | None, progress: Progress) -> tuple[Counts | None, int, list[Damage]]:
    """Checks a store: all runs, or a sample. Returns what it holds, how many runs were checked, and what is damaged."""
    from ..store.integrity import Damage, check_logs, counts
    from ..store.sql.store import SqlStore
    from ..store.sqlite.store import SQLiteStore

    opened = open_store(where)
    assert isinstance(opened, SqlStore)
    found, checked, damage = None, 0, list[Damage]()
    await opened.open()
    try:
        if isinstance(opened, SQLiteStore):
            damage += [Damage(f"SQLite: {text}") for text in await opened.damaged_pages(thorough=sample is None)]
        found = await counts(opened)
        with progress(found.all_runs if sample is None else min(sample, found.all_runs)) as show:

            def tell(done: int) -> None:
                nonlocal checked
                checked = done
                show(done)

            damage += await check_logs(opened, sample, tell)
    except StoreError as error:  # a database that cannot even be read
        damage.append(Damage(str(error)))
    finally:
        await opened.close()
    return found, checked, damage

"""Commands that only look: nothing of the store changes, no worker enters, and a read-only folder is enough."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.commands import COMMAND, Result, store_of
from tests.kit.databases import sql

from ..store.test_read_only import content
from .conftest import ZOO

Cli = Callable[..., Result]

LOOKING = (
    ("runs", "list"), ("runs", "list", "--json"), ("runs", "list", "--blocked"), ("runs", "show", "last"),
    ("runs", "follow", "last"), ("threads", "list"), ("threads", "show", "trip"), ("threads", "history", "trip"),
    ("questions", "list", "--all"), ("questions", "show", "{question}"), ("callbacks", "list"), ("keys", "list"),
    ("workers",), ("audit", "tree", "last"), ("audit", "export", "last", "--output", "-"),
)  # fmt: skip


def fill(cli: Cli) -> str:
    """Puts a question, a thread and a key into the store. Returns the question."""
    cli("keys", "add", "laptop")
    assert cli("run", f"{ZOO}:confirm", "--no-input", "hi").code == 4
    (question,) = cli("questions", "list", "--json").json
    assert cli("run", f"{ZOO}:remember", "--thread", "trip", "hi").code == 0
    return str(question["id"])


def test_looking_changes_nothing(here: Cli, env: dict[str, str]) -> None:
    question = fill(here)
    here("audit", "export", "last", "--output", "-")  # makes the key that exports are signed with
    store = store_of(env)
    before = changes(store)
    for command in LOOKING:
        done = here(*(part.format(question=question) for part in command))
        assert done.code == 0, (command, done.err)
        assert changes(store) == before, command


def changes(store: Path | str) -> Any:
    """Everything that a store holds. An empty journal, which SQLite leaves to the next writer, is nothing."""
    held = content(store)
    if isinstance(store, Path):
        journal = Path(f"{store}-wal")
        if journal.exists() and not journal.stat().st_size:
            held[1].remove(journal.name)
        locks = Path(f"{store}.workers")
        return held, sorted(path.name for path in locks.iterdir()) if locks.exists() else []
    return held


@pytest.mark.skipif(not hasattr(os, "geteuid") or shutil.which("unshare") is None, reason="needs Linux")
@pytest.mark.usefixtures("in_a_file")
def test_a_store_in_a_read_only_folder_is_listed(cli: Cli, env: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    env["INTERLINGUA_STORE"] = str(folder / "store.db")
    assert cli("run", f"{ZOO}:shout", "hi").code == 0
    command = [*COMMAND, "runs", "list"]
    if os.geteuid():
        folder.chmod(0o500)
    else:  # nothing is forbidden to root but by the file system
        inner = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", inner, str(folder), *command]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    finally:
        folder.chmod(0o700)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "shout" in done.stdout


def test_looking_hands_back_no_run_of_a_dead_worker(here: Cli, env: dict[str, str]) -> None:
    fill(here)
    store = store_of(env)
    sql(store, "UPDATE runs SET worker='dead', wake_at=NULL, status='running' WHERE status='waiting'")
    before = changes(store)
    listed = here("runs", "list", "--json", "--status", "running").json
    assert [run["status"] for run in listed] == ["running"]
    assert here("runs", "show", listed[0]["id"]).code == 0
    assert changes(store) == before

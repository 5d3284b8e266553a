"""Coroutine tests run in an event loop of their own; every engine in them is closed by the test itself.

Also what keeps a suite of thousands of servers and hundreds of processes short: servers that notice at once that they
should end, and processes that share what the first one compiled. It changes nothing of what is tested.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


async def _sooner(delay: float) -> None:
    await asyncio.sleep(delay / 10)


def pytest_runtest_setup() -> None:
    """uvicorn looks ten times a second whether it should end, and then whether its connections have: most of the time
    of tests that start a server was that. Nothing else in its module sleeps."""
    server = sys.modules.get("uvicorn.server")
    if server is not None and server.asyncio is asyncio:
        vars(server)["asyncio"] = SimpleNamespace(**{**vars(asyncio), "sleep": _sooner})


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hundreds of processes start here: they share what the first one compiled, also where nothing may be written."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of all workers
    os.environ["SESSION_FOLDER"] = str(folder)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "pycache")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"

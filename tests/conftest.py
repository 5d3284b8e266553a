"""Coroutine tests run in an event loop of their own; every engine in them is closed by the test itself.

Also what keeps a suite of thousands of stores and servers and hundreds of processes short: files in memory, servers
that notice at once that they should end, and processes that start with less to do. It changes nothing of
what is tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import interlingua
from interlingua.server.paths import VARIABLE
from interlingua.server.project import VARIABLE as PROJECT
from interlingua.tools import servers

from .kit import examples, ready_stores, warm_python
from .kit.postgres import SWITCH, begin, forget, fresh, postgres

__all__ = ["postgres"]

pytest_plugins = ["tests.kit.commands", "tests.kit.terminal"]

_ROOT = Path(__file__).resolve().parents[1]
_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30  # bytes that must be free there; a run of everything needs a part of it

examples.register()
ready_stores.begin()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Every commit waits for the disk, and most tests make a store: that would take longer than the tests themselves.
    So files are in memory where there is room, unless somebody says where they shall be (TMPDIR, --basetemp)."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if (
            signal.getsignal(number) is signal.SIG_IGN
        ):  # `nohup` and `&` set that, and every process started here inherits it
            signal.signal(number, handler)
    os.environ.pop(VARIABLE, None)  # what somebody has set up for themselves is not what is tested
    os.environ[PROJECT] = "tests"  # processes that are started here have stores at any place
    begin(config)
    if hasattr(config, "workerinput") or config.option.basetemp or "TMPDIR" in os.environ:
        return
    if not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _ROOM:
        return
    for left in _MEMORY.glob("il-[0-9]*"):  # by a run that failed
        if not Path("/proc", left.name.removeprefix("il-")).exists():
            shutil.rmtree(left, ignore_errors=True)
    config.stash[_OURS] = folder = _MEMORY / f"il-{os.getpid()}"
    folder.mkdir(mode=0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.option.basetemp = str(folder / "t")


@pytest.hookimpl(tryfirst=True)  # before the workers start
def pytest_sessionstart(session: pytest.Session) -> None:
    worker = getattr(session.config, "workerinput", None)
    if worker is not None:
        _read_from_another_place(session.config.args, worker)
    elif getattr(session.config.option, "numprocesses", None):
        warm_python.for_all_workers()


def _read_from_another_place(args: list[str], worker: dict[str, Any]) -> None:
    """Workers that read all tests side by side would each compile all of them, where nobody has yet. So each begins at
    another file, and finds compiled what the others have read before. What cannot be imported is told when it is
    collected."""
    files = sorted(file for arg in args if Path(arg).is_dir() for file in Path(arg).resolve().rglob("test_*.py"))
    place = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as when they are collected
        for file in files[place:] + files[:place]:
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(".".join(file.relative_to(_ROOT).with_suffix("").parts))


_OURS = pytest.StashKey[Path]()


def pytest_collection_finish() -> None:
    """Thousands of tests stay in memory to the end: whoever collects garbage need not look at them again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    folder = session.config.stash.get(_OURS, None)
    if folder is not None and exitstatus != pytest.ExitCode.TESTS_FAILED:  # what failed can be looked at
        shutil.rmtree(folder, ignore_errors=True)


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
def _quick_processes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> None:
    """Hundreds of processes start here: they share what the first one compiled, also where nothing may be written. And
    none of them, nor a server or client in this one, reads the long list of authorities that the system trusts: nobody
    here calls anybody outside, but those of `make interop`."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of all workers
    os.environ["SESSION_FOLDER"] = str(folder)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) or not os.access(interlingua.__path__[0], os.W_OK):
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "pycache")
    if request.config.option.markexpr != "interop":
        os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "kit" / "authority.pem")  # of nobody: its key is lost


@pytest.fixture
def quick_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tool servers whose command is `python` start at once, here and in processes of the command line; so do the
    servers of a demo there."""
    program = warm_python.python()
    monkeypatch.setenv(warm_python.STARTED, program)
    monkeypatch.setattr(servers, "sys", warm_python.standing_for(program))


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    """Where a new store is: in a file, or where INTERLINGUA_TEST_STORE says."""
    if SWITCH not in os.environ:
        yield tmp_path / "store.db"
        return
    where = fresh(request.getfixturevalue("postgres"))
    yield where
    forget(where)

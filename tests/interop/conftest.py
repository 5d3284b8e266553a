"""Environments with the published clients and agents that ours are tried with. Made once, kept in a cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

EDITOR_PYPI = ("agent-client-protocol[http]==0.12.1", "uvicorn==0.54.0")  # uvicorn runs the SDK's own HTTP server
MCP_ACP_PYPI = ("acp-sdk==0.0.6", "pydantic==2.13.5")  # it breaks with pydantic 2.14
EDITOR_NPM = ("@agentclientprotocol/sdk@2.4.0", "zod@4.6.7", "ws@8.22.2")  # Node.js 20 has no WebSocket of its own

# Agents of hundreds of megabytes are tried only where somebody asks for it.
collect_ignore = ["test_editor_coding_agent.py", "test_conform_coding_agent.py"]
if os.environ.get("INTERLINGUA_INTEROP_AGENTS") == "1":
    collect_ignore.clear()


@pytest.fixture(scope="session")
def acp_sdk() -> Path:
    """The Python of a virtualenv that has the SDK `agntcy-acp` 1.5.2, whose pins would clash with ours."""
    return _virtualenv("agntcy-acp==1.5.2")


@pytest.fixture(scope="session")
def mcp_acp_sdk() -> Path:
    """The Python of a virtualenv that has the SDK `acp-sdk` 0.0.6: agents over MCP, as they were published."""
    return _virtualenv(*MCP_ACP_PYPI)


@pytest.fixture(scope="session")
def mcp_sdk() -> Path:
    """The Python of a virtualenv that has the SDK `mcp` 2.3.0."""
    return _virtualenv("mcp==2.3.0")


@pytest.fixture(scope="session")
def fastmcp() -> Path:
    """The Python of a virtualenv that has PyPI `fastmcp` 4.1.2."""
    return _virtualenv("fastmcp==4.1.2")


@pytest.fixture(scope="session")
def editor_pypi() -> Path:
    """The Python of a virtualenv that has the SDK `agent-client-protocol` 0.12.1."""
    return _virtualenv(*EDITOR_PYPI)


@pytest.fixture(scope="session")
def editor_npm() -> Path:
    """A folder with the SDK `@agentclientprotocol/sdk` 2.4.0, and with our scripts that use it."""
    folder = npm_packages(*EDITOR_NPM)
    for script in Path(__file__).parent.glob("editor_*.mjs"):  # modules are looked up from where a script lies
        fresh = folder / f"{script.name}.{os.getpid()}"
        shutil.copyfile(script, fresh)
        fresh.replace(folder / script.name)
    return folder


def _virtualenv(*requirements: str) -> Path:
    with _cached("-".join(requirement.replace("==", "-") for requirement in requirements)) as (folder, made):
        python = folder / "bin" / "python"
        if not made:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
    return python


def npm_packages(*packages: str) -> Path:
    """A folder in whose node_modules these are. Node.js belongs to the machine, and without it the tests fail."""
    assert shutil.which("node"), "these tests need Node.js 20 or later (node and npm) on the PATH"
    with _cached("npm-" + "-".join(package.lstrip("@").replace("/", "-") for package in packages)) as (folder, made):
        if not made:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--loglevel=error", *packages]
            (folder / "package.json").write_text('{"private": true}')
            subprocess.run(command, cwd=folder, check=True)
    return folder


@contextlib.contextmanager
def _cached(name: str) -> Iterator[tuple[Path, bool]]:
    """A folder of the cache, and whether what belongs into it is there; where it is not, the caller makes it."""
    default = Path(tempfile.gettempdir()) / f"interlingua-interop-{os.getuid()}"
    cache = Path(os.environ.get("INTERLINGUA_INTEROP_CACHE") or default)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = cache / name
    ready = folder / ".ready"
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test workers want it at once
        made = ready.exists()
        yield folder, made
        if not made:
            ready.touch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Here a test that is skipped has failed: whatever it lacks, nothing was tried."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("interop") is not None:
        report.outcome = "failed"
    return report


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop: tries ours with published clients and agents, by `make interop`")

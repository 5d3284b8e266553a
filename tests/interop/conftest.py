"""Virtualenvs with the published clients that our doors are tried with. Made once, then kept in a cache folder."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def acp_sdk() -> Path:
    """The Python of a virtualenv that has the SDK `agntcy-acp` 1.5.2, whose pins would clash with ours."""
    return _virtualenv("agntcy-acp==1.5.2")


def _virtualenv(*requirements: str) -> Path:
    default = Path(tempfile.gettempdir()) / f"interlingua-interop-{os.getuid()}"
    cache = Path(os.environ.get("INTERLINGUA_INTEROP_CACHE") or default)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = cache / "-".join(requirement.replace("==", "-") for requirement in requirements)
    python, ready = folder / "bin" / "python", folder / ".ready"
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test workers want it at once
        if not ready.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
            ready.touch()
    return python


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop: tries our doors with published clients, started by `make interop`")

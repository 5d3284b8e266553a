"""Published packages that ours is measured beside, each in a virtualenv of its own: their pins would clash with ours.

Made once, then kept in the folder that the interop tests use too.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path


class NoPeer(RuntimeError):
    """The package is not here and cannot be fetched. Says why."""


def virtualenv(*requirements: str, make: bool = True) -> Path:
    """The Python of a virtualenv that has these packages. `make=False`: only if it is there already."""
    default = Path(tempfile.gettempdir()) / f"interlingua-interop-{os.getuid()}"
    cache = Path(os.environ.get("INTERLINGUA_INTEROP_CACHE") or default)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = cache / "-".join(requirement.replace("==", "-") for requirement in requirements)
    python, ready = folder / "bin" / "python", folder / ".ready"
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the interop tests may want it at the same moment
        if not ready.exists():
            if not make:
                raise NoPeer(f"{' and '.join(requirements)} is not installed in {folder}; a full run installs it")
            for command in (
                [sys.executable, "-m", "venv", "--clear", str(folder)],
                [str(python), "-m", "pip", "install", "--quiet", *requirements],
            ):
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    said = (done.stderr or done.stdout).strip().splitlines()
                    raise NoPeer(f"{' '.join(command)} failed: {said[-1] if said else done.returncode}")
            ready.touch()
    return python

"""The benchmarks still run. What they find is for `make bench`, on a quiet machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_benchmark_runs() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("durable runs", "p50 of a whole run", "through one run", "one array", "waits", "in a process"):
        assert name in done.stdout

"""Memory that a server process returns to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os
from pathlib import Path
from interlingua.server.heap import return_large_blocks

def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

return_large_blocks()
bytes(20_000_000)  # once such a block is freed, the C library would keep smaller ones
before, blocks, between = memory(), [], []
for number in range(200):
    blocks.append(b"x" * 1_000_000)
    between.append(b"y" * 5_000)
blocks.clear()
print(memory() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is looked up in /proc")
def test_large_blocks_between_small_ones_go_back_to_the_system() -> None:
    left = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert int(left.stdout) < 30_000_000

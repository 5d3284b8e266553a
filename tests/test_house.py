"""tools/house.py: the figures of a small package, and the gate that refuses worse ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "house.py"

LEFT = '''"""Which side this is."""
from . import right


class Base:
    def a(self): ...
    def b(self): ...


def tangled(x):
    """Counts."""
    if x and x > 1:
        return [y for y in x if y]
    return engine.store
'''
RIGHT = '''"""The other side."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from .left import Base


class Small(Base):
    def b(self): ...
    def c(self): ...
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    package = tmp_path / "src" / "interlingua" / "protocols"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "left.py").write_text(LEFT)
    (package / "right.py").write_text(RIGHT)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "house.json").write_text(json.dumps({"figures": {}, "unclear names": ["right"]}))
    return tmp_path


def house(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TOOL, root, *arguments], capture_output=True, text=True, check=False)


def test_the_figures_of_a_package(root: Path) -> None:
    assert house(root, "--record").returncode == 0
    figures = json.loads((root / "tools" / "house.json").read_text())["figures"]
    assert figures["methods of the largest class"] == 3  # inherited ones count, a method that replaces one does not
    assert figures["modules in the largest import cycle"] == 2  # a typing import counts
    assert figures["protocols that use engine.store or engine.worker"] == 1
    assert figures["files with unclear names"] == 1
    assert figures["docstrings that open with a question word"] == 1


def test_a_figure_that_got_worse_is_refused_and_says_where(root: Path) -> None:
    house(root, "--record")
    assert house(root, "--check").returncode == 0
    left = root / "src" / "interlingua" / "protocols" / "left.py"
    left.write_text(left.read_text() + "\n\ndef again():\n    '''How it goes.'''\n    return engine.worker\n")
    refused = house(root, "--check")
    assert refused.returncode == 1
    assert "uses of engine.store or engine.worker outside the engine: 2, recorded: 1" in refused.stderr
    assert "interlingua.protocols.left.again: How it goes." in refused.stderr


def test_a_figure_that_is_not_recorded_is_refused(root: Path) -> None:
    refused = house(root, "--check")
    assert refused.returncode == 1
    assert "no figure is recorded" in refused.stderr

"""Finds the example agents: inside an installed package, or beside the sources of a checkout."""

from __future__ import annotations

from pathlib import Path

from ..model.errors import NotFound


def example(name: str) -> Path:
    """The file of an example agent."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "examples", package.parent.parent / "examples"):
        file = folder / f"{name}.py"
        if file.is_file():
            return file
    raise NotFound(f"the example {name}.py is not installed beside {package}")

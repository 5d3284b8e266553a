"""Prints what to install for development: the project's dependencies and its dev group. Needs nothing but Python."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path(__file__).parent.parent.joinpath("pyproject.toml").read_text())
print(" ".join([*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]))

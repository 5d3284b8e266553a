"""Loads a Python file and finds the agents in it."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from ..engine.agents import Agent
from ..model.errors import DefinitionError
from .targets import TargetError


def agents_of_file(file: str | Path) -> list[Agent[..., Any]]:
    """Every agent at the top of a file, in the order of definition. The file is run afresh each time."""
    path = Path(file).expanduser()
    if not path.exists():
        raise TargetError(f"there is no file {path}", hint=_near(path))
    if path.is_dir():
        files = sorted(file.name for file in path.glob("*.py"))
        raise TargetError(
            f"{path} is a folder, and a target is a Python file",
            hint=f"it holds {', '.join(files[:5])}" if files else "",
        )
    module = _run(path)
    agents: list[Agent[..., Any]] = []
    for value in vars(module).values():
        if isinstance(value, Agent) and not any(value is agent for agent in agents):
            agents.append(value)
    if not agents:
        raise TargetError(
            f"there is no agent in {path}",
            hint="an agent is a function with @interlingua.agent above it, at the top level of the file",
        )
    return agents


def _run(path: Path) -> ModuleType:
    path = path.resolve()
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is not a Python file", hint="the name of a Python file ends in .py")
    module = importlib.util.module_from_spec(spec)
    # As for a script: its folder comes first, and stays, because agents import when they run as well.
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        raise _failure(path, error) from error
    return module


def _module_name(path: Path) -> str:
    """The file's own name, so that its worker processes can import it, unless that name is taken."""
    known = sys.modules.get(path.stem)
    taken = known is not None and getattr(known, "__file__", None) != str(path)
    if taken or path.stem in sys.stdlib_module_names or not path.stem.isidentifier():
        return f"interlingua_file_{path.stem}"
    return path.stem


def _failure(path: Path, error: BaseException) -> TargetError:
    if isinstance(error, DefinitionError):
        return TargetError(f"{path} does not load: {error.message}")
    if isinstance(error, SyntaxError) and error.filename is not None:
        lines = traceback.format_exception_only(error)
        return TargetError(f"{path} does not load:\n{''.join(lines).rstrip()}")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)] or frames
    at = own[-1]
    shown = [f'  File "{at.filename}", line {at.lineno}, in {at.name}']
    if at.line:
        shown.append(f"    {at.line.strip()}")
    shown.extend(line.rstrip() for line in traceback.format_exception_only(error))
    what = "ends the program while it loads" if isinstance(error, SystemExit) else "does not load"
    return TargetError(f"{path} {what}:\n" + "\n".join(shown), hint="--debug shows the whole traceback")


def _near(path: Path) -> str:
    import difflib

    folder = path.parent
    names = [file.name for file in folder.glob("*.py")] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, 1)
    return f"did you mean {folder / close[0] if str(folder) != '.' else close[0]}?" if close else ""

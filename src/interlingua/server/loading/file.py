"""Loads a Python file and finds the agents in it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import linecache
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ...engine.agents.agent import Agent
from ...engine.handler.process_exits import is_signal
from ...model.errors import DefinitionError
from ...model.run_identity import file_source
from ...protocols.targets import TargetError
from ..project import find_root

_OWN = "interlingua_file_"  # before the names of modules that are agents' files, where their own is taken


def agents_of_file(file: str | Path, root: Path | None = None) -> list[Agent[..., Any]]:
    """Returns every agent at the top of a file, in the order of definition. Runs the file afresh each time.

    Objects of an earlier run of the file stay as they were: runs under way go on with them. The file is the source of
    its agents, named relative to `root`, the folder of their project; that is found from the file's folder if None.
    """
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
    source = file_source(path, root or find_root(path))
    for agent in agents:
        if agent.source.startswith("module:"):  # else it came here out of another file, or is a team
            agent.source = source
    return agents


def _run(path: Path) -> ModuleType:
    path = path.resolve()
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is not a Python file", hint="the name of a Python file ends in .py")
    module = importlib.util.module_from_spec(spec)
    again = any(getattr(known, "__file__", None) == str(path) for known in list(sys.modules.values()))
    # As for a script: its folder comes first, and stays, because agents import when they run as well.
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        if again:
            # Not by the loader: it takes what it compiled before for the same where size and second are the same. Nor
            # shall a worker process, which imports the file by its name.
            linecache.checkcache(str(path))
            with contextlib.suppress(NotImplementedError):
                Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
            exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)  # noqa: S102
        else:
            spec.loader.exec_module(module)
    except BaseException as error:
        if is_signal(error):
            raise
        sys.modules.pop(name, None)
        raise _failure(path, error) from error
    return module


def _module_name(path: Path) -> str:
    """The file's own name, so that its worker processes can import it, unless that name is taken."""
    if path.stem.isidentifier() and path.stem not in sys.stdlib_module_names and path.stem not in sys.modules:
        return path.stem
    names = (f"{_OWN}{path.stem}" if number == 1 else f"{_OWN}{path.stem}_{number}" for number in itertools.count(1))
    return next(name for name in names if name not in sys.modules)


def forget_modules(modules: Mapping[str, Path]) -> None:
    """Removes imported modules, so that the next import runs them anew."""
    for name, path in modules.items():
        module = sys.modules.get(name)
        if module is None or getattr(module, "__file__", None) != str(path):
            continue  # another one of that name
        del sys.modules[name]
        cached = getattr(module, "__cached__", None)
        if isinstance(cached, str):  # made in the same second, it would count as new
            Path(cached).unlink(missing_ok=True)
    importlib.invalidate_caches()


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

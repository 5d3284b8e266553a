"""The main program of a worker process: reads an order, runs the agent, writes its output."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

from ...model import json_values
from ...model.errors import InvalidInput, InvalidOutput
from ...model.whole_text import PairJoiner, whole
from ..error_text import describe
from .agent import Agent

_HEAD = struct.Struct("!I")
_loaded: dict[tuple[str, str], Agent[..., Any]] = {}


def main() -> None:
    if len(sys.argv) > 1:
        _die_with(int(sys.argv[1]))
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the agent's prints must not mix with our messages
    while True:
        head = source.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return
        order = json_values.decode(source.read(_HEAD.unpack(head)[0]))
        try:
            _send(sink, {"output": _run(order, sink)})
        except BaseException as error:  # sys.exit ends the run, not the process
            info = describe(error)
            _send(
                sink,
                {
                    "error": {
                        "code": info.code,
                        "message": whole(info.message),
                        "transient": info.transient,
                    }
                },
            )


_PR_SET_PDEATHSIG = 1


def _die_with(parent: int) -> None:
    """Asks the system to kill this process when its parent dies. (A guard process kills its children.)"""
    if sys.platform == "linux":
        import ctypes
        import signal

        with contextlib.suppress(OSError, AttributeError):  # prctl is missing: the guard process does it
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before
        os._exit(1)


def _run(order: dict[str, Any], sink: BinaryIO) -> Any:
    agent = _load(order["file"], order["module"], order["name"])
    assert agent.output is not None
    assert agent.params is not None
    result = agent.fn(**agent.params.decode(order["input"], InvalidInput))
    pieces = PairJoiner()  # halves of characters cannot be written to the pipe
    if agent.shape == "sync_generator":
        while True:
            try:
                item = next(result)
            except StopIteration as stop:
                result = stop.value
                break
            delta = agent.output.encode(item)
            if json_values.check(delta, InvalidOutput, what="output", halves=True) or pieces.holds:
                delta = pieces.add(delta)
            _send(sink, {"delta": delta})
        if pieces.holds:
            _send(sink, {"delta": pieces.end()})
    if result is None:
        return None
    return json_values.clean(agent.output.encode(result), InvalidOutput, what="output")


def _load(file: str, module: str, name: str) -> Agent[..., Any]:
    file = str(Path(file).resolve())
    agent_ = _loaded.get((file, name))
    if agent_ is None:
        spec = None
        if module != "__main__":
            try:
                spec = importlib.util.find_spec(module)
            except (ImportError, ValueError):
                spec = None
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == Path(file):
            loaded = importlib.import_module(module)
        else:
            spec = importlib.util.spec_from_file_location("interlingua_agent_file", file)
            assert spec is not None
            assert spec.loader is not None
            loaded = importlib.util.module_from_spec(spec)
            sys.modules["interlingua_agent_file"] = loaded
            spec.loader.exec_module(loaded)
        agent_ = _loaded[(file, name)] = getattr(loaded, name)
    return agent_


def _send(sink: BinaryIO, message: Any) -> None:
    data = json_values.encode(message)
    sink.write(_HEAD.pack(len(data)) + data)
    sink.flush()


if __name__ == "__main__":
    main()
